"""What tables and examples of the documentation say is what the program has: names, defaults, options."""

from __future__ import annotations

import re
import shlex
import socket
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

from launcher.agent import protocol
from launcher.agent.fabric import discovery, network_variables
from launcher.agent.fabric.sources import Tree
from launcher.agent.group import nodes
from launcher.agent.job import Job
from launcher.agent.network import ports, reach, secure
from launcher.agent.network.endpoint import Endpoint
from launcher.agent.store import connection, server
from launcher.agent.stream import backlog, output, sink, writer
from launcher.backends._base import new_key
from launcher.backends.ansible import backend as ansible
from launcher.backends.ansible import stream as ansible_stream
from launcher.backends.ansible.options import AnsibleOptions
from launcher.backends.kubernetes import backend as kubernetes
from launcher.backends.kubernetes import config_maps, login, logs, pod, sidecars
from launcher.backends.kubernetes.options import KubernetesOptions
from launcher.backends.slurm import submitit
from launcher.backends.slurm.options import SlurmOptions
from launcher.doctor import checks, heat_map
from launcher.service import limits
from launcher.settings.options import JobOptions
from launcher.spec import parse_duration, parse_log_limit
from testbed import Host, Kube, KubeOptions, Slurm, fixtures, kube_builds
from testbed import SlurmOptions as OwnSlurm
from testbed.kube_node import KubeNode
from tests.command import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli

AGENT = "".join(path.read_text("utf-8") for path in sorted((ROOT / "launcher/agent").rglob("*.py")))


def page(name: str) -> str:
    return (ROOT / f"docs/{name}.md").read_text("utf-8")


def rows(text: str, header: str) -> list[list[str]]:
    """The cells of the table with that header line."""
    after = text.split(f"\n{header}\n", 1)[1].splitlines()[1:]
    lines = after[: next((at for at, line in enumerate(after) if not line.startswith("|")), len(after))]
    return [[cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_settings_that_are_shown_are_understood(distlaunch: Cli) -> None:
    shown = [
        block
        for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
        for block in re.findall(r"^```toml\n(.*?)^```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    ]

    assert len(shown) > 2
    for block in shown:
        distlaunch.write(".config/distlaunch/config.toml", block)
        done = distlaunch("config")
        assert (done.exit_code, done.stderr) == (0, ""), block


def test_every_event_of_the_stream_is_in_its_table_and_no_other() -> None:
    said = set(re.findall(r'(?:event|_tell|encode_event|_keep)\(\s*"(\w+)"', AGENT)) | set(re.findall(r'"event": "(\w+)"', AGENT))

    table = {row[0].strip("`"): row[1] for row in rows(page("agent-stream"), "| event | fields | when |")}

    assert set(table) == said
    named = {field for cell in table.values() for field in re.findall(r"`(\w+)`", cell)} - {"result", "node", "name"}
    assert [field for field in sorted(named) if not re.search(rf'\b{field}=|"{field}"|\b{field}: ', AGENT)] == []


@pytest.mark.parametrize("size", [1, 4096, 65536])
def test_records_are_no_longer_than_is_said(size: int) -> None:
    """Whatever an agent reads at once, which is 64 KiB at most."""
    tagger = protocol.LineTagger(0, 0, protocol.STDOUT)
    text = b"x" * 65535 + b"y" * 65535 + b"\n" + b"z" * 300_000 + b"\n"
    stream = b"".join(tagger.feed(text[at : at + size]) for at in range(0, len(text), size)) + tagger.flush()

    found = [record for record in protocol.Decoder().feed(stream) if isinstance(record, protocol.Output)]

    assert max(len(record.data) for record in found) <= 128 * 1024
    assert max(len(record.data) for record in found if not record.ends_line) <= 64 * 1024


@pytest.mark.parametrize(
    ("nodes", "more", "only_here"),
    [
        pytest.param(2, {"rendezvous": {"file": "{}"}, "master_addr": "127.0.0.1"}, True, id="local"),
        pytest.param(1, {"rendezvous": {"file": "{}"}}, True, id="one node on Slurm or over SSH"),
        pytest.param(2, {"rendezvous": {"file": "{}"}}, False, id="several"),
    ],
)
def test_who_is_alone_listens_on_loopback_alone(nodes: int, more: dict[str, object], only_here: bool, tmp_path: Path) -> None:
    about = {**more, "rendezvous": {"file": str(tmp_path / "rendezvous.json")}}
    job = Job(run="x", command=["x"], kind="program", cwd="/", env={}, directory=str(tmp_path), max_nodes=nodes, **about)  # type: ignore[arg-type]
    endpoint = Endpoint(job)
    endpoint.open()
    try:
        (fd,) = endpoint.fds()
        with socket.socket(fileno=fd) as mine:
            address = mine.getsockname()[0]
            mine.detach()
    finally:
        endpoint.handed_over()

    assert (address == "127.0.0.1") is only_here


def test_a_port_that_is_chosen_is_nobody_elses_from_then_on() -> None:
    with ports.listening() as held:
        for reuse in (0, 1):
            with socket.socket() as thief:
                thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
                with pytest.raises(OSError, match="in use"):
                    thief.bind(("127.0.0.1", ports.port_of(held)))


def test_a_template_has_the_names_that_are_said(distlaunch: Cli) -> None:
    distlaunch.write("site.j2", "{{ no_such_name }}\n")
    said = distlaunch("slurm", "--dry-run", "--template", "site.j2", "reduce.py").stderr
    (known,) = re.findall(r"known names: (.*)", said)

    (sentence,) = re.findall(r"Names\s+in\s+it:\s(.*?);\sfilters", page("slurm"), re.DOTALL)

    assert set(re.findall(r"`(\w+)`", sentence)) == set(known.split(", "))


def test_options_for_hosts_have_the_defaults_that_are_said() -> None:
    own = {f"--{field.name.replace('_', '-')}": field.default for field in fields(AnsibleOptions)}
    table = {re.findall(r"`(--[\w-]+)`", row[0])[0]: row[1].strip("`") for row in rows(page("ansible"), "| option | default | |")}

    assert set(table) == set(own)
    assert table == {name: "ansible.cfg's" if default == () else str(default or "") for name, default in own.items()} | {
        "--spares": "0"
    }


def test_variables_of_hosts_are_read_by_somebody() -> None:
    role = ROOT / "playbooks/roles/distlaunch"
    code = "".join(path.read_text("utf-8") for path in (*role.rglob("*.py"), ROOT / "launcher/backends/ansible/inventory.py"))

    named = [row[0].strip("`") for row in rows(page("ansible"), "| host variable | |")]

    assert len(named) > 4
    assert [name for name in named if f'"{name}"' not in code] == []


def test_the_tables_of_the_fabric_are_whole() -> None:
    text = page("fabric")
    source = (ROOT / "launcher/agent/fabric/network_variables.py").read_text("utf-8")
    named = {re.findall(r"`(\w+)", row[0])[0] for row in rows(text, "| variable | set when |")}
    named |= {re.findall(r"`(\w+)", row[0])[0] for row in rows(text.split("## RDMA")[1], "| variable | set when |")}

    assert named == set(re.findall(r'Variable\("(\w+)"', source))
    assert [row[0] for row in rows(text, "| check | what is compared |")] == list(checks.known())


def test_at_the_start_of_a_run_no_program_is_started_for_the_fabric(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(Tree, "run", lambda _, *argv: ran.append(argv))

    discovery.read(Tree())

    assert ran == []


@pytest.mark.parametrize("kind", [Host, Slurm, Kube, KubeNode], ids=lambda kind: kind.__name__)
def test_what_the_testbed_has_is_there(kind: type) -> None:
    named = [
        name
        for row in rows(page("testbed"), f"| `{kind.__name__}` | |")
        for code in re.findall(r"`([^`]+)`", row[0])
        for name in re.findall(r"^\w+", code)
    ]
    has = {*dir(kind), *(field.name for field in fields(kind))}

    assert len(named) > 5
    assert [name for name in named if name not in has] == []


def test_the_testbeds_fixtures_are_there() -> None:
    named = {row[0].strip("`") for row in rows(page("testbed"), "| fixture, one per session | what it is |")}
    source = (ROOT / "testbed/fixtures.py").read_text("utf-8")

    assert named == set(re.findall(r"^@pytest\.fixture(?:\(.*\))?\ndef (\w+)", source, re.MULTILINE))


def test_benchmarks_have_the_options_of_the_commands_that_gave_the_figures() -> None:
    found = re.findall(r"`(?:python )?(?:benchmarks/)?(\w+)\.py ([^`]+)`", page("benchmarks"))

    assert len(found) > 5
    for name, words in found:
        source = (ROOT / f"benchmarks/{name}.py").read_text("utf-8")
        options = [word for word in shlex.split(words) if word.startswith("--")]
        assert [option for option in options if f'"{option}"' not in source] == [], (name, words)


def default(cls: type, name: str) -> object:
    """Of an option; durations in seconds."""
    (value,) = [field.default for field in fields(cls) if field.name == name]
    return parse_duration(value, name) if isinstance(value, str) else value


def elastic(name: str) -> tuple[float]:
    """A number of `dynamic_rendezvous.py`, which imports torch."""
    return (float(re.findall(rf"^{name} = ([\d.]+)$", AGENT, re.MULTILINE)[0]),)


JOB = Job._field_defaults
MIB = 1 << 20
NUMBERS: list[tuple[str, str, tuple[object, ...], tuple[object, ...]]] = [
    ("slurm", "at most every 30 s until", (submitit.Queue()._delay_s,), (30,)),
    ("slurm", "SIGTERM `--lead` (90 s) before the limit", (default(SlurmOptions, "lead"),), (90,)),
    ("slurm", "their grace time (`--grace`, 30 s)", (default(JobOptions, "grace"),), (30,)),
    ("ansible", "30 s after the last message of a lost host", (JOB["host_timeout_s"],), (30,)),
    ("ansible", "it was silent for 45 s", (ansible._LOST_S,), (45,)),
    (
        "ansible",
        "nothing for 20 s is opened anew; the limit doubles each time, up to 160 s",
        ansible_stream._SILENT_S,
        (20, 160),
    ),
    ("ansible", "says three times what no agent says", (ansible_stream._GARBLED,), (3,)),
    ("kubernetes", "At most 64 MB, and 24 MB packed", (config_maps.LIMIT_BYTES, config_maps.ARCHIVE_LIMIT_BYTES), (64e6, 24e6)),
    ("kubernetes", "after 30 s, or when a connection breaks", (JOB["host_timeout_s"],), (30,)),
    ("kubernetes", "`--max-requeues` times (3; 0: never)", (default(KubernetesOptions, "max_requeues"),), (3,)),
    ("kubernetes", "a minute after the grace time", (pod._LIMIT_MORE_S,), (60,)),
    ("kubernetes", "after `--start-timeout` (2 min)", (default(KubernetesOptions, "start_timeout"),), (120,)),
    ("kubernetes", "has a minute, or five", (login.LIMIT_S, login.ASKED_LIMIT_S), (60, 300)),
    ("kubernetes", "in the cluster for a day (`--ttl`)", (default(KubernetesOptions, "ttl"),), (86_400,)),
    ("kubernetes", "Node 0 ends a second after", (nodes._RECORDED_S,), (1,)),
    ("kubernetes", "5 s after ours has ended", (sidecars._PATIENCE_S,), (5,)),
    ("kubernetes", "from a second before", (logs._OVERLAP_S,), (1,)),
    ("kubernetes", "one of eight ports", (len(kubernetes._beacons("x")),), (8,)),
    ("kubernetes", "`--rdzv-timeout` (10 min)", (default(JobOptions, "rdzv_timeout"),), (600,)),
    ("agent-stream", "waiting for 0.1 s is sent", (output.PART_AFTER_S,), (0.1,)),
    ("agent-stream", "every 10 s", (JOB["heartbeat_s"],), (10,)),
    ("agent-stream", "16 MiB wait in the agent", (writer.BUFFER_BYTES,), (16 * MIB,)),
    ("agent-stream", "nothing for 5 minutes", (JOB["stream_wait_s"],), (300,)),
    ("agent-stream", "reports it on stderr after 5 s", (writer._SAY_AFTER_S,), (5,)),
    ("agent-stream", "nothing for 90 s though its agent runs", (limits.SILENT_S,), (90,)),
    ("agent-stream", "Events wait (1 MiB of them", (backlog._WAITING_BYTES,), (MIB,)),
    ("agent-stream", "Every second it is tried again", (sink._AGAIN_S,), (1,)),
    ("agent-stream", "64 KiB in `nodes/K/last_words`", (sink.RESERVED_BYTES,), (64 << 10,)),
    ("agent-stream", "`--log-limit` is kept (4 GB;", (parse_log_limit(JobOptions().log_limit),), (4 * 10**9,)),
    ("fabric", "over 65 nodes", (reach._ALL,), (65,)),
    ("fabric", "a quarter of a second", (reach._SETTLE_S,), (0.25,)),
    ("fabric", "waited for 4 s", (reach._LIMIT_S,), (4,)),
    ("fabric", "wait for it for half a minute", elastic("_EXPLORE_S"), (30,)),
    ("fabric", "five times in a row at most", elastic("_MEETINGS"), (5,)),
    ("fabric", "an NCCL before 2.21", network_variables._DYNAMIC_GID, (2, 21)),
    ("fabric", "more than twelve nodes", (heat_map._WITH_NUMBERS,), (12,)),
    ("threat-model", "makes 32 random bytes", (len(bytes.fromhex(new_key())),), (32,)),
    (
        "threat-model",
        "at most 256 connections without a proof, 64 bytes and ten seconds each",
        (server._MAX_WAITING, connection._HELLO, server._PROVE_S),
        (256, 64, 10),
    ),
    ("threat-model", "over two fresh random numbers", (secure.NONCE_BYTES,), (32,)),
    ("testbed", "It takes 8 GB of disk", (int(sum(build.room_gb for build in kube_builds.ALL)),), (8,)),
    ("testbed", "`cred_expire` is 10 s", (OwnSlurm().cred_expire_s,), (10,)),
    ("testbed", "KillWait is 3 s", (OwnSlurm().kill_wait_s,), (3,)),
    ("testbed", "NotReady after 15 s", (KubeOptions().lost_after_s,), (15,)),
    ("testbed", "NotReady after 10 s of silence", (fixtures.LOST_AFTER_S,), (10,)),
]
"""What a page says, what the program has, and what that sentence means."""


@pytest.mark.parametrize(("where", "says", "has", "means"), NUMBERS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_number_is_the_programs(where: str, says: str, has: tuple[object, ...], means: tuple[object, ...]) -> None:
    assert says in " ".join(page(where).split())
    assert has == means
