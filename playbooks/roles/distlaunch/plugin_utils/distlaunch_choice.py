"""Which hosts run which node, by what the preflight found, with a reason for each host that is left out."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    Facts = Mapping[str, Any]
    """A host's answer."""

    Problem = dict[str, str]
    """The kind of problem, and a message."""

_CLOCK_S = 2.0
_ROOM_BYTES = 32_000_000
_MOST = 1 << 63
_NODES = 100_000
_GPUS = 1024
_DEPTH = 20
"""More than any agent's answer has; JSON's parser accepts far deeper nesting than the code here can handle."""

_KINDS = {"refused": "settings", "busy": "busy", "lease": "lease", "setup": "setup", "unreachable": "unreachable"}
"""Kinds of problems by the field of an answer that tells them."""

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_DIRECTORY = re.compile(r"/[^\x00-\x1f\x7f]{0,4095}")
_SERVER: dict[str, type | tuple[type, ...]] = {
    "pid": int, "python": str, "modules": list, "since": (int, float), "until": (int, float), "runs": int,
}  # fmt: skip
"""The fields of what stands on a host."""

_FILES = ("stream", "stderr", "last_words")

_OF_LEASES = ("lease", "look", "survey")

_SHAPES: dict[str, dict[str, type | tuple[type, ...]]] = {
    "preflight": {
        "time": (int, float),
        "python": str,
        "python_version": str,
        "hostname": str,
        "torch": (str, type(None)),
        "framework": str,
        "without": str,
        "gpus": (int, type(None)),
        "directory": str,
        "free_bytes": int,
        "agent_path": str,
        "has_files": bool,
        "has_cwd": bool,
        "machine": list,
        "disk": list,
        "mounts": list,
        "user_processes_end": bool,
        "replaced": (str, type(None)),
    },
    "lease": {"leased": (dict, type(None)), "held": list, "ahead": list},
    "look": {"free": bool, "held": list, "ahead": list},
    "survey": {"held": list, "ahead": list, "load": (int, float), "cpus": int, "gpus": list},
    "standing": {"servers": list, "place": str},
    "environment": {"sees": bool},
    "start": {"agent": dict, "directory": str, "work": str},
    "reach": {"tried": dict},
    "ended": {"ended": str},
    "runs": {"nodes": list},
}
"""The fields that each step needs in an answer, as hosts are untrusted."""


def misfit(step: str, answer: Facts, asked: Facts | None = None) -> dict[str, Any] | None:
    """What is wrong with a host's answer to a request; None if nothing is, or if the host itself reports a problem."""
    wrong = _wrong(step, answer, asked or {})
    return {"problem": f"its answer is not an agent's: {wrong}"} if wrong else None


def _wrong(step: str, answer: Facts, asked: Facts) -> str:
    if _nested(answer, _DEPTH):
        return "it is nested too deep"
    if answer.get("problem"):
        return ""
    for name, kind in _SHAPES.get(step, {}).items():
        if not _fits(answer.get(name), kind):
            return f"{name} is {str(answer.get(name))[:40]!r}"
    if step == "start":
        agent = answer["agent"]
        if not _fits(agent.get("stream_from"), int):
            return "its agent's stream begins nowhere"
        return "" if _fits(agent.get("pid"), int) else f"its agent's pid is {str(agent.get('pid'))[:40]!r}"
    wrong = []
    if step in _OF_LEASES:
        wrong += [
            f"a lease is {str(note)[:40]!r}" for note in (*answer["held"], *answer["ahead"]) if not _is_note(note)
        ]
    if step == "survey":
        wrong += [f"a GPU is {str(gpu)[:40]!r}" for gpu in answer["gpus"] if not _is_gpu(gpu)]
    if step == "standing":
        wrong += [f"a server is {str(each)[:40]!r}" for each in answer["servers"] if not _is_server(each)]
    nodes = answer["nodes"] if step == "runs" else []
    return next(filter(None, (*wrong, *(_wrong_node(node, asked) for node in nodes))), "")


def _is_gpu(gpu: Any) -> bool:
    """Whether it is a GPU's number, with its memory if that is known."""
    if not isinstance(gpu, dict) or not _fits(gpu.get("gpu"), int) or not 0 <= gpu["gpu"] < _GPUS:
        return False
    memory = [gpu.get(name) for name in ("used_mib", "total_mib")]
    return all(one is None or (_fits(one, int) and one >= 0) for one in memory) and isinstance(gpu.get("busy"), bool)


def _is_note(note: Any) -> bool:
    """Whether it says who holds or waits for what."""
    if not isinstance(note, dict):
        return False
    numbers = note.get("gpus") or []
    right = isinstance(numbers, list) and all(_fits(number, int) and 0 <= number < _GPUS for number in numbers)
    return right and _fits(note.get("used_mib", 0), int)


def _is_server(each: Any) -> bool:
    """Whether it describes a fork server that stands."""
    if not isinstance(each, dict) or not all(_fits(each.get(name), kind) for name, kind in _SERVER.items()):
        return False
    memory = each.get("memory_bytes")
    return all(isinstance(name, str) for name in each["modules"]) and (memory is None or _fits(memory, int))


def _wrong_node(node: Any, asked: Facts) -> str:
    """What is wrong with a host's report about a node, which becomes a file name here."""
    if not isinstance(node, dict):
        return f"a node is {str(node)[:40]!r}"
    run, wanted, files = node.get("run"), str(asked.get("run") or ""), node.get("files")
    good = {
        "run": isinstance(run, str)
        and _RUN.fullmatch(run)
        and (run.startswith(wanted) if asked.get("find") else wanted in ("", run)),
        "node": _fits(node.get("node"), int) and 0 <= node["node"] < _NODES,
        "running": isinstance(node.get("running"), bool),
        "directory": isinstance(node.get("directory"), str) and _DIRECTORY.fullmatch(node["directory"]),
        "files": isinstance(files, list) and all(isinstance(name, str) and name in _FILES for name in files),
    }
    return next((f"{name} of a node is {str(node.get(name))[:40]!r}" for name, fits in good.items() if not fits), "")


def place(answers: Mapping[str, Facts]) -> None:
    """Name each node's local directory: its number, and the host's name if several hosts claim to have the node."""
    nodes = [(host, node) for host, answer in answers.items() for node in answer.get("nodes") or ()]
    hosts = Counter((node["run"], node["node"]) for _, node in nodes)
    for host, node in nodes:
        several = hosts[node["run"], node["node"]] > 1
        node["place"] = f"{node['node']}-{host}" if several else str(node["node"])


def _nested(value: object, left: int) -> bool:
    """Whether lists and objects are nested deeper than that."""
    if not isinstance(value, (dict, list)):
        return False
    return not left or any(_nested(one, left - 1) for one in (value.values() if isinstance(value, dict) else value))


def _fits(value: Any, kind: type | tuple[type, ...]) -> bool:
    """Whether it is of that kind; JSON allows NaN and numbers of any length, with which the code cannot compute."""
    return isinstance(value, kind) and (isinstance(value, bool) == (kind is bool)) and not _endless(value)


def _endless(value: object) -> bool:
    return isinstance(value, (int, float)) and not -_MOST < value < _MOST


def choose(found: Mapping[str, Facts], args: Facts) -> tuple[dict[str, Problem], list[str], dict[str, Any] | None]:
    """Problems by host, notes, and the choice, which is None if there are too few hosts.

    `found` has the hosts' facts in order; `args` has `nodes` (how many to use), `least` (how many are enough),
    `digest`, `own_disk`, and what `find_problems` needs. The hosts of a run with roles are those in `parts`.
    """
    problems, notes = find_problems(found, args)
    good = [host for host in found if host not in problems][: int(args["nodes"])]
    if len(good) < int(args["least"]):
        return problems, notes, None
    copying: dict[str, str] = {}
    for host in good:
        copying.setdefault(host if host in args["own_disk"] else str(found[host]["disk"]), host)
    choice = {
        "master": good[0],
        "others": good[1:],
        "lacking": [host for host in copying.values() if args["digest"] and not found[host]["has_files"]],
        "ranks": {host: rank for rank, host in enumerate(good)},
        "copying": list(copying.values()),
        "left_out": [host for host in found if host not in good],
    }
    return problems, notes, choice


def meeting_point(tried: Mapping[str, Mapping[str, bool]]) -> tuple[dict[str, str], str | None, str]:
    """Which of node 0's addresses each host uses, the common one if any, and why; `tried`: what each host reached.

    The best address that all hosts reach; if there is none, each host's own best. Hosts that reach none are left out.
    """
    candidates = list(dict.fromkeys(address for answers in tried.values() for address in answers))
    common = next((address for address in candidates if all(answers.get(address) for answers in tried.values())), None)
    own = {host: next((a for a in candidates if answers.get(a)), None) for host, answers in tried.items()}
    chosen = {host: common or address for host, address in own.items() if address}
    counts = ", ".join(f"{a} by {sum(bool(answers.get(a)) for answers in tried.values())}" for a in candidates)
    reason = f"all {len(tried)} others reach it"
    if common is None:
        reason = f"no address is reached by all {len(tried)} others ({counts}): each uses the first that it reaches"
    elif common != candidates[0]:
        reason += f" (tried: {counts})"
    return chosen, common, reason


def find_problems(found: Mapping[str, Facts], args: Facts) -> tuple[dict[str, Problem], list[str]]:
    """Why hosts cannot take part, by host, and warnings about hosts that can."""
    needs = {host: _needs(host, args) for host in found}
    problems = {host: problem for host, facts in found.items() if (problem := _own_problem(facts, needs[host]))}
    good = {host: facts for host, facts in found.items() if host not in problems}
    _same_machine(good, problems)
    for role in dict.fromkeys(needs[host].get("role") for host in good):
        _alike({host: facts for host, facts in good.items() if needs[host].get("role") == role}, problems, needs)
    return problems, _warnings(good)


def _needs(host: str, args: Facts) -> dict[str, Any]:
    """What matters on a host: with roles, what its role needs."""
    part = (args.get("parts") or {}).get(host)
    return {**args, **(part or {}), "gpus_matter": host in args["gpus_matter"]}


def _alike(good: Mapping[str, Facts], problems: dict[str, Problem], needs: Mapping[str, Facts]) -> None:
    """Reject hosts that lack what most others of the same role have, or that cannot tell which GPUs they have."""
    if needs[next(iter(good))]["torch"]:
        _different(good, problems, "torch", "torch")
    _different(good, problems, "framework", "its framework")
    message = "no GPUs here, but other hosts have some: does nvidia-smi work?"
    some = any(facts["gpus"] for facts in good.values())
    for host, facts in good.items():
        silent = facts["gpus"] is None
        if needs[host]["gpus_matter"] and not facts["gpus"] and (some or silent):
            why = "the driver of its GPUs does not answer: see dmesg" if silent else message
            problems.setdefault(host, {"kind": "gpus", "message": why})


def _own_problem(facts: Facts, args: Facts) -> Problem | None:
    """What keeps a host by itself from taking part; None if nothing does."""
    message = str(facts.get("problem") or facts.get("msg") or "no answer").strip()
    if kind := next((kind for name, kind in _KINDS.items() if facts.get(name)), None):
        return {"kind": kind, "message": message}
    if facts.get("problem") or facts.get("failed") or "machine" not in facts:
        return {"kind": "disk" if "No space left" in message else "host", "message": message}
    if args["torch"] and facts["torch"] is None:
        return {"kind": "torch", "message": f"there is no torch in {facts['python']}"}
    if facts["without"]:
        return {"kind": "framework", "message": facts["without"]}
    if facts["free_bytes"] < 2 * int(args["snapshot_bytes"]) + _ROOM_BYTES:
        free = f"{facts['free_bytes'] / 1e6:.0f} MB are free in {facts['directory']}"
        return {"kind": "disk", "message": f"the disk is full: {free}"}
    return None if facts["has_cwd"] else {"kind": "files", "message": f"there is no directory {args['cwd']}"}


def _warnings(good: Mapping[str, Facts]) -> list[str]:
    """Warnings about hosts that can take part."""
    warnings = []
    versions = sorted({facts["python_version"].rpartition(".")[0] for facts in good.values()})
    if len(versions) > 1:
        warnings.append(f"hosts have different Pythons: {', '.join(versions)}")
    for host, facts in good.items():
        early, late = sorted(facts["clock_s"])
        if early > _CLOCK_S or late < -_CLOCK_S:
            warnings.append(f"the clock of {host} differs by {early if early > 0 else late:.0f} s from the one here")
        if facts.get("replaced"):
            warnings.append(f"{host}: {facts['replaced']}; the right one was installed in its place")
        if facts["user_processes_end"]:
            warnings.append(
                f"{host}: systemd ends a user's processes at logout; run there once: loginctl enable-linger"
            )
    return warnings


def _same_machine(good: Mapping[str, Facts], problems: dict[str, Problem]) -> None:
    """Reject a second name of one host, which would start two nodes there."""
    seen: dict[str, str] = {}
    for host, facts in good.items():
        first = seen.setdefault(str(facts["machine"]), host)
        if first != host:
            problems[host] = {"kind": "duplicate", "message": f"{host} and {first} are one host ({facts['hostname']})"}


def _different(good: Mapping[str, Facts], problems: dict[str, Problem], key: str, what: str) -> None:
    """Reject the hosts that differ from the majority."""
    counts = Counter(facts[key] for host, facts in good.items() if host not in problems)
    if len(counts) < 2:
        return
    usual = counts.most_common(1)[0][0]  # on a tie the first host's
    for host, facts in good.items():
        if facts[key] != usual and host not in problems:
            message = f"{what} is {facts[key]}, and {usual} on {counts[usual]} other host{'s' * (counts[usual] > 1)}"
            problems[host] = {"kind": key, "message": message}
