"""Asks all hosts at once from one task, over one ssh connection each, without the cost of Ansible's forks per host.

`do`: `look` (preflight only), `start` (preflight, files, node 0, all others), `runs` (the nodes of a run, or a signal
to them), `find` (the nodes of runs by a prefix of their ids, with everything needed to follow them), `survey` (load,
GPUs and leases), `list` (leases, and all running nodes), `standing` (what runs have left standing, or its end).
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from ansible import constants, context
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

# Ansible does not find a role's own modules by itself.
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "plugin_utils"))

import distlaunch_choice
import distlaunch_ssh
from distlaunch_archive import Archive
from distlaunch_asking import Asking
from distlaunch_inventory import Play, Target, target
from distlaunch_lease import Leases
from distlaunch_start import Start, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distlaunch_asking import Answer

_PR_SET_PDEATHSIG = 1
_VARIABLES = (
    "nodes", "run", "dir", "trust", "proxy", "cwd", "here", "digest", "agent", "job", "payload", "torch", "contract",
    "parts", "setup", "container", "lease", "wait_s", "secrets", "secrets_file", "force", "timeout_s", "report",
    "packs", "follower",
)  # fmt: skip
"""Arguments that are taken from the role's variables `distlaunch_NAME`: templates in the task would take longer."""


class ActionModule(ActionBase):  # type: ignore[misc]
    """The arguments are those of the role's tasks/ask.yml, and its variables."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """`answers` by step and host, `choice`, `problems` by host, `notes`; failed if no run could be started."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = {name: self._templar.template((task_vars or {})[f"distlaunch_{name}"]) for name in _VARIABLES}
        self._args = args = {**variables, **self._task.args}
        _end_with_parent()
        result.update(changed=False, answers={}, problems={}, notes=[])
        if self._task.check_mode and (args["do"] in ("start", "runs") or _ends(args)):
            return {**result, "skipped": True}
        _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        with open(args["agent"], "rb") as file:
            self._archive = Archive(file.read())
        self._trusted = list(args.get("trust") or [])
        self._setup = text_of(args["setup"]) if args["do"] in ("look", "start") else ""
        hosts = list(args["hosts"])
        self._proxy, self._parts = str(args.get("proxy") or ""), dict(args.get("parts") or {})
        self._hostvars, self._targets = (task_vars or {})["hostvars"], dict[str, Target]()
        secrets = _secrets(args) if args["do"] == "start" else {}
        with Asking(hosts, result, args.get("report") or "", float(args["timeout_s"])) as self._asking:
            found = self._look(hosts)
            if args["do"] in ("survey", "list", "standing"):
                self._survey(found)
            if args["do"] in ("runs", "find", "list"):
                self._runs(found)
            elif args["do"] == "start":
                self._start(found, secrets)
            elif args["do"] == "look":
                self._choose(found)
        if args["do"] in ("look", "start") and result["problems"] and not _good_enough(result):
            said = "; ".join(f"{host}: {problem['message']}" for host, problem in result["problems"].items())
            result.update(failed=True, msg=said)
        if args.get("report"):
            self._end(result)
        return result

    def _end(self, result: dict[str, Any]) -> None:
        """End Ansible, whose own end takes a tenth of a start: the report has all of the result."""
        result["answers"] = {}
        ansible = multiprocessing.parent_process()
        if ansible and ansible.pid == os.getppid() and not _is_heard():
            self._asking.report(complete=True)
            os.kill(os.getppid(), signal.SIGKILL)

    def _start(self, found: dict[str, Answer], secrets: Mapping[str, str]) -> None:
        """Start the run on hosts that it leases; a launcher that follows it takes the connections over."""
        choice = Leases(self._asking, self._args, self._targets).take(found, self._choose)
        if choice is not None:
            Start(self._asking, self._args, self._targets, found=found, choice=choice, secrets=secrets).run()
            if self._args["follower"] and not self._asking.result["problems"]:
                self._asking.hand_over(str(self._args["follower"]), choice["ranks"], found)

    def _look(self, hosts: list[str]) -> dict[str, Answer]:
        """Every host's facts; for hosts that do not answer, the reason."""
        request = {name: self._args[name] for name in ("dir", "run", "digest", "cwd", "contract")}
        if self._args["do"] in ("find", "survey", "list", "standing"):
            request["run"] = ""
        do = self._args["do"]
        request.update(call="preflight", starts=do == "start", probes=do in ("start", "look"), agent=self._archive.name)
        request.update(rule=self._archive.rule_text(), whole_ns=self._archive.rule.WHOLE_NS, trusted=self._trusted)
        request.update(program=self._archive.program(), bytecode=self._archive.places())
        program = self._archive.boot()

        def look(host: str) -> Answer:
            contract = self._parts.get(host, request)["contract"]
            return self._look_at(host, self._targets[host], {**request, "contract": contract}, program)

        return self._asking.each("preflight", hosts, look, prepare=self._find)

    def _find(self, host: str) -> None:
        """Note how the host is reached, which takes Ansible some milliseconds."""
        of_all = {"rule": self._archive.rule, "trusted": self._trusted, "here": self._args.get("here")}
        play = Play(self._task, self._play_context, context.CLIARGS)
        there = target(host, self._hostvars, play, **of_all, proxy=self._proxy)
        part = self._parts.get(host)
        self._targets[host] = there._replace(workers=str(part["workers"])) if part else there

    def _look_at(self, host: str, there: Target, request: Answer, program: str) -> Answer:
        """One host's facts. Sends the agent if the host lacks it."""
        if there.refused:
            return {"problem": there.refused, "refused": True}
        if there.ssh is None:
            how = f"ansible_connection: {there.connection}"
            return {"problem": f"it is not reached by ssh ({how}); distlaunch local runs here"}
        argv = distlaunch_ssh.proxied(there.ssh, self._proxy) if there.proxied else there.ssh
        self._asking.connect(host, argv, there.python, program, self._setup)
        began = time.time()
        answer = self._asking.ask(host, request)
        if answer.get("lacks"):
            began = time.time()
            answer = self._asking.ask(host, *self._archive.compressed())
        answer = distlaunch_choice.misfit("preflight", answer) or answer
        if not answer.get("problem"):
            answer["clock_s"] = [round(answer["time"] - time.time(), 3), round(answer["time"] - began, 3)]
        # Later calls run without the setup, so they need the path of the Python that it has made available.
        used = answer["python"] if self._setup and not answer.get("problem") else there.python
        known = {"refused": False, "ssh": there.ssh, "proxied": there.proxied, "python_used": used}
        # Set here, whatever the host has answered.
        return {**answer, **known, "login_s": self._asking.login_s(host)}

    def _choose(self, found: Mapping[str, Answer]) -> dict[str, Any] | None:
        """The choice of hosts, None if there are too few; also reports the hosts' problems."""
        own_disk = [host for host in found if not self._targets[host].shared]
        counted = [host for host in found if self._targets[host].workers == "auto"]
        args = {**self._args, "own_disk": own_disk, "gpus_matter": counted}
        problems, notes, choice = distlaunch_choice.choose(found, args)
        self._asking.result.update(problems=problems, notes=notes, choice=choice or {})
        self._asking.report(problems=problems, notes=notes, choice=choice or {})
        return choice

    def _survey(self, found: Mapping[str, Answer]) -> None:
        """Ask each host for its load, its GPUs and its leases, or for what stands there."""
        stands = self._args["do"] == "standing"
        request: Answer = {"call": "standing", "end": _ends(self._args)} if stands else {"call": "survey"}
        good = [host for host, facts in found.items() if not facts.get("problem")]
        self._asking.failed({host: facts for host, facts in found.items() if host not in good})
        answers = self._asking.each(request["call"], good, lambda host: self._asking.ask(host, request))
        self._asking.failed(answers)

    def _runs(self, found: Mapping[str, Answer]) -> None:
        """Ask each host for the run's nodes, and have it signal them."""
        request = {"call": "runs", **{name: self._args[name] for name in ("dir", "run", "signal", "force")}}
        request.update(find=self._args["do"] in ("find", "list"), running=self._args["do"] == "list")
        good = [host for host, facts in found.items() if not facts.get("problem")]
        self._asking.failed({host: facts for host, facts in found.items() if host not in good})
        answers = self._asking.each("runs", good, lambda host: self._asking.ask(host, request), request)
        self._asking.failed(answers)
        distlaunch_choice.place(answers)


def _good_enough(result: Mapping[str, Any]) -> bool:
    """Whether all chosen hosts could take part, as those with problems were left out."""
    choice = result.get("choice") or {}
    return bool(choice) and not result["problems"].keys() & choice["ranks"].keys()


def _is_heard() -> bool:
    """Whether the user or the site has a log or callbacks, which hear of the end of the play."""
    places = [place for place in constants.DEFAULT_CALLBACK_PLUGIN_PATH or () if "ansible_runner" not in place]
    log = constants.CALLBACKS_ENABLED or constants.DEFAULT_LOG_PATH
    return bool(log) or any(glob.glob(os.path.join(place, "*.py")) for place in places)


def _ends(args: Mapping[str, Any]) -> bool:
    """Whether what stands is to be ended."""
    return args["do"] == "standing" and bool(args["force"])


def _secrets(args: Mapping[str, Any]) -> dict[str, str]:
    """The values of the workers' secrets."""
    names, values = list(args.get("secrets") or []), dict(os.environ)
    if args.get("secrets_file"):
        with open(args["secrets_file"], encoding="ascii") as file:
            values = json.load(file)
    missing = [name for name in names if name not in values]
    if missing:
        raise AnsibleActionFail(f"the secrets {', '.join(missing)} are not in the environment: export them first")
    return {name: values[name] for name in names}


def _end_with_parent() -> None:
    """Die with Ansible: a task has its own session, so it would continue and start agents after Ansible was killed."""
    with contextlib.suppress(OSError, AttributeError):  # only Linux has it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
