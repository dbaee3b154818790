"""No thread dies alone: what one of them raises is handed on, to be told as the cause of the node's end."""

from __future__ import annotations

import threading
from typing import Callable

Failed = Callable[[str, str], None]
"""Takes the message and the traceback; called in the thread that has failed."""


def trace_of(error: BaseException) -> str:
    """Its traceback; without the lines of the source where the library that reads them cannot be read itself any more."""
    try:
        import traceback

        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:  # noqa: BLE001 - no descriptor or no memory is left; what has failed is to be told all the same
        lines, at = ["Traceback (most recent call last):"], error.__traceback__
        while at:
            code = at.tb_frame.f_code
            lines.append(f'  File "{code.co_filename}", line {at.tb_lineno}, in {code.co_name}')
            at = at.tb_next
        return "\n".join([*lines, f"{type(error).__name__}: {error}\n"])


def watch(failed: Failed) -> None:
    """From now on `failed` hears of every thread of this process that ends by an exception."""

    def hook(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is SystemExit:
            return
        trace = trace_of(args.exc_value or args.exc_type())
        name = args.thread.name if args.thread else "unknown"
        failed(f"the agent's thread {name!r} failed: {trace.strip().splitlines()[-1]}", trace)

    threading.excepthook = hook
