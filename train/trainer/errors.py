"""The errors that are not bugs."""

from __future__ import annotations

import socket

import torch


class InputError(ValueError):
    """A flag, a file or a missing package makes the run impossible; the message names it and says what to do."""


class TrainingError(RuntimeError):
    """The training cannot go on: a damaged sample where none is allowed, a loss that is no number, memory that is used up."""


def explained(error: RuntimeError) -> RuntimeError:
    """`error`, or where memory was used up what to do about it."""
    text = (str(error).splitlines() or [""])[0]
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in text:
        advice = "a lower --batch-size; more --accumulate, with the same result; --precision bf16; --sync fsdp"
        return TrainingError(f"out of memory on {socket.gethostname()} ({text}). What helps: {advice}")
    return error
