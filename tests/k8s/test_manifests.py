"""What `distlaunch k8s` would create: valid by the published schemas, and as asked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from launcher.backends.kubernetes.options import KINDS
from tests.k8s.rendering import one, rendered, spec_of

if TYPE_CHECKING:
    from tests.command import Cli

EVERYTHING = (
    "--namespace=team --gpus-per-node=8 --cpu=32 --memory=64Gi --resource=rdma/hca=1 --volume=pvc:data:/data:ro "
    "--volume=hostpath:/scratch:/scratch --volume=nfs:filer:/home:/home --volume=emptydir:10Gi:/tmp/x "
    "--node-selector=gpu=h100 --toleration=nvidia.com/gpu:NoSchedule --toleration=team=ml "
    "--exclude=gpu7,gpu8.lab --prefer-same=topology.kubernetes.io/zone --require-same=rack --spread "
    "--priority-class=high "
    "--service-account=trainer.lab --pull-secret=registry.lab --pull-policy=IfNotPresent --secret-ref=HF=hub:token "
    "--label=team=ml --annotation=example.com/why=because --run-as=1000:2000 --time=1h --grace=1m"
)


def test_a_job_a_service_and_a_config_map(distlaunch: Cli) -> None:
    found = rendered(distlaunch, "--nodes", "4")

    *maps, service, policy, last = [item["kind"] for item in found]
    assert (service, policy, last) == ("Service", "NetworkPolicy", "Job")
    assert set(maps) == {"ConfigMap"}
    assert len(maps) <= 3, "the agent's parts, of which the first has room for small files"
    name = found[0]["metadata"]["name"]
    job = one(found, "Job")["spec"]
    assert (job["completions"], job["parallelism"], job["completionMode"]) == (4, 4, "Indexed")
    assert one(found, "Service")["spec"]["publishNotReadyAddresses"] is True
    assert spec_of(found)["rendezvous"] == {"addr": f"{name}-0.{name}", "port": 29400}
    assert spec_of(found)["command"] == ["x.py", "--lr", "1"]
    assert all(item["metadata"]["labels"]["distlaunch/run"] == name for item in found)
    assert all(item["metadata"]["name"].startswith(name) for item in found)
    assert "namespace" not in found[0]["metadata"]


def test_only_the_runs_own_pods_reach_its_ports(distlaunch: Cli) -> None:
    found = rendered(distlaunch)
    policy = one(found, "NetworkPolicy")["spec"]
    labels = one(found, "Job")["spec"]["template"]["metadata"]["labels"]

    own = {"matchLabels": {"distlaunch/run": labels["distlaunch/run"]}}
    assert policy == {"podSelector": own, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": own}]}]}
    for option in ("--no-network-policy", "--host-network"):
        assert "NetworkPolicy" not in [item["kind"] for item in rendered(distlaunch, option)]


def test_every_option_at_once_is_valid(distlaunch: Cli) -> None:
    found = rendered(distlaunch, *EVERYTHING.split())

    name = found[0]["metadata"]["labels"]["distlaunch/run"]
    job = one(found, "Job")
    pod = job["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8", "cpu": "32", "memory": "64Gi", "rdma/hca": "1"}
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
    }
    assert container["imagePullPolicy"] == "IfNotPresent"
    assert {"name": "HF", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}} in container["env"]
    volumes = {volume.pop("name"): volume for volume in pod["volumes"]}
    mounted = {
        mount["mountPath"]: (volumes[mount["name"]], mount.get("readOnly", False))
        for mount in container["volumeMounts"]
    }
    assert mounted["/dev/shm"] == ({"emptyDir": {"medium": "Memory", "sizeLimit": "32768Mi"}}, False)
    assert mounted["/data"] == ({"persistentVolumeClaim": {"claimName": "data"}}, True)
    assert mounted["/scratch"] == ({"hostPath": {"path": "/scratch"}}, False)
    assert mounted["/home"] == ({"nfs": {"server": "filer", "path": "/home"}}, False)
    assert mounted["/tmp/x"] == ({"emptyDir": {"sizeLimit": "10Gi"}}, False)
    assert pod["terminationGracePeriodSeconds"] == 75
    assert pod["activeDeadlineSeconds"] == 3600 + 60 + 1800
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]) == (1000, 2000)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["nodeSelector"] == {"gpu": "h100"}
    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "team", "operator": "Equal", "value": "ml"},
    ]
    assert (pod["priorityClassName"], pod["serviceAccountName"], pod["imagePullSecrets"]) == (
        "high", "trainer.lab", [{"name": "registry.lab"}],
    )  # fmt: skip
    same, affinity = {"labelSelector": {"matchLabels": {"distlaunch/run": name}}}, pod["affinity"]
    (hosts,) = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [item["values"] for item in hosts["matchFields"]] == [["gpu7"], ["gpu8.lab"]]
    assert {item["operator"] for item in hosts["matchFields"]} == {"NotIn"}
    assert affinity["podAntiAffinity"] == {
        "requiredDuringSchedulingIgnoredDuringExecution": [{**same, "topologyKey": "kubernetes.io/hostname"}]
    }
    wish = {"weight": 100, "podAffinityTerm": {**same, "topologyKey": "topology.kubernetes.io/zone"}}
    assert affinity["podAffinity"] == {
        "requiredDuringSchedulingIgnoredDuringExecution": [{**same, "topologyKey": "rack"}],
        "preferredDuringSchedulingIgnoredDuringExecution": [wish],
    }
    assert spec_of(found)["workers"] == 8
    for item in found:
        assert item["metadata"]["namespace"] == "team"
        assert item["metadata"]["labels"]["team"] == "ml"
        told = item["metadata"]["annotations"]
        assert (told.pop("distlaunch/about", None) is not None) == (item["kind"] == "Job")
        assert told == {"example.com/why": "because"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_holds_the_same_pod(distlaunch: Cli, kind: str) -> None:
    found = rendered(distlaunch, "--nodes", "3", "--kind", kind, "--name", "a-name-of-thirty-two-characters-")
    name = found[-1]["metadata"]["name"].removesuffix("-2") if kind == "pods" else found[-1]["metadata"]["name"]
    # A JobSet is refused if the random ends of its pods' names have no room.
    ends = {"jobset": "-n-0-99999-abcde", "trainjob": "-node-0-99999-abcde"}
    ends |= {"pytorchjob": "-worker-1", "mpijob": "-worker-1"}
    ends |= {"job": "-2", "tfjob": "-worker-2", "pods": "-2"}
    last = f"{name}{ends[kind]}"

    text = json.dumps(found)
    assert text.count("/distlaunch/input/agent.pyz") == {"pytorchjob": 2, "mpijob": 2, "pods": 3}.get(kind, 1)
    assert spec_of(found)["rendezvous"]["addr"].split(".")[0].startswith(name)
    assert spec_of(found)["plain_stream"] is True
    assert len(last) <= 63
    if kind == "pods":
        assert [item["metadata"]["name"] for item in found[-3:]] == [f"{name}-0", f"{name}-1", f"{name}-2"]
    if kind == "pytorchjob":
        assert found[-1]["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 2
        assert "RANK" in found[-1]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["args"]


@pytest.mark.parametrize("mpi", ["OpenMPI", "MPICH", "Intel"])
def test_the_launcher_of_an_mpijob_is_node_0(distlaunch: Cli, mpi: str) -> None:
    """Workers are counted by their names: the operator's labels number them from 0 or from 1."""
    options = ("--kind", "mpijob", "--nodes", "3", "--nproc-per-node", "4", "--mpi-implementation", mpi)
    found = rendered(distlaunch, *options, "--queue", "team")
    spec = one(found, "MPIJob")["spec"]
    pods = {name: item["template"]["spec"]["containers"][0] for name, item in spec["mpiReplicaSpecs"].items()}

    assert (spec["runLauncherAsWorker"], spec["slotsPerWorker"], spec["mpiImplementation"]) == (True, 4, mpi)
    assert spec["runPolicy"] == {"cleanPodPolicy": "None", "suspend": True, "backoffLimit": 0}
    assert [item["replicas"] for item in spec["mpiReplicaSpecs"].values()] == [1, 2]
    *arguments, without = pods["Launcher"]["args"]
    assert arguments == ["--node-rank", "0", "--unpack", "/distlaunch/input", "--without"]
    prefix = {"OpenMPI": "OMPI_MCA_", "MPICH": "HYDRA_", "Intel": "I_MPI_"}[mpi]
    assert all(name.startswith(prefix) for name in without.split(","))
    assert pods["Worker"]["args"] == ["--node-rank-from", "DISTLAUNCH_POD+1", "--unpack", "/distlaunch/input"]
    assert pods["Worker"]["env"][-1]["name"] == "DISTLAUNCH_POD"
    assert "Service" not in [item["kind"] for item in found]


def test_a_tfjob_keeps_the_operators_tf_config_only_for_one_worker_per_node(distlaunch: Cli) -> None:
    for workers, without in (("1", []), ("2", ["--without", "TF_CONFIG"])):
        found = rendered(distlaunch, "--kind", "tfjob", "--nodes", "3", "--nproc-per-node", workers)
        (replicas,) = one(found, "TFJob")["spec"]["tfReplicaSpecs"].values()
        assert replicas["replicas"] == 3
        assert replicas["template"]["spec"]["containers"][0]["args"][4:] == without


def test_a_failed_rank_ends_the_run_and_a_disruption_starts_it_again(distlaunch: Cli) -> None:
    job = one(rendered(distlaunch, "--nodes", "2"), "Job")["spec"]
    elastic = one(rendered(distlaunch, "--nodes", "2:4", "--max-requeues", "0"), "Job")["spec"]

    rules = job["podFailurePolicy"]["rules"]
    assert [rule["action"] for rule in rules] == ["Ignore", "Ignore", "Count", "FailJob", "Count", "FailJob"]
    assert rules[1]["onExitCodes"] == {"containerName": "node", "operator": "In", "values": [143]}
    assert rules[2]["onExitCodes"] == {"containerName": "node", "operator": "In", "values": [75, 137, 255]}
    assert rules[3]["onExitCodes"] == {"operator": "NotIn", "values": [0, 75, 137, 143, 255]}
    assert (job["maxFailedIndexes"], job["backoffLimitPerIndex"], elastic["backoffLimitPerIndex"]) == (0, 3, 0)
    assert elastic["podFailurePolicy"]["rules"][3]["action"] == "FailIndex"
    assert (elastic["completions"], elastic["maxFailedIndexes"]) == (4, 2)
    assert job["successPolicy"] == elastic["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}


def test_ports_on_the_hosts_network_depend_on_the_run(distlaunch: Cli) -> None:
    first, second = (rendered(distlaunch, "--host-network", "--nodes", "2") for _ in range(2))

    ports = spec_of(first)["rendezvous"]["ports"]
    assert len(set(ports)) == 8
    assert all(20_000 <= port < 29_000 for port in ports)
    assert ports != spec_of(second)["rendezvous"]["ports"]
    assert one(first, "Job")["spec"]["template"]["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_a_patch_is_merged_by_names_and_may_remove_fields(distlaunch: Cli) -> None:
    patch = distlaunch.write(
        "patch.yaml",
        "kind: Job\nspec:\n  ttlSecondsAfterFinished: null\n"
        "  template:\n    spec:\n      hostIPC: true\n      containers:\n"
        "      - name: node\n        env: [{name: A, value: b}]\n      - {name: side, image: s}\n"
        "---\nkind: Service\nmetadata: {annotations: {a: b}}\n",
    )
    found = rendered(distlaunch, "--patch", str(patch))

    job = one(found, "Job")["spec"]
    containers = job["template"]["spec"]["containers"]
    assert "ttlSecondsAfterFinished" not in job
    assert job["template"]["spec"]["hostIPC"] is True
    assert [item["name"] for item in containers] == ["node", "side"]
    assert {"name": "A", "value": "b"} in containers[0]["env"]
    assert containers[0]["image"] == "registry.test/torch:1"
    assert one(found, "Service")["metadata"]["annotations"] == {"a": "b"}


def test_kueue_holds_the_run_until_it_is_admitted(distlaunch: Cli) -> None:
    job = one(rendered(distlaunch, "--queue", "team"), "Job")

    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert job["spec"]["suspend"] is True


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--image", ""], "--image '' is empty"),
        (["--memory", "10 GB"], "memory '10 GB' is not a quantity"),
        (["--cpu", "two"], "cpu 'two' is not a quantity"),
        (["--max-requeues", "-1"], "max-requeues -1 is below 0"),
        (["--resource", "rdma/hca"], "is not NAME=N"),
        (["--kind", "deployment"], "known: job, jobset, trainjob, pytorchjob, mpijob, tfjob, pods"),
        (["--namespace", "My_Team"], "namespace 'My_Team' is not a valid Kubernetes name"),
        (["--volume", "disk:/x"], "volume 'disk:/x' is not understood"),
        (["--output-dir", "/out"], "no volume that can be written and outlives its pod is there"),
        (["--volume", "pvc:x:/data", "--output-dir", "/out"], "hint: --volume pvc:CLAIM:/out --output-dir /out"),
        (["--volume", "pvc:x:/out:ro", "--output-dir", "/out/a"], "--output-dir /out/a: no volume"),
        (["--volume", "emptydir::/out", "--output-dir", "/out"], "--output-dir /out: no volume"),
        (
            ["--volume", "pvc:x:/out", "--volume", "emptydir::/out/a", "--output-dir", "/out/a/"],
            "--output-dir /out/a/: ",
        ),
        (["--toleration", "a:Never"], "effects: NoSchedule"),
        (["--node-selector", "gpu"], "node-selector 'gpu' is not KEY=VALUE"),
        (["--label", "a=b c"], "is not a label value"),
        (["--secret-ref", "A=b"], "is not VARIABLE=SECRET:KEY"),
        (["--run-as", "me"], "is not UID[:GID]"),
        (["--ttl", "5"], "ttl '5' is not a duration"),
        (["--patch", "none.yaml"], "patch 'none.yaml' cannot be read"),
        (["--patch", "x.py"], "does not say of which kind"),
        (["--patch", "broken.yaml"], "is not YAML"),
        (["--patch", "other.yaml"], "there is no Deployment in this run"),
        (["--patch", "rename.yaml"], "changes the name, namespace or labels"),
        (["--kind", "pytorchjob", "--nodes", "1:2"], "--kind pytorchjob has a fixed number of nodes"),
        (["--kind", "mpijob", "--nodes", "1:2"], "--kind mpijob has a fixed number of nodes"),
        (["--kind", "tfjob", "--nodes", "1:2"], "--kind tfjob has a fixed number of nodes"),
        (["--kind", "mpijob", "--mpi-implementation", "openmpi"], "did you mean OpenMPI? known: OpenMPI, MPICH, Intel"),
    ],
)
def test_bad_options_are_one_clear_error(distlaunch: Cli, options: list[str], words: str) -> None:
    distlaunch.write("x.py", "print(1)\n")
    distlaunch.write("broken.yaml", "a: [\n")
    distlaunch.write("other.yaml", "kind: Deployment\n")
    distlaunch.write("rename.yaml", "kind: Job\nmetadata: {name: other}\n")

    done = distlaunch("k8s", "--dry-run", "--image", "i", *options, "x.py")

    assert done.exit_code == 2, done.stderr
    assert words in done.stderr
    assert done.stderr.count("error[") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "lost"),
    [
        ("", True),
        ("--volume=pvc:datasets:/data:ro", True),
        ("--volume=emptydir::/tmp/x", True),
        ("--volume=pvc:scratch:/scratch", False),
        ("--volume=pvc:scratch:/out --output-dir=/out/results", False),
        ("--volume=nfs:filer:/home:/out --volume=emptydir::/outer --output-dir=/out", False),
        ("--workdir=/code", False),
    ],
)
def test_the_user_learns_that_nothing_keeps_what_pods_write(distlaunch: Cli, options: str, lost: bool) -> None:
    distlaunch.write("x.py", "print(1)\n")

    done = distlaunch("k8s", "--image", "torch", "--dry-run", *options.split(), "x.py")

    assert done.exit_code == 0, done.stderr
    assert ("is lost with their pods" in done.stderr) is lost


def test_a_patch_may_mount_what_keeps_the_outputs(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "print(1)\n")
    distlaunch.write("mounts.yaml", "kind: Job\nspec: {suspend: true}\n")

    done = distlaunch("k8s", "--image", "torch", "--dry-run", "--patch=mounts.yaml", "--output-dir=/out", "x.py")

    assert done.exit_code == 0, done.stderr
    assert "--output-dir /out: no volume that can be written" in done.stderr
