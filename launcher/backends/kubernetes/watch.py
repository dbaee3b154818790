"""A submitted run as the cluster sees it: its pods, their logs, its end. One object per run and process."""

from __future__ import annotations

import contextlib
import time
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.agent.failures import Failure
from launcher.agent.terminal import attach
from launcher.backends.kubernetes import (
    admission,
    api,
    connecting,
    kept,
    others,
    pod_status,
    refused,
    replaced,
    signals,
    states,
)
from launcher.backends.kubernetes.following import DOING
from launcher.backends.kubernetes.granted import PodOutputs
from launcher.backends.kubernetes.objects import KINDS, makers
from launcher.backends.kubernetes.pod import DIRECTORY, INPUT, RUN_LABEL, STARTS_AGAIN
from launcher.backends.kubernetes.pod_exec import bridge
from launcher.backends.kubernetes.pod_logs import PodLogs
from launcher.backends.kubernetes.sidecars import Beside
from launcher.backends.kubernetes.stream import KubeStream
from launcher.backends.kubernetes.stuck import Stuck
from launcher.errors import CommandError, LaunchError
from launcher.runs.liveness import Liveness
from launcher.system import storage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.backends.kubernetes.handle import KubernetesHandle
    from launcher.backends.kubernetes.pod_status import Pod
    from launcher.runs.liveness import NodeState
    from launcher.runs.node_report import Cause
    from launcher.system.pipes import Bridge

_PATIENCE_S = 10.0
"""A pod that is still being created after this long has an event with the reason."""

_LOG_PATIENCE_S = 30.0
"""How long to wait for the log of an ended pod."""

_REACHED_S = 30.0
"""How long a program in a pod may take to start."""

_OUTPUTS = ("host", "outputs", f"{INPUT}/spec.json")
_ENDED = "an ended pod's files are out of reach: --fetch PATTERN fetches files before it ends, and --volume keeps them"

_runs: dict[str, RunWatch] = {}


def of(handle: KubernetesHandle) -> RunWatch:
    """The watch of that handle's run."""
    key = f"{handle['run_dir']} {handle.get('uid')}"  # a run that is started again has another owner
    return _runs.get(key) or _runs.setdefault(key, RunWatch(handle))


class RunWatch:
    """Queries a run, fetches its logs, ends it."""

    def __init__(self, handle: KubernetesHandle) -> None:
        self._handle = handle
        self._directory = Path(handle["run_dir"])
        self._nodes: int = handle["nodes"]
        self._container = KINDS[handle["kind"]].container
        self._python = handle.get("python") or "python3"
        self._log_waits: dict[str, float] = {}
        self._made: dict[int, float] = {}  # when the newest pod of a node was made; a controller may need a while
        self.logs = PodLogs(self._directory, handle, lambda: self.cluster)
        self._beside = Beside(self._directory / "nodes", self.logs.demand)
        self._stuck = Stuck()

    @cached_property
    def cluster(self) -> api.Cluster:
        """The cluster it was submitted to."""
        return connecting.again(self._handle)

    # -- state --------------------------------------------------------------------------------------------------------

    def liveness(self, start_timeout_s: float) -> Liveness:
        """What the cluster reports of each node; first updates the logs if no process follows them."""
        try:
            return self._judge(self._look(), start_timeout_s)
        except (api.ApiError, api.UnreachableError) as error:
            raise api.explained(error, self.cluster, DOING) from error

    def refresh(self) -> None:
        """Bring the logs up to date."""
        try:
            self._look()
        except (api.ApiError, api.UnreachableError) as error:
            raise api.explained(error, self.cluster, DOING) from error

    def _look(self) -> list[list[Pod]]:
        """All pods, after updating their logs and ending those that a sidecar holds."""
        pods = self._pods()
        self.logs.catch_up(pods)
        self._beside.end(self.cluster, pods)
        return pods

    def _pods(self) -> list[list[Pod]]:
        """All pods of the run, by node."""
        if (known := self.logs.pods()) is not None:
            return pod_status.by_node(known, self._nodes)
        query = {"labelSelector": f"{RUN_LABEL}={self._handle['run']}"}
        take = partial(pod_status.pod_of, own=self._container, access=self.cluster.access)
        listed, _ = api.collect(self.cluster, self._path("pods"), query, take)
        return pod_status.by_node(list(filter(None, listed)), self._nodes)

    def _path(self, collection: str) -> str:
        return f"/api/v1/namespaces/{self.cluster.namespace}/{collection}"

    def _owner_path(self) -> str:
        return f"{KINDS[self._handle['kind']].path.format(self.cluster.namespace)}/{self._handle['name']}"

    def _owner(self) -> tuple[pod_status.Object | None, bool]:
        """The workload, and whether it is deleted (another one with its name does not count)."""
        owner, gone = kept.current(self.cluster.find(self._owner_path()), self._handle)
        if owner is not None:
            self._handle = {**self._handle, "uid": owner["metadata"]["uid"]}
        return owner, gone

    def _judge(self, pods: Sequence[Sequence[Pod]], start_timeout_s: float) -> Liveness:
        sure = all(known and not known[-1].ended and known[-1].deleted is None and not known[-1].lost for known in pods)
        owner, gone = (None, False) if sure else self._owner()
        ends = others.Ends(self.cluster, self._handle, owner)
        over = gone or ends.first is not None
        nodes: list[NodeState] = []
        causes: dict[int, Cause] = {}
        deleted = states.removed(KINDS[self._handle["kind"]].kind, self._handle["name"]) if gone else None
        ends_it = owner is None or "deletionTimestamp" in owner["metadata"]  # else it was not deleted after that note
        noted = storage.read_json(kept.given_up(self._handle)) or deleted if ends_it else None
        self._made.update({node: pod_status.timestamp(known[-1].created) for node, known in enumerate(pods) if known})
        for node, known in enumerate(pods):
            state, cause = self._of_node(node, known, ends.of_node(node), noted, gone=gone)
            nodes.append(state)
            if cause is not None and state == "ended":
                causes[node] = cause
        if not over and self._restarts:
            self._give_up_what_eats(pods)
        if not over and (why := ends.broken()):
            self._give_up(*why)
        ends.end_rest()
        lost = states.unheard(pods, restarts=self._restarts, context=self._handle["context"])
        detail = states.steady("" if over else lost or self._detail(pods, owner, start_timeout_s), self._handle["name"])
        well, unread = states.succeeded(owner), self.logs.demand.unread(pods, nodes)
        return Liveness(nodes=tuple(nodes), detail=detail, causes=causes, succeeded=well, unread=unread)

    def _of_node(
        self, node: int, known: Sequence[Pod], end: pod_status.Object | None, noted: Cause | None, *, gone: bool
    ) -> tuple[NodeState, Cause | None]:
        """The state of a node, and its cause if it has ended; `end`: the condition that ended its workload."""
        over = gone or end is not None
        if not known:
            remade = self._restarts or (node not in self._made and self._handle["kind"] != "pods")
            return "pending" if remade and not over else "ended", noted or (states.swept(end) if end else None)
        pod = known[-1]
        state = self._settled(node, pod, states.state(pod, over=over, restarts=self._restarts))
        if not gone and end is not None and pod.deleted is not None and not pod.lost:
            return state, states.swept(end)
        return state, noted or states.cause(pod)

    @property
    def _restarts(self) -> bool:
        """Whether pods that are lost start again."""
        return self._handle["kind"] in STARTS_AGAIN

    def _settled(self, node: int, pod: Pod, state: NodeState) -> NodeState:
        """The state of a node; one whose log is incomplete counts as running, as its final events matter."""
        if state != "ended" or not pod.has_log or not self.logs.awaits(node, pod):
            return state
        since = self._log_waits.setdefault(pod.uid, time.monotonic())
        return state if time.monotonic() - since > _LOG_PATIENCE_S else "running"

    def _detail(self, pods: Sequence[Sequence[Pod]], owner: pod_status.Object | None, start_timeout_s: float) -> str:
        """What pods wait for. A run that cannot start is ended: its pods would hold their GPUs forever."""
        if pod := self._stuck.late(self.cluster, [known[-1] for known in pods if known], start_timeout_s):
            return self._give_up(Failure.NODE, f"pod {pod.name} cannot start: {states.unstartable(pod)}")
        missing, held = sum(not known for known in pods), states.is_suspended(owner)
        if missing and not held and (why := self._unmade(pods, states.resumed(owner), start_timeout_s)):
            return why
        if why := states.waits_for(pods) or states.backs_off(pods):
            return why
        if missing:
            admitted = ": it waits to be admitted" if held else ""
            return f"{missing} of {len(pods)} pods are not created yet{admitted}"
        slow = [known[-1] for known in pods if known[-1].waits]
        slow = [pod for pod in slow if self.cluster.now() - states.waits_since(pod) > _PATIENCE_S]
        if slow and (why := states.event_text(refused.events(self.cluster, slow[0].name))):
            return f"{len(slow)} of {len(pods)} pods wait: {why}"
        return ""

    def _unmade(self, pods: Sequence[Sequence[Pod]], resumed: float, start_timeout_s: float) -> str:
        """Why pods are not created since it was `resumed`. A refusal for good ends the run, too."""
        roles = self._handle.get("roles", {})
        made_by = makers(self._handle["kind"], self._handle["name"], roles)
        names = dict.fromkeys([self._handle["name"], *made_by])
        events = [item for name in names for item in refused.events(self.cluster, name)]
        least, of_each = self._handle.get("min_nodes", self._nodes), dict(zip(made_by, roles.values(), strict=False))
        made = max((resumed, *self._made.values()))
        why, since = admission.unmade(pods, events, made, least, of_each)
        late = since is not None and self.cluster.now() - since > start_timeout_s
        return self._give_up(Failure.NODE, why) if late else why

    def _give_up_what_eats(self, pods: Sequence[Sequence[Pod]]) -> None:
        """End a run whose pod was killed for lack of memory: to Kubernetes that looks like a forced deletion."""
        eaten = next((pod for known in pods for pod in known if states.out_of_memory(pod)), None)
        if eaten is not None and self._handle.get("min_nodes", self._nodes) == self._nodes:
            told = states.cause(eaten) or {}
            self._give_up(str(told["class"]), str(told["message"]))

    def _give_up(self, kind: str, why: str) -> str:
        note = kept.given_up(self._handle)
        storage.write_whole(note, storage.encode_json({"class": kind, "message": why}))
        try:
            self._delete()
        except api.ApiError as error:
            note.unlink(missing_ok=True)
            refused.tell(
                self.cluster,
                f"the run continues, though it should end: {why}",
                "to end a run that cannot continue",
                error,
            )
        return why

    # -- logs ---------------------------------------------------------------------------------------------------------

    def open_stream(self, offsets: Mapping[int, int]) -> KubeStream:
        """The streams in the run's directory, which this process keeps up to date unless another one does."""
        return KubeStream(self.logs, self._directory, offsets)

    # -- end ----------------------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Release the hosts that a run still holds after its end."""
        try:
            self._beside.end_all(self._look)
            replaced.end(self.cluster, self._handle["kind"], self._owner_path(), self._pods())
        except (api.ApiError, api.UnreachableError) as error:
            raise api.explained(error, self.cluster, "to end containers beside ours") from error

    def cancel(self, *, force: bool) -> None:
        """Delete everything; until this process exits, the pods' final output is still fetched."""
        try:
            with contextlib.suppress(LaunchError):
                self.logs.start_following()
            self._owner()  # which another machine may have created anew
            self._delete()
            if force:
                selector = {"labelSelector": f"{RUN_LABEL}={self._handle['run']}"}
                self.cluster.call("DELETE", self._path("pods"), {"gracePeriodSeconds": 0}, query=selector)
        except (api.ApiError, api.UnreachableError) as error:
            raise api.explained(error, self.cluster, "to end the run") from error

    def signal(self, signum: int) -> None:
        """Signal every node's agent, which passes it on. Raises `LaunchError` if nodes do not start in time."""
        signals.send(self.cluster, self._pods, self._container, self._python, signum)

    def open_terminal(self, node: int, rank: int | None) -> Bridge:
        """Connect through a program that runs beside the agent, in its container."""
        own = f"{DIRECTORY}/nodes/{node}"
        words = ("--shell", own) if rank is None else ("--attach", own, str(rank))
        found = self._beside_agent(node, words, "to reach a worker's terminal")
        found.wait_for(attach.CONNECTED, _REACHED_S)
        return found

    def open_outputs(self, node: int) -> PodOutputs:
        """Connect to the files that the workers of that node have written, in the same way."""
        return PodOutputs(node, self._beside_agent(node, _OUTPUTS, "to fetch files"), self.cluster, self._handle)

    def _beside_agent(self, node: int, words: Sequence[str], doing: str) -> Bridge:
        argv = [self._python, f"{INPUT}/agent.pyz", *words]
        try:
            pods = [pod for pod in self._pods()[node][-1:] if not pod.ended]
            found = bridge(self.cluster, pods[0].name, self._container, argv) if pods else None
        except (api.ApiError, api.UnreachableError) as error:
            raise api.explained(error, self.cluster, doing) from error
        if found is None:
            raise CommandError(f"node {node} has no pod that runs", hint=_ENDED)
        return found

    def _delete(self) -> None:
        body = {"propagationPolicy": "Background", "preconditions": {"uid": self._handle["uid"]}}
        try:
            self.cluster.call("DELETE", self._owner_path(), body)
        except api.ApiError as error:
            if error.status not in (404, 409):  # already deleted, or replaced
                raise
