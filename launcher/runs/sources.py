"""Who writes the streams of a run."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

JOB_OUTPUT: Final = "job"
"""What no agent wrote: the scheduler, or the job file."""

Source: TypeAlias = int | Literal["job"]
"""A node's agent, by the rank of its node, or `JOB_OUTPUT`."""
