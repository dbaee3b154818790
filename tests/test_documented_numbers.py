"""A number that a page states is the program's."""

from __future__ import annotations

from dataclasses import fields

import pytest

from launcher.agent.fabric import network_variables
from launcher.agent.failures import RESULTS
from launcher.agent.group import elastic, losses, nodes, waits, watch, workers
from launcher.agent.job import Job
from launcher.agent.network import reach, secure
from launcher.agent.store import connection, server
from launcher.agent.stream import backlog, output, sink, sizes, writer
from launcher.backends import _patience
from launcher.backends._writing import new_key
from launcher.backends.ansible import lost
from launcher.backends.ansible import stream as ansible_stream
from launcher.backends.kubernetes import config_maps, login, pod, position, sidecars
from launcher.backends.kubernetes.options import KubernetesOptions
from launcher.backends.slurm import submitit
from launcher.backends.slurm.options import SlurmOptions
from launcher.backends.slurm.site import Site
from launcher.console import worker_output
from launcher.doctor import heat_map
from launcher.runs import lock
from launcher.service import cancel, limits
from launcher.settings.options import JobOptions
from launcher.spec import parse_duration, parse_log_limit
from launcher.system import input_file, writing
from testbed import KubeOptions, fixtures, kube_builds
from testbed import SlurmOptions as OwnSlurm
from tests.pages import page
from tests.plugins import failures, results, summary


def default(cls: type, name: str) -> object:
    """The default of an option; durations in seconds."""
    (value,) = [field.default for field in fields(cls) if field.name == name]
    return parse_duration(value, name) if isinstance(value, str) else value


JOB = Job._field_defaults

MIB = 1 << 20

NUMBERS: list[tuple[str, str, tuple[object, ...], tuple[object, ...]]] = [
    ("cli", "more than 16 MB is an error", (input_file.LIMIT_BYTES,), (16 * 10**6,)),
    ("cli", "8 MB wait to be read", (writing.BACKLOG_BYTES,), (8 << 20,)),
    ("cli", "no one reads for a second", (writing._STUCK_S,), (1,)),
    ("cli", "for 2 s or 64 KiB", (worker_output.MAX_HELD_S, worker_output.MAX_HELD_BYTES), (2, 64 << 10)),
    ("cli", "after 90 s of silence", (lock._SILENT_S,), (90,)),
    ("cli", "waits for it, up to a minute", (cancel._LOCK_S,), (60,)),
    ("configuration", "or 30 s after MIN are there", (JOB["last_call_s"],), (30,)),
    (
        "decisions/0006-one-verdict-per-round",
        "a sign of life every 6 s",
        (JOB["host_timeout_s"] / watch._SIGNS,),
        (6,),
    ),
    (
        "decisions/0006-one-verdict-per-round",
        "does not acknowledge for 30 s",
        (JOB["host_timeout_s"],),
        (30,),
    ),
    (
        "decisions/0006-one-verdict-per-round",
        "is reported after 35 s",
        (losses.QUIET * JOB["host_timeout_s"],),
        (35,),
    ),
    (
        "decisions/0006-one-verdict-per-round",
        "after `--peer-timeout` (5 min)",
        (JOB["peer_timeout_s"],),
        (300,),
    ),
    ("decisions/0008-first-cause", "waits 2 s for the failure behind it", (workers._FIRST_CAUSE_S,), (2,)),
    ("decisions/0008-first-cause", "for 5 s after the first", (waits.WAITS_S,), (5,)),
    ("decisions/0012-network-by-evidence", "is silent costs 30 s", (elastic._EXPLORE_S,), (30,)),
    ("decisions/0009-run-directory", "64 KiB are set aside", (sizes.RESERVED_BYTES,), (64 << 10,)),
    ("decisions/0006-one-verdict-per-round", "with exit code 75", (RESULTS["lost"],), (75,)),
    ("testing", "the last 200 kB of each", (failures.MAX_BYTES,), (200_000,)),
    ("testing", "The results of the last 20 runs stay", (results.KEPT,), (20,)),
    ("testing", "the ten slowest", (summary.SLOWEST,), (10,)),
    ("slurm", "at most every 30 s until", (submitit.Queue(Site())._delay_s,), (30,)),
    ("slurm", "SIGTERM `--lead` (90 s) before the limit", (default(SlurmOptions, "lead"),), (90,)),
    ("slurm", "their grace time (`--grace`, 30 s)", (default(JobOptions, "grace"),), (30,)),
    ("ansible", "30 s after the last message of a lost host", (JOB["host_timeout_s"],), (30,)),
    ("ansible", "it was silent for 45 s", (lost._LOST_S,), (45,)),
    (
        "ansible",
        "nothing for 20 s is opened anew; the limit doubles each time, up to 160 s",
        _patience._SILENT_S,
        (20, 160),
    ),
    ("ansible", "says three times what no agent says", (ansible_stream._GARBLED,), (3,)),
    (
        "kubernetes",
        "At most 64 MB, and 24 MB packed",
        (config_maps.LIMIT_BYTES, config_maps.ARCHIVE_LIMIT_BYTES),
        (64e6, 24e6),
    ),
    ("kubernetes", "after 30 s, or when a connection breaks", (JOB["host_timeout_s"],), (30,)),
    ("kubernetes", "`--max-requeues` times (3; 0: never)", (default(KubernetesOptions, "max_requeues"),), (3,)),
    ("kubernetes", "half an hour after the grace time", (pod._LIMIT_MORE_S,), (1800,)),
    ("kubernetes", "for `--start-timeout` (2 min)", (default(KubernetesOptions, "start_timeout"),), (120,)),
    ("kubernetes", "has a minute, or five", (login.LIMIT_S, login.ASKED_LIMIT_S), (60, 300)),
    ("kubernetes", "in the cluster for a day (`--ttl`)", (default(KubernetesOptions, "ttl"),), (86_400,)),
    ("kubernetes", "Node 0 ends a second after", (nodes._RECORDED_S,), (1,)),
    ("kubernetes", "5 s after ours has ended", (sidecars._PATIENCE_S,), (5,)),
    ("kubernetes", "from a second before", (position._OVERLAP_S,), (1,)),
    ("kubernetes", "one of eight ports", (len(pod.beacons("x")),), (8,)),
    ("kubernetes", "`--rdzv-timeout` (10 min)", (default(JobOptions, "rdzv_timeout"),), (600,)),
    ("agent-stream", "waiting for 0.1 s is sent", (output.PART_AFTER_S,), (0.1,)),
    ("agent-stream", "every 10 s", (JOB["heartbeat_s"],), (10,)),
    ("agent-stream", "16 MiB wait in the agent", (writer.BUFFER_BYTES,), (16 * MIB,)),
    ("agent-stream", "nothing for 5 minutes", (JOB["stream_wait_s"],), (300,)),
    ("agent-stream", "reports it on stderr after 5 s", (writer._SAY_AFTER_S,), (5,)),
    ("agent-stream", "nothing for 90 s though its agent runs", (limits.SILENT_S,), (90,)),
    ("agent-stream", "Events wait (1 MiB of them", (backlog._WAITING_BYTES,), (MIB,)),
    ("agent-stream", "Every second it is tried again", (sink._AGAIN_S,), (1,)),
    ("agent-stream", "64 KiB in `nodes/K/last_words`", (sizes.RESERVED_BYTES,), (64 << 10,)),
    ("agent-stream", "`--log-limit` is kept (4 GB;", (parse_log_limit(JobOptions().log_limit),), (4 * 10**9,)),
    ("fabric", "over 65 nodes", (reach._ALL,), (65,)),
    ("fabric", "a quarter of a second", (reach._SETTLE_S,), (0.25,)),
    ("fabric", "waited for 4 s", (reach._LIMIT_S,), (4,)),
    ("fabric", "wait for it for half a minute", (elastic._EXPLORE_S,), (30,)),
    ("fabric", "five times in a row at most", (elastic._MEETINGS,), (5,)),
    ("fabric", "an NCCL before 2.21", network_variables._DYNAMIC_GID, (2, 21)),
    ("fabric", "more than twelve nodes", (heat_map.WITH_NUMBERS,), (12,)),
    ("threat-model", "makes 32 random bytes", (len(bytes.fromhex(new_key())),), (32,)),
    (
        "threat-model",
        "at most 256 connections without a proof, 64 bytes and ten seconds each",
        (server._MAX_WAITING, connection._HELLO, server._PROVE_S),
        (256, 64, 10),
    ),
    ("threat-model", "over two fresh random numbers", (secure.NONCE_BYTES,), (32,)),
    ("testbed", "It takes 9 GB of disk", (int(sum(build.room_gb for build in kube_builds.ALL)),), (9,)),
    ("testbed", "`cred_expire` is 10 s", (OwnSlurm().cred_expire_s,), (10,)),
    ("testbed", "KillWait is 3 s", (OwnSlurm().kill_wait_s,), (3,)),
    ("testbed", "NotReady after 15 s", (KubeOptions().lost_after_s,), (15,)),
    ("testbed", "NotReady after 10 s of silence", (fixtures.LOST_AFTER_S,), (10,)),
]
"""A page, a sentence in it, the numbers that the program has, and those that the sentence means."""


@pytest.mark.parametrize(
    ("where", "says", "has", "means"), NUMBERS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_number_is_the_programs(where: str, says: str, has: tuple[object, ...], means: tuple[object, ...]) -> None:
    assert says in " ".join(page(f"docs/{where}.md").split())
    assert has == means
