"""What the testbed can say went wrong."""

from __future__ import annotations


class TestbedError(Exception):
    """The testbed could not do what it was asked to; the message has what the program said."""

    __test__ = False


class NotAvailableError(TestbedError):
    """This machine cannot have a testbed: not root, or packages that cannot be installed. Tests skip on it."""


class WaitError(TestbedError):
    """Something did not come about within its limit; the message says what."""
