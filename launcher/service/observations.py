"""What is worth knowing about a run, in words, for its report."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from launcher.runs.sample_series import mean
from launcher.system import amounts
from launcher.system.hosts import places

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from launcher.results.progress import Finding
    from launcher.results.report import Observation, Series, Taken
    from launcher.results.run import RunState

_IDLE_PERCENT = 10.0
"""GPUs whose mean use is below this were idle."""


def of_run(state: RunState, series: Sequence[Series], odd: Sequence[Finding]) -> list[Observation]:
    """What the state and the samples tell, with what is `odd` now; problems first."""
    hosts = {node["node"]: node["host"] for node in state["nodes"]}
    found = [*_lost(state), *_stragglers(odd), *(each for one in series for each in _of_series(one, hosts))]
    return sorted(found, key=lambda each: each["level"] != "problem")


def of_hangs(taken: Sequence[Taken]) -> Iterator[Observation]:
    """The hangs that the watchdog has reported."""
    for each in taken:
        if each["reason"] == "hang":
            odd = [group for group in each["groups"] if {*group["ranks"]} & {*each["odd"]}]
            detail = f"no progress for {each['silent_s']} s: {each['message']}"
            nodes = sorted({node for group in odd for node in group["nodes"]})
            yield {"level": "problem", "title": "The run hung", "detail": detail, "nodes": nodes}


def of_recorders(told: Sequence[tuple[int, Mapping[str, Any]]]) -> Iterator[Observation]:
    """What the flight recorders of a collective that failed tell, and where their dumps are."""
    for node, fields in told:
        files = fields.get("files") or []
        where = f"; dumps: {amounts.listed(files)}" if files else ""
        detail = f"{fields.get('message', '')}{where}"
        yield {"level": "problem", "title": "The flight recorder", "detail": detail, "nodes": [node]}


def _lost(state: RunState) -> Iterator[Observation]:
    hosts = {node["node"]: node["host"] for node in state["nodes"] if node["lines_lost"]}
    if hosts:
        count = sum(node["lines_lost"] for node in state["nodes"])
        lost = f"{places([*hosts], hosts.__getitem__)}: {count:,} lines of workers are not in the logs"
        yield {"level": "problem", "title": "Lines were lost", "detail": lost, "nodes": [*hosts]}


def _stragglers(odd: Sequence[Finding]) -> Iterator[Observation]:
    for one in (each for each in odd if each["kind"] != "hang"):  # `of_hangs` has those
        title = {"slow": "A straggler", "busy": "Others may wait", "idle_gpu": "A GPU does less"}[one["kind"]]
        where = f"{one['host']} (node {one['node']})"
        yield {"level": "notice", "title": title, "detail": f"{where}: {one['message']}", "nodes": [one["node"]]}


def _of_series(each: Series, hosts: Mapping[int, str]) -> Iterator[Observation]:
    """Idle GPUs, and each node whose values are far from those of the others."""
    means = {curve["node"]: value for curve in each["nodes"] if (value := mean(curve["values"])) is not None}
    idle = [node for node, value in means.items() if each["name"] == "gpu" and value < _IDLE_PERCENT]
    if idle:
        names = "all nodes" if len(idle) == len(means) else places(idle, lambda node: hosts.get(node, "?"))
        use = amounts.measured(round(sum(means[node] for node in idle) / len(idle), 1), "%")
        yield {"level": "problem", "title": "Idle GPUs", "detail": f"{names}: busy {use} of the time", "nodes": idle}
    odd = [curve["node"] for curve in each["nodes"] if curve["outlier"] and curve["node"] not in idle]
    if odd:
        usual = amounts.measured(median(means.values()), each["unit"])
        told = amounts.listed(f"{_name(node, hosts)} {amounts.measured(means[node], each['unit'])}" for node in odd)
        yield {
            "level": "notice",
            "title": f"{each['title']}: {'one node stands' if len(odd) == 1 else f'{len(odd)} nodes stand'} out",
            "detail": f"{told}; the median of all nodes is {usual}",
            "nodes": odd,
        }


def _name(node: int, hosts: Mapping[int, str]) -> str:
    return f"{hosts.get(node, '?')} (node {node})"
