"""The testbed's errors."""

from __future__ import annotations


class TestbedError(Exception):
    """The testbed failed to do what it was asked to; the message includes the program's output."""

    __test__ = False


class NotAvailableError(TestbedError):
    """This machine cannot run a testbed: not root, or packages that cannot be installed. Tests skip on it."""


class WaitError(TestbedError):
    """Something did not happen within its limit; the message names it."""
