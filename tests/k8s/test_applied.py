"""What `distlaunch k8s --dry-run` prints, read by kubectl."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.k8s.conftest import User

pytestmark = pytest.mark.k8s


def test_words_that_look_like_numbers_and_answers_are_words(user: User) -> None:
    """Its YAML has more forms of both than PyYAML's."""
    words = ["y", "N", "08", "1e3", "12E5", "0o17", "+.5e1", "-09", "true", "0x1F", "1_0"]
    options = [each for number, word in enumerate(words) for each in ("--annotation", f"a{number}={word}")]
    pods = ("--node-selector", "rack=08", "--toleration", "spot=y:NoSchedule", "--label", "quiet=n")
    printed = user("k8s", "--dry-run", *options, *pods, "x.py")
    assert printed.exit_code == 0, printed.stderr

    how = ("--server-side", "--dry-run=server", "-n", user.namespace, "-o", "json", "-f", "-")
    applied = user.kube.kubectl("apply", *how, stdin=printed.stdout)

    (job,) = [item for item in json.loads(applied.stdout)["items"] if item["kind"] == "Job"]
    notes, pod = job["metadata"]["annotations"], job["spec"]["template"]["spec"]
    assert [notes[f"a{number}"] for number in range(len(words))] == words
    assert (pod["nodeSelector"], pod["tolerations"][0]["value"]) == ({"rack": "08"}, "y")
    assert job["metadata"]["labels"]["quiet"] == "n"
