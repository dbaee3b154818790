"""No thread dies alone: what one of them raises is handed on, to be told as the cause of the node's end."""

from __future__ import annotations

import threading
from typing import Callable

Failed = Callable[[str, str], None]
"""Takes the message and the traceback; called in the thread that has failed."""


def watch(failed: Failed) -> None:
    """From now on `failed` hears of every thread of this process that ends by an exception."""

    def hook(args: threading.ExceptHookArgs) -> None:
        import traceback

        if args.exc_type is SystemExit:
            return
        trace = "".join(traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback))
        name = args.thread.name if args.thread else "unknown"
        last = traceback.format_exception_only(args.exc_type, args.exc_value)[-1].strip()
        failed(f"the agent's thread {name!r} failed: {last}", trace)

    threading.excepthook = hook
