"""The GPUs of this host with the memory that is in use on each, and which of them a run may have."""

from __future__ import annotations

import os
from typing import Dict, List, Mapping, Optional

from ..fabric.sources import Tree
from ..named_tuple import NamedTuple
from ..system import facts, nvml
from .lock_files import LeaseError

VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
IN_USE_MIB = 300
"""More than a driver or a desktop keeps on an idle GPU, and less than a process that computes on it."""

_QUERY = ("nvidia-smi", "--query-gpu=index,uuid,memory.used,memory.total", "--format=csv,noheader,nounits")


class Use(NamedTuple):
    """A GPU and its memory; None: unknown."""

    gpu: int
    uuid: str = ""
    used_mib: Optional[int] = None
    total_mib: Optional[int] = None

    @property
    def busy(self) -> bool:
        """Whether a process computes on it."""
        return self.used_mib is not None and self.used_mib >= IN_USE_MIB


def found(tree: Optional[Tree] = None) -> List[Use]:
    """All GPUs of the host in the order of their numbers, by nvidia-smi or else only counted."""
    text = tree.run(*_QUERY) if tree else Tree().run(*_QUERY) if _is_installed() else None
    if text is None:
        try:
            return [Use(int(number)) for number in facts.gpus({})]
        except nvml.NoAnswerError as error:
            raise LeaseError(str(error)) from error
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    known = [
        Use(int(row[0]), row[1], _whole(row[2]), _whole(row[3])) for row in rows if len(row) == 4 and row[0].isdigit()
    ]
    return sorted(known)


def _is_installed() -> bool:
    """Whether there is an nvidia-smi; without one, no module to start it needs to be imported."""
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return any(os.access(os.path.join(directory, _QUERY[0]), os.X_OK) for directory in path)


def _whole(text: str) -> Optional[int]:
    return int(text) if text.isdigit() else None


def visible(uses: List[Use], env: Mapping[str, str]) -> List[int]:
    """The numbers of the GPUs that these variables leave; all without one. Raises `LeaseError` for an unknown GPU."""
    text = next((env[name] for name in VISIBLE if name in env), None)
    if text is None:
        return [use.gpu for use in uses]
    by_name: Dict[str, int] = {str(use.gpu): use.gpu for use in uses}
    chosen: List[int] = []
    for name in (word.strip() for word in text.split(",") if word.strip()):
        if name == "-1":  # hides all GPUs that follow
            break
        if name.startswith("MIG-"):  # which GPU it is part of is not looked up
            return [use.gpu for use in uses]
        matches = [use.gpu for use in uses if name.startswith("GPU-") and use.uuid.startswith(name)]
        if name not in by_name and len(matches) != 1:
            known = ", ".join(by_name) or "none"
            raise LeaseError(f"there is no GPU {name!r} (CUDA_VISIBLE_DEVICES={text}); GPUs here: {known}")
        chosen.append(by_name[name] if name in by_name else matches[0])
    return list(dict.fromkeys(chosen))
