"""Slurm's backend where its extra was not installed."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.command import Cli

WITHOUT = "import sys; sys.modules['submitit'] = None; from launcher.cli import main; sys.exit(main(sys.argv[1:]))"


def test_a_backend_whose_extra_is_not_installed_is_one_error_that_says_how_to_install_it(distlaunch: Cli) -> None:
    script = distlaunch.write("x.py", "")
    argv = (sys.executable, "-c", WITHOUT, "slurm", "--dry-run", "--gres", "none", str(script))
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)

    assert (done.returncode, done.stdout) == (3, "")
    first, second = done.stderr.splitlines()
    assert first == "error[backend_unavailable]: submitit is not installed"
    assert second.startswith("  hint: pip install ")
