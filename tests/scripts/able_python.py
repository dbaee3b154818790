"""The interpreter that a worker has, and its import of torch."""

import os
import re
import sys
import threading
import time

from able import probe
from able_shared import Point, finders, installed, square, value_error


@probe
def start_state():
    """What a new interpreter has."""
    import builtins
    import gc
    import linecache
    import logging
    import tempfile
    import warnings

    return {
        "filters": [repr(each) for each in warnings.filters],
        "handlers": str(logging.root.handlers),
        "warnings hooks": [warnings.showwarning.__module__, warnings.formatwarning.__module__],
        "tempdir": tempfile.tempdir,
        "dlopen": sys.getdlopenflags(),
        "switch": sys.getswitchinterval(),
        "hooks": sys.breakpointhook is sys.__breakpointhook__,
        "display": sys.displayhook is sys.__displayhook__,
        "unraisable": sys.unraisablehook is sys.__unraisablehook__,
        "thread hook": threading.excepthook is threading.__excepthook__,
        "last": [hasattr(sys, name) for name in ("last_type", "last_value", "ps1", "tracebacklimit")],
        "meta_path": finders(),
        "path_hooks": [str(hook)[:30] for hook in sys.path_hooks],
        "builtins": sorted(name for name in vars(builtins) if name.lower() == name),
        "pycache": [sys.pycache_prefix, sys.dont_write_bytecode],
        "trace": [
            str(sys.gettrace()),
            str(sys.getprofile()),
            sys.is_finalizing(),
            str(sys.get_asyncgen_hooks()),
            sys.get_coroutine_origin_tracking_depth(),
        ],
        "callbacks": str(gc.callbacks),
        "garbage": gc.garbage,
        "stats": [sorted(each) for each in gc.get_stats()],
        "stdin": [repr(sys.stdin)[:40], sys.__stdin__ is sys.stdin, sys.__stdout__ is sys.stdout],
        "debug": gc.get_debug(),
        "installed": installed(),
        "platlibdir": sys.platlibdir,
        "exc": str(sys.exc_info()),
        "sys": sorted(vars(sys)),
        "linecache": [name for name in linecache.cache if "distlaunch" in name or "launcher" in name],
        "hash": str(sys.hash_info),
        "recursion": sys.getrecursionlimit(),
    }


@probe
def profilers():
    import cProfile
    import faulthandler
    import io
    import pstats
    import tracemalloc

    profile = cProfile.Profile()
    profile.runcall(lambda: [square(n) for n in range(5)])
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("name").print_stats("square")
    events = []
    sys.setprofile(lambda frame, event, _: events.append([event, frame.f_code.co_name]))
    square(2)
    sys.setprofile(None)
    lines = []

    def trace(frame, event, _):
        lines.append([event, frame.f_lineno - frame.f_code.co_firstlineno])
        return trace

    sys.settrace(trace)
    square(2)
    sys.settrace(None)
    r, w = os.pipe()
    before, dumped = faulthandler.is_enabled(), b""
    faulthandler.dump_traceback_later(0.05, file=w)
    while dumped.count(b"\n") < 3:
        dumped += os.read(r, 9999)
    tracemalloc.start()
    kept = [bytes(10) for _ in range(100)]
    return {
        "calls": re.findall(r"(\d+) +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ \S*able_shared", text.getvalue()),
        "profiled": events,
        "traced": lines,
        "fault": [before, [re.sub(r"0x[0-9a-f]+|line \d+", "N", line) for line in dumped.decode().splitlines()[:3]]],
        "malloc": tracemalloc.take_snapshot() is not None and len(kept),
    }


@probe
def main_module():
    import inspect
    import linecache
    import pickle
    import pkgutil
    import traceback

    main = sys.modules["__main__"]
    point = pickle.loads(pickle.dumps(Point(5)))
    function = pickle.loads(pickle.dumps(main.value_of))
    try:
        main.value_of(None, None)
    except TypeError:
        text = traceback.format_exc()
    raised = main.value_of(lambda: 1 / 0)
    return {
        "pickled": [point.x, function is main.value_of, type(point).__module__],
        "source": inspect.getsource(main.mine),
        "file": inspect.getsourcefile(main.mine),
        "module": inspect.getmodule(main.mine) is main,
        "line": linecache.getline(main.__file__, 1),
        "trace": text,
        "raised": raised,
        "names": sorted(name for name in vars(main) if name.startswith("__")),
        "spec": str(main.__spec__),
        "loader": type(main.__loader__).__name__,
        "code": [main.mine.__code__.co_filename, main.mine.__module__, main.mine.__qualname__],
        "comments": inspect.getcomments(main.mine),
        "doc": main.__doc__[:9],
        "data": repr(value_error(lambda: pkgutil.get_data("able_shared", "able.py")[:9])),
        "import": __import__("__main__") is main,
        "argv": sys.argv,
        "loader_source": main.__loader__.get_source("__main__")[:20],
        "is_package": main.__loader__.is_package("__main__"),
        "filename": main.__loader__.get_filename("__main__"),
    }


@probe
def libraries_of_python():
    import bz2
    import decimal
    import hashlib
    import hmac
    import locale
    import lzma
    import sqlite3
    import ssl
    import zlib

    database = sqlite3.connect(":memory:")
    database.execute("create table t (x)")
    database.executemany("insert into t values (?)", [(n,) for n in range(5)])
    context = ssl.create_default_context()
    return [
        database.execute("select sum(x) from t").fetchall(),
        hashlib.sha256(b"x").hexdigest()[:8],
        hmac.new(b"k", b"m", "sha1").hexdigest()[:8],
        ssl.RAND_status(),
        context.verify_mode.name,
        len(context.get_ca_certs()),
        zlib.crc32(b"x"),
        bz2.decompress(bz2.compress(b"x")).decode(),
        lzma.decompress(lzma.compress(b"y")).decode(),
        str(decimal.getcontext()),
        locale.getlocale(),
        locale.getpreferredencoding(),
        locale.setlocale(locale.LC_ALL),
        time.tzname,
        time.strftime("%Z"),
        hashlib.algorithms_available == set(hashlib.algorithms_available),
    ]


@probe
def blocked_module():
    """A script may declare that a package is missing."""
    sys.modules["sympy"] = None
    try:
        import sympy

        return str(sympy)
    except ImportError as error:
        return str(error)


LOGGERS = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel.distributed",
    "torch._dynamo",
    "torch.fx",
    "torch.__trace",
    "torch.export",
)


@probe
def import_of_torch():
    """What the import finds, what it does, and what is different after it."""
    import importlib
    import importlib.metadata
    import importlib.util
    import io
    import logging.config
    import pkgutil
    import warnings

    spec, loader = importlib.util.find_spec("torch"), importlib.util.find_spec("torch").loader
    found = {
        "spec": [
            spec.name,
            spec.origin,
            list(spec.submodule_search_locations),
            spec.cached,
            spec.has_location,
            spec.parent,
            spec.loader_state,
        ],
        "loader": [
            isinstance(loader, importlib.machinery.SourceFileLoader),
            type(loader).__name__,
            loader.name,
            loader.path,
            loader.is_package("torch"),
        ],
        "repr": re.sub("0x[0-9a-f]+", "ID", repr(spec)),
        "equal": spec == importlib.util.find_spec("torch"),
        "source": len(loader.get_source("torch")) > 1000,
        "version": importlib.metadata.version("torch"),
        "walked": [m.name for m in pkgutil.iter_modules() if m.name in ("torch", "numpy", "json")],
        "reload": importlib.reload(importlib.import_module("json")).__name__,
        "none": importlib.util.find_spec("nothing_of_this_name"),
        "modules": [name for name in ("torch", "numpy", "sympy") if name in sys.modules],
        "marks": sorted(vars(sys)),
    }
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    logging.config.dictConfig({"version": 1, "root": {"level": "INFO"}})
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    logging.getLogger("torch").setLevel(logging.ERROR)
    sys.stderr, stderr = io.StringIO(), sys.stderr
    found["submodule"] = importlib.util.find_spec("torch.nn").origin
    import torch.distributed
    from torch.fx.passes.utils import matcher_utils

    logging.getLogger("torch.distributed").warning("first")
    matcher_utils.logger.warning("second")
    sys.stderr, mine = stderr, sys.stderr
    loggers = {name: logging.getLogger(name) for name in LOGGERS}
    return {
        **found,
        "said": [line.rpartition("]")[2].strip() for line in mine.getvalue().splitlines()],
        "filters": [repr(each) for each in warnings.filters],
        "loggers": {
            name: [each.level, each.disabled, each.propagate, len(each.handlers)] for name, each in loggers.items()
        },
        "after": re.sub("0x[0-9a-f]+", "ID", repr(importlib.util.find_spec("torch"))),
        "launched": torch.distributed.is_torchelastic_launched(),
        "torch": [type(torch.__loader__).__name__, torch.__spec__.loader is torch.__loader__],
        "finders": finders(),
        "again": value_error(lambda: importlib.reload(torch)),
    }
