"""Roles on Slurm: each is a component of one heterogeneous job."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.slurm.conftest import Login, end
from tests.slurm.roles import PAIR, TALKS, WAITING, job_of
from tests.slurm.scripts import WAITS, printed
from tests.slurm.test_allocation import salloc

if TYPE_CHECKING:
    from tests.slurm.laptop import Laptop

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


def test_two_roles_are_components_with_resources_of_their_own_and_reach_one_another(login: Login) -> None:
    login.write("talks.py", TALKS)
    run = login.follow("pair", "--log-ranks", "all", "--roles", str(login.write("pair.toml", PAIR)))

    done = run.end()

    assert done.exit_code == 0, done.stderr
    job = job_of(run)
    login.slurm.wait_idle()
    components = login.queue("%i|%T|%D|%N|%b|%c", f"--jobs={job}")
    assert components == [f"{job}+0|COMPLETED|2|n[3-4]|gres:gpu:2|3", f"{job}+1|COMPLETED|1|n1|N/A|1"]
    lines = sorted(done.stdout.splitlines())
    trains = [
        f"[{rank // 2}:{rank}] heard rollout to trainer {rank} 4 2 n[3-4] n[3-4] {rank} {rank // 2} 3"
        for rank in range(4)
    ]
    assert lines == [
        *trains,
        *(f"[2:{4 + rank}] heard trainer to rollout {rank} 2 1 n1 n1 {rank} 0 1" for rank in (0, 1)),
    ]
    assert f"{run.id} on slurm, job {job}\n" in done.stderr
    assert re.search(
        r"HOST +NODE +ROLE +RANKS\nn3 +0 +trainer +0-1\nn4 +1 +trainer +2-3\nn1 +2 +rollout +4-5\n", done.stderr
    )
    status = run.status()
    assert (status["state"], status["job_id"]) == ("success", job)


def test_a_rendered_run_is_submitted_by_hand(login: Login) -> None:
    login.write("talks.py", TALKS)
    directory = login.cli.directory / "rendered"
    shown = login("slurm", "--dry-run", "--roles", str(login.write("pair.toml", PAIR)))
    rendered = login("slurm", "--render-to", str(directory), "--roles", "pair.toml")
    moved = directory.rename(login.cli.directory / "moved here")

    login.slurm.run(("sbatch", "--wait", "job.sbatch"), cwd=str(moved))

    assert (shown.exit_code, rendered.exit_code) == (0, 0), rendered.stderr
    assert (
        shown.stdout.count("\n#SBATCH hetjob\n") == (moved / "job.sbatch").read_text().count("\n#SBATCH hetjob\n") == 1
    )
    assert sum("heard" in line for line in printed(moved)) == 6


def test_in_an_allocation_the_roles_take_consecutive_nodes_or_the_groups_of_their_sizes(login: Login) -> None:
    login.write("talks.py", TALKS)
    login.write("pair.toml", re.sub("(?m)^(gres|nodelist|cpus_per_task).*\n", "", PAIR))
    run = "distlaunch slurm --nproc-per-node 2 --log-ranks all --roles pair.toml"

    plain = end(salloc(login, "4", run))
    groups = end(salloc(login, "2 : --nodes=1", run))
    small = end(salloc(login, "2", run))
    wrong = end(salloc(login, "1 : --nodes=2", run))

    for done in (plain, groups):
        assert done.exit_code == 0, done.stderr
        assert done.stdout.count("heard rollout to trainer") == 4
        assert done.stdout.count("heard trainer to rollout") == 2
    assert "3 nodes: the allocation, job " in small.stderr
    assert "the roles have 2, 1 nodes, and the groups of job " in wrong.stderr


def test_what_slurm_cannot_do_is_refused_before_submission(login: Login) -> None:
    login.write("waits.py", WAITS)
    own = "".join(
        f'[roles.{name}]\nnodes = 1\nscript = "waits.py"\n{more}\n' for name, more in (("a", "mem = '10'"), ("b", ""))
    )
    login.write("memory.toml", own)
    login.write("time.toml", own.replace("mem =", "time ="))
    login.write("template.sh", "#!/bin/bash\nsrun {{ agent | map('quote') | join(' ') }}\n")
    commands = {
        "Slurm has no arrays of heterogeneous jobs": (*WAITING, "--array", "0-3"),
        "5 nodes: no partition has more than 4": ("--role", "a:3:waits.py", "--role", "b:2:waits.py"),
        "invalid partition specified: nowhere": (*WAITING, "--partition", "nowhere"),
        "role b has no mem, and Slurm would give it that of a role before: 10": ("--roles", "memory.toml"),
        "a role cannot have its own time": ("--roles", "time.toml"),
        "does not write '#SBATCH hetjob' between the roles": (*WAITING, "--template", "template.sh"),
    }

    done = login.each({said: ("slurm", *words) for said, words in commands.items()})

    for said, result in done.items():
        assert result.exit_code == 2, (said, result.stderr)
        assert said in result.stderr
    assert not login.queue("%i", "--states=PENDING,RUNNING")


def test_through_a_login_node_the_files_of_all_roles_are_sent_also_in_one_file(laptop: Laptop) -> None:
    laptop.cli.write("talks.py", TALKS)
    (laptop.cli.directory / "more").mkdir()
    laptop.cli.write("more/answers.py", TALKS)
    first, second = PAIR.split("[roles.rollout]")
    laptop.cli.write("pair.toml", f"{first}[roles.rollout]{second.replace('talks.py', 'more/answers.py')}")
    argv = ("run", "--on", "juno", "--log-ranks", "all", "--roles", "pair.toml")

    done = laptop(*argv)
    laptop.settings(login_shell="none")
    alone = laptop(*argv)

    for each in (done, alone):
        assert each.exit_code == 0, each.stderr
    streams = [laptop.top / "runs" / laptop.status()["run"] / f"nodes/{node}/stream" for node in range(3)]
    for told in (done.stdout, "".join(stream.read_text() for stream in streams)):
        assert told.count("heard rollout to trainer") == 4
        assert told.count("heard trainer to rollout") == 2


def test_bundled_scripts_and_copied_files_are_found_by_each_role(login: Login) -> None:
    login.write("shows.py", "print('shown', __file__, flush=True)")
    words = ("--gres", "none", "--log-ranks", "all", "--role", "sums:2:reduce.py", "--role", "shows:1:shows.py")

    done = login("slurm", "--snapshot", *words)
    rendered = login("slurm", "--render-to", "rendered", *words)

    assert (done.exit_code, rendered.exit_code) == (0, 0), done.stderr
    assert done.stdout.count("after 3") == 2
    assert re.search(r"shown \S+/runs/\S+/snapshot/shows.py", done.stdout)
    assert (login.cli.directory / "rendered/payload/reduce.py").exists()
