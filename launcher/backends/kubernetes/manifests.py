"""The plan as YAML for `kubectl apply --server-side -f -`; the run then needs no launcher."""

from __future__ import annotations

import json
import os
import re
from shlex import quote
from typing import TYPE_CHECKING, Any

from launcher.agent.secret_files import KEY_FILE
from launcher.backends.kubernetes import kubeconfig
from launcher.backends.kubernetes.pod import key_name
from launcher.errors import BackendUnavailableError
from launcher.system import install

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.backends.kubernetes.objects import Manifest
    from launcher.backends.kubernetes.options import KubernetesOptions
    from launcher.backends.kubernetes.plan import KubernetesPlan

_NO_TEXT = re.compile(r"[yYnN]|[-+]?\.?[0-9][\w.+-]*")
"""Words that kubectl may take for something else without quotes, which PyYAML writes only where it does so itself."""


def text(plan: KubernetesPlan, opts: KubernetesOptions, key: Sequence[Manifest] = ()) -> str:
    """All objects, in the best order of creation; `key`: the Secret with the run's key, if it is to be included.

    The commands in its header use the cluster and namespace that a submission with these options would use.
    """
    try:
        import yaml
    except ImportError as error:
        raise BackendUnavailableError("PyYAML is not installed", hint=install.command("k8s")) from error

    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # libyaml needs a tenth of the time for a megabyte

    class Dumper(dumper):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
            return True

    def lines(dumper: Any, value: str) -> Any:
        style = "|" if value.endswith("\n") else "'" if _NO_TEXT.fullmatch(value) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, lines)
    texts = [
        yaml.dump(item, Dumper=Dumper, sort_keys=False, width=4096, allow_unicode=False)
        for item in (*key, *plan.objects)
    ]
    kubectl = _kubectl(opts)
    # A client-side apply would copy each object into an annotation, which is too small for the agent.
    head = [f"# Run {plan.run_dir.name}: {kubectl} apply --server-side -f FILE"]
    owner = plan.objects[-1] if plan.objects[-1]["kind"] != "Pod" else plan.objects[0]
    head.append("# Submitted by distlaunch, the same objects also have an owner; deleting it deletes all of them: ")
    head[-1] += f"{owner['kind']} {plan.name}"
    if plan.secrets:
        head.append(f"# First, as no file contains the secrets: {_secret_by_hand(plan, owner)} | {kubectl} create -f -")
    if plan.has_key and not key:
        made = f"{_key_by_hand(plan, owner)} | {kubectl} create -f -"
        head.append(f"# First, as no output contains the key with which its nodes authenticate: {made}")
        if plan.job.notify:
            head.append(
                "# It sends no notices, as no output contains their receivers: the file of --render-to has them"
            )
    then = _own_by_hand(kubectl, plan, owner)
    head.append(f"# Then, so that all objects are deleted with the owner, also after its time to live: {then}")
    return "\n".join(head) + "\n---\n" + "---\n".join(texts)


def _kubectl(opts: KubernetesOptions) -> str:
    """The kubectl command for the cluster that the options name."""
    files = os.pathsep.join(kubeconfig.listed(opts.kubeconfig))
    return (
        (f"KUBECONFIG={quote(files)} " if files else "")
        + "kubectl"
        + (f" --context={quote(opts.context)}" if opts.context else "")
    )


def _own_by_hand(kubectl: str, plan: KubernetesPlan, owner: Manifest) -> str:
    """A shell line that makes `owner` the owner of the other objects, as a submission does."""
    where = f" --namespace={owner['metadata']['namespace']}" if "namespace" in owner["metadata"] else ""
    names = [f"{item['kind']}/{item['metadata']['name']}" for item in plan.objects if item is not owner]
    names += [
        f"Secret/{name}" for name, there in ((plan.name, plan.secrets), (key_name(plan.name), plan.has_key)) if there
    ]
    about = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": plan.name, "uid": "%s"}
    patch = json.dumps({"metadata": {"ownerReferences": [{**about, "blockOwnerDeletion": False}]}})
    uid = f"$({kubectl} get {owner['kind']} {plan.name} -o jsonpath={{.metadata.uid}}{where})"
    return f'{kubectl} patch {" ".join(names)} --type=merge -p "$(printf \'{patch}\' "{uid}")"{where}'


def _key_by_hand(plan: KubernetesPlan, owner: Manifest) -> str:
    """A shell line that prints the Secret with a new key, which is in no argv either."""
    made = _secret(key_name(plan.name), owner, {"stringData": {KEY_FILE: "%s"}})
    return f"printf '{json.dumps(made)}' \"$(head -c 32 /dev/urandom | base64 | tr -d '\\n')\""


def _secret_by_hand(plan: KubernetesPlan, owner: Manifest) -> str:
    """A shell line whose built-in printf writes the values to a pipe: all users of the host can see kubectl's argv."""
    made = _secret(plan.name, owner, {"data": dict.fromkeys(plan.secrets, "%s")})
    values = " ".join(f'"$(printf %s "${variable}" | base64 | tr -d \'\\n\')"' for variable in plan.secrets)
    return f"printf '{json.dumps(made)}' {values}"


def _secret(name: str, owner: Manifest, content: Manifest) -> Manifest:
    """A Secret in the owner's namespace."""
    where = {key: value for key, value in owner["metadata"].items() if key == "namespace"}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, **where}, **content}
