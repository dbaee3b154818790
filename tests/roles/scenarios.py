"""Runs of two roles, the same on every backend: `client` on one node, `server` on two."""

from __future__ import annotations

import re
import shutil
import signal
from typing import TYPE_CHECKING

from testbed.running import Running
from tests.chaos.processes import AGENT
from tests.command import ROOT, Result
from tests.frameworks.place import LIMIT_S, found_of, left, new_mark, nothing_left

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.frameworks.place import Place

SCRIPTS = ROOT / "tests/scripts/roles"
GRACE = ("--grace=2s",)


class Roles:
    """One run of both roles in one place."""

    def __init__(self, place: Place) -> None:
        self.place, self.mark = place, new_mark("roles")
        shutil.copytree(SCRIPTS, place.work, dirs_exist_ok=True)

    def file(self, client: str = "", server: str = "", *, client_args: str = "", server_args: str = "") -> str:
        """A run file; `client` and `server`: further lines of the two tables."""
        words = {
            name: ", ".join(f'"{word}"' for word in ("server", *args.split()))
            for name, args in (("client", client_args), ("server", server_args))
        }
        text = (
            f'[roles.client]\nnodes = 1\nnproc_per_node = 2\nscript = "meet.py"\nargs = [{words["client"]}]\n{client}\n'
            f'[roles.server]\nnodes = 2\nnproc_per_node = 1\nscript = "meet.py"\nargs = [{words["server"]}]\n'
            f'serves = true\ncontract = "env"\n{server}\n'
        )
        path = self.place.work / "run.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    def argv(self, file: str, *options: str) -> list[str]:
        """The command line."""
        shape = [f"--name={self.mark}", "--log-ranks=all", "--grace=2s", *options, f"--roles={file}"]
        if self.place.mounts:
            shape.insert(0, f"--volume=hostpath:{self.place.work}:{self.place.work}")
        return [self.place.backend, *self.place.where, *shape]

    def run(self, file: str, *options: str) -> Result:
        """A run to its end, of which nothing is left."""
        with nothing_left(self.mark):
            return self.place.cli(
                *self.argv(file, *options), env=self.place.variables(), cwd=self.place.work, timeout_s=LIMIT_S
            )

    def while_it_waits(self, file: str, act: Callable[[Running], object], *options: str, waits: int) -> tuple[int, str]:
        """Act once so many workers wait; the exit code and all output. Nothing is left."""
        with nothing_left(self.mark):
            argv = self.argv(file, *options)
            running = Running(self.place.cli.start(*argv, env=self.place.variables(), cwd=self.place.work))
            try:
                running.until("waits", count=waits)
                act(running)
                return running.end(), running.stdout + running.stderr
            finally:
                running.close()

    def kill_agent(self, node: int) -> None:
        """SIGKILL to the agent of that node."""
        found = [one for one in found_of(self.mark) if one.kind == AGENT and one.node == node]
        assert found, left(self.mark)
        found[0].process.send(signal.SIGKILL)


def met(said: str) -> list[str]:
    """Who has met the server, sorted."""
    return sorted(re.findall(r"(\w+ \d+ of \d+) met server on 2 hosts", said))


ALL = ["client 0 of 2", "client 1 of 2", "server 1 of 2"]
"""Whoever is to meet it."""
