"""Signals to a run whose agents are about to begin."""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.agent.harness import Runner


def test_a_signal_for_the_workers_ends_no_agent_that_has_not_begun(agents: Runner) -> None:
    go, python = agents.directory / "go", agents.directory / "python"
    python.write_text(
        f"#!/bin/sh\ntrap 'exit 9' USR1\nwhile ! test -e {go}; do sleep 0.05; done\n"
        f"trap '' USR1  # or it might end a worker that has no handler yet\nexec '{sys.executable}' \"$@\"\n"
    )
    python.chmod(0o755)
    started = agents.start("import sys\nprint('up')\n", python=str(python))

    sender = threading.Thread(target=started.backend.signal, args=(started.handle, signal.SIGUSR1))
    sender.start()
    sender.join(1.0)  # time enough to do harm
    go.touch()
    started.wait()
    sender.join()

    assert started.result() == "success"
    assert started.stdout[0] == b"up\n"
