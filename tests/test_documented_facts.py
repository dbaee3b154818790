"""What the pages about backends, the stream, the fabric and the testbed list is what the program has."""

from __future__ import annotations

import re
import shlex
import socket
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent import protocol
from launcher.agent.fabric import discovery
from launcher.agent.fabric.sources import Tree
from launcher.agent.job import Job
from launcher.agent.network import ports
from launcher.agent.network.endpoint import Endpoint
from launcher.backends.ansible.options import AnsibleOptions
from launcher.backends.kubernetes.options import KubernetesOptions
from launcher.backends.local.options import LocalOptions
from launcher.backends.slurm.options import SlurmOptions
from launcher.doctor import checks
from launcher.settings import run_file
from testbed import Host, Kube, Slurm
from testbed.kube_node import KubeNode
from tests.command import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli

AGENT = "".join(path.read_text("utf-8") for path in sorted((ROOT / "launcher/agent").rglob("*.py")))


def page(name: str) -> str:
    return (ROOT / f"docs/{name}.md").read_text("utf-8")


def rows(text: str, header: str) -> list[list[str]]:
    """The cells of each row of the table with that header."""
    after = text.split(f"\n{header}\n", 1)[1].splitlines()[1:]
    lines = after[: next((at for at, line in enumerate(after) if not line.startswith("|")), len(after))]
    return [[cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_settings_in_examples_are_accepted(distlaunch: Cli) -> None:
    shown = [
        block
        for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
        for block in re.findall(r"^```toml\n(.*?)^```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    ]

    assert len(shown) > 2
    roles = [block for block in shown if "[roles." in block]
    assert len(roles) == 4
    for block in roles:
        path = distlaunch.write("run.toml", block)
        own = {"\npartition = ": SlurmOptions, "\nimage = ": KubernetesOptions}
        assert run_file.read(str(path), next((of for key, of in own.items() if key in block), LocalOptions))
    for block in set(shown).difference(roles):
        distlaunch.write(".config/distlaunch/config.toml", block)
        done = distlaunch("config")
        assert (done.exit_code, done.stderr) == (0, ""), block


def test_every_event_of_the_stream_is_in_its_table_and_no_other() -> None:
    sent = set(re.findall(r'(?:event|say|_tell|encode_event|_keep)\(\s*"(\w+)"', AGENT)) | set(
        re.findall(r'"event": "(\w+)"', AGENT)
    )

    table = {row[0].strip("`"): row[1] for row in rows(page("agent-stream"), "| event | fields | when |")}

    assert set(table) == sent
    named = {field for cell in table.values() for field in re.findall(r"`(\w+)`", cell)} - {"result", "node", "name"}
    assert [field for field in sorted(named) if not re.search(rf'\b{field}=|"{field}"|\b{field}: ', AGENT)] == []


@pytest.mark.parametrize("size", [1, 4096, 65536])
def test_records_are_no_longer_than_documented(size: int) -> None:
    """However much an agent reads at once, which is 64 KiB at most."""
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
def test_a_run_on_one_host_listens_only_on_loopback(
    nodes: int, more: dict[str, object], only_here: bool, tmp_path: Path
) -> None:
    about: Any = {**more, "rendezvous": {"file": str(tmp_path / "rendezvous.json")}}
    job = Job(
        run="x", command=["x"], kind="program", cwd="/", env={}, directory=str(tmp_path), max_nodes=nodes, **about
    )
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


def test_no_other_process_can_bind_a_port_once_it_is_chosen() -> None:
    with ports.listening() as held:
        for reuse in (0, 1):
            with socket.socket() as other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
                with pytest.raises(OSError, match="in use"):
                    other.bind(("127.0.0.1", ports.port_of(held)))


def test_a_template_has_the_names_that_are_documented(distlaunch: Cli) -> None:
    distlaunch.write("site.j2", "{{ no_such_name }}\n")
    errors = distlaunch("slurm", "--dry-run", "--template", "site.j2", "reduce.py").stderr
    (known,) = re.findall(r"known names: (.*)", errors)

    (sentence,) = re.findall(r"Names\s+in\s+it:\s(.*?);\sfilters", page("slurm"), re.DOTALL)

    assert set(re.findall(r"`(\w+)`", sentence)) == set(known.split(", "))


def test_options_for_hosts_have_the_documented_defaults() -> None:
    own = {f"--{field.name.replace('_', '-')}": field.default for field in fields(AnsibleOptions)}
    table = {
        re.findall(r"`(--[\w-]+)`", row[0])[0]: row[1].strip("`")
        for row in rows(page("ansible"), "| option | default | |")
    }

    assert set(table) == set(own)
    special = {"--inventory": "ansible.cfg's", "--spares": "0", "--project-dir": "on"}
    assert table == {name: str(default or "") for name, default in own.items()} | special


def test_documented_host_variables_are_read() -> None:
    role = ROOT / "playbooks/roles/distlaunch"
    code = "".join(
        path.read_text("utf-8") for path in (*role.rglob("*.py"), ROOT / "launcher/backends/ansible/inventory.py")
    )

    named = [row[0].strip("`") for row in rows(page("ansible"), "| host variable | |")]

    assert len(named) > 4
    assert [name for name in named if f'"{name}"' not in code] == []


def test_the_tables_of_the_fabric_are_complete() -> None:
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
def test_what_is_listed_of_the_testbed_exists(kind: type) -> None:
    named = [
        name
        for row in rows(page("testbed"), f"| `{kind.__name__}` | |")
        for code in re.findall(r"`([^`]+)`", row[0])
        for name in re.findall(r"^\w+", code)
    ]
    has = {*dir(kind), *(field.name for field in fields(kind))}

    assert len(named) > 5
    assert [name for name in named if name not in has] == []


def test_the_testbeds_fixtures_are_those_that_are_listed() -> None:
    named = {row[0].strip("`") for row in rows(page("testbed"), "| fixture, one per session | what it is |")}
    source = (ROOT / "testbed/fixtures.py").read_text("utf-8")

    assert named == set(re.findall(r"^@pytest\.fixture(?:\(.*\))?\ndef (\w+)", source, re.MULTILINE))


def test_benchmarks_have_the_options_of_the_documented_commands() -> None:
    found = re.findall(r"`(?:python )?(?:benchmarks/)?(\w+)\.py ([^`]+)`", page("benchmarks"))

    assert len(found) > 5
    for name, words in found:
        source = (ROOT / f"benchmarks/{name}.py").read_text("utf-8")
        options = [word for word in shlex.split(words) if word.startswith("--")]
        assert [option for option in options if f'"{option}"' not in source] == [], (name, words)
