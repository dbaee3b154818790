"""The directory that ansible-runner runs, or the user by hand: playbooks, variables, and what is sent to the hosts."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import threading
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.backends._writing import write_secrets
from launcher.backends.ansible import ahead, by_hand, plugin_code
from launcher.backends.ansible.inventory import program
from launcher.backends.ansible.progress import Progress
from launcher.errors import BackendUnavailableError, CommandError
from launcher.payload import agent_archive
from launcher.system import install, storage, trust

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from launcher.backends.ansible.packing import Packing
    from launcher.backends.ansible.plan import AnsiblePlan
    from launcher.backends.ansible.progress import Answers
    from launcher.backends.ansible.taking_over import Receiver
    from launcher.runs.handle import Meeting

_LIMIT_S = 1800.0
_STEPS = 15
"""As many times --host-timeout, at least: the files may take ten, and the other steps one each."""

_PACKED_BYTES_S = 5e6
_END_S = 15.0
_LOOK_S = 0.02
_SEND_S = 86400.0
"""An environment may have to be sent over a slow line. Each of its parts has a limit of its own."""


def texts(plan: AnsiblePlan) -> dict[str, str]:
    """All text files of the directory, by their paths in it."""
    return {
        **by_hand.scripts(plan),
        "job.json": json.dumps(plan.request(), indent=2) + "\n",
        **({"setup.sh": plan.setup + "\n"} if plan.setup else {}),
        **({"container.json": json.dumps(plan.container, indent=2) + "\n"} if plan.container else {}),
        **directory_texts(plan.inventory, plan.settings, plan.variables, more_s=_more_s(plan)),
    }


def _more_s(plan: AnsiblePlan) -> float:
    packed_s = plan.snapshot.total_bytes / _PACKED_BYTES_S if plan.snapshot else 0.0
    return packed_s + (_SEND_S if plan.job.env_ship else 0.0)


def directory_texts(
    inventory: Sequence[str], settings: Mapping[str, str], variables: Mapping[str, Any], more_s: float = 0.0
) -> dict[str, str]:
    """What ansible-runner reads, and all playbooks. `more_s`: how much longer than usual they may run."""
    limit_s = max(_LIMIT_S, _STEPS * variables.get("distlaunch_timeout_s", 0.0))
    limit_s += more_s + variables.get("distlaunch_wait_s", 0.0)
    runner = {"job_timeout": limit_s, "pexpect_timeout": 1, "suppress_ansible_output": True}
    found = {
        "env/extravars": json.dumps(variables, indent=2) + "\n",
        "env/envvars": json.dumps(settings, indent=2) + "\n",
        "env/settings": json.dumps(runner, indent=2) + "\n",
    }
    if inventory:
        found["env/cmdline"] = shlex.join(by_hand.inventory_flags(inventory)) + "\n"
    root = install.data("playbooks")
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if path.is_file() and path.suffix in (".yml", ".py") and "__pycache__" not in name.parts:
            found[f"project/{name}"] = path.read_text(encoding="utf-8")
    return found


def write(plan: AnsiblePlan, directory: Path) -> None:
    """Write the directory, with the agent, but without the user's files."""
    write_directory(directory, texts(plan), payload(plan))
    write_secrets(directory, plan.job)


def write_directory(directory: Path, contents: Mapping[str, str], binary: Mapping[str, bytes]) -> None:
    """Write texts and other files, by their paths."""
    files = {name: text.encode("utf-8", "surrogateescape") for name, text in contents.items()}
    files |= {f"project/{path}": code for path, code in plugin_code.beside_texts().items()}
    with storage.storage_errors(directory):
        for name, data in {**files, **binary}.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.write_bytes(data)


def payload(plan: AnsiblePlan) -> dict[str, bytes]:  # noqa: ARG001 - the same for all plans
    """The binary files of the directory, except the user's."""
    return {"agent.pyz": agent_archive.packed()}


def prepare() -> None:
    """Prepare what does not depend on the hosts, in a thread, while Ansible reads the inventory."""

    def work() -> None:
        agent_archive.packed()
        plugin_code.beside_texts()
        with suppress(ImportError):  # reported when it is needed
            import_module("ansible_runner")

    threading.Thread(target=work, name="prepare").start()


class Playbook:
    """One run of a playbook: its hosts' answers and problems, and progress for the user."""

    def __init__(self, directory: Path, name: str, *, shows: bool = True) -> None:
        """`shows`: whether the user sees its steps."""
        self._directory, self._name = directory, name
        self.answers: Answers = {}
        """Results by phase and host."""

        self.problems: dict[str, dict[str, str]] = {}
        self.notes: list[str] = []
        self.choice: dict[str, Any] = {}
        self.meeting: Meeting = {}
        """Where the nodes meet: which host reached which address of node 0, what was chosen, and why."""

        self.failure = ""
        self._report = directory / "report"
        self._read = 0
        self._progress = Progress(shows=shows)
        self._cut = ""
        """Why it does not come to its own end: `interrupted`, or `complete` if the hosts have answered."""

    def run(self, secrets: Mapping[str, str], receiver: Receiver | None = None, packing: Packing | None = None) -> None:
        """Run it until the hosts have answered. An interrupt ends Ansible, too.

        `receiver` takes its connections. `packing` makes the archive of the user's files.
        """
        self.forget()  # left by a launcher that was killed
        runner = self._runner(secrets, receiver.address if receiver else "", packing.by if packing else "")
        ended = threading.Event()  # after an interrupted join(), a Thread that still runs reports that it has ended
        threading.Thread(target=self._work, args=(runner, ended), name="ansible", daemon=True).start()
        try:
            while not (self._cut or ended.wait(_LOOK_S)):
                self.follow()
                if not (packing and packing.follow(self._progress)):
                    self._progress.tell_waits()
                if receiver:
                    receiver.take()
        except BaseException as error:
            self._cut = "interrupted"
            if not ended.wait(_END_S):
                raise CommandError(
                    f"ansible-playbook has not ended within {_END_S:.0f} s of its cancellation", in_part=True
                ) from error
            raise
        finally:
            ahead.end()
            if receiver:
                receiver.close()
            self.follow()
            self._tidy()
        self._progress.finish(self.answers)
        if self._cut != "complete":
            self._check(runner)

    def _work(self, runner: Any, ended: threading.Event) -> None:
        try:
            runner.run()
        except OSError:
            if not self._cut:  # otherwise its directory has been tidied
                raise
        finally:
            ended.set()

    def _check(self, runner: Any) -> None:
        """Raise the reason why Ansible has ended before the hosts' answers were complete."""
        if runner.status == "timeout":
            raise CommandError(
                "ansible-playbook did not end within its time limit", hint=f"see {self._directory}/ansible.log"
            )
        if runner.rc != 0 and not self.problems:
            raise CommandError(
                f"ansible-playbook {self._name}: {self.failure or f'exit code {runner.rc}'}", hint=self._log()
            )

    def _runner(self, secrets: Mapping[str, str], follower: str, packs: str) -> Any:
        try:
            import_module("ansible_runner")  # all of it: a submodule alone would not wait for `prepare`
            from ansible_runner.interface import init_runner
        except ImportError as error:
            raise BackendUnavailableError("ansible-runner is not installed", hint=install.command("ansible")) from error

        path = os.path.dirname(program("ansible-playbook")) + os.pathsep + os.environ.get("PATH", os.defpath)
        control = json.loads((self._directory / "env/envvars").read_text(encoding="utf-8"))[
            "ANSIBLE_SSH_CONTROL_PATH_DIR"
        ]
        what, directory, more = (
            "the directory of SSH's connections",
            os.path.dirname(control),
            ", or set XDG_RUNTIME_DIR",
        )
        with storage.storage_errors(control, "SSH keeps its connections there"):
            trust.make(what, directory, more=more)
        trust.require(what, directory, searched=True, more=more)
        variables = {"distlaunch_report": str(self._report), "distlaunch_follower": follower, "distlaunch_packs": packs}
        if secrets:
            file = self._directory / "secrets.json"
            storage.write_whole(file, storage.encode_json(dict(secrets)), mode=0o600)
            variables["distlaunch_secrets_file"] = str(file)
        runner = init_runner(
            private_data_dir=str(self._directory),
            playbook=self._name,
            quiet=True,
            # ansible-runner writes its whole environment to a file
            envvars={"PATH": path, **dict.fromkeys(secrets, "")},
            extravars=variables,
            event_handler=self._event,
            cancel_callback=lambda: self._cut == "interrupted",
        )
        runner.config.command = ahead.words(runner.config.command)
        return runner

    def _tidy(self) -> None:
        """Keep only Ansible's log: its other files may hold more than the user wants to keep."""
        with suppress(OSError):
            (self._directory / "secrets.json").unlink()
        for log in sorted((self._directory / "artifacts").glob("*/stdout")):
            with suppress(OSError):
                os.replace(log, self._directory / "ansible.log")
        gone = self._directory / "artifacts.gone"
        with suppress(OSError):
            os.replace(self._directory / "artifacts", gone)  # at once: ansible-runner may still write a file there
        shutil.rmtree(gone, ignore_errors=True)

    def _log(self) -> str:
        return f"Ansible's log: {self._directory}/ansible.log"

    def _event(self, event: dict[str, Any]) -> bool:
        """Process an event of Ansible's; returns False, so that it is not written to a file."""
        if event.get("event") in ("runner_on_failed", "runner_on_unreachable"):
            result = (event.get("event_data") or {}).get("res") or {}
            self.failure = str(result.get("msg") or self.failure).strip()
        return False

    def told(self, step: str) -> bool:
        """Whether any host was asked for that step."""
        return step in self._progress.steps

    def forget(self) -> None:
        """Remove the hosts' answers."""
        with suppress(OSError):
            self._report.unlink()

    def follow(self) -> None:
        """Process what the task has reported since the last call."""
        with suppress(FileNotFoundError), open(self._report, "rb") as file:
            file.seek(self._read)
            lines, end, _ = file.read().rpartition(b"\n")
            self._read += len(lines) + len(end)
            for line in lines.splitlines():
                self._take(json.loads(line))

    def _take(self, said: dict[str, Any]) -> None:
        step = said.get("step", "")
        if "answer" in said:
            host, answer = said["host"], said["answer"]
            self.answers.setdefault(step, {})[host] = answer
            self._progress.answered(host, self.answers)
            output.detail(
                f"{step}: {host}: {str(answer['problem']).strip() if answer.get('problem') else _about(step, answer)}"
            )
        elif "sent" in said:
            self._progress.sent(said["host"], said["sent"], said["bytes"])
        elif step:
            self._progress.enter(step, said["hosts"], self.answers)
        self.problems.update(said.get("problems", {}))
        if "progress" in said:
            self._progress.tell(said["progress"])
        if "waits" in said:
            output.note(said["waits"])
        self.notes += said.get("notes", [])
        self.choice = said.get("choice", self.choice)
        self.meeting = said.get("meeting", self.meeting)
        self._cut = self._cut or ("complete" if "complete" in said else "")


def _about(step: str, answer: Mapping[str, Any]) -> str:
    """A host's answer in a few words; each step's answers have their own form."""
    if step == "preflight":
        gpus = "GPUs that do not answer" if answer["gpus"] is None else f"{answer['gpus']} GPUs"
        has = f"Python {answer['python_version']}, torch {answer['torch']}, {gpus}"
        return f"{has}, {answer['free_bytes'] / 1e9:.0f} GB free"
    return f"process {answer['agent']['pid']}" if step == "start" else "done"
