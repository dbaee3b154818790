"""`distlaunch top [RUN]`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Optional

from launcher import output
from launcher.cli.parameters import OnOption, OutputOption, argument, complete_run
from launcher.console import live_line, progress_text, stack_lines, top_screen, top_table
from launcher.console.top_view import NO_SAMPLES, View, quits
from launcher.errors import LaunchError
from launcher.service import cancel, finding, observe, stacks
from launcher.service import top as service
from launcher.system import escapes, listener

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from launcher.console.top_view import Action
    from launcher.results.top import Top, Tops
    from launcher.service.top import Watch

_FRAME_S = 1.0


def top(
    run: Annotated[
        Optional[str],
        argument(metavar="[RUN]", help="Run, as for status [default: all that have not ended].", complete=complete_run),
    ] = None,
    on: OnOption = None,
    fmt: OutputOption = None,
) -> None:
    """Watch a run: its nodes and ranks, what they use, how far they are, and what is odd first.

    $ distlaunch top last
    $ distlaunch top --output json last
    """
    directory = observe.directory(fmt)
    is_live = top_screen.available()
    if run is None:
        _all(directory, is_live=is_live)
        return
    found = finding.find(directory, run, on)
    with live_line.waiting(f"reading {found.id}"):
        watch = service.Watch(found) if is_live else None
        now = None if watch else service.once(found)
    if now is not None:
        output.result(now, *_lines(now))
    elif watch is not None:
        _watch(watch)


def _lines(now: Top) -> list[str]:
    lines = [f"{now['run']}: {now['state']}" + (f" ({now['detail']})" if now["detail"] else "")]
    if now["progress"] is not None:
        lines.append(progress_text.line(now["progress"]))
    lines += [f"odd: {progress_text.finding(one)}" for one in now["findings"]]
    lines += [] if now["sampled"] else [NO_SAMPLES]
    return [
        *lines,
        "",
        *top_table.lines("nodes", now["nodes"], None),
        "",
        *top_table.lines("ranks", now["ranks"], None),
    ]


def _all(directory: Path, *, is_live: bool) -> None:
    def lines(found: Tops, width: int | None) -> list[str]:
        return top_table.lines("runs", found["runs"], width) if found["runs"] else ["no run that has not ended"]

    if not is_live:
        found = service.all_runs(directory)
        output.result(found, *lines(found, None))
        return
    foot = ["q quit"]
    with listener.told_to(lambda _kind, text: foot.append(text)), top_screen.Screen() as screen:
        while True:
            rows, width = screen.size
            shown = lines(service.all_runs(directory), width)[: rows - 1]
            last = top_table.cut(escapes.plain(foot[-1]), width)
            drawn = screen.draw([*shown, *[""] * (rows - 1 - len(shown)), last])
            del foot[1:]
            if not drawn or quits(screen.keys(_FRAME_S * 3)):
                return


def _watch(watch: Watch) -> None:
    view = View(watch.tail)

    def hear(kind: str, text: str) -> None:
        if kind != "detail":
            view.message = text

    with listener.told_to(hear):
        watch.start()
        try:
            with top_screen.Screen() as screen:
                while True:
                    watch = watch.later()
                    view.tail = watch.tail
                    now = watch.now()
                    view.message = view.message or watch.trouble
                    drawn_at = time.monotonic()
                    if not screen.draw(view.lines(now, *screen.size)):
                        return
                    typed = screen.keys(max(0.0, drawn_at + _FRAME_S - time.monotonic()))
                    action = view.typed(typed) if typed else ""
                    if action == "quit":
                        return
                    _obey(action, watch, view)
        finally:
            watch.close()


def _obey(action: Action, watch: Watch, view: View) -> None:
    if action == "cancel":
        view.message = _said(lambda: f"cancelled: {cancel.cancel(watch.run, wait=False)['state']}")
    elif action == "stacks":
        view.show(_said(lambda: "\n".join(stack_lines.lines(stacks.take(watch.run), whole=False))))


def _said(do: Callable[[], str]) -> str:
    try:
        return do()
    except LaunchError as error:
        return error.message
