"""Sources of a run's streams."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

JOB_OUTPUT: Final = "job"
"""Output that no agent wrote: that of the scheduler or the job script."""

Source: TypeAlias = int | Literal["job"]
"""The rank of an agent's node, or `JOB_OUTPUT`."""
