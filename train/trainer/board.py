"""The event file for TensorBoard."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Callable, Optional

from trainer.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


class Board:
    """Writes numbers to an event file in `directory`; a write error is printed once and does not end the run."""

    def __init__(self, directory: Path) -> None:
        """Begin the file; raises `InputError`."""
        from torch.utils.tensorboard import SummaryWriter

        self.directory = directory
        try:
            self._writer: Optional[Any] = SummaryWriter(str(directory))
        except OSError as error:
            raise InputError(f"--tensorboard {directory}: cannot write there: {error.strerror}") from error

    def add(self, event: str, values: dict[str, Any]) -> None:
        """Add the numbers of a record that are not whole, at its step."""

        def scalars(writer: Any) -> None:
            for name, value in values.items():
                if isinstance(value, float):
                    writer.add_scalar(f"{event}/{name}", value, values["step"])

        self._unless_it_fails(scalars)

    def close(self) -> None:
        """Flush and close the file."""
        self._unless_it_fails(lambda writer: writer.close())

    def _unless_it_fails(self, action: Callable[[Any], None]) -> None:
        if self._writer is None:
            return
        try:
            action(self._writer)
        except OSError as error:  # also one that the writer's thread has met before
            self._writer = None
            sys.stderr.write(f"--tensorboard {self.directory}: {error.strerror}; nothing more is written there\n")
