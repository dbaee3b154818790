"""`distlaunch fetch` and `--fetch`: files that workers have written on hosts without a shared disk."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.ansible.conftest import Rack

pytestmark = pytest.mark.ssh

WRITES = """
import os, random
rank = os.environ["RANK"]
assert os.readlink("data") == "/etc" and os.path.exists("data/passwd"), "a link out of the directory stays one"
os.makedirs("results/deep", exist_ok=True)
with open(f"results/rank-{rank}.bin", "wb") as file:
    file.write(random.Random(int(rank)).randbytes(3_000_000))
with open(b"results/odd \\n[name]\\xff'\\"$", "w") as file:
    file.write("odd")
open("results/deep/empty.txt", "w").close()
os.symlink("/etc/passwd", "results/out")
os.symlink("/etc", "results/etc")
os.symlink("rank-0.bin", "results/latest.bin")
os.mkfifo("results/pipe")
"""


def content(rank: int) -> bytes:
    """What that rank writes."""
    import random

    return random.Random(rank).randbytes(3_000_000)


def test_files_of_hosts_are_fetched_whole(rack: Rack) -> None:
    """By pattern, from one host or all; nothing outside of the directory, and nothing twice."""
    rack.private_disks(*rack.ssh.hosts[:2])
    rack.write("writes.py", WRITES)
    (rack.directory / "data").symlink_to("/etc")
    at_end = ("--fetch", "results/rank-1.bin", "--fetch", "*.none", "--fetch-to", "at-end", "--fetch-node", "all")
    run = rack("--nodes", "2", *at_end, "--output", "json", "writes.py")
    assert run.exit_code == 0, run.stderr
    assert "1 file fetched to at-end" in run.stderr
    names, result = [host.name for host in rack.ssh.hosts[:2]], run.json["result"]
    assert [file["path"] for file in result["fetched"]["files"]] == [f"{names[1]}/results/rank-1.bin"]
    assert [node["to"] for node in result["fetched"]["nodes"]] == [f"at-end/{name}" for name in names]
    assert {node["output_dir"] for node in [*result["nodes"], *result["fetched"]["nodes"]]} == {result["output_dir"]}
    assert f"  outputs: {result['output_dir']} on {', '.join(names)}\n" in run.stderr
    assert "stay links: data -> /etc; --links follow" in run.stderr
    name = rack.id_of("writes")

    one = rack.shell("fetch", name, "results/**", "--to", "one", "--output", "json").json["result"]
    every = rack.shell("fetch", "last", "--to", "every", env={"DISTLAUNCH_FETCH_NODE": "all"})
    again = rack.shell("fetch", "last", "--node", "all", "--to", "every")
    missing = rack.shell("fetch", "last", "result/*")
    rack.ssh.hosts[1].run(("rm", "-r", result["output_dir"]))
    gone = rack.shell("fetch", "last", "results/*.bin", "--node", "all", "--to", "gone")

    odd = os.fsdecode(b"results/odd \n[name]\xff'\"$")
    there = {"results/rank-0.bin", "results/latest.bin", "results/deep/empty.txt", odd}
    assert {file["path"] for file in one["files"]} == there
    assert {each["path"].removeprefix("results/") for each in one["left_out"]} == {"out", "etc", "pipe"}
    here = rack.directory / "one"
    found = {str(path.relative_to(here)) for path in here.rglob("*") if not path.is_dir()}
    assert found == there
    assert (here / "results/rank-0.bin").read_bytes() == (here / "results/latest.bin").read_bytes() == content(0)
    assert (here / odd).read_text() == "odd"
    assert every.exit_code == 0, every.stderr
    hosts = sorted(path.name for path in (rack.directory / "every").iterdir())
    assert hosts == sorted(host.name for host in rack.ssh.hosts[:2])
    for rank, host in enumerate(rack.ssh.hosts[:2]):
        path = rack.directory / "every" / host.name / f"results/rank-{rank}.bin"
        assert hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(content(rank)).digest()
    assert not list((rack.directory / "every").rglob("writes.py")), "what was sent is not fetched"
    assert again.stdout.startswith("0 files fetched to every")
    assert gone.exit_code == 4
    assert gone.stderr.count("error[") == 1
    assert f"not fetched from {names[1]} (node 1): {names[1]}: {result['output_dir']}: No such file" in gone.stderr
    assert "2 other files are in 'gone'" in gone.stderr
    assert (rack.directory / "gone" / names[0] / "results/rank-0.bin").read_bytes() == content(0)
    assert missing.exit_code == 2
    assert "nothing matches 'result/*'" in missing.stderr
    assert "results/" in missing.stderr
