"""What README and docs/ say in tables, lists and names is what the program has."""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

import launcher
from launcher import backends, errors
from launcher.agent.failures import ENDS, RESULTS
from launcher.agent.group import waits, watch, workers
from launcher.agent.job import Job
from launcher.agent.stream import sink
from launcher.backends._base import Backend
from launcher.cli.commands.doctor import DoctorOptions
from launcher.cli.group import command, command_names
from launcher.console import worker_output
from launcher.payload import scripts
from launcher.runs import lock
from launcher.runs.outcome import EXIT_CODES, RunReport
from launcher.service import cancel
from launcher.service.request import LaunchOptions
from launcher.settings import config
from launcher.settings.options import JobOptions
from launcher.spec import _SET_BY_US
from launcher.system import input_file, writing
from tests.command import ROOT
from tests.plugins import failures, results, summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tests.command import Cli

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def section(name: str, heading: str) -> str:
    """The text below a heading of a page, up to the next one."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", page(name), re.MULTILINE | re.DOTALL)
    assert found, f"{name} has no section {heading!r}"
    return found[1]


def table(text: str) -> list[list[str]]:
    """The cells of the rows of a text's tables, without their heads."""
    rows = [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip().replace("\\|", "|") for cell in row] for row in rows]
    heads = [index for index in range(len(cells) - 1) if is_rule(cells[index + 1])]
    return [row for index, row in enumerate(cells) if index not in heads and not is_rule(row)]


def is_rule(row: list[str]) -> bool:
    return all(re.fullmatch(r":?-+:?", cell) for cell in row)


def quoted(text: str) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`]+)`", text)


def named(*classes: type, **wanted: Any) -> set[str]:
    """Names of the options that have these properties; `path` is true of any of its kinds."""
    every = [item for cls in classes for item in fields(cls)]
    return {item.name for item in every if all(bool(item.metadata[key]) is value for key, value in wanted.items())}


def dashed(name: str) -> str:
    """The flag that a field's name gives."""
    return "--" + name.replace("_", "-")


def every_option() -> list[type]:
    return [config.GlobalOptions, JobOptions, *(backends.load(name).options for name in backends.names())]


def anchors(text: str) -> set[str]:
    """The names that headings have as a link's end."""
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Any) -> None:
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text("utf-8")):
        file, _, anchor = target.partition("#")
        there = path.parent / file if file else path
        if not target.startswith("http") and not (there.exists() and (not anchor or anchor in anchors(there.read_text("utf-8")))):
            wrong.append(target)
    assert wrong == []


def test_the_settings_of_every_launch_are_in_their_table_with_their_defaults() -> None:
    """A default that is no value of its own is in words."""
    words: dict[str, tuple[str, object]] = dict.fromkeys(("env", "secret", "preload", "trust"), ("none", ()))
    words |= {"nodes": ("1, or all hosts of an inventory", ""), "name": ("the script's", ""), "python": ("the backend's", "")}
    words |= {"numa_binding": ("none", ""), "time": ("none", ""), "runs_dir": ("`~/.distlaunch/runs`", "")}
    for heading, cls in (("`[defaults]`", JobOptions), ("Top level", config.GlobalOptions)):
        rows = {quoted(row[0])[0]: row[1] for row in table(section("docs/configuration.md", heading))}
        shown = {
            item.name: words[item.name][0]
            if item.name in words
            else f"`{str(item.default).lower() if isinstance(item.default, bool) else item.default}`"
            for item in fields(cls)
        }
        assert rows == shown
        assert [item.name for item in fields(cls) if item.name in words and item.default != words[item.name][1]] == []


def test_settings_of_a_backend_that_are_named_exist() -> None:
    rows = table(section("docs/configuration.md", "`[clusters.NAME]`"))

    for row in rows:
        name, keys = quoted(row[0])[0], {key for cell in row[1:] for key in quoted(cell) if key.isidentifier() and key != "false"}
        has = named(backends.load(name).options)
        assert keys - has == set()
        assert has - keys == set() or row[3].endswith("...")
    assert sorted(quoted(row[0])[0] for row in rows) == backends.names()


def test_settings_that_add_up_and_those_that_are_paths_are_the_ones_that_are_listed() -> None:
    text = page("docs/configuration.md")
    adding = re.search(r"^The lists (.*?) add up", text, re.MULTILINE | re.DOTALL)
    paths = re.search(r"^Paths in a file \((.*?)\) are relative", text, re.MULTILINE | re.DOTALL)
    assert adding
    assert paths

    assert {word for word in quoted(adding[1]) if word.isidentifier()} == named(*every_option(), adds_up=True)
    listed = {re.sub(r" = .*", "", word) for word in quoted(paths[1])} - {"./", "../"}
    assert listed == named(*every_option(), path=True)


def test_launch_options_are_in_their_table_and_no_others_are() -> None:
    rows = [quoted(row[0]) for row in table(section("docs/cli.md", "Launching"))]
    shown = {word.split()[0] for words in rows for word in words}
    launching = {flag for item in fields(LaunchOptions) for flag in item.metadata["flags"] or (dashed(item.name),)}
    others = {dashed(name) for name in named(JobOptions, config.GlobalOptions)} | {"--on"}

    assert launching - shown == {"--quiet", "--verbose"}
    assert shown - launching - others == set()


def test_commands_are_in_the_tables() -> None:
    every = {*backends.names(), *command_names()}
    assert {re.findall(r"distlaunch (\w+)", row[0])[0] for row in table(section("README.md", "Commands"))} == every
    usage = page("docs/cli.md").split("```")[1]
    assert [name for name in every if not re.search(rf"\b{name}\b", usage)] == []


@pytest.mark.parametrize("name", [name for name in command_names() if name not in ("run", "torchrun")])
def test_every_option_of_a_command_is_in_its_row(name: str) -> None:
    """Those of a launch are in a table of their own; `doctor` reads its words itself, and takes them, too."""
    (row,) = (row for row in table(section("docs/cli.md", "Looking")) if re.match(rf"`{name}\b", row[0]))
    found = command(name)
    assert found is not None
    options = [item for item in found.parameters if not item.declared.is_argument]
    has = {part for item in options for flag in item.declared.flags for part in flag.split("/")}
    if name == "doctor":
        has |= {"--on", *(dashed(item.name) for item in fields(DoctorOptions))}

    shown = {word for text in quoted(" ".join(row)) for word in text.split() if word.startswith("-")}
    assert shown == has - {"--help", "-h", "--output"}


def test_the_changelog_has_the_sections_that_everybody_knows() -> None:
    """https://keepachangelog.com, each once in a version and in this order."""
    order = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    for version in re.split(r"^## ", page("CHANGELOG.md"), flags=re.MULTILINE)[1:]:
        found = re.findall(r"^### (.*)$", version, re.MULTILINE)
        assert found
        assert found == [name for name in order if name in found]


def tree(cls: type[errors.LaunchError]) -> Iterator[type[errors.LaunchError]]:
    """A class and all that are made of it."""
    yield cls
    for sub in cls.__subclasses__():
        yield from tree(sub)


def modules() -> Iterable[str]:
    """All of the launcher's."""
    found = pkgutil.walk_packages(launcher.__path__, "launcher.")
    return [module.name for module in found if ".agent" not in module.name and not module.name.endswith("__main__")]


def test_exit_codes_and_error_codes_are_those_of_the_program() -> None:
    for name in modules():
        importlib.import_module(name)
    kinds = [kind for kind in tree(errors.LaunchError) if kind.__module__.startswith("launcher.")]
    codes = {*EXIT_CODES.values(), *(kind.exit_code for kind in kinds)}

    assert {int(row[0]) for row in table(section("docs/cli.md", "Exit codes"))} == codes
    (summary,) = re.findall(r"^Exit codes: (.*?)\.$", page("README.md"), re.MULTILINE | re.DOTALL)
    assert {int(code) for code in re.findall(r"\b\d+\b", summary)} == codes
    (listed,) = re.findall(r"^Error codes: (.*?)\.$", page("docs/cli.md"), re.MULTILINE | re.DOTALL)
    assert set(quoted(listed)) == {kind.code for kind in kinds} - {"error"} | {"bug"}


def test_states_are_those_of_the_program() -> None:
    (line,) = re.findall(r"^States: (.*?)\n\n", page("docs/cli.md"), re.MULTILINE | re.DOTALL)
    (final,) = re.findall(r"final: (.*?);", line, re.DOTALL)

    assert set(quoted(final)) == set(EXIT_CODES)
    assert set(ENDS) < set(EXIT_CODES)


def test_the_fields_of_a_result_are_those_of_the_program() -> None:
    rows = {row[0]: quoted(row[1]) for row in table(section("docs/cli.md", "JSON"))}
    outcome = RunReport(("a",)).outcome(("unknown",)).to_json()
    (node,) = outcome["nodes"]

    named = rows["a launch, `status`"]
    assert set(outcome) | set(node) <= set(named)
    assert {"run", "path", "backend", "cluster", "command", "cwd", "created"} <= set(named)
    told = {word.split()[0] for row in rows for word in quoted(row)}
    assert set(command_names()) - told == {"run", "logs", "torchrun"}, "`run` is a launch, `logs` and `torchrun` print lines"


def test_every_file_that_is_named_is_there() -> None:
    """By its name, as most stand without their directories."""
    directories = ("launcher", "train", "tests", "benchmarks", "playbooks")
    there = {path.name for directory in directories for path in (ROOT / directory).rglob("*.py")}
    given = {
        "hosts.ini",
        "train.py",
        "hello.py",
        "shard.py",
        "where.py",
        "read.py",
        "script.py",
        "x.py",
        "config.toml",
        "distlaunch.toml",
    }
    wrong = {
        (path.name, name)
        for path in PAGES
        if path.name not in {"CHANGELOG.md", "thirdparty.md"}  # the latter's are other people's
        for text in quoted(re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL))
        for name in re.findall(r"^[\w/.]*?(\w+\.py)\b", text)
        if name not in there | given
    }
    assert wrong == set()


def test_every_decision_is_in_the_lists_under_its_title() -> None:
    """Numbered in order, in the architecture and beside the records."""
    records = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
    titles = [re.findall(r"\A# (.*)\n", path.read_text("utf-8"))[0] for path in records]

    assert len(records) >= 15
    assert [int(path.name[:4]) for path in records] == [*range(1, len(records) + 1)]
    assert [int(title.partition(".")[0]) for title in titles] == [*range(1, len(records) + 1)]
    for name, directory in (("docs/architecture.md", "decisions/"), ("docs/decisions/index.md", "")):
        listed = re.findall(r"^(\d+\. )\[(.*)\]\((.*)\)$", page(name), re.MULTILINE)
        assert [number + title for number, title, _ in listed] == titles
        assert [target for _, _, target in listed] == [directory + path.name for path in records]


def test_variables_that_scripts_get_of_us_alone_are_named() -> None:
    """docs/architecture.md says what a script can still notice."""
    ours = {name for name in _SET_BY_US if name.startswith("DISTLAUNCH_")}

    assert ours <= set(quoted(section("docs/architecture.md", "What a script can still notice")))


def elastic(name: str) -> tuple[float]:
    """A number of `dynamic_rendezvous.py`, which imports torch."""
    return (float(re.findall(rf"^{name} = ([\d.]+)$", page("launcher/agent/group/dynamic_rendezvous.py"), re.MULTILINE)[0]),)


NUMBERS: list[tuple[str, str, tuple[float, ...], tuple[float, ...]]] = [
    ("cli", "more than 16 MB is an error", (input_file.LIMIT_BYTES,), (16 * 10**6,)),
    ("cli", "8 MB wait to be read", (writing.BACKLOG_BYTES,), (8 << 20,)),
    ("cli", "no one reads for a second", (writing._STUCK_S,), (1,)),
    ("cli", "for 2 s or 64 KiB", (worker_output.MAX_HELD_S, worker_output.MAX_HELD_BYTES), (2, 64 << 10)),
    ("cli", "after 90 s of silence", (lock._SILENT_S,), (90,)),
    ("cli", "waits for it, up to a minute", (cancel._LOCK_S,), (60,)),
    ("configuration", "or 30 s after MIN are there", (Job._field_defaults["last_call_s"],), (30,)),
    ("decisions/0006-one-verdict-per-round", "five times a second", (watch._WATCH_S,), (0.2,)),
    ("decisions/0006-one-verdict-per-round", "does not acknowledge for 30 s", (Job._field_defaults["host_timeout_s"],), (30,)),
    (
        "decisions/0006-one-verdict-per-round",
        "is reported after 35 s",
        (watch._QUIET * Job._field_defaults["host_timeout_s"],),
        (35,),
    ),
    ("decisions/0006-one-verdict-per-round", "after `--peer-timeout` (5 min)", (Job._field_defaults["peer_timeout_s"],), (300,)),
    ("decisions/0008-first-cause", "waits 2 s for the failure behind it", (workers._FIRST_CAUSE_S,), (2,)),
    ("decisions/0008-first-cause", "for 5 s after the first", (waits.WAITS_S,), (5,)),
    ("decisions/0012-network-by-evidence", "the workers' address costs 30 s", elastic("_EXPLORE_S"), (30,)),
    ("decisions/0009-run-directory", "64 KiB are set aside", (sink.RESERVED_BYTES,), (64 << 10,)),
    ("decisions/0006-one-verdict-per-round", "with exit code 75", (RESULTS["lost"],), (75,)),
    ("testing", "the last 200 kB of each", (failures.MAX_BYTES,), (200_000,)),
    ("testing", "The results of the last 20 runs stay", (results.KEPT,), (20,)),
    ("testing", "the ten slowest", (summary.SLOWEST,), (10,)),
]
"""What a page says, what the program has, and what that sentence means."""


@pytest.mark.parametrize(("where", "says", "has", "means"), NUMBERS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_number_is_the_programs(where: str, says: str, has: tuple[float, ...], means: tuple[float, ...]) -> None:
    assert says in " ".join(page(f"docs/{where}.md").split())
    assert has == means


def test_what_ls_says_of_a_run_is_listed(distlaunch: Cli) -> None:
    (distlaunch.runs / "odd-20250101-120000-abcd").mkdir(parents=True)

    (run,) = distlaunch("ls", "--output", "json").json["result"]["runs"]

    listed = quoted({row[0]: row[1] for row in table(section("docs/cli.md", "JSON"))}["`ls`"].partition(";")[0])
    assert set(listed) - {"runs"} == set(run)


def test_options_of_the_trainer_that_are_named_exist() -> None:
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "train").rglob("*.py"))
    known = {flag.replace("_", "-") for flag in re.findall(r"\b[a-z][a-z_-]+\b", sources)}
    text = re.sub(r"`distlaunch [^`]*`|^(distlaunch|torchrun).*$", "", page("docs/training.md"), flags=re.MULTILINE)

    assert {flag for flag in re.findall(r"--([a-z][a-z-]+)", text) if flag not in known} - {"preload", "nproc-per-node"} == set()


def test_the_trainers_ways_of_synchronising_and_files_are_the_ones_that_are_listed() -> None:
    (names,) = re.findall(r"^SYNCS = \((.*)\)$", page("train/trainer/config.py"), re.MULTILINE)
    ways = [quoted(row[0])[0] for row in table(section("docs/training.md", "Ways of synchronising"))]
    assert ways == re.findall(r'"([\w-]+)"', names)
    files = {path.stem for path in (ROOT / "train/trainer").rglob("*.py")} - {"__init__"} | {"datasets"}
    assert {word for word in quoted(section("docs/training.md", "Layout")) if word.isidentifier() and word.islower()} == files
    data = " ".join(row[0] for row in table(section("docs/training.md", "Data")))
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "train/trainer/datasets").glob("*.py"))
    named = re.findall(r'^DATASETS = \(Dataset\(load, "(.+?)"|^    _small\("(.+?)"', sources, re.MULTILINE)
    assert {"digits", "imagenet", "cifar10"} < {"".join(names) for names in named} < set(quoted(data))


def test_what_a_backend_does_is_listed() -> None:
    (row,) = (row for row in table(section("docs/architecture.md", "The nouns")) if row[0] == "`Backend`")
    named = {re.split(r"\W", word)[0] for word in quoted(row[1])}

    assert named <= set(dir(Backend))
    assert set(Backend.__abstractmethods__) <= named


def test_every_command_takes_output() -> None:
    every = {name: command(name) for name in (*backends.names(), *command_names())}

    without = [name for name, found in every.items() if found and not any("--output" in item.flags for item in found.parameters)]
    assert without == ["doctor", "torchrun"], "they read their words themselves"


def test_a_file_of_ones_own_is_taken_before_a_bundled_one_of_its_name(tmp_path: Path) -> None:
    assert scripts.find_script("train.py", "script", str(tmp_path)).bundled
    (tmp_path / "train.py").write_text("print(1)\n")
    assert not scripts.find_script("train.py", "script", str(tmp_path)).bundled


def test_backends_that_start_a_run_again_are_named() -> None:
    able = {name for name in backends.names() if backends.load(name).requeue is not Backend.requeue}
    (says,) = (row[1] for row in table(section("docs/cli.md", "Looking")) if row[0] == "`requeue RUN`")

    assert able == {"local", "ansible", "slurm"}
    assert says.split(": ")[1] == "on this machine and over SSH when it has ended, on Slurm also one that runs; not on Kubernetes"
