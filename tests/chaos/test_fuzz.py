"""Input from outside, however damaged, is read or refused in one clear error, and nothing else happens."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from launcher.agent import protocol
from launcher.agent.channel import Channel
from launcher.console.announce import Announcer
from launcher.console.worker_output import WorkerOutput
from launcher.errors import LaunchError
from launcher.runs import reader
from launcher.runs.outcome import RunReport
from launcher.settings import config, options
from tests.command import Cli

if TYPE_CHECKING:
    from collections.abc import Callable

FEW = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=100)

HUGE = st.sampled_from([10**400, -(10**400), 2**63, 2**31, 10**18, 1e300])
"""What JSON accepts as a number, but arithmetic, clocks or C do not."""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | HUGE | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
EVENTS = """
    agent_started host_facts facts fabric waiting rendezvous worker_started worker_exited heartbeat lines_lost
    restart warning stopping failure done other
"""
FIELDS = """
    time node attempt run host pid after cpus threads variables notes interfaces what limit_s
    round restarts max_restarts
    master_addr master_port nodes world_size ranks rank local_rank exit_code signal stopped workers lines
    lines_lost total reason message cause deadline result duration_s
"""
CAUSES = st.dictionaries(
    st.sampled_from(
        [
            "class",
            "message",
            "host",
            "node",
            "rank",
            "local_rank",
            "exit_code",
            "signal",
            "traceback",
            "time",
            "secondary",
        ]
    ),
    JSON | st.sampled_from(["node", "user_code", "cancelled", "timeout", "killed"]),
)
VARIABLES = st.lists(st.dictionaries(st.sampled_from(["name", "value", "source", "reason"]), JSON), max_size=2)
RESULTS = st.sampled_from(["success", "failed", "lost", "cancelled", "preempted", "timeout"])


@st.composite
def events(draw: Callable[[Any], Any]) -> bytes:
    """An event in which any field may be anything."""
    values = JSON | st.integers(0, 3) | HUGE | RESULTS | CAUSES | VARIABLES
    fields = draw(st.dictionaries(st.sampled_from(FIELDS.split()), values, max_size=8))
    return json.dumps({"event": draw(st.sampled_from(EVENTS.split())), **fields}).encode() + b"\n"


LINES = st.one_of(
    events(),
    st.binary(max_size=60).map(lambda data: data + b"\n"),
    st.binary(max_size=60),
    st.tuples(st.integers(0, 12), st.sampled_from("|!"), st.sampled_from(" +"), st.binary(max_size=30)).map(
        lambda part: b"0.%d%s%s%s\n" % (part[0], part[1].encode(), part[2].encode(), part[3])
    ),
)


@given(st.lists(LINES, max_size=20), st.integers(1, 200), st.sampled_from([None, frozenset({0, 3})]))
@example([b'{"event":' + b"[" * 100_000 + b"\n"], 200, None)
@example(
    [b'{"event":"fabric","variables":[{"value":"x"}]}\n{"event":"heartbeat","time":1%s}\n' % (b"0" * 400)], 200, None
)
@example([b'{"event":"done","attempt":true,"restarts":"9","cause":{"class":[1],"time":NaN,"host":{}}}\n'] * 2, 9, None)
@MANY
def test_a_damaged_stream_is_read_to_its_end_and_is_consistent(lines: list[bytes], size: int, wanted: Any) -> None:
    data = b"".join(lines)
    report, read = RunReport(["h0", "h1"]), reader.StreamReader(wanted)
    workers = WorkerOutput(wanted)
    announcer = Announcer(["h0", "h1"], workers, explain=True)
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
        for node in (0, 1):
            for at in range(0, len(data) + 1, size):
                for record in read.feed(data[at : at + size]):
                    report.add(node, record)
                    if not isinstance(record, protocol.Output):
                        announcer.record(node, record)
                found = report.outcome(("running", "ended"))
                announcer.state(found)
                json.dumps(found.to_json(), allow_nan=False)
        announcer.tick(time.monotonic() + 1e6)
        decoder = protocol.Decoder()
        assert sum(
            len(r.data) for r in [*decoder.feed(data), *decoder.close()] if isinstance(r, protocol.Output)
        ) <= len(data)


def send(channel: Channel[Any, Any], messages: list[dict[str, Any]]) -> None:
    """Send all messages, then close the channel."""
    for message in messages:
        channel.send(message)
    channel.close()


@given(st.lists(JSON, max_size=5))
@MANY
def test_messages_arrive_as_they_were_sent(values: list[Any]) -> None:
    one: Channel[Any, Any]
    one, other = Channel.pair()
    sent = [{"value": value} for value in values]
    thread = threading.Thread(target=send, args=(one, sent))
    thread.start()
    for message in sent:
        assert repr(other.receive()[0]) == repr(message)
    assert other.receive() == (None, [])
    thread.join()
    other.close()


KEYS = st.sampled_from(
    [
        "nodes",
        "nproc_per_node",
        "env",
        "time_limit",
        "max_restarts",
        "partition",
        "inventory",
        "image",
        "secret",
        "backend",
    ]
) | st.text(min_size=1, max_size=8)
VALUES = st.one_of(
    st.booleans(), st.integers(), st.floats(), st.text(max_size=12),
    st.lists(st.text(max_size=5) | st.integers(), max_size=3),
    st.sampled_from(["auto", "1:2", "10m", "slurm", "local", "ansible", "kubernetes"]),
)  # fmt: skip


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")


@given(
    st.lists(
        st.tuples(st.sampled_from(["defaults", "clusters.a", "clusters.b", "cluster", "x y"]), KEYS, VALUES), max_size=6
    ),
    st.binary(max_size=30),
)
@settings(MANY, max_examples=75)
def test_settings_are_accepted_or_refused_with_the_name_of_their_file(
    lines: list[tuple[str, str, Any]], more: bytes
) -> None:
    directory = Path(tempfile.mkdtemp(prefix="distlaunch-fuzz-", dir="/tmp"))
    try:
        file = directory / "distlaunch.toml"
        file.write_bytes(
            "".join(f"[{table}]\n{json.dumps(key)} = {toml(v)}\n" for table, key, v in lines).encode() + more
        )
        refused = None
        try:
            found = config.load(
                {"HOME": str(directory), "DISTLAUNCH_SYSTEM_CONFIG": str(directory / "none")}, str(directory)
            )
            for name in found.cluster_names():
                found.cluster(name, lambda _: options.JobOptions)
        except LaunchError as error:
            refused = error.message
        assert refused is None or "distlaunch.toml" in refused, refused
    finally:
        shutil.rmtree(directory)


ARGUMENTS = st.lists(
    st.sampled_from(
        ["--nodes", "--nproc-per-node", "--env", "--max-restarts", "--grace", "--time-limit", "--name", "--log-ranks",
         "--preload", "--start-method", "-m", "--", "x.py", "2", "1:2", "-1", "0", "auto", "A=B", "=", "é\udcff", "\0x",
         "../..", "9" * 400, "1e9", "", " "]
    ),
    max_size=6,
)  # fmt: skip


@given(ARGUMENTS)
@FEW
def test_any_arguments_are_accepted_or_refused_in_one_clear_error(arguments: list[str]) -> None:
    directory = Path(tempfile.mkdtemp(prefix="distlaunch-fuzz-", dir="/tmp"))
    try:
        (directory / "x.py").write_text("print(1)\n")
        given_words = [os.fsencode(word) for word in arguments if "\0" not in word]
        shown = Cli(directory)("local", "--dry-run", *given_words, "x.py")
        assert shown.exit_code in (0, 2), (arguments, shown)
        assert "Traceback" not in shown.stderr
        assert shown.exit_code == 0 or "rror" in shown.stderr, shown
    finally:
        shutil.rmtree(directory)
