"""The hosts of an inventory in the order of their ranks, from Ansible itself: every inventory that it accepts works."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.agent.system.natural_order import natural
from launcher.backends.ansible import ahead
from launcher.backends.ansible.ansible_config import check_inventory
from launcher.errors import BackendUnavailableError, SpecError
from launcher.spec import parse_workers
from launcher.system import input_file, install, proc
from launcher.system.dataclass import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_INVENTORY_S = 120
_STRICT = {"ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1", "ANSIBLE_NOCOLOR": "1", "ANSIBLE_DEPRECATION_WARNINGS": "0"}
_HINT = "--inventory hosts.ini, or --inventory h1,h2,"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host of the inventory."""

    name: str
    variables: Mapping[str, Any] = field(default_factory=dict)

    @property
    def workers(self) -> int | None:
        """Number of workers, if the inventory sets it."""
        value = str(self.variables.get("distlaunch_workers") or "auto")
        if "{{" in value:  # a template, which Ansible resolves later
            return None
        try:
            count = parse_workers(value)
        except SpecError as error:
            why = f"distlaunch_workers {value[:40]!r} is not a positive number"
            raise SpecError(f"host {self.name}: {why}", hint=error.hint) from None
        return count if isinstance(count, int) else None


def program(name: str) -> str:
    """The path of one of Ansible's programs: next to our interpreter, or on PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), name)
    found = beside if os.access(beside, os.X_OK) else shutil.which(name)
    if found is None:
        raise BackendUnavailableError(f"{name} is not installed", hint=install.command("ansible"))
    return found


def sources(given: Sequence[str], cwd: str) -> tuple[str, ...]:
    """The inventories as Ansible gets them: paths made absolute, lists unchanged. `SpecError` for anything else.

    If none is given, those of ANSIBLE_INVENTORY, which Ansible would look up next to its playbook.
    """
    found = []
    for text in given or _of_environment():
        path = os.path.join(cwd, os.path.expanduser(text))
        if "," in text:
            names = [name.strip() for name in text.split(",") if name.strip()]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice or not names:
                raise SpecError(
                    f"inventory {text!r}: " + (f"{', '.join(twice)} is listed twice" if twice else "no host"),
                    hint=_HINT,
                )
            found.append(text)
        elif not os.path.exists(path):
            raise SpecError(f"inventory {text!r} does not exist", hint=_HINT + " with the commas")
        elif not os.access(path, os.R_OK):
            raise SpecError(f"inventory {text!r} cannot be read: Permission denied", hint=f"chmod u+r {path}")
        else:
            found.append(os.path.abspath(path))
            check_inventory(found[-1])
    return tuple(found)


def _of_environment() -> list[str]:
    return [part.strip() for part in os.environ.get("ANSIBLE_INVENTORY", "").split(",") if part.strip()]


def files(given: Sequence[str], cwd: str) -> list[str]:
    """The inventories that are paths and exist."""
    paths = (os.path.join(cwd, os.path.expanduser(text)) for text in given or _of_environment() if "," not in text)
    return [os.path.abspath(path) for path in paths if os.path.exists(path)]


def hosts(inventory: Sequence[str], limit: str, env: Mapping[str, str], exclude: str = "") -> list[Host]:
    """All hosts that match, by `distlaunch_rank` if they have it, else in natural order. Raises `SpecError`."""
    argv = [program("ansible-inventory"), "--list"]
    env = ahead.start(argv[0], {**os.environ, **env, **_STRICT})
    argv += [part for source in inventory for part in ("--inventory", source)]
    argv += ["--limit", limit] if limit else []
    if limit.startswith("@"):
        try:
            input_file.check(os.path.expanduser(limit[1:]))
        except OSError as error:
            raise SpecError(f"limit {limit!r} cannot be read: {error.strerror}") from error
    done = proc.run(ahead.words(argv), timeout_s=_INVENTORY_S, env=env)
    said = done.stderr.strip()
    shown = ", ".join(inventory) or "of ansible.cfg"
    if done.returncode:
        raise SpecError(f"inventory {shown}: {_first_error(said)}", hint=None if inventory else _HINT)
    groups = _answer(done.stdout, shown)
    variables = groups.pop("_meta", {}).get("hostvars", {})
    names = {name for group in groups.values() for name in group.get("hosts", ())}
    unknown = re.findall(r"Could not match supplied host pattern, ignoring: (\S+)", said)
    if unknown or not names:
        known = ", ".join(sorted(set(groups) - {"all", "ungrouped"}))
        what = f"no host or group {', '.join(unknown)}" if unknown else "no hosts"
        raise SpecError(f"inventory {shown}: {what}", hint=f"groups: {known}" if known else _HINT)
    excluded = {name.strip() for name in exclude.split(",") if name.strip()}
    strange = sorted(excluded - names)
    if strange and not limit:
        output.warn(f"exclude {', '.join(strange)}: not in inventory {shown}")
    found = [Host(name=name, variables=variables.get(name, {})) for name in names - excluded]
    if not found:
        raise SpecError(f"inventory {shown}: all of its hosts are excluded", hint=f"excluded: {exclude}")
    return sorted(found, key=_order)


def _answer(said: str, inventory: str) -> dict[str, Any]:
    """The object at the end of what ansible-inventory prints: before it, there is more if it is to be verbose."""
    begins = re.search(r"^\{", said, re.MULTILINE)
    try:
        answer: dict[str, Any] = json.JSONDecoder().raw_decode(said, begins.start() if begins else 0)[0]
    except ValueError as error:
        first = said.strip().partition("\n")[0] or "nothing"
        raise SpecError(f"inventory {inventory}: ansible-inventory prints no list of hosts, but {first!r}") from error
    return answer


def _order(host: Host) -> tuple[float, Any]:
    rank = host.variables.get("distlaunch_rank")
    try:
        place = float("inf") if rank is None else float(rank)
    except (TypeError, ValueError, OverflowError):
        place = float("nan")
    if math.isnan(place):
        raise SpecError(f"host {host.name}: distlaunch_rank {str(rank)[:40]!r} is not a number")
    return place, natural(host.name)


def _first_error(said: str) -> str:
    """The lines that state the error, out of everything that Ansible prints."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [re.sub(r"^\[?(ERROR|WARNING)[]!:]*\s*", "", line) for line in lines if re.match(r"\[?ERROR", line)]
    reasons = [
        line for line in lines if re.search(r"[Ff]ailed to parse|[Uu]nable to parse|Syntax|[Ee]xpected|not found", line)
    ]
    reasons = [re.sub(r"^\[?(ERROR|WARNING)[]!:]*\s*", "", line) for line in reasons]
    kept = dict.fromkeys([*errors[:2], *reasons[:2]])
    return "; ".join(kept) or (lines[-1] if lines else "ansible-inventory printed nothing")
