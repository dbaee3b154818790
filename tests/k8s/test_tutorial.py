"""docs/tutorials/kubernetes.md, with real pods."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import tutorial
from tests.command import ROOT

if TYPE_CHECKING:
    from tests.command import Result
    from tests.k8s.conftest import User

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(300)]

IMAGE = "python:3.13-slim"


def test_the_tutorial(pods: User) -> None:
    """The image is one that the cluster can fetch, in place of the one on Docker Hub."""

    def run(*words: str) -> Result:
        return pods(*(pods.image if word == IMAGE else word for word in words))

    page = ROOT / "docs/tutorials/kubernetes.md"
    assert f"--image {IMAGE} " in page.read_text("utf-8")
    tutorial.play(page, run, pods.write)
