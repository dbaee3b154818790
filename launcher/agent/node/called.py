"""The script with which workers call a function: what it returns or raises is saved next to this file.

The agent writes this file and the request to the node's directory, and forwards the results (`function_call.py`).
"""

import os
import pickle
import sys
import traceback
from importlib import import_module
from typing import Any, Callable, Dict


def main(directory: str) -> None:
    """Make one rank's call. An exception is saved for the caller, and ends the run like any worker's."""
    result = os.path.join(directory, "result-" + os.environ["RANK"])
    try:
        with open(os.path.join(directory, "request"), "rb") as file:
            request = pickle.load(file)  # noqa: S301 - as trusted as a run's script
        _check_version(request)
        sys.path.extend(path for path in [*request["path"], os.getcwd()] if path not in sys.path)
        function = _function(request)
        args, kwargs = pickle.loads(request["args"])  # noqa: S301
        value = function(*args, **kwargs)
    except BaseException as error:
        told = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        _write(result, {"ok": False, "value": _packed(error), "traceback": told})
        raise
    packed = _dumps(value)  # a value that cannot be pickled raises an error that names its type
    _write(result, {"ok": True, "value": packed, "traceback": ""})


def _check_version(request: Dict[str, Any]) -> None:
    if request["how"] == "pickle" and tuple(request["python"]) != sys.version_info[:2]:
        ours, theirs = ("{}.{}".format(*version[:2]) for version in (sys.version_info, request["python"]))
        raise RuntimeError(
            f"the function was pickled by Python {theirs}, and workers run Python {ours}: "
            "call(..., by='source'), or python=..."
        )


def _function(request: Dict[str, Any]) -> Callable[..., Any]:
    if request["how"] == "pickle":
        function: Callable[..., Any] = pickle.loads(request["function"])  # noqa: S301
        return function
    namespace: Dict[str, Any] = {"__name__": "distlaunch_call"}
    exec(compile(request["function"], "<distlaunch.call>", "exec"), namespace)  # noqa: S102
    called: Callable[..., Any] = namespace[request["name"]]
    return called


def _dumps(value: Any) -> bytes:
    """Pickle the value, with cloudpickle if these workers have it."""
    try:
        packed: bytes = import_module("cloudpickle").dumps(value)
    except ImportError:
        return pickle.dumps(value)
    return packed


def _packed(error: BaseException) -> bytes:
    """The pickled exception; empty if it cannot be pickled and restored."""
    try:
        packed = _dumps(error)
        pickle.loads(packed)  # noqa: S301 - some can be pickled but not restored
    except Exception:  # noqa: BLE001 - a user's class may raise anything
        return b""
    return packed


def _write(path: str, content: Dict[str, Any]) -> None:
    """Write the file atomically, readable only by its owner."""
    fd = os.open(path + ".part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb") as file:
        pickle.dump(content, file)
    os.replace(path + ".part", path)


if __name__ == "__main__":
    main(os.path.dirname(os.path.abspath(__file__)))
