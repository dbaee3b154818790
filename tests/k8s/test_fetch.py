"""Files of pods: fetched while they run, before they end with `--fetch`, and lost after that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.k8s.conftest import User

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(300)]

WRITES = """
import os, signal, sys, time
assert os.readlink("data") == "/etc" and os.path.exists("data/passwd"), "a link out of the directory stays one"
os.makedirs("results", exist_ok=True)
with open(f"results/rank-{os.environ['RANK']}.bin", "wb") as file:
    file.write(bytes(range(256)) * 10_000)
print("written", flush=True)
def ends(*_):
    time.sleep(2)
    open("results/late.txt", "w").close()
    raise SystemExit
if sys.argv[1:] == ["fails"]:
    if os.environ["RANK"] == "1":
        time.sleep(4)  # the other rank may be slower
        raise SystemExit(3)
    signal.signal(signal.SIGTERM, ends)
while sys.argv[1:]:
    time.sleep(0.1)
"""
CONTENT = bytes(range(256)) * 10_000


def test_files_of_pods_are_fetched_before_they_are_lost(pods: User) -> None:
    """While the run continues, at its end by itself, and with an error that says why once it is too late."""
    pods.write("writes.py", WRITES)
    (pods.cli.directory / "data").symlink_to("/etc")
    running = pods.follow("--nodes", "2", "--name", "waits", "writes.py", "waits")
    running.wait("its line", lambda: "written" in running.stdout)

    every = pods("fetch", running.run, "results", "--node", "all", "--to", "every", "--output", "json")
    ends = ("--fetch", "results/*", "--output", "json")
    done, one, nothing = pods.at_once(
        ("k8s", "--nodes", "2", *ends, "--name", "ends", "--fetch-node", "all", "writes.py", "fails"),
        ("k8s", "--nodes", "2", *ends, "--name", "one", "--fetch-node", "1", "writes.py"),
        ("k8s", "--name", "nothing", "--fetch", "none/**", "--fetch-to", "no", "writes.py"),
    )
    late = pods("fetch", done.json["result"]["run"], "results/*", "--to", "late")
    cancelled = pods("cancel", running.run)

    paths = {file["path"] for file in every.json["result"]["files"]}
    assert paths == {"node-0/results/rank-0.bin", "node-1/results/rank-1.bin"}
    assert (pods.cli.directory / "every/node-1/results/rank-1.bin").read_bytes() == CONTENT
    assert done.exit_code == 1, "the run has failed, and its files are fetched all the same"
    fetched, run = done.json["result"]["fetched"], done.json["result"]["run"]
    assert {file["path"] for file in fetched["files"]} == {*paths, "node-0/results/late.txt"}, done.stderr
    assert (pods.cli.directory / run / "node-0/results/rank-0.bin").read_bytes() == CONTENT
    where = [(node["node"], node["output_dir"]) for node in done.json["result"]["nodes"]]
    assert where == [(node["node"], node["output_dir"]) for node in fetched["nodes"]]
    assert [node["to"] for node in fetched["nodes"]] == [f"{run}/node-0", f"{run}/node-1"]
    assert one.exit_code == 0, one.stderr
    assert [file["path"] for file in one.json["result"]["fetched"]["files"]] == ["results/rank-1.bin"]
    assert nothing.exit_code == 2
    assert "not fetched: " in nothing.stderr
    assert "nothing matches 'none/**'" in nothing.stderr
    assert "success after" in nothing.stderr
    assert late.exit_code == 4
    assert "node 0 has no pod that runs" in late.stderr
    assert "--fetch PATTERN" in late.stderr
    assert cancelled.exit_code == 0


COUNTS = """
import os
import helper
epoch = int(open("epoch").read()) + 1 if os.path.exists("epoch") else 0
if os.environ["RANK"] == "0":
    with open("epoch", "w") as file:
        file.write(str(epoch))
print(helper.WORD, "epoch", epoch, os.getcwd() == os.environ["DISTLAUNCH_OUTPUT_DIR"], flush=True)
"""


def test_what_pods_write_to_a_volume_is_there_for_the_next_launch(pods: User) -> None:
    volume = pods.cli.directory.parent / f"{pods.cli.directory.name}-volume"
    volume.mkdir()
    pods.write("counts.py", COUNTS)
    pods.write("helper.py", "WORD = 'one'\n")
    kept = ("--volume", f"hostpath:{volume}:/out", "--output-dir", "/out")

    first = pods("k8s", "--nodes", "2", *kept, "--output", "json", "counts.py")
    pods.write("helper.py", "WORD = 'two'\n")
    second, lost = pods.at_once(("k8s", *kept, "counts.py"), ("k8s", "counts.py"))
    relative = pods("k8s", "--output-dir", "out", "counts.py")

    assert first.exit_code == 0, first.stderr
    where = first.json["result"]["output_dir"]
    assert where.startswith("/out/")
    assert where.endswith("/work")
    assert "one epoch 0 True" in first.stderr
    assert "two epoch 1 True" in second.stdout, second.stderr
    assert f"outputs: {where} on " in second.stderr
    assert "lost with their pods" not in second.stderr
    assert "two epoch 0 True" in lost.stdout
    assert lost.stderr.count("lost with their pods: --fetch PATTERN, or --volume") == 1
    assert relative.exit_code == 2
    assert "output-dir 'out' is not an absolute path" in relative.stderr


def test_a_run_with_a_directory_of_its_own_on_a_volume_has_its_files_fetched(pods: User) -> None:
    """As another run uses the project's directory there, with other files."""
    volume = pods.cli.directory.parent / f"{pods.cli.directory.name}-volume"
    volume.mkdir()
    pods.write("writes.py", WRITES)
    (pods.cli.directory / "data").symlink_to("/etc")
    kept = ("--volume", f"hostpath:{volume}:/out", "--output-dir", "/out")
    other = pods.follow(*kept, "--name", "waits", "writes.py", "waits")
    other.wait("its line", lambda: "written" in other.stdout)
    pods.write("own.py", "open('mine.txt', 'w').close()\n")

    done = pods("k8s", *kept, "--fetch", "mine.txt", "--output", "json", "own.py")

    assert done.exit_code == 0, done.stderr
    result = done.json["result"]
    assert [file["path"] for file in result["fetched"]["files"]] == ["mine.txt"]
    assert [node["output_dir"].rpartition("/")[2] for node in result["nodes"]] == [f"work-{result['run']}"]
    assert result["output_dir"] == result["nodes"][0]["output_dir"]
    assert pods("cancel", other.run).exit_code == 0
