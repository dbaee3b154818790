"""Every error that distlaunch raises on purpose, as one tree.

LaunchError
├── RequestError            what was asked for cannot be done as asked            exit 2
│   ├── SpecError           an option or the script is wrong
│   ├── ConfigError         a settings file is wrong
│   ├── UntrustedError      others could change what would be read
│   └── RunNotFoundError    no run, or more than one, has that id
├── BackendUnavailableError the backend's tool or service cannot be reached       exit 3
└── CommandError            something that distlaunch itself does failed          exit 4
    └── StorageError        a directory or file of ours cannot be written or read
"""

from __future__ import annotations

from typing import ClassVar


class LaunchError(Exception):
    """Base of all errors that are shown without a traceback.

    The message names the object that is wrong; `hint` says what to do next.
    """

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 4

    def __init__(self, message: str, *, hint: str | None = None, in_part: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.in_part = in_part
        """Some of what was asked for may have been done all the same."""


class RequestError(LaunchError):
    """What was asked for cannot be done as asked."""

    code = "bad_request"
    exit_code = 2


class SpecError(RequestError):
    """An option, the script or one of its files is wrong."""

    code = "bad_spec"


class ConfigError(RequestError):
    """A settings file cannot be read, or holds a key or value that is not known."""

    code = "bad_config"


class UntrustedError(RequestError):
    """A path that code or settings are read from is not ours alone."""

    code = "untrusted"


class RunNotFoundError(RequestError):
    """No run has that id, or more than one does."""

    code = "run_not_found"


class BackendUnavailableError(LaunchError):
    """The backend's tool or service cannot be reached from here."""

    code = "backend_unavailable"
    exit_code = 3


class CommandError(LaunchError):
    """Something that distlaunch itself does failed."""

    code = "command_failed"
    exit_code = 4


class StorageError(CommandError):
    """A directory or file of ours cannot be written or read."""

    code = "storage"
