"""Errors that are not bugs."""

from __future__ import annotations

import socket

import torch


class InputError(ValueError):
    """A flag, a file or a missing package makes the run impossible; the message names it and says what to do."""


class TrainingError(RuntimeError):
    """The training cannot continue: a damaged sample with --strict, a loss that is not finite, or no memory left."""


def explained(error: RuntimeError) -> RuntimeError:
    """`error`, or a `TrainingError` with advice if memory ran out."""
    text = (str(error).splitlines() or [""])[0]
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in text:
        advice = "a lower --batch-size; more --accumulate, with the same result; --precision bf16; --sync fsdp"
        return TrainingError(f"out of memory on {socket.gethostname()} ({text}). What helps: {advice}")
    return error
