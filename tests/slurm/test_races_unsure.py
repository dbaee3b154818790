"""A run on two Slurm clusters of which one does not say whether it has the job, and gets it later."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from testbed import wait_until
from tests.slurm.laptop import LIMIT_S
from tests.slurm.test_races import MARKS, marks

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.slurm.racing import Racing

pytestmark = pytest.mark.slurm


@pytest.fixture
def race(racing: Racing) -> Iterator[subprocess.Popen[bytes]]:
    """The launcher of a run that lab has in its queue, and juno too, although its sbatch has failed."""
    racing.cli.write("marks.py", MARKS)
    late = racing.home / "late"
    racing.nodes[0].new_sbatch(
        f'(until [ -e {late} ]; do sleep 0.1; done; exec "$sbatch" --hold "$@") </dev/null >/dev/null 2>&1 & '
        "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"
    )
    racing.nodes[1].new_sbatch('exec "$sbatch" --hold "$@"')
    launcher = racing.race("marks.py", str(racing.home / "marks"), "0")
    wait_until("juno to be left out", lambda: juno(racing).get("problem"), limit_s=LIMIT_S)
    late.touch()
    wait_until("both to have it", lambda: racing.submitted() == 1 and len(racing.queued()) == 2, limit_s=LIMIT_S)
    yield launcher
    launcher.kill()
    launcher.communicate()


def juno(racing: Racing) -> dict[str, Any]:
    """What is recorded of its try."""
    race = [json.loads(path.read_text())["race"] for path in racing.cli.runs.glob("*/run.json")]
    found: list[dict[str, Any]] = [each for of in race for each in of["tries"] if each["cluster"] == "juno"]
    return found[0] if found else {}


def test_its_job_is_cancelled_once_the_other_cluster_has_the_run(racing: Racing, race: subprocess.Popen[bytes]) -> None:
    assert juno(racing)["ended_at"] is None
    slurm = racing.nodes[1].slurm
    slurm.run(("scontrol", "release", *slurm.run(("squeue", "--noheader", "--format=%i")).stdout.split()))

    _, stderr = race.communicate(timeout=LIMIT_S)

    assert race.returncode == 0, stderr.decode()
    assert racing.queued() == []
    assert juno(racing)["ended_at"] is not None
    assert len(marks(racing)) == 1


@pytest.mark.parametrize("lives", [True, False], ids=["its launcher lives", "its launcher was killed"])
def test_its_job_is_cancelled_with_the_run(racing: Racing, race: subprocess.Popen[bytes], lives: bool) -> None:
    run = racing.status()["run"]
    if not lives:
        race.kill()

    cancelled = racing("cancel", "--force", run)
    _, stderr = race.communicate(timeout=LIMIT_S)

    said = stderr.decode()
    assert "juno: parts of it may still be there: " in said
    assert "distlaunch cancel --force" not in said, "that would end what lab has"
    assert cancelled.exit_code == 0, cancelled.stderr
    assert racing.queued() == []
    assert racing.status()["state"] == "cancelled"
