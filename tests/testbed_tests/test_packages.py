"""Where there can be no testbed, the reason is said."""

from __future__ import annotations

import os
import re

import pytest

from testbed import NotAvailableError, packages
from testbed.packages import POLICY, require
from tests.plugins.summary import is_unexpected


def test_without_root_the_reason_is_one_that_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(NotAvailableError, match="needs root") as error:
        require({"ip": "iproute2"})

    assert os.getuid() == 0 or not is_unexpected(str(error.value))


@pytest.mark.skipif(os.geteuid() != 0, reason="the testbed needs root: no packages can be installed, no hosts can be made here")
def test_a_package_that_is_not_to_be_had_is_named_each_time_and_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    had_policy = POLICY.exists()
    none = {"distlaunch-no-such-program": "distlaunch-no-such-package"}

    with pytest.raises(NotAvailableError, match="the testbed needs distlaunch-no-such-package: ") as error:
        require(none)

    assert POLICY.exists() == had_policy
    monkeypatch.setattr(packages, "install", None)
    with pytest.raises(NotAvailableError, match=re.escape(str(error.value))):  # nobody tries and waits again
        require(none)
