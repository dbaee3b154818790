"""A workload is created suspended, and released once everything that its pods need exists."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from launcher.backends.kubernetes.objects import KINDS

if TYPE_CHECKING:
    from launcher.backends.kubernetes.objects import Manifest

_WITH_RUN_POLICY = {kind.kind for kind in KINDS.values() if kind.replicas}


def suspended(manifest: Manifest) -> Manifest | None:
    """The manifest of a workload, suspended until everything its pods need exists; None if it cannot be."""
    found = copy.deepcopy(manifest)
    if found["kind"] in _WITH_RUN_POLICY:
        found["spec"]["runPolicy"]["suspend"] = True
    elif found["kind"] in ("Job", "JobSet", "TrainJob"):
        found["spec"]["suspend"] = True
    else:
        return None
    return found


def release(manifest: Manifest) -> Manifest:
    """The patch that resumes a suspended workload."""
    resumed = {"suspend": False}
    return {"spec": {"runPolicy": resumed} if manifest["kind"] in _WITH_RUN_POLICY else resumed}
