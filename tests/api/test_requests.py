"""What a program cannot ask for is one error, which names what it can do instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import distlaunch

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"nodez": 2}, "unknown option 'nodez'"),
        ({"interactive": "0"}, "unknown option 'interactive'; it is for the command line"),
        ({"nodes": "x"}, "nodes 'x' is not a number"),
        ({"nodes": True}, "nodes wants a text"),
        ({"max_restarts": "3"}, "max-restarts wants a whole number, not '3'"),
        ({"env": 3}, "env wants texts"),
        ({"backend": "nowhere"}, "unknown backend 'nowhere'"),
        ({"args": "--a b"}, "args is a single string"),
        ({"module": True, "program": True}, "exclude each other"),
    ],
)
def test_an_impossible_request_is_one_error_and_leaves_no_run(here: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(distlaunch.SpecError, match=says):
        distlaunch.submit("work.py", **options)
    assert distlaunch.runs() == []


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({"backend": "k8s", "image": "x", "fetch": ["out/**"]}, "volume= and output_dir= keep files there"),
        ({"fetch_node": "all"}, "Run.fetch"),
        ({"fetch_to": "got"}, "Run.fetch"),
        ({"dry_run": True}, "plan()"),
        ({"render_to": "by-hand"}, "Plan.write()"),
        ({"detach": True}, "submit() returns at once"),
        ({"log_ranks": "all"}, "Run.logs()"),
    ],
)
def test_an_option_of_the_command_line_names_what_does_it_here(
    here: Path, options: dict[str, Any], instead: str
) -> None:
    with pytest.raises(distlaunch.SpecError, match="it is for the command line") as caught:
        distlaunch.submit("work.py", **options)
    assert instead in str(caught.value.hint)
    assert distlaunch.runs() == []


@pytest.mark.parametrize("several", ["here,there", "any"])
def test_a_plan_or_a_call_is_for_one_cluster(here: Path, several: str) -> None:
    (here / "distlaunch.toml").write_text('[clusters.here]\nbackend = "local"\n[clusters.there]\nbackend = "local"\n')

    for launch in (lambda: distlaunch.plan("work.py", cluster=several), lambda: distlaunch.call(len, cluster=several)):
        with pytest.raises(distlaunch.SpecError, match="several clusters, which only a launch takes") as caught:
            launch()
        assert caught.value.hint == "name one of them"


@pytest.mark.parametrize("option", ["name", "max_restarts", "dependency"])
def test_an_option_of_the_users_job_is_refused_by_doctor(here: Path, option: str) -> None:
    given: dict[str, Any] = {option: "1"}

    with pytest.raises(distlaunch.SpecError, match=f"doctor: {option} does not apply"):
        distlaunch.doctor(nodes=2, **given)
    assert distlaunch.runs() == []
