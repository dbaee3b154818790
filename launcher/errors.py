"""Every error that distlaunch raises on purpose, as one tree.

LaunchError
├── RequestError            the request cannot be carried out as given            exit 2
│   ├── SpecError           an option or the script is wrong
│   ├── ConfigError         a settings file is wrong
│   ├── UntrustedError      others could change what would be read
│   └── RunNotFoundError    no run, or more than one, has that id
├── BackendUnavailableError the backend's tool or service cannot be reached       exit 3
│   └── NotLoggedInError    a login node asks for more than keys
├── RunContinuesError       the run continues, and was to be waited for             exit 5
└── CommandError            an operation of distlaunch itself failed              exit 4
    └── StorageError        a directory or file of distlaunch cannot be written or read
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
        """Whether the request may have been carried out in part."""


class RequestError(LaunchError):
    """The request cannot be carried out as given."""

    code = "bad_request"
    exit_code = 2


class SpecError(RequestError):
    """An option, the script or one of its files is wrong."""

    code = "bad_spec"


class ConfigError(RequestError):
    """A settings file cannot be read, or contains an unknown key or an invalid value."""

    code = "bad_config"


class UntrustedError(RequestError):
    """Other users could change a path that code or settings are read from."""

    code = "untrusted"


class RunNotFoundError(RequestError):
    """No run has that id, or more than one does."""

    code = "run_not_found"


class BackendUnavailableError(LaunchError):
    """The backend's tool or service cannot be reached from here."""

    code = "backend_unavailable"
    exit_code = 3


class NotLoggedInError(BackendUnavailableError):
    """A login node asks for more than keys, and no connection to it is open."""

    code = "not_logged_in"


class RunContinuesError(LaunchError):
    """A run was to be followed or waited for to its end, but continues."""

    code = "run_continues"
    exit_code = 5


class CommandError(LaunchError):
    """An operation of distlaunch itself failed."""

    code = "command_failed"
    exit_code = 4


class StorageError(CommandError):
    """A directory or file of distlaunch cannot be written or read."""

    code = "storage"
