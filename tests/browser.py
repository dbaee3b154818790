"""A real browser to look at pages with. A process can have one only, so all tests share this plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from testbed import NotAvailableError, packages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if packages.program("chromium") is None:
        try:
            packages.require(packages.BROWSER)
        except NotAvailableError as error:
            pytest.skip(str(error))
    with sync_api.sync_playwright() as driver:
        # Without its sandbox, as root cannot have one; it opens only pages that the tests have made.
        started = driver.chromium.launch(executable_path=packages.program("chromium"), args=["--no-sandbox"])
        yield started
        started.close()
