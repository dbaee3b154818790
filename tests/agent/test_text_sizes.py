"""A text that crosses a process may have any size and any characters: it arrives, or the run ends and reports why."""

from __future__ import annotations

import json
import os
import random
import socket
import threading
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent import cause
from launcher.agent.channel import Channel

if TYPE_CHECKING:
    from tests.agent.harness import Runner

KIB, MIB = 1024, 1024 * 1024
SIZES = [0, 1, 127 * KIB, 128 * KIB, 137_000, 208 * KIB, 300_000, MIB, 8 * MIB]

KEY = "Unexpected key: model.layers.0.weight\n"


@pytest.mark.parametrize("size", SIZES)
def test_messages_of_any_size_arrive_in_order_with_their_descriptors(size: int) -> None:
    one: Channel[Any, Any]
    other: Channel[Any, Any]
    one, other = Channel.pair()
    reader, writer = os.pipe()
    texts = ["x" * size, "\0\n\udcff\u2028", "y" * size]

    def send() -> None:
        for text in texts:
            one.send({"text": text}, [writer])
        one.close()

    thread = threading.Thread(target=send)
    thread.start()
    for text in texts:
        message, fds = other.receive()
        assert message == {"text": text}
        assert [os.fstat(fd).st_ino for fd in fds] == [os.fstat(writer).st_ino]
        os.close(fds[0])
    assert other.receive() == (None, [])
    thread.join()
    other.close()
    os.close(reader)
    os.close(writer)


def test_a_message_that_comes_in_parts_is_not_ready_before_it_is_whole() -> None:
    sock, theirs = socket.socketpair()
    channel: Channel[Any, Any] = Channel(theirs)
    text = json.dumps({"text": "x" * 1000}).encode()
    whole = len(text).to_bytes(8, "big") + text
    for at in (0, 3, 8, 9, len(whole) - 1):
        sock.sendall(whole[:at])
        assert not channel.ready()
        sock.sendall(whole[at:] + whole)  # the next one stays in the socket, where poll sees it
        for _ in range(2):
            assert channel.ready()
            assert channel.receive() == ({"text": "x" * 1000}, [])
    sock.sendall(whole[:5])
    sock.close()
    assert channel.ready()
    assert channel.receive() == (None, [])
    channel.close()


@pytest.mark.parametrize(("start", "size"), [*(("fork", size) for size in SIZES), ("spawn", 137_000), ("spawn", MIB)])
def test_an_error_of_any_size_ends_the_run_with_itself_as_the_cause(agents: Runner, size: int, start: str) -> None:
    text = (KEY * (size // len(KEY) + 1))[:size]
    run = agents(f"raise RuntimeError(({KEY!r} * {size // len(KEY) + 1})[:{size}])\n", start_method=start)

    assert run.result() == "failed"
    found = run.cause()
    assert (found["class"], found["rank"], found["exit_code"]) == ("user_code", 0, 1)
    assert found["message"].startswith("RuntimeError: " + text.partition("\n")[0][:400])
    assert "raise RuntimeError" in found["traceback"]
    assert len(found["traceback"]) < 20_000
    assert run.stderr[0].count(KEY.encode()) == text.count(KEY)  # the log has the whole
    if size > 100_000 and start == "fork":
        assert "characters left out; full text in the log of rank 0 and " in found["traceback"]
        path = found["traceback"].partition("the log of rank 0 and ")[2].partition(" ...]")[0]
        assert text in json.loads(Path(path).read_text())["message"]["message"]


@pytest.mark.parametrize("what", ["binary", "nul", "unprintable", "surrogates", "deep"])
def test_an_error_with_an_odd_text_is_reported_all_the_same(agents: Runner, what: str) -> None:
    script = {
        "binary": "import os; raise ValueError(os.urandom(200_000).decode('latin-1'))",
        "nul": "raise KeyError('layer\\0' * 40_000)",
        "unprintable": "class Odd(Exception):\n    def __str__(self): raise RuntimeError('no text')\nraise Odd",
        "surrogates": "raise ValueError('\\udcff\\ud800' * 100_000)",
        "deep": "import os; open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write('[' * 1_000_000); os._exit(1)",
    }[what]
    run = agents(script + "\n", max_restarts=1)

    assert run.result() == "failed"
    assert len(run.of("restart")) == 1
    assert (run.cause()["class"], run.cause()["exit_code"]) == ("user_code", 1)
    assert len(run.cause()["message"]) <= 500


@pytest.mark.parametrize(
    "written",
    [
        "[]",
        "{}",
        '{"message": 7}',
        '{"message": {"message": [1], "extraInfo": 3}}',
        "\0",
        '{"message": {"extraInfo": {"timestamp": "x"}, "message": ""}}',
    ],
)
def test_an_error_file_is_written_by_a_worker_and_may_hold_anything(tmp_path: Path, written: str) -> None:
    file = tmp_path / "0-0.json"
    file.write_text(written)

    found = cause.of_worker(
        host="h",
        node=0,
        about={"code": 3, "rank": 0, "local_rank": 0, "round": 0, "pid": 1, "stopped": False, "time": 1.0},
        error_file=str(file),
        stderr_tail=b"",
        oom_kills=0,
    )

    assert found["exit_code"] == 3
    assert isinstance(found["message"], str)
    assert isinstance(found["time"], float)


def test_an_environment_and_arguments_as_large_as_the_kernel_takes_reach_the_workers(agents: Runner) -> None:
    script = (
        "import os, sys, zlib\n"
        "print(len(os.environ['BIG0']), len(sys.argv), zlib.crc32(' '.join(sys.argv[1:]).encode()))\n"
    )
    arguments = [random.Random(n).randbytes(3000).hex() for n in range(80)]  # 480 KB
    variables = {f"BIG{n}": "v" * 120_000 for n in range(3)}
    run = agents(script, *arguments, request={"env": variables})

    assert run.result() == "success", run.agent_stderr()
    assert run.stdout[0].decode() == f"120000 81 {zlib.crc32(' '.join(arguments).encode())}\n"


def test_an_environment_that_is_too_large_for_a_new_process_is_named(agents: Runner) -> None:
    run = agents("print(1)\n", request={"env": {"PYTHONNOUSERSITE": "1", "TOO_LARGE": "v" * 8 * MIB}})

    assert run.result() == "failed"
    assert "TOO_LARGE" in run.cause()["message"]
    assert "more than the kernel allows for a process" in run.cause()["message"]


@pytest.mark.parametrize("size", [127 * KIB, 300_000, 8 * MIB])
def test_a_script_that_cannot_be_compiled_may_have_lines_of_any_length(agents: Runner, size: int) -> None:
    run = agents(f"x = 'first line'\ny = '{'x' * size}\n")

    assert run.result() == "failed"
    assert run.cause()["class"] == "user_code"
    assert "SyntaxError" in run.cause()["message"]
    assert len(run.cause()["traceback"]) < 20_000


@pytest.mark.parametrize("name", ["", "h" * 100_000, "\udcff\x1b]0;x\x07\n", "\u202eevil"])
def test_a_host_may_have_any_name(agents: Runner, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("DISTLAUNCH_HOST", name)
    run = agents("import sys; sys.exit(3)\n", nodes="2")

    assert run.result() == "failed"
    assert run.cause()["exit_code"] == 3
    assert run.cause()["host"] == (name or socket.gethostname())


@pytest.mark.parametrize("name", ["x" * 250 + ".py", "a b\n'\"$(x).py", "\udcff\udcfe.py", "-x.py"])
def test_a_script_may_have_any_name(agents: Runner, name: str) -> None:
    script = agents.directory / name
    script.write_text("import sys; print('ran', flush=True); raise ValueError('it was me')\n")
    run = agents(script)

    assert run.result() == "failed"
    assert run.stdout[0] == b"ran\n"
    assert run.cause()["message"] == "ValueError: it was me"
