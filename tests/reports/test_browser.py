"""Reports in a real browser: they load, can be searched and read by everyone, and send nothing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from benchmarks._recorded import Recorded
from tests.reports.conftest import page_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from tests.command import Cli

WIDTHS = {"wide": 1200, "narrow": 390}


@contextmanager
def opened(browser: Browser, path: Path, *, scheme: str = "light", width: int = 1200) -> Iterator[Page]:
    """The page; at its end, it has reported no error and requested nothing but itself."""
    told, requested = [], []
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})  # type: ignore[arg-type]  # one of its words
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: requested.append(request.url))
    try:
        page.goto(path.as_uri())
        yield page
        assert told == []
        assert [url for url in requested if not url.startswith("data:")] == [path.as_uri()]
    finally:
        page.close()


@pytest.fixture
def failed(reporter: Cli) -> Path:
    """The report of a run that was restarted, and failed."""
    done = reporter("local", "--nodes", "2", "--nproc-per-node", "2", "--max-restarts", "1", "work.py", "fail")
    assert done.exit_code == 1
    return page_of(reporter, "last")


def test_what_matters_comes_first(browser: Browser, failed: Path) -> None:
    with opened(browser, failed) as page:
        assert page.locator("h1").inner_text().startswith("Failed after ")
        assert page.locator("h2").first.inner_text() == "First cause"
        assert "ValueError: this batch is bad" in page.locator("#cause .what").inner_text()
        assert page.locator("#cause").bounding_box()["y"] < 300  # type: ignore[index]  # it is shown
        pictures = page.locator("svg.picture")
        assert pictures.count() == 2
        assert all(pictures.nth(each).bounding_box()["height"] > 30 for each in range(2))  # type: ignore[index]


def test_all_ranks_can_be_searched(browser: Browser, failed: Path) -> None:
    with opened(browser, failed) as page:
        lines = page.locator(".log pre > span")
        everything = lines.count()
        page.get_by_label("Search").fill("STEP 7 of")

        assert page.locator(".log pre > span:visible").all_inner_texts() == [
            f"step 7 of rank {rank}\n" for rank in (1, 1, 0, 0, 2, 2, 3, 3)
        ]
        assert page.locator("#found").inner_text() == "8 lines of 4 ranks"
        assert page.locator("mark").first.inner_text() == "step 7 of"
        page.get_by_label("Search").fill("nowhere")
        assert page.locator(".log:visible").count() == 0
        page.get_by_label("Search").fill("")
        assert page.locator(".log:visible").count() == 4
        assert page.locator("mark").count() == 0
        assert lines.count() == everything


@pytest.mark.parametrize("width", list(WIDTHS))
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Browser, reporter: Cli, scheme: str, width: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core is not installed").Axe()
    run = Recorded(nodes=6, ranks_per_node=2, lines_per_rank=40, hours=0.2)
    run.write(reporter.runs)

    with opened(browser, page_of(reporter, run.name), scheme=scheme, width=WIDTHS[width]) as page:
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        found = axe.run(page).response

        assert len(found["passes"]) > 10
        assert [(each["impact"], each["id"], each["nodes"][0]["html"][:200]) for each in found["violations"]] == []


def test_a_runs_output_is_text_and_no_part_of_the_page(browser: Browser, reporter: Cli) -> None:
    name = "<img src=x onerror=alert(1)>"
    assert reporter("local", "work.py", "hostile", name, "]]>`|*_&amp;").exit_code == 0

    with opened(browser, page_of(reporter, "last")) as page:
        shown = page.locator(".log pre").first.inner_text()

        assert "</span></pre><script>document.title = 'taken'</script><img src=x onerror=" in shown
        assert page.title().startswith("Success after ")
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 1
        assert name in page.locator("#run dd").first.inner_text()


def test_it_can_be_used_by_keyboard(browser: Browser, failed: Path) -> None:
    with opened(browser, failed) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
        summary = page.locator("#logs summary", has_text="Rank 3")
        summary.focus()
        page.keyboard.press("Enter")
        assert page.locator("#logs details", has_text="Rank 3").evaluate("each => each.open")
        reached = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.closest('section')?.id ?? ''"))
        assert {"cause", "start", "time", "logs", "settings", "again"} <= reached


def test_paper_has_what_is_folded_on_the_screen(browser: Browser, failed: Path) -> None:
    with opened(browser, failed, scheme="dark") as page:
        table = page.locator("#start table")
        assert not table.is_visible()

        page.emulate_media(media="print", color_scheme="dark")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")

        assert table.is_visible()
        assert not page.locator("nav").is_visible()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert not table.is_visible()
