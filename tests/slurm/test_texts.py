"""Texts reach sbatch, the job file and the script byte for byte, and none of them is run as a command."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from launcher.agent.schedulers.slurm import expand
from tests import large
from tests.slurm.scripts import SHOW, found, printed

if TYPE_CHECKING:
    from testbed.slurm import Slurm
    from tests.slurm.conftest import Login

pytestmark = pytest.mark.slurm


def test_arguments_and_variables_of_hundreds_of_kilobytes_arrive(login: Login) -> None:
    login.write("large.py", large.SCRIPT.read_text())
    done = login("slurm", "--nodes", "2", "--log-ranks", "all", *large.OPTIONS, "large.py", *large.ARGUMENTS)

    assert done.exit_code == 0, done.stderr[-3000:]
    assert done.stdout.count(large.PRINTED) == 2


def test_values_of_sbatch_options_arrive_whole(login: Login) -> None:
    values = ("a b", "quote\"d and 'quoted'", "back\\slash", "$HOME `id` $(id)", "comma,comma", "# hash", "ü=é")

    done = login.each(
        {
            value: ("slurm", "--detach", "--sbatch", f"network={value}", "--sbatch", "hold", "reduce.py")
            for value in values
        }
    )

    jobs = {line.partition("|")[2]: line.partition("|")[0] for line in login.queue("%A|%k")}
    for value, said in done.items():
        assert said.exit_code == 0, f"{value}: {said.stderr}"
        shown = login.slurm.run(("scontrol", "show", "job", jobs[f"distlaunch:{said.stdout.strip()}"])).stdout
        assert f"Network={value}\n" in shown, value


def test_arguments_and_variables_arrive_byte_for_byte(login: Login) -> None:
    login.write("show.py", "import os, sys\nprint(repr(sys.argv[1:]), repr(os.environ['V']))\n")
    args = ["a b", "'\"$HOME`x`\\", "line\nbreak", "ü", "--", "-x"]

    done = login("slurm", "--env", "V=a,b 'c' $D", "show.py", *args)

    assert done.stdout == f"{args!r} \"a,b 'c' $D\"\n", done.stderr


TEXTS = (
    "account", "qos", "partition", "constraint", "reservation", "gres", "gpus-per-node", "mem", "nodelist", "exclude",
    "dependency", "licenses", "switches", "nice", "mail-type", "mail-user", "wckey",
)  # fmt: skip
"""Options of the backend that take a text; without accounting, Slurm accepts any text for some."""


def test_no_text_in_an_option_is_a_command(login: Login) -> None:
    evil = "x\"; touch $(pwd)/owned; `touch owned`; 'y' # & | > owned"

    shown = login("slurm", "--dry-run", *(word for option in TEXTS for word in (f"--{option}", evil)), "reduce.py")
    done = login.each(
        {option: ("slurm", "--detach", f"--{option}", evil, "--sbatch", "hold", "reduce.py") for option in TEXTS}
    )

    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.count('="x\\"; touch $(pwd)/owned; ') == len(TEXTS)
    for option, said in done.items():
        assert "Traceback" not in said.stderr, option
        assert said.exit_code in (0, 2), f"{option}: {said.stderr}"
        assert said.exit_code == 0 or said.stderr.count("error[bad_spec]: sbatch: ") == 1, f"{option}: {said.stderr}"
    assert {said.exit_code for said in done.values()} == {0, 2}
    assert not list(login.cli.directory.rglob("owned"))


def test_no_text_for_the_job_file_itself_is_a_command(login: Login) -> None:
    evil = "$(touch owned) `touch owned`; \"'"
    directory = login.cli.directory / f"a directory {evil.replace('/', '')}"
    directory.mkdir()
    (directory / "it's.py").write_text(SHOW)

    done = login("slurm", "--name", evil, "--env", f"V={evil}", "it's.py", evil, cwd=directory)
    by_hand = login("slurm", "--name", evil, "--render-to", "by hand", "it's.py", evil, cwd=directory)
    job = login.slurm.run(("sbatch", "--parsable", "job.sbatch"), cwd=str(directory / "by hand")).stdout.strip()

    assert found(done)[0] == ["0", "0", "1", *found(done)[0][3:7], *evil.split()]
    assert by_hand.exit_code == 0, by_hand.stderr
    login.slurm.wait_job(job, "COMPLETED")
    assert printed(directory / "by hand")[0].endswith(f" {evil}")
    assert not list(login.cli.directory.rglob("owned"))


def random_hostlist(chance: random.Random) -> str:
    """One with ranges, widths, several brackets and suffixes."""

    def bracket() -> str:
        width = chance.choice([1, 1, 2, 3])
        pieces, low = [], chance.randint(0, 10 ** (width - 1))
        for _ in range(chance.randint(1, 3)):  # ascending and disjoint, as Slurm writes them
            high = low + chance.choice([0, 1, chance.randint(2, 12)])
            pieces.append(f"{low:0{width}}-{high:0{width}}" if high > low else f"{low:0{width}}")
            low = high + chance.randint(1, 5)
        return f"[{','.join(pieces)}]"

    def one() -> str:
        name = chance.choice(["n", "node-", "gpu.rack", "a1b"])
        return name + chance.choice(["", bracket(), bracket() + "-ib" + bracket(), "7"])

    return ",".join(one() for _ in range(chance.randint(1, 4)))


def test_hostlists_are_expanded_as_scontrol_does(slurm: Slurm) -> None:
    chance = random.Random(20261120)
    hostlists = [random_hostlist(chance) for _ in range(60)]

    theirs = slurm.run(
        ("bash", "-c", 'for list; do echo $(scontrol show hostnames "$list"); done', "bash", *hostlists)
    ).stdout

    for hostlist, line in zip(hostlists, theirs.splitlines(), strict=True):
        assert expand(hostlist) == line.split(), hostlist
