"""`scripts/test`: its words as pytest's options."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tests.plugins import hooks, rotation, subjects

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

PROCESSES = 3
"""Even on two cores: tests with clusters mostly wait. With more, slow hosts reach limits that users never see."""


def argv(request: subjects.Request, cores: int) -> list[str]:
    """The command line of pytest."""
    words = [sys.executable, "-m", "pytest", f"--numprocesses={PROCESSES if cores > 1 else 0}"]
    words += [f"--tier={tier}" for tier in request.tiers]
    words += [f"--subject={subject}" for subject in request.subjects]
    words += ["--changed"] * request.changed
    asked = any(word.startswith("--cov") for word in request.rest)
    if os.environ.get("CI") and not asked and rotation.commit() % rotation.MEASURED == 0:
        words.append("--cov")
    return [*words, *request.rest]


def main(given: Sequence[str]) -> NoReturn:
    """Replace this process with pytest."""
    try:
        request = subjects.request(given)
    except subjects.UnknownWordError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    hooks.install()
    words = argv(request, len(os.sched_getaffinity(0)))
    os.execv(words[0], words)


if __name__ == "__main__":
    main(sys.argv[1:])
