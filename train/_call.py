"""Calls the function that `distlaunch.call` has left in the run's directory, and leaves there what it returns, or raises."""

import os
import pickle
import sys
import traceback
from types import SimpleNamespace
from typing import Any, Callable, Dict


def main(directory: str) -> None:
    """One rank's call. An exception is left for the caller, and ends the run as any worker's does."""
    rank = os.environ["RANK"]
    result = os.path.join(directory, "result-" + rank)
    try:
        request = _read(os.path.join(directory, "request"))
        sys.path.extend(path for path in request["path"] if path not in sys.path)
        function = _function(request)
        args, kwargs = pickle.loads(request["args"])  # noqa: S301 - ours: `_read` has seen to it
        value = function(*args, **kwargs)
    except BaseException as error:
        told = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        _write(result, {"ok": False, "value": _packed(error), "traceback": told})
        raise
    packed = _dumps(value)  # an error of its own, with the value's type, where it cannot travel
    _write(result, {"ok": True, "value": packed, "traceback": ""})


def _read(path: str) -> Dict[str, Any]:
    """The request, which nobody but its owner may have written."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with open(fd, "rb") as file:
        about = os.fstat(fd)
        if about.st_uid != os.getuid() or about.st_mode & 0o077:
            raise PermissionError(path + " is not yours alone: it is not run")
        request: Dict[str, Any] = pickle.load(file)  # noqa: S301
    if request["how"] == "pickle" and tuple(request["python"]) != sys.version_info[:2]:
        ours, theirs = ("{}.{}".format(*version[:2]) for version in (sys.version_info, request["python"]))
        raise RuntimeError(
            f"the function was pickled by Python {theirs}, and workers run Python {ours}: call(..., by='source'), or python=..."
        )
    return request


def _function(request: Dict[str, Any]) -> Callable[..., Any]:
    if request["how"] == "pickle":
        function: Callable[..., Any] = pickle.loads(request["function"])  # noqa: S301
        return function
    namespace: Dict[str, Any] = {"__name__": "distlaunch_call"}
    exec(compile(request["function"], "<distlaunch.call>", "exec"), namespace)  # noqa: S102
    called: Callable[..., Any] = namespace[request["name"]]
    return called


def _dumps(value: Any) -> bytes:
    try:
        import cloudpickle
    except ImportError:
        cloudpickle = SimpleNamespace(dumps=pickle.dumps)
    packed: bytes = cloudpickle.dumps(value)
    return packed


def _packed(error: BaseException) -> bytes:
    """The exception, where it can travel."""
    try:
        packed = _dumps(error)
        pickle.loads(packed)  # noqa: S301 - some can be pickled, and not be made again
    except Exception:  # noqa: BLE001 - whatever a class of the user's does
        return b""
    return packed


def _write(path: str, content: Dict[str, Any]) -> None:
    """The file appears whole, for its owner alone."""
    fd = os.open(path + ".part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb") as file:
        pickle.dump(content, file)
        file.flush()
        os.fsync(fd)
    os.replace(path + ".part", path)


if __name__ == "__main__":
    main(sys.argv[1])
