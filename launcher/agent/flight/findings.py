"""What the flight recorders of all ranks tell, in words: `rank 3 never called all_reduce #17 (train.py:88)`."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from ..stacks.sentences import named

_DEFAULT = ("default_pg", "undefined", "")
_OTHERWISE = {
    "SIZE_OR_SYNTAX_MISMATCH": "with another size",
    "COLLECTIVE_DTYPE_MISMATCH": "with another dtype",
}
_MAX_SAID, _MOST = 2, 64


def in_words(findings: Sequence[Mapping[str, Any]], host: Callable[[int], str] = lambda _: "") -> str:
    """The first findings in one line."""
    return "; ".join(_sentence(each, host) for each in findings[:_MAX_SAID])


def of_run(finding: Mapping[str, Any], first_rank: int) -> Dict[str, Any]:
    """The finding with the ranks of the run, where it has those of a role that begins with `first_rank`."""
    lists = {name: [first_rank + rank for rank in finding[name]] for name in ("missing", "joined", "without_dump")}
    odd = {str(first_rank + int(rank)): called for rank, called in finding["odd"].items()}
    return {**finding, **lists, "odd": odd}


def brief(finding: Mapping[str, Any]) -> Dict[str, Any]:
    """The finding without what is long in a large run."""
    of, odd = finding["called"], {rank: each["name"] for rank, each in list(finding["odd"].items())[:_MOST]}
    about = {"collective": of["name"], "number": finding["number"], "at": of["at"], "mismatch": finding["mismatch"]}
    return {**about, "group": finding["group"]["description"], "missing": finding["missing"][:_MOST], "odd": odd}


def guilty(finding: Mapping[str, Any]) -> List[int]:
    """The ranks for which the others wait, as far as that can be told."""
    return list(finding["missing"]) or [rank for ranks in _alike(finding["odd"]) for rank in ranks]


def called(finding: Mapping[str, Any]) -> Tuple[str, str]:
    """The collective that hangs, and which of them: `all_reduce` and ` #17 (train.py:88) of group tp`."""
    of, group = finding["called"], finding["group"]["description"]
    at = f" ({of['at']})" if of["at"] else ""
    return of["name"], f" #{finding['number']}{at}" + ("" if group in _DEFAULT else f" of group {group}")


def _sentence(finding: Mapping[str, Any], host: Callable[[int], str]) -> str:
    what, missing, odd = "".join(called(finding)), finding["missing"], finding["odd"]
    if missing:
        return f"{named(missing, host)} never called {what}"
    if odd:
        groups = _alike(odd)
        said = [_instead(finding, ranks, host) for ranks in groups[:_MAX_SAID]]
        rest = [rank for ranks in groups[_MAX_SAID:] for rank in ranks]
        more = [f"{named(sorted(rest), host)} differ{'s' * (len(rest) == 1)}, too"] if rest else []
        return "; ".join([*said, *more])
    if finding["without_dump"]:
        many = "s" if len(finding["joined"]) == 1 else ""
        absent = named(finding["without_dump"], host)
        return f"{named(finding['joined'], host)} wait{many} in {what}; there is no dump of {absent}"
    return f"all {len(finding['joined'])} ranks have called {what}, and it did not complete"


def _alike(odd: Mapping[str, Mapping[str, Any]]) -> List[List[int]]:
    """Ranks that called the same together, the most first: in a large run, half of the ranks may be odd."""
    groups: Dict[Tuple[str, ...], List[int]] = {}
    for rank in sorted(map(int, odd)):
        own = odd[str(rank)]
        groups.setdefault((own["name"], own["at"], own["state"]), []).append(rank)
    return sorted(groups.values(), key=len, reverse=True)


def _instead(finding: Mapping[str, Any], ranks: List[int], host: Callable[[int], str]) -> str:
    who, what, own = named(ranks, host), "".join(called(finding)), finding["odd"][str(ranks[0])]
    has, its = ("have", "their") if len(ranks) > 1 else ("has", "its")
    if finding["mismatch"] == "COLLECTIVE_TYPE_MISMATCH":
        at = f" ({own['at']})" if own["at"] else ""
        return f"{who} called {own['name']}{at}, where the others called {what}"
    if finding["mismatch"] == "COLLECTIVE_STATE_MISMATCH":
        others = finding["called"]["state"]
        return f"{who} {has} called {what}, where {its} state is {own['state']}; on the others it is {others}"
    return f"{who} called {what} {_OTHERWISE.get(finding['mismatch'], 'otherwise')} than the others"
