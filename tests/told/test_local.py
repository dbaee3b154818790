"""`--notify`: who is told what of a run on this machine, and what receivers cannot do to it."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from testbed import wait_until
from tests.receivers import TOKEN, closed, receiver, silent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.command import Cli

FAILS_ONCE = """
import os, sys
sys.exit("the disk is full" if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)
"""
WAITS = """
import os, sys, time
print("waits", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


@contextmanager
def following(distlaunch: Cli, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A launcher that follows a run of the script that waits for the file `go`, until the block ends."""
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = distlaunch.start("local", *options, "x.py", "go", real=True, **quiet)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_receiver_is_told_of_start_first_failure_and_end(distlaunch: Cli) -> None:
    script = distlaunch.write("once.py", FAILS_ONCE)
    with receiver() as there:
        told = ("--notify", there.url, "--notify-secret", "HOOK")
        how = ("--max-restarts", "1", "--nproc-per-node", "2")
        done = distlaunch("local", *how, *told, str(script), env={"HOOK": "s3cret"})
    assert done.exit_code == 0, done.stderr

    assert there.types == ["run.start", "run.failure", "run.end"]
    run = next(distlaunch.runs.iterdir()).name
    assert {each.body["data"]["run"] for each in there.got} == {run}
    assert there.got[0].body["data"]["world_size"] == 2
    assert there.got[1].body["data"]["cause"]["class"] == "user_code"
    assert there.got[1].body["text"].startswith(f"{run} first failure: ")
    assert there.got[2].body["data"]["state"] == "success"
    assert there.got[2].body["data"]["restarts"] == 1
    assert len({each.body["id"] for each in there.got}) == 3
    for each in there.got:
        assert each.headers["webhook-id"] == each.body["id"]
        assert each.headers["webhook-signature"] == each.signature(b"s3cret")


def test_a_secret_of_the_specification_is_decoded_and_without_one_nothing_is_signed(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")
    with receiver() as there:
        url = ("--notify", there.url)
        assert distlaunch("local", *url, "--notify-secret", "HOOK", "x.py", env={"HOOK": "whsec_a2V5"}).exit_code == 0
        assert distlaunch("local", *url, "x.py").exit_code == 0

    assert there.types == ["run.start", "run.end"] * 2
    assert all(each.headers["webhook-signature"] == each.signature(b"key") for each in there.got[:2])
    assert not any("webhook-signature" in each.headers for each in there.got[2:])


def test_tokens_and_the_secret_are_in_no_file_that_others_can_read_and_in_no_output(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "print('fine')")
    with receiver(500) as there:
        told = ("--notify", "env:URL", "--notify-secret", "HOOK")
        env: dict[str, str | None] = {"URL": there.url, "HOOK": "s3cret"}
        plain = distlaunch("local", "-v", "--explain", "--dry-run", *told, "x.py", env=env)
        done = distlaunch("local", "-v", "--explain", *told, "x.py", env=env)
        config = distlaunch("config", env={"DISTLAUNCH_NOTIFY": there.url})

    assert "not told: http://127.0.0.1" in done.stderr
    for shown in (plain.stdout, plain.stderr, done.stderr, config.stdout):
        assert TOKEN not in shown
        assert "s3cret" not in shown
    assert "http://127.0.0.1" in config.stdout
    written = {path: path.read_bytes() for path in distlaunch.runs.rglob("*") if path.is_file()}
    held = [path for path, data in written.items() if TOKEN.encode() in data or b"s3cret" in data]
    assert [path.name for path in held] == ["notify"]
    assert stat.S_IMODE(held[0].stat().st_mode) == 0o600


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["down", "hanging", "broken", "redirecting"])
def test_a_bad_receiver_does_not_disturb_the_run_or_other_receivers(distlaunch: Cli, kind: str) -> None:
    distlaunch.write("x.py", "print('fine')")
    with ExitStack() as servers:
        hanging, broken = servers.enter_context(silent()), servers.enter_context(receiver(500))
        good, target = servers.enter_context(receiver()), servers.enter_context(receiver())
        redirecting = servers.enter_context(receiver(307, location=target.url))
        bad = {"down": closed(), "hanging": hanging, "broken": broken.url, "redirecting": redirecting.url}[kind]
        done = distlaunch("local", "--notify", bad, "--notify", good.url, "x.py")

    assert done.exit_code == 0, done.stderr
    assert "fine" in done.stdout
    assert good.types == ["run.start", "run.end"]
    assert "warning: not told: " + bad.removesuffix(TOKEN) + "..." in done.stderr
    assert not target.got
    assert len(redirecting.got) == 2 * (kind == "redirecting")


def test_a_receiver_that_is_back_soon_is_told_again_with_the_same_id(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")
    with receiver(503, 200) as there:
        done = distlaunch("local", "--notify", there.url, "x.py")

    assert "not told" not in done.stderr
    assert there.types == ["run.start", "run.start", "run.end"]
    assert there.got[0].headers["webhook-id"] == there.got[1].headers["webhook-id"]


def test_node_0_tells_of_a_detached_run(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "raise ValueError('too small')")
    with receiver() as there:
        run = distlaunch("local", "--detach", "--notify", there.url, "x.py").stdout.strip()
        distlaunch("wait", run)
        wait_until("the end to be told", lambda: "run.end" in there.types)

    assert there.types == ["run.start", "run.failure", "run.end"]
    assert "too small" in there.got[2].body["text"]
    assert there.got[2].body["data"]["state"] == "failed"


def test_node_0_tells_in_order_also_to_a_receiver_that_needs_a_second_attempt(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "raise ValueError('too small')")
    with receiver(503, 200) as there:
        distlaunch("local", "--detach", "--notify", there.url, "x.py")
        wait_until("the end to be told", lambda: "run.end" in there.types)

    assert there.types == ["run.start", "run.start", "run.failure", "run.end"]


@pytest.mark.slow
def test_node_0_tells_the_end_once_the_launcher_was_killed(distlaunch: Cli) -> None:
    distlaunch.write("x.py", WAITS)
    with receiver() as there:
        with following(distlaunch, "--notify", there.url, "--on-hangup", "detach") as launcher:
            wait_until("the start to be told", lambda: there.types == ["run.start"])
            launcher.kill()
        distlaunch.write("go", "")
        wait_until("the end to be told", lambda: "run.end" in there.types, limit_s=60)

    assert there.types == ["run.start", "run.end"]
    assert there.got[1].body["data"]["state"] == "success"


def test_the_launcher_tells_of_a_node_0_that_was_killed(distlaunch: Cli) -> None:
    distlaunch.write("x.py", WAITS)
    with receiver() as there, following(distlaunch, "--notify", there.url) as launcher:
        wait_until("the start to be told", lambda: there.types == ["run.start"])
        stream = next(distlaunch.runs.glob("*/nodes/0/stream"))
        wait_until("the script to run", lambda: b"waits" in stream.read_bytes())
        os.kill(json.loads(stream.with_name("agent.json").read_text())["pid"], signal.SIGKILL)
        launcher.wait(60)

    assert there.types[0] == "run.start"
    assert there.types.count("run.end") == 1
    assert there.got[-1].body["data"]["state"] == "failed"
    assert there.got[-1].body["data"]["cause"]["class"] == "killed"


def test_a_run_that_is_started_again_is_told_as_another_attempt(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "import os, sys; sys.exit('DISTLAUNCH_ATTEMPT' not in os.environ)")
    with receiver() as there:
        assert distlaunch("local", "--notify", there.url, "x.py").exit_code == 1
        assert distlaunch("requeue", "last").exit_code == 0
        distlaunch("wait", "last")
        wait_until("both ends to be told", lambda: there.types.count("run.end") == 2, limit_s=60)

    assert there.types == ["run.start", "run.failure", "run.end", "run.start", "run.end"]
    assert [each.body["data"]["attempt"] for each in there.got] == [0, 0, 0, 1, 1]
    assert len({each.body["id"] for each in there.got}) == 5


def test_a_cancelled_run_is_told_as_cancelled(distlaunch: Cli) -> None:
    distlaunch.write("x.py", WAITS)
    with receiver() as there:
        distlaunch("local", "--detach", "--notify", there.url, "x.py", "go")
        wait_until("the start to be told", lambda: there.types == ["run.start"])
        assert distlaunch("cancel", "last").exit_code == 0

    assert there.types == ["run.start", "run.end"]
    assert there.got[1].body["data"]["state"] == "cancelled"


@pytest.mark.parametrize(
    "url",
    ["example.org", "http://", "http://h:99999/", "http://a b/", "mailtoo:x", "env:9", "env:NOT_SET", "nosuch://x/y"],
)
def test_what_is_no_url_is_refused_before_anything_is_sent(distlaunch: Cli, url: str) -> None:
    distlaunch.write("x.py", "")

    done = distlaunch("local", "--notify", url, "x.py")

    assert done.exit_code == 2
    assert "notify" in done.stderr
    assert "hint: " in done.stderr
    assert not distlaunch.runs.exists()


def test_apprise_tells_other_services_while_a_launcher_follows(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")
    with receiver() as service, receiver() as there:
        url = f"json://{service.address}/{TOKEN}"
        done = distlaunch("local", "--notify", url, "--notify", there.url, "x.py")
        assert done.exit_code == 0, done.stderr
        alone = distlaunch("local", "--detach", "--notify", url, "--notify", there.url, "x.py")
        distlaunch("wait", alone.stdout.strip())
        wait_until("both runs to be told", lambda: len(there.got) == 4)

    run = there.got[0].body["data"]["run"]
    messages = [each.body["message"] for each in service.got]
    assert messages[0] == f"{run} started: 1 node, 1 rank"
    assert messages[1].startswith(f"{run} success after ")
    assert len(messages) == 2
    assert "only webhooks" in alone.stderr
    assert TOKEN not in alone.stderr


def test_without_apprise_its_urls_are_refused(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")
    hidden = distlaunch.write("hidden/sitecustomize.py", "import sys\nsys.modules['apprise'] = None\n").parent
    path = os.pathsep.join([str(hidden), distlaunch.env()["PYTHONPATH"]])

    done = distlaunch("local", "--notify", f"slack://{TOKEN}/b/c", "x.py", env={"PYTHONPATH": path}, real=True)

    assert done.exit_code == 2
    assert "'slack://...' needs the package apprise" in done.stderr
    assert "[notify]" in done.stderr
    assert TOKEN not in done.stderr
