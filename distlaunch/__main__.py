"""The command line, for `python -m distlaunch` and the console script."""

from __future__ import annotations

import sys

from distlaunch import _ending, _inside


def main() -> int:
    """Run one command and return its exit code."""
    if wrong := _inside.sentence():
        sys.stderr.write(f"error[hidden]: {wrong}\n")
        return 4
    _ending.install()
    from launcher.cli import main as command_line

    return _ending.expect(command_line())


if __name__ == "__main__":
    sys.exit(main())
