"""Passes on exceptions in threads, to be reported as the cause of the node's failure."""

from __future__ import annotations

import threading
from typing import Callable

Failed = Callable[[str, str], None]
"""Takes the message and the traceback; called in the thread that failed."""


def trace_of(error: BaseException) -> str:
    """The traceback of an error; without source lines if the `traceback` module can no longer be loaded or used."""
    try:
        import traceback

        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:  # noqa: BLE001 - no descriptor or no memory is left; the error must be reported anyway
        lines, at = ["Traceback (most recent call last):"], error.__traceback__
        while at:
            code = at.tb_frame.f_code
            lines.append(f'  File "{code.co_filename}", line {at.tb_lineno}, in {code.co_name}')
            at = at.tb_next
        return "\n".join([*lines, f"{type(error).__name__}: {error}\n"])


def started(thread: threading.Thread) -> bool:
    """Start a thread; False if the limits of this user or container (ulimit -u, pids.max) allow no more now."""
    try:
        thread.start()
    except RuntimeError:
        return False
    return True


def watch(failed: Failed) -> None:
    """Call `failed` for every thread of this process that ends with an exception."""

    def hook(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is SystemExit:
            return
        trace = trace_of(args.exc_value or args.exc_type())
        name = args.thread.name if args.thread else "unknown"
        failed(f"the agent's thread {name!r} failed: {trace.strip().splitlines()[-1]}", trace)

    threading.excepthook = hook
