"""Agents whose fork server has already imported torch: one process imports it, and all agents are forked from it.

An agent works as over SSH, where the Python of the login is forked (`prefork.py`); only the import takes no time.
For tests of what forked workers are like, not of what a start itself does (its variables, what is imported).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

from launcher.agent.system.processes import start_ticks
from launcher.payload import agent_archive
from launcher.system.proc import Identity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from launcher.system.detached import Told

_PRELOAD = ("torch", "torch.distributed", "torch.distributed.nn")
_LIMIT_S = 120

_SERVER = """
import importlib, json, os, signal, socket, sys
sys.path[0], fd, modules = sys.argv[1], int(sys.argv[2]), sys.argv[3]
import distlaunch_agent.bytecode
distlaunch_agent.bytecode.use()
from distlaunch_agent import __main__, channel
from distlaunch_agent.forkserver import ending, forks, prefork, server, worker
from distlaunch_agent.node.run import run
from distlaunch_agent.system import processes
from distlaunch_agent.job import Job
ending.install()
for name in modules.split(","):
    importlib.import_module(name)

def agent(argv, env, cwd):
    os.setsid()
    os.chdir(cwd)
    worker.set_environment(env)
    sys.argv[:] = argv[2:]
    (mine, server_end), (group, group_end), (said, stderr) = channel.Channel.pair(), channel.Channel.pair(), os.pipe()
    pid = os.fork()
    if not pid:
        mine.close()
        group.close()
        os.setsid()
        os.dup2(stderr, 1)
        os.dup2(stderr, 2)
        os.close(said)
        os.close(stderr)
        raise forks.Child(lambda: server.serve(server_end, group_end))
    server_end.close()
    group_end.close()
    os.close(stderr)
    processes.set_title(argv)
    try:
        run(Job.read(argv[4]), int(argv[6]), os.dup(1), prefork.Forked(prefork.Process(pid), mine, group, said))
    except SystemExit as end:  # without taking torch apart
        sys.stderr.flush()
        os._exit(end.code)

def serve():
    requests = socket.socket(fileno=fd)
    requests.set_inheritable(False)
    requests.send(b"ready")
    while True:
        data, fds, _, _ = socket.recv_fds(requests, 1 << 20, 4)
        if not data:
            os._exit(0)
        pid = os.fork()
        if not pid:
            requests.close()
            null = os.open(os.devnull, os.O_RDONLY)
            for number, own in enumerate((null, *fds)):
                os.dup2(own, number)
                os.close(own)
            argv, env, cwd, held = json.loads(data)
            if held:
                os.kill(os.getpid(), signal.SIGSTOP)
            agent(argv, env, cwd)
        for own in fds:
            os.close(own)
        requests.send(str(pid).encode())
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass

try:
    serve()
except forks.Child as child:
    task = child.task
task()
"""


class WarmStart:
    """`start` does what `launcher.system.detached.start_detached` does, for agents."""

    def __init__(self, directory: Path) -> None:
        archive = directory / "agent.pyz"
        archive.write_bytes(agent_archive.packed())
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fd = theirs.fileno()
        code = f"exec(compile({_SERVER!r}, 'warm', 'exec'))" + " " * 4096  # room for a worker's command line
        env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        argv = [sys.executable, "-u", "-c", code, str(archive), str(fd), ",".join(_PRELOAD)]
        self._process = subprocess.Popen(argv, env=env, pass_fds=[fd], stdin=subprocess.DEVNULL)
        theirs.close()
        self._requests.settimeout(_LIMIT_S)
        assert self._requests.recv(100) == b"ready"

    def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        stdout: Path,
        stderr: Path,
        record: Callable[[Identity], None],
        told: list[Told] | None = None,
        stdin: int | None = None,
        held: Collection[str] = (),
    ) -> Identity:
        """An agent with its output in files; a node in `held` is stopped before it begins, until SIGCONT."""
        assert stdin is None
        words = [word for word in argv if word != "--when-told"]
        request = json.dumps([words, dict(env), cwd, words[-1] in held]).encode()
        with open(stdout, "ab") as out, open(stderr, "ab") as err:
            socket.send_fds(self._requests, [request], [out.fileno(), err.fileno()])
            pid = int(self._requests.recv(100))
        identity = Identity(pid, start_ticks(pid) or 0)
        record(identity)
        return identity

    def close(self) -> None:
        self._requests.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.wait()
