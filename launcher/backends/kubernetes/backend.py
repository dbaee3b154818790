"""Kubernetes: an Indexed Job, a headless Service and ConfigMaps, created with rights in a namespace only."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from launcher.backends._base import Backend, Record, Written, master_text, unrecorded
from launcher.backends._writing import new_key
from launcher.backends.kubernetes import about, agents, objects, parts, pod
from launcher.backends.kubernetes.handle import KubernetesHandle
from launcher.backends.kubernetes.options import KubernetesOptions
from launcher.backends.kubernetes.plan import KubernetesPlan
from launcher.errors import SpecError
from launcher.runs import directories
from launcher.spec import parse_duration
from launcher.system import storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from launcher.backends._base import Stream
    from launcher.backends._outlook import Outlook
    from launcher.backends._outputs import Outputs
    from launcher.backends.kubernetes.objects import Manifest
    from launcher.backends.kubernetes.watch import RunWatch
    from launcher.payload.snapshot import Snapshot
    from launcher.results.cluster import SurveyedHost
    from launcher.results.run import ClusterRun
    from launcher.runs.liveness import Liveness
    from launcher.runs.records import Run
    from launcher.spec import JobSpec
    from launcher.system.pipes import Bridge


class KubernetesBackend(Backend[KubernetesPlan, KubernetesHandle, KubernetesOptions]):
    """Creates the objects through the API, and follows the pods' logs."""

    name: ClassVar[str] = "k8s"
    can_list: ClassVar[bool] = True
    can_survey: ClassVar[bool] = True
    can_requeue: ClassVar[bool] = True
    has_queue: ClassVar[bool] = True
    has_outlook: ClassVar[bool] = True
    can_adopt: ClassVar[bool] = True
    has_terminals: ClassVar[bool] = True
    has_outputs: ClassVar[bool] = True
    loses_outputs: ClassVar[bool] = True
    options: ClassVar[type] = KubernetesOptions
    prints: ClassVar[Mapping[str, str]] = {"print_role": "Print the Role that runs of this kind need; start nothing."}
    opts: KubernetesOptions

    @property
    def may_start_again(self) -> bool:
        """A Job's pods start again after a disruption; bare pods do not."""
        return self.opts.kind in pod.STARTS_AGAIN

    def settings_files(self) -> list[str]:
        """The kubeconfigs."""
        from launcher.backends.kubernetes import kubeconfig

        return kubeconfig.find(self.opts.kubeconfig)

    def plan(self, spec: JobSpec, run_dir: Path) -> KubernetesPlan:
        """All manifests; reads the user's files, but does not contact the cluster."""
        from launcher.backends import _warm
        from launcher.backends.kubernetes import config_maps
        from launcher.payload import agent_archive

        pod.check_environment(spec)
        _warm.refuse(spec, "nothing stays of a pod that has ended")
        of_run, roles = parts.of(spec, self.opts), [role.name for role in spec.roles]
        parts.check(of_run, self.opts)
        pod.check_outputs(spec, self.opts, [part.opts.volume for part in of_run])
        run = run_dir.name
        name = objects.name_of(run, self.opts.kind, roles)
        commands = [agents.command(part.job, self.opts) for part in of_run]
        snapshot, own = None, agents.own_scripts(of_run, commands)
        if self.opts.snapshot and not self.opts.workdir:
            snapshot = config_maps.collect(spec, own, directories.root_of(run_dir))
        job = agents.job(spec, self.opts, run, commands, objects.master(self.opts.kind, name, roles))
        packed = config_maps.archives(snapshot, bundled=any(bundled for _, bundled in commands))
        # No bytecode: the image has its own Python, and ConfigMaps are small.
        text = json.dumps(job.to_json(), indent=1) + "\n"
        sent = config_maps.contents(text, agent_archive.parts(), packed, job.max_nodes)
        made = self._objects(spec, run, name, sent)
        master = master_text(job.rendezvous["addr"], job.master_port)
        return KubernetesPlan(
            run_dir=run_dir, name=name, inputs=name, objects=tuple(made), job=job, nodes=agents.rows(of_run),
            secrets=spec.secrets, python=pod.python_of(spec), snapshot=snapshot, master=master,
        )  # fmt: skip

    def _objects(self, spec: JobSpec, run: str, name: str, sent: list[dict[str, Any]]) -> list[Manifest]:
        """The objects to create, with the user's patches applied; `sent`: the content of the ConfigMaps."""
        from launcher.backends.kubernetes import patch

        configs = [name, *(f"{name}-files-{number}" for number in range(len(sent) - 1))]
        made: list[Manifest] = [
            objects.config_map(config, run, self.opts, content) for config, content in zip(configs, sent, strict=True)
        ]
        if not objects.KINDS[self.opts.kind].has_service:
            made.append(objects.headless_service(name, run, self.opts))
        if self.opts.network_policy and not self.opts.host_network:  # policies do not apply to the hosts' network
            made.append(objects.network_policy(name, run, self.opts))
        parse_duration(self.opts.start_timeout, "start-timeout")
        made += objects.workload(spec, self.opts, name, run, configs)
        if self.opts.patch:
            made = patch.apply(made, patch.read(self.opts.patch, ship_secrets=spec.ship_secrets))
        about.add(made, about.note(spec, parts.of(spec, self.opts), self.opts.kind, pod.python_of(spec)))
        return made

    def files(self, plan: KubernetesPlan) -> Snapshot | None:
        """The user's files in the ConfigMaps."""
        return plan.snapshot

    def render(self, plan: KubernetesPlan) -> Mapping[str, str]:
        """One YAML file for `kubectl apply --server-side -f`; the run then needs no launcher."""
        from launcher.backends.kubernetes import manifests, submission

        if self.opts.server_dry_run:
            submission.ask(self._cluster(), self.opts, plan)
        return {"run.yaml": manifests.text(plan, self.opts)}

    def marks(self, plan: KubernetesPlan) -> tuple[str, ...]:  # noqa: ARG002 - the same for all plans
        """The only file."""
        return ("run.yaml",)

    def write(self, plan: KubernetesPlan, directory: Path) -> Written:
        """Write the same file with the run's key, readable only by its owner; the returned text lacks the key."""
        from launcher.backends.kubernetes import manifests

        texts = self.render(plan)
        more = (
            [objects.key_secret(plan.name, plan.run_dir.name, self.opts, new_key(), plan.job)] if plan.has_key else []
        )
        storage.write_whole(directory / "run.yaml", manifests.text(plan, self.opts, more).encode(), mode=0o600)
        return Written(texts)

    def printed(self, flag: str) -> str:  # noqa: ARG002 - there is only one
        """The Role, for `kubectl apply -f -`."""
        from launcher.backends.kubernetes import rights

        return rights.role(self.opts)

    def submit(self, plan: KubernetesPlan, record: Record = unrecorded) -> KubernetesHandle:
        """Create the workload suspended, then the objects that it needs and owns; then release it."""
        from launcher.backends.kubernetes import kept, submission

        if self.opts.server_dry_run:
            raise SpecError("--server-dry-run creates nothing", hint="use it with --dry-run")
        cluster = self._cluster()
        handle = kept.planned(plan, self.opts, cluster)
        kept.keep(plan)
        owner = submission.send(cluster, self.opts, plan, lambda: record(handle))
        return {**handle, "uid": owner["metadata"]["uid"]}

    def recover(self, handle: KubernetesHandle) -> KubernetesHandle | None:
        """Find the object that owns the others, by its name."""
        from launcher.backends.kubernetes import connecting, submission

        owner = submission.find(connecting.again(handle), handle)
        return {**handle, "uid": owner["metadata"]["uid"], "in_part": True} if owner else None

    def requeue(self, handle: KubernetesHandle, attempt: int, record: Record = unrecorded) -> KubernetesHandle:
        """Delete the pods of a run that runs, if its controller starts them again; else create the objects anew."""
        from launcher.backends.kubernetes import requeue

        return requeue.requeue(self.opts, handle, attempt, record)

    def undo(self, handle: KubernetesHandle) -> None:
        """Delete the workload, which is enough: it is suspended until all objects exist."""
        from launcher.backends.kubernetes import connecting, submission

        submission.remove(connecting.again(handle), handle)

    def found(self) -> list[ClusterRun]:
        """The runs in the namespace, of all kinds and users."""
        from launcher.backends.kubernetes import owners, ttl

        cluster = self._cluster()
        ttl.sweep(cluster, self.opts)
        return owners.runs(cluster)

    def hosts(self) -> list[SurveyedHost]:
        """The cluster's nodes, as far as this user may list them."""
        from launcher.backends.kubernetes import nodes

        return nodes.found(self._cluster(), self.opts)

    def outlook(self, spec: JobSpec, gpus: int | None) -> Outlook:  # noqa: ARG002 - it has an option for GPUs
        """By what its pods leave of its nodes, and by Kueue's queue."""
        from launcher.backends.kubernetes import outlook

        return outlook.outlook(self._cluster(), self.opts, spec)

    def adopt(self, text: str, runs_root: Path) -> Run:
        """Find the run's owner in the namespace, by its labels and annotation."""
        from launcher.backends.kubernetes import adoption

        return adoption.adopt(self._cluster(), self.opts, text, runs_root)

    def _cluster(self) -> Any:
        from launcher.backends.kubernetes import connecting

        opts = self.opts
        return connecting.connect(opts.kubeconfig, opts.context, opts.namespace, opts.login, self.cluster)

    def liveness(self, handle: KubernetesHandle) -> Liveness:
        """One query for all pods; events only if pods are waiting."""
        return _watch(handle).liveness(parse_duration(self.opts.start_timeout, "start-timeout"))

    def brings_all(self, handle: KubernetesHandle) -> bool:
        """Whether there are few pods."""
        from launcher.backends.kubernetes import demand

        return int(handle.get("nodes") or 0) <= demand.MOST_FOLLOWED

    def bring(self, handle: KubernetesHandle, nodes: Iterable[int]) -> None:
        """Read the logs of these nodes' pods, too."""
        _watch(handle).logs.bring(nodes)

    def refresh(self, handle: KubernetesHandle) -> None:
        """Fetch new lines of the pods' logs."""
        _watch(handle).refresh()

    def open_stream(self, handle: KubernetesHandle, offsets: Mapping[int, int] | None = None) -> Stream:
        """Pod logs, saved in the run's directory as they arrive."""
        return _watch(handle).open_stream(offsets or {})

    def open_terminal(self, handle: KubernetesHandle, node: int, rank: int | None) -> Bridge:
        """Connect through an exec in the node's pod."""
        return _watch(handle).open_terminal(node, rank)

    def open_outputs(self, handle: KubernetesHandle, node: int) -> Outputs:
        """Connect through an exec in the node's pod, which must run."""
        return _watch(handle).open_outputs(node)

    def cancel(self, handle: KubernetesHandle, *, force: bool = False) -> None:
        """Delete the owner of all objects: pods get SIGTERM, then SIGKILL after the grace time; `force`: now."""
        _watch(handle).cancel(force=force)
        if handle["kind"] == "trainjob":  # a submission that was cut off may have left a runtime
            self.undo(handle)

    def release(self, handle: KubernetesHandle) -> None:
        """End sidecars, which would hold the run's pods forever."""
        _watch(handle).release()

    def remove(self, handle: KubernetesHandle) -> None:
        """Delete the owner of all objects, and with it the rest."""
        self.undo(handle)

    def signal(self, handle: KubernetesHandle, signum: int) -> None:
        """Run a program in each pod that signals the agent."""
        _watch(handle).signal(signum)


def _watch(handle: KubernetesHandle) -> RunWatch:
    from launcher.backends.kubernetes import watch

    return watch.of(handle)


BACKEND = KubernetesBackend
