"""Slurm's terms and ours, without a cluster: states, reasons, allocations, quoting."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, cast

import pytest

from launcher.backends.slurm import allocation, reported, states, submitit
from launcher.backends.slurm.script import MOVED, quote, quote_value
from launcher.backends.slurm.site import Site
from launcher.errors import SpecError
from launcher.spec import NodeRange
from tests.unused_gpus import besides

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.backends.slurm.handle import SlurmHandle
    from tests.command import Cli


@pytest.mark.parametrize(("text", "cpus"), [("8", 8), ("32(x3)", 32), ("32(x3),16", 16), ("2,48(x2)", 2), ("", None)])
def test_the_step_gets_the_cpus_of_the_smallest_node(text: str, cpus: int | None) -> None:
    env = {"SLURM_JOB_ID": "5", "SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_CPUS_PER_NODE": text}

    found = allocation.allocation(env)

    assert found is not None
    assert (found.cpus, found.within_step) == (cpus, False)
    assert allocation.nodes_of(NodeRange(min=2, max=9), found) == 4


def test_a_login_node_is_not_an_allocation() -> None:
    assert allocation.allocation({"HOME": "/home/me"}) is None
    assert allocation.allocation({"SLURM_JOB_ID": "5"}) is None, "srun's --export may leave half of them"


def test_a_host_in_two_groups_of_a_heterogeneous_job_is_refused() -> None:
    env = {"SLURM_JOB_ID": "5", "SLURM_HET_SIZE": "3"}
    env |= {f"SLURM_JOB_NODELIST_HET_GROUP_{group}": hosts for group, hosts in enumerate(("n[1-2]", "n3", "n[2-4]"))}

    with pytest.raises(SpecError, match="n2 is in the groups 0 and 2 of job 5") as refused:
        allocation.allocation(env)

    assert refused.value.hint is not None
    last = allocation.allocation(env, refused.value.hint.rpartition(" ")[2])
    assert last is not None
    assert (last.nodes, last.groups) == (3, (2,))
    with pytest.raises(SpecError, match="het-group 1: this is not inside a job"):
        allocation.allocation({}, "1")
    with pytest.raises(SpecError, match="job 5 is not heterogeneous"):
        allocation.allocation({"SLURM_JOB_ID": "5", "SLURM_JOB_NUM_NODES": "4"}, "1")


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"PBS_JOBID": "12.srv", "PBS_NODEFILE": "hosts"}, "PBS job 12.srv with 2 nodes"),
        ({"LSB_JOBID": "7", "LSB_HOSTS": "a a b c"}, "LSF job 7 with 3 nodes"),
        ({"FLUX_JOB_ID": "f1", "FLUX_JOB_NNODES": "2"}, "Flux job f1 with 2 nodes"),
    ],
)
def test_inside_another_schedulers_job_a_run_says_how_to_use_all_of_its_nodes(
    distlaunch: Cli, variables: dict[str, str], text: str
) -> None:
    distlaunch.write("hosts", "h1\nh1\nh2\n")
    env: dict[str, str | None] = {**variables, "PATH": f"{distlaunch.write('bin/env', '').parent}:/usr/bin:/bin"}
    no_slurm = distlaunch("slurm", "--no-python", "true", env={**env, "PATH": str(distlaunch.directory / "bin")})
    local = distlaunch("local", "--nodes", "2", "--no-python", "true", env=env)
    alone = distlaunch(
        "local", "--no-python", "true", env={**env, "PBS_JOBID": None, "LSB_JOBID": None, "FLUX_JOB_ID": None}
    )

    assert no_slurm.exit_code == 3
    assert (
        f"this is {text}, and no Slurm: sbatch is not on PATH\n  hint: over SSH: distlaunch ansible -i "
        in no_slurm.stderr
    )
    assert f"warning: local uses only this host of {text}; all of them: over SSH: distlaunch " in local.stderr
    assert local.exit_code == 0
    assert "warning" not in besides(alone.stderr)


def test_more_nodes_than_an_allocation_has_are_refused_and_fewer_are_all_it_takes() -> None:
    found = allocation.allocation({"SLURM_JOB_ID": "5", "SLURM_JOB_NUM_NODES": "4", "SLURM_STEP_ID": "0"})

    assert found is not None
    assert (found.cpus, found.within_step) == (None, True)
    assert allocation.nodes_of(NodeRange(min=3, max=3), found) == 3
    with pytest.raises(SpecError, match="5 nodes: the allocation, job 5, has 4"):
        allocation.nodes_of(NodeRange(min=5, max=5), found)


@pytest.mark.parametrize(
    ("state", "meaning"),
    [
        ("PENDING", "pending"), ("CONFIGURING", "pending"), ("REQUEUE_HOLD", "pending"), ("RUNNING", "running"),
        ("COMPLETING", "running"), ("SUSPENDED", "running"), ("RUNNING+", "running"), ("COMPLETED", "ended"),
        ("CANCELLED by 1000", "ended"), ("cancelled+", "ended"), ("NODE_FAIL", "ended"), ("NEW_WORD", "unknown"),
        ("", "unknown"),
    ],
)  # fmt: skip
def test_states_mean_one_of_four(state: str, meaning: str) -> None:
    assert states.meaning(state) == meaning


@pytest.mark.parametrize(
    ("state", "reason", "kind", "message"),
    [
        ("PREEMPTED", "None", "preempted", "Slurm ended job 7, state PREEMPTED"),
        ("TIMEOUT", "TimeLimit", "timeout", "Slurm ended job 7, state TIMEOUT: TimeLimit"),
        ("CANCELLED by 0", "", "cancelled", "Slurm ended job 7, state CANCELLED"),
        ("NODE_FAIL", "NodeDown", "node", "Slurm ended job 7, state NODE_FAIL: NodeDown"),
        ("OUT_OF_MEMORY", "OutOfMemory", "out_of_memory", "Slurm ended job 7, state OUT_OF_MEMORY: OutOfMemory"),
        ("FAILED", "NonZeroExitCode", None, ""),
        ("COMPLETED", "None", None, ""),
    ],
)
def test_an_end_that_the_agents_cannot_know_of_has_a_class(
    state: str, reason: str, kind: str | None, message: str
) -> None:
    assert states.ending("7", state, reason) == ({"class": kind, "message": message} if kind else None)


def test_the_cause_of_a_job_that_never_reached_a_host_has_no_host() -> None:
    cause = states.ending("7", "FAILED", "JobLaunchFailure")

    assert cause is not None
    assert (cause["class"], cause["host"]) == ("node", None)
    assert "the run directory must be on a file system that all nodes see" in cause["message"]


@pytest.mark.parametrize(
    ("said", "out_of_reach"),
    [
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)", True),
        ("squeue: error: slurm_receive_msg: Zero Bytes were transmitted or received", True),
        ("sinfo: error: Socket timed out on send/recv operation", True),
        ("sbatch: fatal: Could not establish a configuration source", True),
        (
            "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
            False,
        ),
        ("scancel: error: Kill job error on job id 7: Access/permission denied", False),
    ],
)
def test_a_controller_that_does_not_answer_is_distinguished_from_one_that_refuses(
    said: str, *, out_of_reach: bool
) -> None:
    assert states.out_of_reach(said) is out_of_reach


def test_sruns_output_names_the_lost_node_and_those_where_no_agent_could_start(tmp_path: Path) -> None:
    out = tmp_path / "job.out"
    assert states.lost_host(out) is None
    assert states.not_started(out) == {}
    out.write_text(
        "hand\npython3: can't open file '/runs/x/agent.pyz': [Errno 2] No such file or directory\n"
        "srun: error: n[3-4]: tasks 2-3: Exited with exit code 2\n"
        "srun: error: n1: task 0: Exited with exit code 1\n"
        "srun: error: Node failure on n2\n"
    )

    words = "python3: can't open file '/runs/x/agent.pyz': [Errno 2] No such file or directory"
    assert states.lost_host(out) == "n2"
    assert states.not_started(out) == {"n3": words, "n4": words}


def test_the_files_of_many_nodes_are_not_looked_at_while_none_has_failed_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\necho '4711|RUNNING|None|N/A|distlaunch:train'\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "job.out").write_text("setup\n")
    for node in range(100):
        (tmp_path / f"nodes/{node}").mkdir(parents=True)
        (tmp_path / f"nodes/{node}/stream").touch()
    handle = cast(
        "SlurmHandle", {"run_dir": str(tmp_path), "nodes": 100, "job_id": "4711", "comment": "distlaunch:train"}
    )
    looks = []
    sys.setprofile(lambda _, event, what: looks.append(what) if event == "c_call" and what is os.stat else None)
    try:
        found = reported.liveness(Site(), handle, lambda: submitit.Queue(Site()))
    finally:
        sys.setprofile(None)

    assert found.nodes == ("running",) * 100
    assert len(looks) < 100


@pytest.mark.parametrize("word", ["", "plain", "a b", "it's", '"', "$HOME", "`id`", "line\nbreak", "ü", "--x=a b"])
def test_words_are_quoted_for_the_shell_except_the_directory_that_it_finds_itself(word: str) -> None:
    assert shlex.split(quote(word)) == [word]
    assert quote(f"{MOVED}/{word}x:{MOVED}") == f'"$DISTLAUNCH_RUN_DIR"{shlex.quote(f"/{word}x:")}"$DISTLAUNCH_RUN_DIR"'


def test_values_are_quoted_for_sbatch_and_have_no_line_break() -> None:
    assert quote_value("gpu:a100:4") == "gpu:a100:4"
    assert quote_value('a "b" \\c #d') == '"a \\"b\\" \\\\c #d"'
    with pytest.raises(SpecError, match="line break"):
        quote_value("a\n#SBATCH --wrap=x")
