"""The life of a run on a Slurm that is reached through its login node, from a host without Slurm's commands."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING

import pytest

from testbed import NotAvailableError, wait_until
from tests.terminal.screen import Screen

if TYPE_CHECKING:
    from tests.slurm.laptop import Laptop

pytestmark = pytest.mark.slurm

SHOWS = """
import os, sys, helper
rank = os.environ["RANK"]
print("rank", rank, "of", os.environ["WORLD_SIZE"], helper.WORD, *sys.argv[1:], flush=True)
os.makedirs("results", exist_ok=True)
with open(f"results/{rank}.txt", "w") as file:
    file.write(rank * 3)
"""

WAITS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
for number in range(int(sys.argv[1])):
    print("line", number, flush=True)
    time.sleep(float(sys.argv[2]))
"""


def packs(laptop: Laptop) -> set[str]:
    return {path.name for path in (laptop.top / "packs").glob("*.tar")}


def test_a_run_is_followed_listed_fetched_started_again_and_removed(laptop: Laptop) -> None:
    laptop.cli.write("shows.py", SHOWS)
    laptop.cli.write("helper.py", "WORD = 'first'\n")

    done = laptop(
        "run", "--on", "juno", "--gres", "none", "--nodes", "2", "--log-ranks", "all", "--fetch", "results",
        "--fetch-to", str(laptop.home / "got"), "shows.py", "--lr", "a b",
    )  # fmt: skip
    first, older = packs(laptop), laptop.status()["run"]
    again = laptop("slurm", "--on", "juno", "--gres", "none", "shows.py")
    unchanged = packs(laptop)
    laptop.cli.write("helper.py", "WORD = 'second'\n")
    changed = laptop("slurm", "--on", "juno", "--gres", "none", "shows.py")

    assert (done.exit_code, again.exit_code, changed.exit_code) == (0, 0, 0), (done.stderr, again.stderr)
    assert sorted(done.stdout.splitlines()) == [f"[{n}:{n}] rank {n} of 2 first --lr a b" for n in range(2)]
    assert again.stdout == "rank 0 of 1 first\n"
    assert changed.stdout == "rank 0 of 1 second\n"
    assert len(first) == 1
    assert unchanged == first, "nothing is sent twice"
    assert len(packs(laptop) - first) == 1
    assert sum(path.stat().st_size for path in (laptop.top / "packs").glob("*.tar") if path.name not in first) < 20_000
    assert {path.name: path.read_text() for path in (laptop.home / "got/results").iterdir()} == {
        "0.txt": "000",
        "1.txt": "111",
    }
    state = laptop.status()
    assert (state["state"], state["cluster"], state["nodes"][0]["result"]) == ("success", "juno", "success")
    assert state["nodes"][0]["output_dir"].startswith(f"{laptop.top}/projects/")
    run = state["run"]
    assert laptop("logs", run).stdout.endswith("rank 0 of 1 second\n")
    listed = laptop("ls", "--on", "juno", "--output", "json").json["result"]["runs"]
    assert {row["run"]: row["command"] for row in listed}[run] == ["shows.py"]

    requeued = laptop("requeue", older)
    ended = laptop.wait_end(older)

    assert requeued.exit_code == 0, requeued.stderr
    assert (ended["state"], ended["attempt"]) == ("success", 1)
    lines = laptop("logs", older).stdout.splitlines()
    assert sorted(lines) == sorted(2 * done.stdout.splitlines()), "it has its own files, not those sent since"
    assert (laptop.top / "runs" / run).is_dir()
    assert laptop("rm", run).exit_code == 0
    assert not (laptop.top / "runs" / run).exists()
    assert not list(laptop.cli.runs.glob(run))


def test_a_dry_run_asks_no_one_and_shows_what_is_sent(laptop: Laptop) -> None:
    laptop.cli.write("shows.py", SHOWS)
    laptop.cli.write("helper.py", "WORD = 'x'\n")
    laptop.node.down()
    try:
        planned = laptop("run", "--on", "juno", "--dry-run", "--output", "json", "shows.py").json["result"]
    finally:
        laptop.node.up()
    run = laptop.detached("--gres", "none", "shows.py")
    sent = (laptop.top / "runs" / run / "job.sbatch").read_text()
    names = [file["path"] for file in planned["sent"]["files"]]

    def plain(text: str) -> str:
        return re.sub(r"shows-\d{8}-\d{6}-\w{4}", "RUN", text).replace("#SBATCH --gres=none\n", "")

    assert plain(planned["files"]["job.sbatch"]) == plain(sent)
    assert names[:2] == ["helper.py", "shows.py"]
    assert f"--chdir={laptop.top}" in sent
    spec = json.loads((laptop.top / "runs" / run / "spec.json").read_text())
    assert spec["cwd"] == f"{laptop.top}/runs/{run}/work"


def test_lines_come_once_each_though_connections_break_and_no_command_of_slurm_runs_here(laptop: Laptop) -> None:
    laptop.cli.write("waits.py", WAITS)
    follower = laptop.follow("--gres", "none", "waits.py", "30", "0.3")
    follower.wait_line("line 2")
    laptop.node.cut()
    follower.wait_line("line 9")
    laptop.node.down()
    laptop.node.up()

    code, said = follower.end()

    assert code == 0, said
    assert follower.lines == [f"line {number}" for number in range(30)]
    assert "is not on this host" not in said


def test_without_a_way_in_each_command_says_so_and_what_follows_continues_later(laptop: Laptop) -> None:
    laptop.cli.write("waits.py", WAITS)
    follower = laptop.follow("--gres", "none", "waits.py", "40", "0.25")
    follower.wait_line("line 2")
    laptop.node.refuse_keys()
    laptop.node.cut()

    refused = laptop("run", "--on", "juno", "waits.py", "1", "1")
    asked = laptop("ls", "--on", "juno")
    seen = laptop("status", "last")
    closed = laptop("login", "juno")
    listed = laptop("login", "--output", "json").json["result"]["logins"]

    for done in (refused, asked, closed):
        assert done.exit_code == 3, done.stderr
        assert "error[not_logged_in]: not logged in to juno: distlaunch login juno" in done.stderr
    assert seen.exit_code == 0
    assert [row["open"] for row in listed] == [False]
    laptop.node.take_keys()
    opened = laptop("login", "juno")
    assert (opened.exit_code, opened.stdout) == (0, "logged in to juno\n")
    code, said = follower.end()
    assert code == 0, said
    assert follower.lines == [f"line {number}" for number in range(40)]


def test_only_login_asks_for_a_second_factor_and_all_commands_use_its_connection(laptop: Laptop) -> None:
    laptop.cli.write("waits.py", WAITS)
    try:
        laptop.node.ask_for_code()
    except NotAvailableError as error:
        pytest.skip(str(error))
    try:
        before = laptop("run", "--on", "juno", "--gres", "none", "waits.py", "1", "0")
        argv, env = (sys.executable, "-m", "launcher", "login", "juno"), laptop.cli.env(laptop.env())
        with Screen(argv, env=env, cwd=laptop.cli.directory) as screen:
            screen.until("One-time password")
            screen.type(f"{laptop.node.code()}\n")
            assert screen.end() == 0
        after = laptop("run", "--on", "juno", "--gres", "none", "waits.py", "1", "0")
        closed = laptop("login", "juno", "--close")
        again = laptop("ls", "--on", "juno")
    finally:
        laptop.node.ask_no_more()

    for done in (before, again):
        assert done.exit_code == 3
        assert "error[not_logged_in]: not logged in to juno: distlaunch login juno" in done.stderr
    assert "logged in to juno; the connection lasts until it is unused for 8 hours" in screen.said
    assert (after.exit_code, after.stdout) == (0, "line 0\n"), after.stderr
    assert closed.exit_code == 0


def test_a_host_key_that_has_changed_is_refused(laptop: Laptop) -> None:
    key = laptop.node.directory / "host_key"
    before = {path: path.read_bytes() for path in (key, key.with_suffix(".pub"))}
    laptop.node.down()
    laptop.node.new_host_key()
    laptop.node.up()
    try:
        done = laptop("ls", "--on", "juno")
    finally:
        laptop.node.down()
        for path, content in before.items():
            path.write_bytes(content)
        laptop.node.up()
    assert done.exit_code == 3
    assert "juno is not reached" in done.stderr
    assert "another host answers there now" in done.stderr


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        ({"login": "nowhere.invalid"}, 3, "is not reached: ssh: Could not resolve hostname nowhere.invalid"),
        ({"login": "-oProxyCommand=x"}, 2, "login '-oProxyCommand=x' is not a host"),
        ({"remote_dir": "relative"}, 2, "remote-dir 'relative' is not an absolute path"),
        ({"remote_dir": ""}, 2, "remote-dir is missing"),
        ({"remote_dir": "/proc/none"}, 4, "/proc/none cannot be used: "),
    ],
)
def test_what_cannot_work_is_one_clear_error(laptop: Laptop, settings: dict[str, str], code: int, said: str) -> None:
    laptop.cli.write("waits.py", WAITS)
    laptop.settings(**settings)

    done = laptop("run", "--on", "juno", "--gres", "none", "waits.py", "1", "0")

    assert done.exit_code == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not laptop.node.slurm.run(("squeue", "--noheader")).stdout


def test_a_job_whose_id_was_lost_with_the_connection_is_found_and_not_submitted_again(laptop: Laptop) -> None:
    """The login node is cut off right after sbatch has submitted."""
    laptop.cli.write("waits.py", WAITS)
    laptop.node.new_sbatch('"$sbatch" "$@" >/dev/null; sleep 600')
    try:
        launcher = laptop.follow("--gres", "none", "--detach", "waits.py", "600", "0.1")
        wait_until("the job", lambda: laptop.node.slurm.run(("squeue", "--noheader")).stdout, limit_s=60)
        laptop.node.cut()
        code, said = launcher.end()
    finally:
        laptop.node.new_sbatch('exec "$sbatch" "$@"')
    assert code == 0, said
    (run,) = launcher.lines
    assert laptop.status(run)["job_id"]
    comments = laptop.node.slurm.run(("squeue", "--states=all", "--noheader", "--format=%k")).stdout.split()
    assert comments.count(f"distlaunch:{run}") == 1
    assert laptop("cancel", run).exit_code == 0
    assert laptop.status(run)["state"] == "cancelled"


def test_another_host_adopts_a_run_and_has_all_of_its_output(laptop: Laptop, tmp_path: object) -> None:
    laptop.cli.write("waits.py", WAITS)
    run = laptop.detached("--gres", "none", "waits.py", "600", "0.1")
    other: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": f"{tmp_path}/other"}

    adopted = laptop("adopt", run[:-2], "--on", "juno", env=other)
    wait_until("its lines", lambda: "line 3\n" in laptop("logs", run, env=other).stdout, limit_s=60)
    state = laptop("status", run, "--output", "json", env=other).json["result"]
    cancelled = laptop("cancel", run, env=other)

    assert adopted.exit_code == 0, adopted.stderr
    assert (state["state"], state["cluster"]) == ("running", "juno")
    assert cancelled.exit_code == 0, cancelled.stderr
    assert laptop.status(run)["state"] == "cancelled"


def test_tasks_of_an_array_have_the_files_and_their_own_output(laptop: Laptop) -> None:
    laptop.cli.write("task.py", "import os, helper\nprint(helper.WORD, os.environ['SLURM_ARRAY_TASK_ID'])\n")
    laptop.cli.write("helper.py", "WORD = 'task'\n")

    done = laptop("run", "--on", "juno", "--gres", "none", "--array", "1-3", "task.py")

    run = laptop.status()["run"]
    assert done.exit_code == 0, done.stderr
    assert [laptop("logs", f"{run}/{n}").stdout for n in (1, 2, 3)] == [f"[0:0] task {n}\n" for n in (1, 2, 3)]


def test_a_full_disk_there_is_named_and_nothing_is_submitted(laptop: Laptop) -> None:
    laptop.cli.write("waits.py", WAITS)
    laptop.cli.write("large.bin", "x" * 9_000_000)
    laptop.top.mkdir()
    laptop.node.host.private_directory(laptop.top, size_bytes=4_000_000)
    try:
        done = laptop("run", "--on", "juno", "--gres", "none", "waits.py", "1", "0")
    finally:
        laptop.node.host.shared_directory(laptop.top)
    assert done.exit_code == 4, done.stderr
    assert "No space left on device" in done.stderr
    assert "nothing was submitted" in done.stderr
    assert not laptop.node.slurm.run(("squeue", "--noheader")).stdout
