"""What `run.json` keeps of a submission, as plain JSON. Each backend adds what it needs to find its run."""

from __future__ import annotations

from typing import Any, TypedDict


class Meeting(TypedDict, total=False):
    """Where node 0 listens, if decided at submission."""

    addresses: list[str]
    port: int
    address: str
    """The address that all nodes reach; empty: each node found its own."""

    reason: str
    """Why this address; only if there was a choice."""


class _Placed(TypedDict):
    run_dir: str
    """The run's directory on this host."""


class Handle(_Placed, total=False):
    """The fields that every part of the launcher may read."""

    hosts: list[str]
    """By node rank, if they were chosen at submission."""

    rendezvous: Meeting
    job_id: str
    """The scheduler's own id of the run; missing if there is none, or before it is known."""

    step: str
    """The name of the step of the job `job_id`, if the run is one; `step_id` is its id, if known at submission."""

    step_id: str

    elsewhere: str
    """The directory to which its nodes write if it cannot be read as ours can: another user's, who is `user`, or
    behind a login node without a shell. Empty if unknown."""

    user: str
    output_dir: str
    """Where the first node's workers start, or where their files are to be."""

    restarts: int
    """How often processes that followed the run have started it again by themselves."""

    task: int
    """Index of this task in its job array."""

    submitting: str | bool
    """The submission is incomplete, and only part of the run may exist. A text says why."""

    before: dict[str, Any]
    """How the run had ended before this restart: its `handle`, `attempt` and `result`."""


def unreadable(handle: Handle) -> str:
    """Why what these nodes have written cannot be read here."""
    elsewhere, user = handle.get("elsewhere"), handle.get("user")
    if user is None:
        return f"its nodes write to {elsewhere}; its login node has no shell to read that with (login-shell: none)"
    if not elsewhere:
        return f"the cluster does not say to which directory of {user} its nodes write"
    return f"its nodes write to {elsewhere}, which {user} does not let others read, or which is not on this host"
