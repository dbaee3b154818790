"""What can reach a run's ports where NetworkPolicies are enforced, as by Calico, Cilium and the clouds' networks."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

from testbed import Kube, NotAvailableError, kube_policies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.k8s.conftest import User

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(300)]

PORT = 7777
OPENS = f"""
import os, signal, socket, threading, time
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGUSR1}})
door = socket.create_server(("", {PORT}))
def answer():
    while True:
        with door.accept()[0] as stranger:
            stranger.sendall(b"word")
threading.Thread(target=answer, daemon=True).start()
print("listens", flush=True)
signal.sigwait({{signal.SIGUSR1}})
peer = os.environ["MASTER_ADDR"].replace("-0.", "-{{}}.".format(1 - int(os.environ["RANK"])), 1)
while True:
    try:
        with socket.create_connection((peer, {PORT}), 10) as there:
            print("heard a", there.recv(10).decode(), flush=True)
            break
    except OSError:
        time.sleep(0.05)
signal.sigwait({{signal.SIGUSR1}})
"""
"""Sends a word to each peer that connects, on any interface; when signalled, fetches that of the other rank itself."""

TRIES = f"""
import socket, sys, time
def word_of(address):
    try:
        with socket.create_connection((address, {PORT}), 10) as there:
            return there.recv(10).decode()
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return repr(error)
closed, opened = (addresses.split(",") for addresses in sys.argv[1:])
deadline = time.monotonic() + 60
for address in closed:
    while word_of(address) != "refused" and time.monotonic() < deadline:
        time.sleep(0.2)  # policies are enforced a moment after a pod has started
for address in (*opened, *closed):
    print("in the end", word_of(address), flush=True)
"""


@pytest.fixture
def policies(own_kube: Kube) -> Iterator[None]:
    """NetworkPolicies are enforced on the nodes."""
    try:
        with kube_policies.enforced(own_kube.nodes):
            yield
    except NotAvailableError as error:
        pytest.skip(str(error))


def addresses(user: User, run: str) -> str:
    """Those of a run's pods."""
    return ",".join(pod["status"]["podIP"] for pod in user.pods(run))


@pytest.mark.usefixtures("policies")
def test_only_a_runs_own_pods_reach_its_ports_unless_it_wants_no_policy(pods: User) -> None:
    """A pod beside two runs, which carries distlaunch's label, tries the ports of their workers."""
    pods.write("opens.py", OPENS)
    two = ("--nodes", "2", "--log-ranks", "all")
    closed, opened = pods.follow(*two, "opens.py"), pods.follow(*two, "--no-network-policy", "opens.py")
    for run in (closed, opened):
        run.until("listens", count=2)

    argv = [sys.executable, "-c", TRIES, addresses(pods, closed.run), addresses(pods, opened.run)]
    body = {
        "metadata": {"name": "stranger", "labels": {"app.kubernetes.io/name": "distlaunch"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "tries", "image": pods.image, "command": argv}]},
    }
    pods.kube.api.post(f"/api/v1/namespaces/{pods.namespace}/pods", body)
    pods.kube.wait_pod(pods.namespace, "stranger", "Succeeded")
    said = pods.kube.log(pods.namespace, "stranger").splitlines()
    assert said == [f"in the end {word}" for word in ("word", "word", "refused", "refused")]

    for run in (closed, opened):
        run.process.send_signal(signal.SIGUSR1)
        run.until("heard a word", count=2)
        run.process.send_signal(signal.SIGUSR1)
        done = run.result()
        assert done.exit_code == 0, done.stderr
