"""Leases of the hosts that a run uses, or of their GPUs: refused, waited for, or taken where they are free."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import distlaunch_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from distlaunch_asking import Answer, Asking
    from distlaunch_inventory import Target

_GRACE_S = 3.0
"""How long a lease may take to end after its run, or the memory of a GPU to be freed."""

_TURN_S = 2.0
_NAME = re.compile(r"[\w.@+-]{1,128}")


class Leases:
    """Takes the leases of the chosen hosts; `args` are the role's.

    All at once if no host refuses. Otherwise it gives them back, and takes them one after the other, in the order of
    the hosts' own identities, which is the same for all runs, whatever their inventories: of runs that want some of the
    same hosts, one always gets all of its hosts. The lease of a host is tied to the connection, until the agent has it.
    """

    def __init__(self, asking: Asking, args: Mapping[str, Any], targets: Mapping[str, Target]) -> None:
        self._asking, self._args, self._targets, self._named = asking, args, targets, _gpus_named(args["job"])
        self._mode = str(args["lease"])
        self._limit = time.monotonic() + float(args["wait_s"])
        self._leased: set[str] = set()

    def take(
        self, found: dict[str, Answer], choose: Callable[[dict[str, Answer]], dict[str, Any] | None]
    ) -> dict[str, Any] | None:
        """Choose hosts and take their leases; others take the places of those that are in use. None: too few."""
        if self._mode == "share":
            return choose(found)
        if self._mode == "partial":
            found = {**found, **self._in_use([host for host in found if "machine" in found[host]])}
        while True:
            choice = choose(found)
            if choice is None:
                return None
            missing = sorted(choice["ranks"].keys() - self._leased, key=lambda host: str(found[host]["machine"]))
            lost = self._take(missing, found, choice["ranks"])
            if not lost:
                return choice
            found = {**found, **lost}

    def _take(self, hosts: list[str], found: Mapping[str, Answer], ranks: Mapping[str, int]) -> dict[str, Answer]:
        """Take the leases of these hosts; if one is refused, nothing but who else is refused is asked any more."""
        if len(hosts) > 1 and self._take_at_once(hosts, found, ranks):
            return {}
        for place, host in enumerate(hosts):
            answer = self._of_one(host, found[host], ranks[host])
            if not answer.get("leased"):
                others = hosts[place + 1 :] if self._mode != "partial" else []
                return {host: _refusal(answer), **self._in_use(others)}
            self._leased.add(host)
        return {}

    def _take_at_once(self, hosts: list[str], found: Mapping[str, Answer], ranks: Mapping[str, int]) -> bool:
        """Take the leases of all these hosts in one round trip, or of none of them."""

        def ask(host: str) -> Answer:
            request = self._request(host, found[host], ranks[host])
            return self._asking.ask(host, {**request, "queue": False, "wait_s": 0.0})

        answers = self._asking.each("lease", hosts, ask)
        leased = [host for host, answer in answers.items() if answer.get("leased")]
        if len(leased) < len(hosts):
            self._in_use(leased)  # a host that only looks gives back what it has
            return False
        self._leased.update(leased)
        return True

    def _request(self, host: str, facts: Answer, rank: int) -> Answer:
        waits = self._mode == "wait"
        return {
            "call": "lease",
            "run": self._args["run"],
            "directory": facts["directory"],
            "node_rank": rank,
            "workers": self._targets[host].workers,
            "env": self._env(host),
            "queue": waits,
            "wait_s": _TURN_S if waits else _GRACE_S,
        }

    def _of_one(self, host: str, facts: Answer, rank: int) -> Answer:
        """Take one host's lease, and report for whom it waits."""
        waits, request = self._mode == "wait", self._request(host, facts, rank)

        def ask(host: str) -> Answer:
            said = ""
            while True:
                answer = self._asking.ask(host, request)
                if distlaunch_choice.misfit("lease", answer) or answer.get("problem") or answer.get("leased"):
                    return answer
                if not waits or time.monotonic() > self._limit:
                    return answer
                said, before = f"waiting for {host}: {text(answer)}", said
                if said != before:
                    self._asking.report(waits=said)

        return self._asking.each("lease", [host], ask)[host]

    def _env(self, host: str) -> dict[str, str]:
        """The variables that name GPUs of the host."""
        return self._named[(self._args.get("parts") or {}).get(host, {}).get("role", "")]

    def _in_use(self, hosts: Iterable[str]) -> dict[str, Answer]:
        """Which of these hosts cannot give their lease now; takes none."""
        request = {"call": "look", "run": self._args["run"]}
        hosts = list(hosts)
        if not hosts:
            return {}

        def look(host: str) -> Answer:
            of_host = {"env": self._env(host), "workers": self._targets[host].workers}
            return self._asking.ask(host, {**request, **of_host})

        answers = self._asking.each("look", hosts, look)
        return {host: _refusal(answer) for host, answer in answers.items() if not answer.get("free")}


def _gpus_named(job: str) -> dict[str, dict[str, str]]:
    """The variables of the workers that name GPUs, by their role; those of a run without roles have none."""
    with open(job, encoding="ascii") as file:
        read = json.load(file)
    of_all = read.get("env") or {}
    every = {"": of_all, **{role["name"]: {**of_all, **role.get("env", {})} for role in read.get("roles") or ()}}
    return {
        role: {name: value for name, value in env.items() if name.endswith("VISIBLE_DEVICES")}
        for role, env in every.items()
    }


def _refusal(answer: Answer) -> Answer:
    """The answer as the facts of a host that cannot take part."""
    if answer.get("problem"):
        return answer
    return {"problem": text(answer), "busy": True}


def text(answer: Mapping[str, Any]) -> str:
    """Who holds what on a host since when, and how many wait."""
    parts = [_holder(one) for one in answer.get("held") or ()]
    ahead = answer.get("ahead") or []
    if ahead:
        more = f" and {len(ahead) - 1} more" if len(ahead) > 1 else ""
        parts.append(f"{_whose(ahead[0])}{more} waits for it since {_clock(ahead[0])}")
    return "; ".join(parts) or "it was in use a moment ago"


def _holder(one: Mapping[str, Any]) -> str:
    what = "in use" if one.get("gpus") is None else f"GPU {spans(one['gpus'])}"
    if "used_mib" in one:
        return f"{what} in use by a process without a lease ({int(one['used_mib']) / 1024:.1f} GiB of its memory)"
    if one.get("gpus") is None:
        return f"in use by {_whose(one)} since {_clock(one)}"
    return f"{what} held by {_whose(one)} since {_clock(one)}"


def _whose(one: Mapping[str, Any]) -> str:
    """`alice's run NAME`, as far as the note about the holder is one."""
    user, run = str(one.get("user", "")), str(one.get("run", ""))
    whose = f"{user}'s" if _NAME.fullmatch(user) else "another user's"
    return f"{whose} run {run}" if _NAME.fullmatch(run) else f"{whose} process"


def _clock(one: Mapping[str, Any]) -> str:
    """When it began, with the date unless that is today."""
    since = one.get("since")
    if not isinstance(since, (int, float)) or not 0 < since < 1 << 40:
        return "an unknown time"
    then, now = time.localtime(since), time.localtime()
    return time.strftime("%H:%M" if then[:3] == now[:3] else "%Y-%m-%d %H:%M", then)


def spans(numbers: Iterable[int]) -> str:
    """`0-3,6` for the numbers 0, 1, 2, 3 and 6."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)
