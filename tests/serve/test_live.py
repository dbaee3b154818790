"""Pages in a real browser while runs begin, make progress, and end."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from benchmarks._recorded import Recorded
from testbed import wait_until
from tests.serve.conftest import serving

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from tests.command import Cli
    from tests.serve.conftest import Server

SCRIPT = """\
import os, time
rank = int(os.environ["RANK"])
print("rank", rank, "starts", flush=True)
for step in range(1, 1000):
    print(f"step {step} of rank {rank}", flush=True)
    print(f"::distlaunch progress step={step}/1000 loss={5 / step}", flush=True)
    if rank == 1 and os.path.exists("fail"):
        raise ValueError("this batch is bad")
    time.sleep(0.4)
"""


@contextmanager
def opened(browser: Browser, server: Server, path: str = "/", **more: Any) -> Iterator[Page]:
    """A page, reached by the printed URL; at its end it has reported no error, and asked nobody but the server."""
    told, hosts = [], set()
    context = browser.new_context(viewport={"width": 1200, "height": 900}, **more)
    page = context.new_page()
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: hosts.add(urlsplit(request.url)[:2]))
    try:
        page.goto(f"{server.origin}{path}?token={server.token}")
        page.wait_for_url(f"{server.origin}{path}")
        yield page
        assert told == []
        assert hosts - {("data", "")} == {("http", f"127.0.0.1:{server.port}")}
    finally:
        context.close()


@contextmanager
def running(cli: Cli, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run of two ranks that goes on until this block ends, or there is a file `fail`."""
    cli.write("steps.py", SCRIPT)
    argv = ("local", "--samples", "1", "--nproc-per-node", "2", *words, "steps.py")
    with cli.start(*argv) as process:
        try:
            assert process.stdout is not None
            assert any(b"step 2 of" in line for line in process.stdout)
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def only_run(cli: Cli) -> str:
    (run,) = cli.runs.iterdir()
    return run.name


def test_a_run_is_seen_to_begin_to_make_progress_and_to_fail(browser: Browser, server: Server, reporter: Cli) -> None:
    with opened(browser, server) as page:
        assert page.locator("#runs").inner_text() == "There are no runs yet. One that begins will appear here."
        with running(reporter):
            run = only_run(reporter)
            page.get_by_role("link", name=run).wait_for(timeout=60_000)
            page.get_by_text("step ").first.wait_for(timeout=60_000)
            assert page.locator(f"#run-{run} progress").get_attribute("max") == "1000"
            page.get_by_role("link", name=run).click()
            page.locator("h1", has_text="Running for ").wait_for()
            page.locator("#live", has_text="Live").wait_for()
            page.locator("#loss figcaption", has_text="Loss of rank 0").wait_for(timeout=60_000)
            before = page.locator("#loss figcaption").inner_text()
            curve = page.locator("#loss path").last.get_attribute("d")
            changed = "before => document.querySelector('#loss figcaption').innerText !== before"
            page.wait_for_function(changed, arg=before)
            assert page.locator("#loss path").last.get_attribute("d") != curve
            assert page.locator("#run dt", has_text="Progress").count() == 1
            assert page.locator("#cause").count() == 0

            reporter.write("fail", "")
            page.locator("#cause .what", has_text="ValueError: this batch is bad").wait_for(timeout=60_000)

            page.locator("#live", has_text="The run has ended").wait_for(timeout=60_000)
            assert page.locator("h1").inner_text().startswith("Failed after ")
            assert page.title() == f"{page.locator('h1').inner_text()}: {run}"
            assert page.locator("h2").first.inner_text() == "First cause"
            assert page.locator("nav a").first.inner_text() == "Cause"


PLACE = "read.isConnected && read.getBoundingClientRect().top"


def test_what_somebody_reads_searches_and_unfolds_stays(browser: Browser, server: Server, reporter: Cli) -> None:
    with running(reporter), opened(browser, server, f"/runs/{only_run(reporter)}") as page:
        page.locator("#live", has_text="Live").wait_for()
        search = page.get_by_label("Search")
        search.fill("rank 1")
        page.locator("#settings summary").click()
        page.evaluate("document.querySelector('#log-0-1').isTheSame = true")
        search.focus()
        page.evaluate("scrollTo(0, 600)")
        page.evaluate("window.read = document.elementFromPoint(300, 300)")
        place = page.evaluate(PLACE)  # on the screen: what stands above may become longer
        found = page.locator("#found").inner_text()
        lines = page.locator("#log-0-1 pre > span").count()

        page.wait_for_function("found => document.getElementById('found').innerText !== found", arg=found)

        assert page.locator("#log-0-1 pre > span").count() > lines
        assert search.input_value() == "rank 1"
        assert page.evaluate("document.activeElement.id") == "search"
        assert page.evaluate(PLACE) == pytest.approx(place, abs=1)
        assert page.evaluate("scrollY") >= 600
        assert page.locator("#settings details").evaluate("each => each.open")
        assert page.evaluate("document.querySelector('#log-0-1').isTheSame")
        assert page.locator(".log:visible").count() == 1
        shown = page.locator(".log pre > span:visible").all_inner_texts()
        assert shown
        assert all("rank 1" in line for line in shown)
        assert page.locator("mark").count() == len(shown)
        search.fill("")
        assert page.locator(".log:visible").count() == 2
        assert page.locator("mark").count() == 0


def test_a_log_that_grows_moves_only_if_its_end_was_shown(browser: Browser, server: Server, reporter: Cli) -> None:
    with running(reporter), opened(browser, server, f"/runs/{only_run(reporter)}") as page:
        log = page.locator("#log-0-0 pre")
        page.wait_for_function("() => document.querySelector('#log-0-0 pre').scrollHeight > 500", timeout=60_000)
        distance = "each => each.scrollHeight - each.clientHeight - each.scrollTop"
        assert log.evaluate(distance) < 8
        log.evaluate("each => { each.scrollTop = 40; }")
        count = page.locator("#log-0-0 pre > span").count()
        more = "count => document.querySelectorAll('#log-0-0 pre > span').length > count"

        page.wait_for_function(more, arg=count)
        assert log.evaluate("each => each.scrollTop") == 40
        log.evaluate("each => { each.scrollTop = each.scrollHeight; }")
        page.wait_for_function(more, arg=page.locator("#log-0-0 pre > span").count())

        assert log.evaluate(distance) < 8


@pytest.mark.slow
def test_a_run_is_read_once_for_all_browsers_and_not_while_nobody_looks(
    browser: Browser, server: Server, reporter: Cli
) -> None:
    with running(reporter):
        path = f"/runs/{only_run(reporter)}"
        with opened(browser, server, path) as one, opened(browser, server, path) as two, opened(browser, server, path):
            for page in (one, two):
                page.locator("#live", has_text="Live").wait_for()
            server_viewers(server, 3)
            shown = one.locator("h1").inner_text()
            begun = server.metric("serve_reads")
            for _ in range(3):  # each change is one read, and reaches both
                one.wait_for_function("shown => document.querySelector('h1').innerText !== shown", arg=shown)
                shown = one.locator("h1").inner_text()
            two.locator("h1", has_text=shown).wait_for()
            assert (
                2 <= server.metric("serve_reads") - begun <= 5
            )  # the last of those before was perhaps still to be shown
        server_viewers(server, 0)
        one_more = wait_until_still(server)
        assert server.metric("serve_reads") == one_more


def server_viewers(server: Server, count: int) -> None:
    wait_until(f"{count} viewers", lambda: server.metric("serve_viewers") == count, limit_s=60)


def wait_until_still(server: Server) -> float:
    """The number of reads, once they have ended: nothing has been read for longer than a reader would pause."""
    seen: list[tuple[float, float]] = []

    def still() -> bool:
        seen.append((time.monotonic(), server.metric("serve_reads")))
        return bool([at for at, reads in seen if reads == seen[-1][1] and at < seen[-1][0] - 20])

    wait_until("no more reads", still, limit_s=120)
    return seen[-1][1]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Browser, server: Server, reporter: Cli, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core is not installed").Axe()
    recorded = Recorded(nodes=2, ranks_per_node=2, lines_per_rank=40, hours=0.2)
    recorded.write(reporter.runs)

    with opened(browser, server, color_scheme=scheme) as page:
        page.get_by_role("link", name=recorded.name).wait_for()
        found = [axe.run(page).response]
        page.get_by_role("link", name=recorded.name).click()
        page.locator("#logs").wait_for()
        found.append(axe.run(page).response)
    for each in found:
        assert len(each["passes"]) > 10
        assert [(one["impact"], one["id"], one["nodes"][0]["html"][:200]) for one in each["violations"]] == []


def test_the_url_works_from_a_link_on_another_page(browser: Browser, server: Server) -> None:
    page = browser.new_page()
    try:
        page.set_content(f'<a href="{server.url}">here</a>')
        page.get_by_role("link").click()
        page.locator("h1", has_text="Runs").wait_for()
        assert page.url == f"{server.origin}/"
        page.go_back()
        assert server.token not in page.url
    finally:
        page.close()


def test_a_hidden_page_is_not_live_and_catches_up_when_it_is_shown(
    browser: Browser, server: Server, reporter: Cli
) -> None:
    show = """hidden => {
        Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    with running(reporter), opened(browser, server, f"/runs/{only_run(reporter)}") as page:
        server_viewers(server, 1)
        page.evaluate(show, True)
        server_viewers(server, 0)
        before = page.locator("h1").inner_text()
        page.evaluate(show, False)

        page.wait_for_function("before => document.querySelector('h1').innerText !== before", arg=before)
        server_viewers(server, 1)


def test_the_server_ends_with_pages_open_which_tell_it(browser: Browser, reporter: Cli) -> None:
    with running(reporter), serving(reporter) as server:
        context = browser.new_context()
        try:
            page = context.new_page()
            page.goto(f"{server.origin}/runs/{only_run(reporter)}?token={server.token}")
            page.locator("#live", has_text="Live").wait_for()

            code, stderr = server.end()

            assert (code, "Traceback" in stderr, "Cancel" in stderr) == (0, False, False)
            page.locator("#live", has_text="The connection was lost; trying again").wait_for()
        finally:
            context.close()
