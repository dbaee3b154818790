"""Our dataclasses behave as the standard library's, also to that, and a launch does not import it."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import subprocess
import sys
from typing import Any, ClassVar

import pytest

from launcher.system import dataclass as ours
from tests.command import ROOT


class Modules:
    """What such a module has, for mypy: both are the same to it."""

    ours: Any = ours
    theirs: Any = dataclasses


def made(module: Any, name: str) -> Any:
    """A frozen class and one that can change, in this module, where pickle finds them."""

    @module.dataclass(frozen=True, slots=True, kw_only=True)
    class Fixed:
        """An option."""

        known: ClassVar[list[str]] = []
        nodes: int
        name: str = "origin"
        env: dict[str, str] = module.field(default_factory=dict)
        source: str = module.field(default="", compare=False, repr=False, metadata={"help": "where from"})

        def __post_init__(self) -> None:
            if self.nodes < 0:
                raise ValueError("below 0")

        @property
        def both(self) -> str:
            return f"{self.name}{self.nodes}"

    @module.dataclass(slots=True)
    class Open:
        first: int
        rest: list[Any] = module.field(default_factory=list)

    @module.dataclass
    class Plain:
        first: int
        second: str = "b"

    @module.dataclass(slots=True)
    class Below(Open):
        more: int = 3

    found = {"Fixed": Fixed, "Open": Open, "Plain": Plain, "Below": Below}
    for each, kind in found.items():
        kind.__name__ = kind.__qualname__ = f"{name}{each}"
        globals()[f"{name}{each}"] = kind
    return type(name, (), found)


KINDS = [made(Modules.ours, "Ours"), made(Modules.theirs, "Theirs")]
BOTH = pytest.mark.parametrize("kind", KINDS)
WITH_FUNCTIONS = pytest.mark.parametrize(
    ("kind", "module"), [(KINDS[0], Modules.ours), (KINDS[0], Modules.theirs), (KINDS[1], Modules.theirs)]
)


@BOTH
def test_values_have_names_defaults_and_are_compared(kind: Any) -> None:
    fixed = kind.Fixed(nodes=2, source="here")

    assert (fixed.nodes, fixed.name, fixed.env, fixed.source, fixed.both) == (2, "origin", {}, "here", "origin2")
    assert fixed == kind.Fixed(nodes=2, source="elsewhere")
    assert fixed != kind.Fixed(nodes=3)
    assert fixed != (2, "origin", {}, "here")
    assert repr(fixed) == f"{kind.Fixed.__qualname__}(nodes=2, name='origin', env={{}})"
    assert kind.Fixed(nodes=1).env is not kind.Fixed(nodes=1).env
    assert (kind.Fixed.__doc__, kind.Fixed.__match_args__, kind.Open.__match_args__) == (
        "An option.",
        (),
        ("first", "rest"),
    )
    assert kind.Open(1, [2]) == kind.Open(rest=[2], first=1) != kind.Below(1, [2])
    assert (kind.Below(1).rest, kind.Below(1, [], 4).more, kind.Plain(1).second, kind.Plain.second) == ([], 4, "b", "b")


@BOTH
def test_what_is_frozen_cannot_be_changed_and_what_has_slots_has_no_other_names(kind: Any) -> None:
    fixed, changed, plain = kind.Fixed(nodes=2), kind.Open(1), kind.Plain(1)

    for name in ("nodes", "other"):
        with pytest.raises((AttributeError, TypeError)):  # the latter by a mistake of the standard library
            setattr(fixed, name, 3)
    with pytest.raises(AttributeError):
        del fixed.nodes
    with pytest.raises(AttributeError):
        changed.other = 3
    changed.first, plain.other = 5, 6
    assert (changed, plain.other, hasattr(changed, "__dict__")) == (kind.Open(5), 6, False)
    assert {kind.Fixed(nodes=2, env=()): 1}[kind.Fixed(nodes=2, env=(), source="x")] == 1
    with pytest.raises(TypeError):
        hash(changed)


@BOTH
def test_wrong_values_are_refused(kind: Any) -> None:
    for wrong in ({}, {"nodes": 1, "odd": 2}):
        with pytest.raises(TypeError):
            kind.Fixed(**wrong)
    with pytest.raises(TypeError):
        kind.Fixed(1)
    with pytest.raises(TypeError):
        kind.Open(1, [], 3)
    with pytest.raises(ValueError, match="below 0"):
        kind.Fixed(nodes=-1)


@WITH_FUNCTIONS
def test_the_functions_of_both_take_our_classes(kind: Any, module: Any) -> None:
    fixed = kind.Fixed(nodes=2, source="here", env={"a": kind.Open(1, [kind.Plain(2), (3,)])})

    assert module.replace(fixed, nodes=3) == kind.Fixed(nodes=3, env=fixed.env)
    assert module.replace(fixed, nodes=3).source == "here"
    assert module.asdict(fixed) == {
        "nodes": 2, "name": "origin", "source": "here",
        "env": {"a": {"first": 1, "rest": [{"first": 2, "second": "b"}, (3,)]}},
    }  # fmt: skip
    for of in (fixed, kind.Fixed):
        names = [(each.name, each.type, dict(each.metadata)) for each in module.fields(of)]
        assert names == [
            ("nodes", "int", {}), ("name", "str", {}), ("env", "dict[str, str]", {}),
            ("source", "str", {"help": "where from"}),
        ]  # fmt: skip
    assert [each.default is module.MISSING for each in module.fields(fixed)] == [True, False, True, False]
    assert [each.name for each in module.fields(kind.Below)] == ["first", "rest", "more"]
    with pytest.raises(TypeError):
        module.replace(fixed, odd=3)


@BOTH
def test_copies_are_equal(kind: Any) -> None:
    for value in (kind.Fixed(nodes=2, source="here"), kind.Open(1, [2]), kind.Plain(1)):
        for same in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
            assert (same, type(same)) == (value, type(value))
            assert dataclasses.asdict(same) == dataclasses.asdict(value)


def test_classes_are_dataclasses_to_the_standard_library() -> None:
    ours_, theirs = KINDS

    assert dataclasses.is_dataclass(ours_.Fixed(nodes=1))
    assert [(each.name, each.kw_only, each.repr, each.compare) for each in dataclasses.fields(ours_.Fixed)] == [
        (each.name, each.kw_only, each.repr, each.compare) for each in dataclasses.fields(theirs.Fixed)
    ]


SLOW = ("dataclasses", "inspect", "pkgutil", "typing_extensions", "argparse", "typer")


@pytest.mark.parametrize("words", [("--version",), ("local", "--dry-run", "train.py")])
def test_a_launch_imports_nothing_slow(words: tuple[str, ...], tmp_path: Any) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    argv = (sys.executable, "-X", "importtime", "-m", "launcher", *words)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "DISTLAUNCH_RUNS_DIR": str(tmp_path / "runs")}

    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time")}
    assert "launcher.system.dataclass" in imported or words == ("--version",)
    assert imported.isdisjoint(SLOW)
