"""The start of a run on the chosen hosts: files, the environment, node 0, then all others at once."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import distlaunch_choice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distlaunch_asking import Answer, Asking
    from distlaunch_inventory import Target

_FILES_TIMES = 10
"""How many times longer than other requests the user's files may take."""

_LOOK_S = 0.01


class Start:
    """Starts a run: `args` are the role's, `found` the hosts' facts; `secrets` go only to the workers."""

    def __init__(
        self,
        asking: Asking,
        args: Mapping[str, Any],
        targets: Mapping[str, Target],
        *,
        found: Mapping[str, Answer],
        choice: Mapping[str, Any],
        secrets: Mapping[str, str],
    ) -> None:
        self._asking, self._args, self._targets, self._choice, self._secrets = asking, args, targets, choice, secrets
        self._directories = {host: found[host]["directory"] for host in choice["ranks"]}
        # Not an Ansible variable, as templates in a script's arguments belong to the script.
        with open(args["job"], encoding="ascii") as file:
            self._job = json.load(file)
        if args["lease"] == "partial" and self._job["min_nodes"] == self._job["max_nodes"]:
            self._job["min_nodes"] = self._job["max_nodes"] = len(choice["ranks"])
        beside = os.path.dirname(args["job"])
        self._key, self._function = _key(os.path.join(beside, "key")), text_of(os.path.join(beside, "function")) or None
        self._notify = text_of(os.path.join(beside, "notify")) or None
        self._setup, self._container = text_of(args["setup"]), json.loads(text_of(args["container"]) or "null")

    def run(self) -> None:
        """Send what is missing, start node 0, then all others; if one cannot start, stop those that have."""
        asking, choice, first = self._asking, self._choice, self._choice["master"]
        one = threading.Lock()
        if choice["lacking"] and asking.failed(
            asking.each("files", choice["lacking"], lambda host: self._unpack(host, one))
        ):
            return
        if self._job.get("env_ship") and asking.failed(asking.each("environment", [first], self._bring), "environment"):
            return
        answer = asking.each("start", [first], lambda host: self._start(host, addr=self._targets[host].addr))[first]
        if not answer.get("problem") and not _is_meeting_point(answer):
            answer = {"problem": "its answer is not an agent's: it does not report where to meet"}
        if not asking.failed({first: answer}) and choice["others"]:
            where = self._meet(answer)
            if where is not None:
                port = answer["port"]
                others = asking.each(
                    "start", choice["others"], lambda host: self._start(host, reached=where[host], port=port)
                )
                asking.failed(others)
        if asking.result["problems"].keys() & self._directories.keys():
            self._stop()

    def _unpack(self, host: str, one: threading.Lock) -> Answer:
        with one:  # of 1,000 hosts' threads, one looks whether the files are packed
            packed = self._is_packed()
        if not packed:
            return {
                "problem": "the files that were sent are not kept any more, neither here nor on the host: launch anew"
            }
        request = {"call": "files", "dir": self._args["dir"], "digest": self._args["digest"]}
        return self._asking.ask(host, request, self._args["payload"], times=_FILES_TIMES)

    def _is_packed(self) -> bool:
        """Whether the user's files are here as an archive, for which this waits as long as a process makes it."""
        while not os.path.exists(self._args["payload"]) and _lives(str(self._args["packs"])):
            time.sleep(_LOOK_S)
        return os.path.exists(self._args["payload"])

    def _bring(self, host: str) -> Answer:
        import distlaunch_environment  # few runs bring one

        found = distlaunch_environment.Environment(self._asking, self._args["agent"], self._job["env_ship"])
        return found.bring(host, self._directories[host])

    def _start(self, host: str, **where: Any) -> Answer:
        """Start the host's agent; `where` is the place where the nodes meet."""
        request = {
            "call": "start",
            "directory": self._directories[host],
            "copies": host in self._choice["copying"],
            "node_rank": self._choice["ranks"][host],
            "workers": self._targets[host].workers,
            "job": self._job,
            "key": self._key,
            "function": self._function,
            "notify": None if self._choice["ranks"][host] else self._notify,
            "container": (self._args.get("parts") or {}).get(host, {}).get("container", self._container),
            "secrets": self._secrets,
            "setup": self._setup,
            "timeout_s": float(self._args["timeout_s"]),
            **{name: self._args[name] for name in ("dir", "digest", "cwd")},
            **where,
        }
        return self._asking.ask(host, request)

    def _meet(self, first: Answer) -> dict[str, str] | None:
        """Which of node 0's addresses each other node uses, after trying all of them; None if one reaches none."""
        known, port, ranks = list(first["addresses"]), first["port"], self._choice["ranks"]

        def reach(host: str) -> Answer:
            request = {"call": "reach", "candidates": known, "port": port, "directory": self._directories[host]}
            return self._asking.ask(host, {**request, "node_rank": ranks[host]})

        answers = self._asking.each("reach", self._choice["others"], reach)
        if any(answer.get("problem") for answer in answers.values()):
            why = self._why_node_0_ended()
            if why:  # which explains why it was not reached
                answers = {self._choice["master"]: {"problem": f"the agent of node 0 has ended: {why}"}}
        if self._asking.failed(answers):
            return None
        # Other addresses that a host claims to have tried are ignored.
        tried = {host: {one: bool(answer["tried"].get(one)) for one in known} for host, answer in answers.items()}
        chosen, common, reason = distlaunch_choice.meeting_point(tried)
        meeting = {"port": port, "address": common, "reason": reason, "tried": tried}
        self._asking.result["meeting"] = meeting
        self._asking.report(meeting=meeting)
        return chosen

    def _why_node_0_ended(self) -> str:
        """Why node 0's agent exited; empty if it still runs."""
        host = self._choice["master"]
        request = {"call": "ended", "directory": self._directories[host], "node_rank": self._choice["ranks"][host]}
        return str(
            self._asking.each("ended", [host], lambda host: self._asking.ask(host, request))[host].get("ended") or ""
        )

    def _stop(self) -> None:
        """End the agents that have started, as not all could."""
        request = {"call": "runs", "dir": self._args["dir"], "run": self._args["run"], "signal": 15, "force": True}
        answers = self._asking.result["answers"].get("start", {})
        started = [host for host in self._directories if answers.get(host, {}).get("agent")]
        self._asking.each("stop", started, lambda host: self._asking.ask(host, request))


def _key(path: str) -> str:
    """The secret by which the run's nodes recognize each other, created at its first start."""
    with contextlib.suppress(FileNotFoundError), open(path, encoding="ascii") as file:
        if key := file.read():
            return key
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(key := os.urandom(32).hex() + "\n")
    return key


def _lives(process: str) -> bool:
    """Whether that process runs, which is named by its pid and when it started."""
    pid, _, ticks = process.partition(" ")
    try:
        with open(f"/proc/{int(pid)}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (OSError, ValueError):
        return False
    return fields[0] not in (b"Z", b"X") and fields[19] == ticks.encode()


def text_of(path: str) -> str:
    """The text of a file that need not exist; empty if it does not."""
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
    return ""


def _is_meeting_point(answer: Answer) -> bool:
    addresses, port = answer.get("addresses"), answer.get("port")
    good = isinstance(addresses, list) and addresses and all(isinstance(one, str) for one in addresses)
    return bool(good) and isinstance(port, int) and 0 < port < 65536
