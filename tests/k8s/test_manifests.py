"""What `distlaunch k8s` would create: valid by the published schemas, as asked for, with no secret in it."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import subprocess
import tarfile
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest
import yaml

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli

VERSIONS = ("1.31", kubernetes_validate.latest_version())
CUSTOM = ("JobSet", "TrainJob", "TrainingRuntime", "PyTorchJob")
EVERYTHING = (
    "--namespace=team --gpus-per-node=8 --cpu=32 --memory=64Gi --resource=rdma/hca=1 --volume=pvc:data:/data:ro "
    "--volume=hostpath:/scratch:/scratch --volume=nfs:filer:/home:/home --volume=emptydir:10Gi:/tmp/x "
    "--node-selector=gpu=h100 --toleration=nvidia.com/gpu:NoSchedule --toleration=team=ml "
    "--exclude=gpu7,gpu8.lab --prefer-same=topology.kubernetes.io/zone --require-same=rack --spread --priority-class=high "
    "--service-account=trainer.lab --pull-secret=registry.lab --pull-policy=IfNotPresent --secret-ref=HF=hub:token "
    "--label=team=ml --annotation=example.com/why=because --run-as=1000:2000 --time=1h --grace=1m"
)


def documents(text: str) -> list[dict[str, Any]]:
    """What is in YAML, read by libyaml: the parser in Python takes seconds for a megabyte."""
    return list(yaml.load_all(text, yaml.CSafeLoader))


def rendered(distlaunch: Cli, *options: str, **more: Any) -> list[dict[str, Any]]:
    """The documents that are printed, each checked against the schemas."""
    distlaunch.write("x.py", "print(1)\n")
    done = distlaunch("k8s", "--dry-run", "--image", "registry.test/torch:1", *options, "x.py", "--lr", "1", **more)
    assert done.exit_code == 0, done.stderr
    found = documents(done.stdout)
    for item in found:
        for version in VERSIONS if item["kind"] not in CUSTOM else ():
            kubernetes_validate.validate(item, version, strict=True)
    return found


def one(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (item,) = [item for item in found if item["kind"] == kind]
    return item


def spec_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(found[0]["data"]["spec.json"])
    return value


def test_a_job_a_service_and_a_config_map(distlaunch: Cli) -> None:
    found = rendered(distlaunch, "--nodes", "4")

    assert [item["kind"] for item in found] == ["ConfigMap", "ConfigMap", "Service", "NetworkPolicy", "Job"]
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


def keys_in(text: str) -> list[str]:
    """Whatever looks like a run's key: 32 random bytes, in hexadecimal or base64."""
    return re.findall(r"\b[0-9a-f]{64}\b|\b[A-Za-z0-9+/]{43}=", text)


def test_the_runs_key_is_printed_nowhere_and_in_a_secret_of_a_file_that_others_cannot_read(
    distlaunch: Cli, tmp_path: Path
) -> None:
    distlaunch.write("x.py", "print(1)\n")
    options = ("--image", "i", "--no-snapshot", "--nodes", "2", "x.py")
    printed = distlaunch("k8s", "--dry-run", *options)
    told = distlaunch("k8s", "--render-to", str(tmp_path / "out"), "--output", "json", *options)
    texts = (printed.stdout, printed.stderr, told.stdout, told.stderr)
    bare = [item for item in documents(printed.stdout) if item["kind"] != "ConfigMap"]
    alone = documents(distlaunch("k8s", "--dry-run", "--image", "i", "--no-snapshot", "x.py").stdout)

    assert not any(keys_in(re.sub(r"agent.pyz: .*|\"agent.pyz\": \"[^\"]*\"|agent.pyz[^ ]*", "", text)) for text in texts)
    (volume,) = [item for item in bare[-1]["spec"]["template"]["spec"]["volumes"] if item["name"] == "input"]
    assert {"secret": {"name": f"{bare[-1]['metadata']['name']}-key"}} in volume["projected"]["sources"]
    assert "-key | kubectl" not in printed.stdout
    (line,) = re.findall(
        r"^# First, as the key by which its nodes know one another is in no output: (.*)$", printed.stdout, re.MULTILINE
    )
    made = subprocess.run(["sh", "-c", line.replace("kubectl create -f -", "cat")], check=True, capture_output=True, timeout=60)
    by_hand = json.loads(made.stdout)
    assert by_hand["metadata"]["name"] == f"{bare[-1]['metadata']['name']}-key"
    assert len(by_hand["stringData"]["key"]) == 44
    file = tmp_path / "out/run.yaml"
    assert file.stat().st_mode & 0o777 == 0o600
    secret = one(documents(file.read_text()), "Secret")
    assert re.fullmatch("[0-9a-f]{64}\n", secret["stringData"]["key"])
    kubernetes_validate.validate(secret, VERSIONS[-1], strict=True)
    assert "-key" not in json.dumps([item for item in alone if item["kind"] == "Job"]), "a node that is alone needs none"


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
    mounted = {mount["mountPath"]: (volumes[mount["name"]], mount.get("readOnly", False)) for mount in container["volumeMounts"]}
    assert mounted["/dev/shm"] == ({"emptyDir": {"medium": "Memory", "sizeLimit": "32768Mi"}}, False)
    assert mounted["/data"] == ({"persistentVolumeClaim": {"claimName": "data"}}, True)
    assert mounted["/scratch"] == ({"hostPath": {"path": "/scratch"}}, False)
    assert mounted["/home"] == ({"nfs": {"server": "filer", "path": "/home"}}, False)
    assert mounted["/tmp/x"] == ({"emptyDir": {"sizeLimit": "10Gi"}}, False)
    assert pod["terminationGracePeriodSeconds"] == 75
    assert pod["activeDeadlineSeconds"] == 3600 + 60 + 60
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
    (machines,) = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [item["values"] for item in machines["matchFields"]] == [["gpu7"], ["gpu8.lab"]]
    assert {item["operator"] for item in machines["matchFields"]} == {"NotIn"}
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
        assert item["metadata"]["annotations"] == {"example.com/why": "because"}


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob", "pytorchjob", "pods"])
def test_every_kind_holds_the_same_pod(distlaunch: Cli, kind: str) -> None:
    found = rendered(distlaunch, "--nodes", "3", "--kind", kind, "--name", "a-name-of-thirty-two-characters-")
    name = found[-1]["metadata"]["name"].removesuffix("-2") if kind == "pods" else found[-1]["metadata"]["name"]
    last = f"{name}{ {'job': '-2', 'jobset': '-n-0-2', 'trainjob': '-node-0-2', 'pytorchjob': '-worker-1', 'pods': '-2'}[kind] }"

    text = json.dumps(found)
    assert text.count("/distlaunch/input/agent.pyz") == {"pytorchjob": 2, "pods": 3}.get(kind, 1)
    assert spec_of(found)["rendezvous"]["addr"].split(".")[0].startswith(name)
    assert len(last) <= 63
    if kind == "pods":
        assert [item["metadata"]["name"] for item in found[-3:]] == [f"{name}-0", f"{name}-1", f"{name}-2"]
    if kind == "pytorchjob":
        assert found[-1]["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 2
        assert "RANK" in found[-1]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["args"]


def test_a_failed_rank_ends_the_run_a_disruption_starts_it_again(distlaunch: Cli) -> None:
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


def test_the_network_of_the_machines_has_ports_that_depend_on_the_run(distlaunch: Cli) -> None:
    first, second = (rendered(distlaunch, "--host-network", "--nodes", "2") for _ in range(2))

    ports = spec_of(first)["rendezvous"]["ports"]
    assert len(set(ports)) == 8
    assert all(20_000 <= port < 29_000 for port in ports)
    assert ports != spec_of(second)["rendezvous"]["ports"]
    assert one(first, "Job")["spec"]["template"]["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_secrets_are_referred_to_and_never_rendered(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")
    done = distlaunch("k8s", "--dry-run", "--image", "i", "--secret", "TOKEN", "x.py", env={"TOKEN": "s3cr3t-value"})

    assert done.exit_code == 0, done.stderr
    assert "s3cr3t-value" not in done.stdout + done.stderr
    assert base64.b64encode(b"s3cr3t-value").decode() not in done.stdout
    (item,) = [item for item in documents(done.stdout) if item["kind"] == "Job"]
    env = item["spec"]["template"]["spec"]["containers"][0]["env"]
    name = item["metadata"]["name"]
    assert {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": name, "key": "TOKEN"}}} in env
    assert f'"name": "{name}"' in by_hand(done.stdout)


def by_hand(text: str) -> str:
    """The line with which a Secret is made before YAML is applied by hand."""
    (line,) = re.findall(r"^# First, as secrets are in no file: (.*)$", text, re.MULTILINE)
    return str(line)


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_secret_that_is_made_by_hand_is_in_no_argv(distlaunch: Cli, tmp_path: Path, shell: str) -> None:
    """As all users of the machine see them while kubectl runs; quotes, dollars and line breaks stay what they are."""
    distlaunch.write("x.py", "")
    env = {"TOKEN": "s3cr3t-value", "KEY": "s3cr3t-\"'$HOME`x`\\n%s\nline\n", "EMPTY": ""}
    names = [word for name in env for word in ("--secret", name)]
    line = by_hand(distlaunch("k8s", "--dry-run", "--image", "i", *names, "x.py", env={**env}).stdout)
    kubectl = tmp_path / "kubectl"
    seen = tmp_path / "seen"
    lines = (f"cat > '{tmp_path}/stdin'", f'echo "$@" > "{seen}"', f'cat /proc/[0-9]*/cmdline >> "{seen}"', "exit 0")
    kubectl.write_text("\n".join(("#!/bin/sh", *lines, "")))
    kubectl.chmod(0o700)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    subprocess.run([shell, "-c", line], env={**os.environ, **env, **path}, timeout=60, check=True)

    assert b"s3cr3t" not in seen.read_bytes()
    assert base64.b64encode(b"s3cr3t-value") not in seen.read_bytes()
    made = json.loads((tmp_path / "stdin").read_text())
    assert {name: base64.b64decode(value).decode() for name, value in made["data"].items()} == env
    assert seen.read_text(errors="replace").startswith("create -f -\n")


@pytest.mark.slow
def test_files_travel_in_pieces_that_kubectl_apply_takes_and_the_agent_puts_together(distlaunch: Cli, tmp_path: Path) -> None:
    from launcher.agent.system.unpack import unpack

    content = os.urandom(1_000_000)
    distlaunch.write("sub/däta.txt", "hello\n")
    (distlaunch.directory / "noise.bin").write_bytes(content)
    found = [item for item in rendered(distlaunch) if item["kind"] == "ConfigMap"]

    assert len(found) > 5
    assert max(len(yaml.dump(item, Dumper=yaml.CSafeDumper)) for item in found) < 256 * 1024
    inside = tmp_path / "input"
    inside.mkdir()
    for item in found:
        for key, text in item["binaryData"].items():
            (inside / key).write_bytes(base64.b64decode(text))
    unpack(str(inside), str(tmp_path / "run"))
    assert (tmp_path / "run/files/noise.bin").read_bytes() == content
    assert (tmp_path / "run/files/sub/däta.txt").read_text() == "hello\n"


@pytest.mark.slow
def test_many_files_travel_in_large_pieces_and_too_many_are_refused_with_a_way_out(distlaunch: Cli) -> None:
    (distlaunch.directory / "noise.bin").write_bytes(os.urandom(5_000_000))
    found = [item for item in rendered(distlaunch) if item["kind"] == "ConfigMap"]
    (distlaunch.directory / "noise.bin").write_bytes(os.urandom(30_000_000))
    refused = distlaunch("k8s", "--dry-run", "--image", "i", "x.py")

    assert 6 <= len(found) <= 8
    assert refused.exit_code == 2
    assert "30 MB when packed" in refused.stderr
    assert "--workdir" in refused.stderr


def test_a_bundled_script_travels_with_the_run(distlaunch: Cli) -> None:
    done = distlaunch("k8s", "--dry-run", "--image", "i", "train.py", "--epochs", "1")
    found = documents(done.stdout)

    assert spec_of(found)["command"] == ["/distlaunch/run/bundled/train.py", "--epochs", "1"]
    pieces = {key: text for item in found if item["kind"] == "ConfigMap" for key, text in item["binaryData"].items()}
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(pieces["bundled.tgz.000"]))) as tar:
        assert "train.py" in tar.getnames()


def test_a_patch_is_merged_by_names_and_may_take_away(distlaunch: Cli) -> None:
    patch = distlaunch.write(
        "patch.yaml",
        "kind: Job\nspec:\n  ttlSecondsAfterFinished: null\n  template:\n    spec:\n      hostIPC: true\n      containers:\n"
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
        (["--kind", "deployment"], "known: job, jobset, trainjob, pytorchjob, pods"),
        (["--namespace", "My_Team"], "namespace 'My_Team' is not a name in Kubernetes"),
        (["--volume", "disk:/x"], "volume 'disk:/x' is not understood"),
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
        (["--kind", "pytorchjob", "--nodes", "1:2"], "fixed number of nodes"),
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


def test_a_script_outside_of_the_working_directory_is_refused_with_the_way_out(distlaunch: Cli, tmp_path: Path) -> None:
    distlaunch.write("x.py", "")
    distlaunch.write("sub/y.py", "")

    done = distlaunch("k8s", "--dry-run", "--image", "i", "../x.py", cwd=distlaunch.directory / "sub")

    assert done.exit_code == 2
    assert f"cd {distlaunch.directory}" in done.stderr
