"""Starts a run again: as Kubernetes does after a disruption if it can, else as new objects.

The former attempt's owner is deleted and its pods have ended before anything of the new one exists, and of two commands
that create an owner with one name, only one succeeds: at no moment can two attempts run.
"""

from __future__ import annotations

import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import output
from launcher.agent.failures import Failure
from launcher.backends.kubernetes import about, api, connecting, granted, kept, live, pod_status, states, submission
from launcher.backends.kubernetes.objects import KINDS
from launcher.backends.kubernetes.pod import QUEUE_LABEL, RUN_LABEL, STARTS_AGAIN
from launcher.backends.kubernetes.pod_logs import PodLogs
from launcher.errors import CommandError, RequestError
from launcher.settings.job_checks import check_secrets_here
from launcher.system import storage
from launcher.system.dataclass import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.backends._base import Record
    from launcher.backends.kubernetes.handle import KubernetesHandle
    from launcher.backends.kubernetes.kept import Kept
    from launcher.backends.kubernetes.options import KubernetesOptions
    from launcher.backends.kubernetes.plan import KubernetesPlan
    from launcher.backends.kubernetes.pod_status import Object, Pod

_DOING = "to start the run again"
_END_MORE_S, _END_EACH_S = 60.0, 0.1
"""How long pods may exist beyond their grace time, and how much longer for each: controllers end ten a second."""

_POLL_S, _POLL_EACH_S, _REMIND_S = 0.5, 0.001, 5.0
_LOGS_S = 15.0
"""How long to wait for the last lines of pods that have ended."""


def requeue(opts: KubernetesOptions, handle: KubernetesHandle, attempt: int, record: Record) -> KubernetesHandle:
    """Start the run again as this attempt; `record` as in `Backend.requeue`."""
    return _Former(opts, handle).start_again(attempt, record)


class _Former:
    """The attempt that has ended, or has to end first."""

    def __init__(self, opts: KubernetesOptions, handle: KubernetesHandle) -> None:
        self._handle, self._run_dir = handle, Path(handle["run_dir"])
        self._result = storage.read_json(self._run_dir / "result.json") or {}
        self._cluster = connecting.again(handle)
        try:
            self._items, self._owner = self._listed(), self._found()
        except (api.ApiError, api.UnreachableError) as error:
            raise api.explained(error, self._cluster, _DOING) from error
        self._queue = ((self._owner or {}).get("metadata", {}).get("labels") or {}).get(QUEUE_LABEL, opts.queue)
        self._opts = replace(opts, queue=self._queue, kind=handle["kind"])

    def start_again(self, attempt: int, record: Record) -> KubernetesHandle:
        """End this attempt, and start the next one."""
        runs = self._runs()
        try:
            if runs and self._restarts(attempt):
                self._end(self._delete_pods, {item["metadata"]["uid"] for item in self._items})
                self._items, self._owner = self._listed(), self._found()
                if self._owner is not None and states.finished(self._owner) is None:
                    return self._handle  # else it had ended before they were deleted
        except (api.ApiError, api.UnreachableError) as error:
            raise api.explained(error, self._cluster, _DOING) from error
        cancelled = (self._run_dir / "cancel.json").exists()
        reason = Failure.CANCELLED if cancelled else Failure.PREEMPTED if runs else "failed"
        why = str(self._result.get("state") or reason)
        plan = self._plan(attempt, why)
        try:
            sent = [*plan.objects, *submission.secrets(self._opts, plan)]
            submission.check(self._cluster, self._opts, plan, sent)
            self._end(lambda: self._delete_owner(attempt))
        except (api.ApiError, api.UnreachableError) as error:
            raise api.explained(error, self._cluster, _DOING) from error
        begun: KubernetesHandle = {**self._handle, "attempt": about.attempt_of(plan.objects[0])}
        begun.pop("uid", None)
        begun.pop("in_part", None)
        owner = submission.send(self._cluster, self._opts, plan, lambda: record(begun))
        return {**begun, "uid": owner["metadata"]["uid"]}

    def _found(self) -> Object | None:
        """The owner of the run's objects, whichever attempt's it is.

        Read after the pods: a Job is marked as failed before its pods are deleted, so pods that are being deleted
        belong to one that ends, or to one that starts them again.
        """
        found = self._cluster.find(self._owner_path())
        if found is None or found["metadata"].get("labels", {}).get(RUN_LABEL) != self._handle["run"]:
            return None
        known = self._handle.get("uid", "")
        if known and found["metadata"]["uid"] != known and about.attempt_of(found):
            run = self._handle["run"]
            raise RequestError(
                f"{run} was started again elsewhere", hint=f"distlaunch rm {run}, then --on NAME finds it"
            )
        return found

    def _owner_path(self) -> str:
        return f"{KINDS[self._handle['kind']].path.format(self._cluster.namespace)}/{self._handle['name']}"

    def _listed(self) -> list[Object]:
        """All pods of the run."""
        query = {"labelSelector": f"{RUN_LABEL}={self._handle['run']}"}
        found, _ = api.collect(self._cluster, self._pods_path(), query, lambda item: item)
        return found

    def _pods_path(self) -> str:
        return f"/api/v1/namespaces/{self._cluster.namespace}/pods"

    def _pods(self) -> list[list[Pod]]:
        """The same by node, the newest last."""
        container = KINDS[self._handle["kind"]].container
        found = (pod_status.pod_of(item, container, self._cluster.access) for item in self._items)
        return pod_status.by_node((pod for pod in found if pod is not None), self._handle["nodes"])

    def _runs(self) -> bool:
        """Whether it runs. Raises `RequestError` for one that waits to start: it needs no new attempt."""
        owner = self._owner
        if owner is None or states.finished(owner) is not None or self._result or self._handle.get("in_part"):
            return False
        pods = self._pods()
        newest = [known[-1] for known in pods if known]
        running = [pod for pod in newest if "running" in pod.container and not pod.ended]
        if "deletionTimestamp" in owner["metadata"]:
            return bool(running)
        restarts = self._handle["kind"] in STARTS_AGAIN
        if any(pod.deleted is not None and not pod.overdue and not pod.lost for pod in newest) and restarts:
            raise RequestError(f"{self._handle['name']} is being stopped already, to start again")
        ended = bool(newest) and all(pod.ended for pod in newest)
        if not running and (not ended or (restarts and all(pod.disrupted for pod in newest))):
            why = states.waits_for(pods) or states.backs_off(pods) or "its pods are not created yet"
            raise RequestError(f"{self._handle['name']} waits already: {why}")
        return bool(running)

    def _restarts(self, attempt: int) -> bool:
        """Whether new pods of the same owner would be that attempt, and of all nodes."""
        assert self._owner is not None
        if self._handle["kind"] not in STARTS_AGAIN or self._queue or "deletionTimestamp" in self._owner["metadata"]:
            return False
        before = about.number_of(self._owner)
        return all(before + pod_status.restarts_of(item) + 1 >= attempt for item in self._items)

    def _delete_pods(self) -> None:
        """Delete each pod once, by its name, as its replacement has another: SIGTERM, and its grace time."""
        self._delete_named([pod.name for known in self._pods() for pod in known if not pod.ended])

    def _delete_named(self, names: Sequence[str]) -> None:
        def delete(name: str) -> None:
            query = {"fieldSelector": f"metadata.name={name}"}  # on the collection, as the Role grants only that
            self._cluster.call("DELETE", self._pods_path(), query=query)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(delete, names))

    def _plan(self, attempt: int, why: str) -> KubernetesPlan:
        """What is to be created. Raises `LaunchError` before anything is stopped if that is not possible."""
        sent = kept.read(self._run_dir) or self._read_back()
        check_secrets_here(sent["secrets"])
        plan = kept.plan_of(sent, self._handle, attempt, f"{attempt}-{os.urandom(4).hex()}", why)
        if plan.has_key and plan.job.max_nodes == 1 and not (plan.job.function or plan.job.notify):
            output.warn("this attempt sends no notices: whom --notify named is only known where the run was started")
        return plan

    def _read_back(self) -> Kept:
        """What another launcher has sent, by the cluster; kept here, as the cluster forgets it."""
        if self._owner is None:
            raise RequestError(
                f"{self._handle['run']} was started elsewhere, and its objects are no longer in the cluster",
                hint="distlaunch requeue RUN where it was started",
            )
        try:
            sent = live.read(self._cluster, self._handle, self._owner, self._items)
            if granted.is_kept(self._cluster, self._handle):
                granted.note(self._run_dir)
        except (api.ApiError, api.UnreachableError) as error:
            raise api.explained(error, self._cluster, _DOING) from error
        kept.write(self._run_dir, sent)
        return sent

    def _end(self, stop: Callable[[], None], only: set[str] | None = None) -> None:
        """Call `stop`, and wait until no pod is left, or none of `only` runs; until then, their output is fetched."""
        if self._owner is None and not self._items:
            return
        logs = PodLogs(self._run_dir, self._handle, lambda: self._cluster)
        logs.catch_up(self._pods())
        mine = logs.start_following()
        try:
            stop()
            self._wait_for_pods(only)
            limit = time.monotonic() + _LOGS_S
            while mine and self._lacks(logs) and time.monotonic() < limit:
                time.sleep(_POLL_S)
        finally:
            if mine:
                logs.stop_following()

    def _delete_owner(self, attempt: int) -> None:
        if (owner := self._owner) is None:
            return
        meta = owner["metadata"]
        # Foreground: its controller would take a Service that is about to be removed for the new one's.
        body = {"propagationPolicy": "Foreground", "preconditions": {"uid": meta["uid"]}}
        try:
            self._cluster.call("DELETE", self._owner_path(), body)
        except api.ApiError as error:
            if error.status == 409:
                raise RequestError(f"{self._handle['run']} was started again meanwhile") from error
            if error.status != 404:
                raise
        if states.finished(owner) is None:  # for a command that follows it
            told = {"class": Failure.PREEMPTED, "message": f"it was stopped by requeue, to start as attempt {attempt}"}
            storage.write_whole(kept.given_up({**self._handle, "uid": meta["uid"]}), storage.encode_json(told))

    def _wait_for_pods(self, only: set[str] | None) -> None:
        """Wait for their end. Raises `CommandError` if they take longer than their grace time allows."""
        known = self._items
        graces = [item["spec"].get("terminationGracePeriodSeconds") or 0 for item in known]
        limit_s = max(graces, default=0) + _END_MORE_S + _END_EACH_S * len(known)
        limit, told, remind_at = time.monotonic() + limit_s, False, time.monotonic() + _REMIND_S
        while left := [item for item in self._listed() if only is None or _runs_of(only, item)]:
            if time.monotonic() > limit:
                names = ", ".join(item["metadata"]["name"] for item in left[:5])
                hint = f"distlaunch cancel --force {self._handle['run']}, then requeue it"
                raise CommandError(f"pods have not ended within {limit_s:.0f} s: {names}", hint=hint)
            if not told:
                told = True
                output.note(f"waiting for {len(left)} pods of the former attempt to end, at most {limit_s:.0f} s")
            kept_names = [item["metadata"]["name"] for item in left if "deletionTimestamp" not in item["metadata"]]
            if kept_names and time.monotonic() > remind_at:
                # The garbage collector, which deletes them with their owner, overlooks one at times.
                remind_at = time.monotonic() + _REMIND_S
                with contextlib.suppress(api.ApiError):
                    self._delete_named(kept_names)
            time.sleep(_POLL_S + _POLL_EACH_S * len(known))

    def _lacks(self, logs: PodLogs) -> bool:
        """Whether lines of the pods that have ended are not here yet."""
        return any(pod.has_log and logs.awaits(pod.node, pod) for known in self._pods() for pod in known)


def _runs_of(pods: set[str], item: Object) -> bool:
    """Whether it is one of these pods, and may run: a Job keeps one that has ended until it makes its successor."""
    return item["metadata"]["uid"] in pods and (item.get("status") or {}).get("phase") not in pod_status.OVER
