"""Where a testbed cannot be started, the reason is reported."""

from __future__ import annotations

import os
import re

import pytest

from testbed import NotAvailableError, packages
from testbed.packages import POLICY, require
from tests.plugins.summary import is_unexpected


def test_without_root_the_reason_is_an_expected_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(NotAvailableError, match="needs root") as error:
        require({"ip": "iproute2"})

    assert os.getuid() == 0 or not is_unexpected(str(error.value))


@pytest.mark.skipif(
    os.geteuid() != 0, reason="the testbed needs root: no packages can be installed, no hosts can be made here"
)
def test_a_package_that_cannot_be_installed_is_tried_once_and_named_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    had_policy = POLICY.exists()
    none = {"distlaunch-no-such-program": "distlaunch-no-such-package"}

    with pytest.raises(NotAvailableError, match="the testbed needs distlaunch-no-such-package: ") as error:
        require(none)

    assert POLICY.exists() == had_policy
    monkeypatch.setattr(packages, "install", None)
    with pytest.raises(NotAvailableError, match=re.escape(str(error.value))):  # without another try
        require(none)
