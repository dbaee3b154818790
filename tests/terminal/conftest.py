"""Programs on a terminal, and the launcher's side of a worker's terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from launcher.console import terminal
from tests.terminal.connections import BEGAN, Agents
from tests.terminal.screen import Screen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.command import Cli

    Start = Callable[..., Screen]


@pytest.fixture
def start(distlaunch: Cli) -> Iterator[Start]:
    """Starts `distlaunch local` with a script on a terminal."""
    screens: list[Screen] = []

    def start(script: str, *options: str, argv: list[str] | None = None, **more: Any) -> Screen:
        path = distlaunch.write("script.py", script)
        words = (
            argv
            if argv and not script
            else [*argv, str(path)]
            if argv
            else [sys.executable, "-m", "launcher", "local", "--quiet", *options, str(path)]
        )
        screen = Screen(words, env=distlaunch.env({"TERM": "xterm", "NO_COLOR": "1"}), cwd=distlaunch.directory, **more)
        screens.append(screen)
        return screen

    yield start
    for screen in screens:
        with screen:
            screen.process.terminate()


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Iterator[terminal.Terminal]:
    """A terminal that does not wait for late messages."""
    monkeypatch.setattr(terminal, "_SETTLE_S", 0.0)
    about: Any = {"rank": 3, "interactive": True, "stdout": True, "stderr": True, "size": BEGAN}
    with terminal.Terminal(about, lambda *_: None) as found:
        yield found


@pytest.fixture
def agents() -> Agents:
    """No agent is connected yet."""
    return Agents()
