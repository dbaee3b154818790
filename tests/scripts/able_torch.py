"""What needs torch, which the script has imported."""

import os
import re
import signal

from able import torch_probe
from able_torch_processes import Squares


@torch_probe
def thread_counts():
    import torch

    first = [torch.get_num_threads(), torch.get_num_interop_threads()]
    torch.set_num_interop_threads(2)
    torch.set_num_threads(2)
    before = len(os.listdir("/proc/self/task"))
    a = torch.ones(700, 700)
    for _ in range(3):
        a = (a @ a / 700).exp().log()
    started = len(os.listdir("/proc/self/task")) - before
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        torch.set_num_threads(1)
        os._exit(int(torch.ones(3).sum().item()))
    return [
        first,
        torch.get_num_interop_threads(),
        torch.get_num_threads(),
        started,
        os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]),
        os.environ.get("OMP_NUM_THREADS"),
    ]


@torch_probe
def configuration():
    import torch

    return [
        torch.__config__.parallel_info(),
        torch.__config__.show(),
        torch.get_default_dtype(),
        torch.backends.mkldnn.is_available(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.multiprocessing.get_sharing_strategy(),
        torch.hub.get_dir(),
        torch.backends.cudnn.enabled,
        torch.get_flush_denormal() if hasattr(torch, "get_flush_denormal") else 0,
        torch.is_inference_mode_enabled(),
    ]


@torch_probe
def accelerators():
    import torch

    found = [
        torch.cuda.is_available(),
        torch.cuda.device_count(),
        torch.cuda._is_in_bad_fork(),
        torch.xpu._is_in_bad_fork(),
        torch.accelerator.is_available(),
        torch.cuda.is_initialized(),
    ]
    try:
        torch.ones(1, device="cuda")
    except Exception as error:
        found.append(str(error).splitlines()[0])
    return found


@torch_probe
def profiled_by_torch():
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    with (
        profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True) as profiler,
        record_function("mine"),
    ):
        torch.ones(8, 8) @ torch.ones(8, 8)
    path = os.environ["ABLE_OUT"] + f"/trace{os.environ['RANK']}.json"
    profiler.export_chrome_trace(path)
    names = sorted(event.key for event in profiler.key_averages())
    return [names, os.path.getsize(path) > 1000]


EXTENSION = """
#include <Python.h>
static PyObject *twice(PyObject *, PyObject *n) { return PyLong_FromLong(2 * PyLong_AsLong(n)); }
static PyMethodDef methods[] = {{"twice", twice, METH_O, 0}, {0}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "able_extension", 0, -1, methods};
PyMODINIT_FUNC PyInit_able_extension() { return PyModule_Create(&module); }
"""


@torch_probe
def cpp_extension():
    """Compile an extension, or return the error if there is no compiler or ninja."""
    from torch.utils.cpp_extension import load_inline

    directory = os.environ["ABLE_OUT"] + "/extension"
    os.mkdir(directory)
    try:
        made = load_inline("able_extension", EXTENSION, no_implicit_headers=True, build_directory=directory)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return [made.twice(4), os.path.relpath(made.__file__, directory), sorted(os.listdir(directory))]


@torch_probe
def scripted():
    import torch

    @torch.jit.script
    def double(x):
        return x * 2

    class Net(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x) + 1

    graph = torch.fx.symbolic_trace(Net())
    path = os.environ["ABLE_OUT"] + f"/saved{os.environ['RANK']}"
    torch.save({"point": Squares(), "tensor": torch.ones(2)}, path)
    found = torch.load(path, weights_only=False)
    return [double(torch.ones(2)).tolist(), graph.code, type(found["point"]).__module__, found["tensor"].tolist()]


@torch_probe
def gradients():
    import threading

    import torch

    x = torch.ones(4, requires_grad=True)
    (x * 3).sum().backward()
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.ones(2, requires_grad=True).sum().backward()))
    thread.start()
    thread.join()
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        try:
            y = torch.ones(2, requires_grad=True)
            y.sum().backward()
        except RuntimeError:
            os._exit(3)
        os._exit(0)
    return [x.grad.tolist(), found, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]


@torch_probe
def after_import():
    """What the import has changed."""
    import logging
    import warnings

    import able_shared
    import torch

    loggers = {
        name: logger for name, logger in logging.root.manager.loggerDict.items() if isinstance(logger, logging.Logger)
    }
    shown = {
        name: [
            each.level,
            each.disabled,
            each.propagate,
            [re.sub("0x[0-9a-f]+", "ID", str(handler)) for handler in each.handlers],
        ]
        for name, each in loggers.items()
        if name == "torch"
    }
    return [
        [repr(each) for each in warnings.filters],
        shown,
        able_shared.finders(),
        able_shared.installed(),
        type(torch.__loader__).__name__,
        str(torch.__spec__)[:60],
    ]


@torch_probe
def reloaded():
    import importlib

    import torch

    return importlib.reload(torch.nn.init) is torch.nn.init


@torch_probe
def randomness():
    """Compared between ranks, not between the ways to start them."""
    import random
    import tempfile
    import uuid

    import numpy
    import torch

    seen = [
        torch.initial_seed(),
        torch.rand(1).item(),
        numpy.random.rand(),
        random.random(),
        str(uuid.uuid4()),
        next(tempfile._get_candidate_names()),
        os.urandom(8).hex(),
    ]
    return ["distinct", seen]
