"""Sends a plan's objects once; finds and removes those of a submission that was cut off."""

from __future__ import annotations

import base64
import os
import time
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.backends._writing import new_key
from launcher.backends.kubernetes import about, api, objects, queues, rights, suspension, ttl, unused_gpus
from launcher.backends.kubernetes.pod import QUEUE_LABEL, RUN_LABEL
from launcher.errors import BackendUnavailableError, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from launcher.backends.kubernetes.api import Cluster
    from launcher.backends.kubernetes.handle import KubernetesHandle
    from launcher.backends.kubernetes.objects import Manifest
    from launcher.backends.kubernetes.options import KubernetesOptions
    from launcher.backends.kubernetes.plan import KubernetesPlan

_DOING = "to create the run"
_TRIES = 4
_LEFT_S = 60.0
"""How long a new attempt waits for Kubernetes to remove the objects of the former one, which have the same names."""

_LEFT_POLL_S = 0.5


def send(cluster: Cluster, opts: KubernetesOptions, plan: KubernetesPlan, begin: Callable[[], None]) -> Manifest:
    """Create everything, after checking that this is possible and calling `begin`; returns the owner of the rest."""
    secret = list(secrets(opts, plan))
    asked = False
    try:
        check(cluster, opts, plan, [*plan.objects, *secret])
        ttl.sweep(cluster, opts)
        unused_gpus.warn(cluster, opts, plan)
        begin()
        asked = True
        main = about.owner_of(plan.objects)
        rest = [item for item in plan.objects if item is not main]
        before = [item for item in rest if item["kind"] == "TrainingRuntime"]
        for item in before:  # a TrainJob is refused without its runtime
            _create(cluster, item)
        held = None if opts.queue else suspension.suspended(main)
        owner = _create(cluster, held or main)
        asked = False
        owner = {"apiVersion": main["apiVersion"], "kind": main["kind"], **owner}
        for item in before:
            path = f"{objects.path_of(item, cluster.namespace)}/{item['metadata']['name']}"
            cluster.call("PATCH", path, {"metadata": objects.owned(item, owner)["metadata"]}, content=api.MERGE)
        others = [*secret, *(item for item in rest if item not in before)]
        for number, item in enumerate(others):
            output.progress(f"creating {number + 1} of {len(others)} objects", (number, len(others)))
            try:
                _create(cluster, objects.owned(item, owner))
            except api.ApiError as error:
                _check_needed(item, error)
        if held is not None and not _is_queued(owner):
            path = f"{objects.path_of(main, cluster.namespace)}/{plan.name}"
            owner |= cluster.call("PATCH", path, suspension.release(main), content=api.MERGE)
    except (api.ApiError, api.UnreachableError) as error:
        told = api.explained(error, cluster, _DOING)
        told.in_part = asked and isinstance(error, api.UnreachableError)  # the object may still appear later
        raise told from error
    return owner


def _is_queued(owner: Manifest) -> bool:
    """Whether the cluster has put it into a queue by itself: Kueue resumes it, and stops it if another one does."""
    queue = owner["metadata"].get("labels", {}).get(QUEUE_LABEL)
    if queue:
        output.note(f"the run is in the queue {queue} of Kueue, and starts once it is admitted")
    return bool(queue)


def ask(cluster: Cluster, opts: KubernetesOptions, plan: KubernetesPlan) -> list[str]:
    """Have the API server validate every object without creating it; returns what was validated."""
    try:
        check(cluster, opts, plan, [*plan.objects, *secrets(opts, plan)])
        for item in plan.objects:
            path = objects.path_of(item, cluster.namespace)
            try:
                cluster.call("POST", path, item, query={"dryRun": "All", "fieldValidation": "Strict"})
            except api.ApiError as error:
                if not _lacks_runtime(item, error):
                    _check_needed(item, error)
    except (api.ApiError, api.UnreachableError) as error:
        raise api.explained(error, cluster, _DOING) from error
    return [f"{item['kind']} {item['metadata']['name']}" for item in plan.objects]


def check(cluster: Cluster, opts: KubernetesOptions, plan: KubernetesPlan, manifests: list[Manifest]) -> None:
    """Raise for a custom resource that the cluster lacks, or a missing right, before anything is created."""
    kind = objects.KINDS[opts.kind]
    if "." in kind.api_version:
        served = (cluster.find(f"/apis/{kind.api_version}") or {"resources": ()})["resources"]
        if kind.kind not in {item["kind"] for item in served}:
            hint = "--kind job needs nothing but Kubernetes"
            raise BackendUnavailableError(f"the cluster has no {kind.kind} ({kind.api_version})", hint=hint)
    if opts.queue:
        queues.check(cluster, opts.queue)
    granted = plan.job.claim is not None and not plan.job.claim.get("place")
    # Without the right, a run that only shows output uses pipes.
    more = rights.EXEC if plan.job.wants_keyboard or plan.job.hold_s or granted else ()
    rights.check(cluster, opts, [item for item in manifests if item["kind"] != "NetworkPolicy"], more)


def _create(cluster: Cluster, item: Manifest) -> Manifest:
    """Create one object, once: without an answer it is sent again, and an existing one with the run's label counts.

    One that a former attempt has left does not count: Kubernetes is about to remove it.
    """
    path = objects.path_of(item, cluster.namespace)
    pause, tries, limit = 0.5, _TRIES, time.monotonic() + _LEFT_S
    lost = False  # whether a request may have created it, as it had no answer of the API server
    while True:
        left = False
        try:
            return cluster.call("POST", path, item, query={"fieldValidation": "Strict"})
        except api.UnreachableError:
            if tries == 1:
                raise
            lost = True
        except api.ApiError as error:
            again = error.status in api.PASSING or error.reason == api.CONFLICT or _lacks_runtime(item, error)
            if error.reason != "AlreadyExists" and not (tries > 1 and again):
                raise
            lost |= error.status in api.PASSING
            own = lost and (about.attempt_of(item) in item["metadata"]["name"] or time.monotonic() > limit)
            found, left = _existing(cluster, item, own=own) if error.reason == "AlreadyExists" else (None, False)
            if found is not None:
                if found["metadata"].get("labels", {}).get(RUN_LABEL) == item["metadata"]["labels"][RUN_LABEL]:
                    return found
                raise
            if left and time.monotonic() > limit:
                raise
        if left:
            output.progress(f"waiting for the former {item['kind']} to be removed")
            time.sleep(_LEFT_POLL_S)
            continue
        time.sleep(pause)
        pause, tries = pause * 2, tries - 1


def _existing(cluster: Cluster, item: Manifest, *, own: bool) -> tuple[Manifest | None, bool]:
    """The object of this name, unless a former attempt has left it; and whether one has. Raises `RequestError`.

    `own`: it is ours, as far as one can know who may not read it: the Role does not grant that for all kinds.
    """
    mine = about.attempt_of(item)
    try:
        found = cluster.find(f"{objects.path_of(item, cluster.namespace)}/{item['metadata']['name']}")
    except api.ApiError as error:
        if error.status != 403 or not (mine or own):
            raise
        return (item, False) if own else (None, True)
    if found is None or not mine or about.attempt_of(found) == mine:
        return found, False
    owns = "ownerReferences" not in item["metadata"] and item["kind"] != "TrainingRuntime"
    if owns and "deletionTimestamp" not in found["metadata"]:
        run = item["metadata"]["labels"][RUN_LABEL]
        raise RequestError(f"{run} was started again meanwhile", hint=f"distlaunch status {run}")
    return None, True


def _lacks_runtime(item: Manifest, error: api.ApiError) -> bool:
    """Whether a TrainJob is refused for lack of its runtime, which the webhook sees late, or never in a dry run."""
    return item["kind"] == "TrainJob" and "trainingRuntime must be created before" in error.message


def _check_needed(item: Manifest, error: api.ApiError) -> None:
    """Raise the error again, unless the run can do without the object; then warn."""
    if item["kind"] != "NetworkPolicy" or error.status != 403:
        raise error
    why = (
        "you are not allowed to create here" if api.FORBIDDEN.search(error.message) else f"is refused: {error.message}"
    )
    output.warn(
        f"the run continues without a NetworkPolicy, which {why}: everything else in the cluster's network reaches the "
        "ports of its pods (--no-network-policy asks for none)"
    )


def secrets(opts: KubernetesOptions, plan: KubernetesPlan) -> Iterator[Manifest]:
    """The Secrets with the run's key and with the values of secret variables: in no file, only in this request."""
    if plan.has_key:
        yield objects.key_secret(plan.inputs, plan.run_dir.name, opts, new_key(), plan.job)
    if plan.secrets:
        data = {name: base64.b64encode(os.environb[name.encode()]).decode() for name in plan.secrets}
        yield objects.secret(plan.inputs, plan.run_dir.name, opts, {"data": data})


def find(cluster: Cluster, handle: KubernetesHandle, path: str = "") -> Manifest | None:
    """The owner of the objects of a run whose launcher died while creating them; with `path`, its object there."""
    path = path or objects.KINDS[handle["kind"]].path
    try:
        found = cluster.find(f"{path.format(cluster.namespace)}/{handle['name']}")
    except (api.ApiError, api.UnreachableError) as error:
        raise api.explained(error, cluster, "to find the run") from error
    if found is None or found["metadata"].get("labels", {}).get(RUN_LABEL) != handle["run"]:
        return None
    return found if about.attempt_of(found) == handle.get("attempt", "") else None


def remove(cluster: Cluster, handle: KubernetesHandle) -> None:
    """Delete the owner of a run's objects, and what was created before it and may have no owner yet."""
    for path in [objects.KINDS[handle["kind"]].path, *([objects.RUNTIME_PATH] if handle["kind"] == "trainjob" else [])]:
        body: dict[str, Any] = {"propagationPolicy": "Background"}
        if path != objects.RUNTIME_PATH or "attempt" in handle:  # nothing else has a first attempt's name
            if (found := find(cluster, handle, path)) is None:
                continue
            body["preconditions"] = {"uid": found["metadata"]["uid"]}
        try:
            cluster.call("DELETE", f"{path.format(cluster.namespace)}/{handle['name']}", body)
        except (api.ApiError, api.UnreachableError) as error:
            if not isinstance(error, api.ApiError) or error.status not in (404, 409):  # deleted, or replaced
                raise api.explained(error, cluster, "to end the run") from error
