"""A directory to launch from, without any user's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """\
import os, sys, time
print("rank", os.environ["RANK"], *sys.argv[1:], flush=True)
printed = "printed-" + os.environ.get("MASTER_PORT", "")
if os.environ["RANK"] == "0":
    open(printed, "w").close()
if "fail" in sys.argv and os.environ["RANK"] == "1":
    while not os.path.exists(printed):  # rank 0 is ended when this one fails
        time.sleep(0.01)
    raise ValueError("this is wrong")
if "wait" in sys.argv:
    import signal
    signal.signal(signal.SIGUSR1, lambda *_: (print("heard", flush=True), os._exit(0)))
    print("waits", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a script in it."""
    for name, value in {
        "HOME": str(tmp_path),
        "DISTLAUNCH_RUNS_DIR": str(tmp_path / "runs"),
        "DISTLAUNCH_SYSTEM_CONFIG": str(tmp_path / "system.toml"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work.py").write_text(SCRIPT)
    return tmp_path
