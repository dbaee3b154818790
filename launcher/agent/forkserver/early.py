"""Variables that torch and the libraries that it loads read when they are imported: set later, they have no effect.

This module answers two questions: whether a variable is one of them, and which of them a script sets before it imports
torch, as far as its text shows. The rest is noticed when it happens (`hidden.py`).
"""

from __future__ import annotations

import ast
import os
import re
from typing import Iterator, List, Sequence, Set

from . import imports, origins

_NUMPY = {
    "GOTO_NUM_THREADS|OPENBLAS_\\w+": "OpenBLAS, openblas_read_env()",
    "OMP_(NUM_THREADS|ADAPTIVE)": "OpenBLAS, openblas_read_env()",
    "GFORTRAN_\\w+": "libgfortran, init_variables()",
    "(NPY|NUMPY)_\\w+": "numpy/__init__.py; numpy/_core, npy_cpu_features.c",
}
_TORCH = {
    **_NUMPY,
    "(PY)?TORCH(?!ELASTIC)\\w*": (
        "torch/_logging, torch/_dynamo/config.py, torch/_inductor/config.py, torch/jit; c10 and ATen"
    ),
    "(COMPILE_STROBELIGHT|FX|KINETO)_\\w+": "torch/_utils_internal.py, torch/fx; libkineto",
    "(OMP|GOMP|KMP|ACC)_\\w+": "libgomp, initialize_env(); libomp, __kmp_env_initialize()",
    "(MKL|MKLDNN|DNNL|ONEDNN)_\\w+": "libtorch_cpu: MKL, oneDNN",
    "I_MPI_\\w+|MPI_LOCALNRANKS|OMPI_COMM_WORLD_LOCAL_SIZE": "libtorch_cpu: MKL, for its processes on this node",
    "INTEL_LIBITTNOTIFY64": "libtorch_cpu: ittnotify",
    "(CASK|NVRTC|LIBNVVM|LLVM|NV_NVVM|AS_SECURE)_\\w+|CUBLAS(LT)?_(LOG|DISABLE)\\w+|CUDA_PREFER_\\w+": (
        "CUDA's libraries"
    ),
    "GLIBCXX_TUNABLES|OPENSSL_(CONF|ia32cap)": "libstdc++, libcrypto",
}
_LATER = (
    "(PY)?TORCH_(NCCL|GLOO|UCC|FR|HOME|HUB|EXTENSIONS_DIR|CUDA_ARCH_LIST|ELASTIC|KERNEL_CACHE_PATH)\\w*|TORCH_?HUB\\w*"
)
"""Read only when they are needed, so they also take effect in a forked worker."""

READ_AT_IMPORT = {"numpy": _NUMPY, "torch": _TORCH}
"""By package: patterns of names, and where they are read. `tests/agent/test_early.py` compares them with torch."""

_PATTERNS = {package: "|".join(f"(?:{pattern})" for pattern in table) for package, table in READ_AT_IMPORT.items()}
"""They take 10 ms to compile, and most scripts set no variable."""

_STARTS_LOADING = ("torch", "numpy", "torchvision")


def is_read_at_import(package: str, name: str) -> bool:
    """Whether the import of this package may read the variable.

    Packages other than torch and numpy may import torch, and have variables that begin with their own name.
    """
    pattern = _PATTERNS.get(package, _PATTERNS["torch"])
    known = re.fullmatch(pattern, name) and not re.fullmatch(_LATER, name)
    return bool(known) or (package not in _PATTERNS and name.startswith(f"{package.upper()}_"))


def variables(files: Sequence[str], search: List[str]) -> List[str]:
    """The variables that these files, executed in this order, set at top level before they import torch; sorted.

    The user's own modules that they import are followed; function bodies are not, as they may be called at any time.
    """
    found: Set[str] = set()
    seen: Set[str] = set()
    all(_follow(path, search, seen, found) for path in files)
    return sorted(name for name in found if is_read_at_import("torch", name))


def _follow(path: str, search: List[str], seen: Set[str], found: Set[str]) -> bool:
    """Collect what a file sets; False if it imports torch, after which nothing matters."""
    if path in seen or not os.path.isfile(path):
        return True
    seen.add(path)
    package = origins.package_of(path)
    for step in _steps(path):
        if isinstance(step, (ast.Import, ast.ImportFrom)):
            for name in imports.names_of(step, package):
                own = origins.own_files(name, search)
                if own is None and not origins.is_harmless(name.partition(".")[0], search, but=_STARTS_LOADING):
                    return False
                if not all(_follow(file, search, seen, found) for file in own or ()):
                    return False
        else:
            found.update(_names_set_by(step))
    return True


def _steps(path: str) -> Iterator[ast.AST]:
    """The nodes that run when the file is executed, roughly in order."""
    try:
        with open(path, "rb") as file:
            todo: List[ast.AST] = list(reversed(ast.parse(file.read()).body))
    except (SyntaxError, ValueError, OSError):  # its execution will report this
        return
    while todo:
        node = todo.pop()
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield node
            todo += reversed(list(ast.iter_child_nodes(node)))


def _names_set_by(node: ast.AST) -> List[str]:
    """The constant keys in `os.environ[KEY] = ...`, `setdefault(KEY, ...)`, `update({KEY: ...})`, `putenv`, `del`."""
    keys: List[ast.AST] = []
    if isinstance(node, (ast.Assign, ast.Delete)):
        keys = [target.slice for target in node.targets if isinstance(target, ast.Subscript)]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("setdefault", "putenv"):
            keys = list(node.args[:1])
        elif node.func.attr == "update":
            keys = [key for arg in node.args if isinstance(arg, ast.Dict) for key in arg.keys if key is not None]
    return [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
