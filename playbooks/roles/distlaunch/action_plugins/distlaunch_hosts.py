"""Asks all hosts at once over one ssh connection each, from one task: what Ansible's forks would cost for each host is not paid.

`do`: `look` (preflight alone), `start` (preflight, files, node 0, all others), `runs` (the nodes of a run there, or a signal),
`find` (nodes of runs whose ids begin so, with all that is needed to follow them).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from ansible import constants
from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.plugins.loader import connection_loader

# Ansible does not look for modules of a role's own.
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "plugin_utils"))

import distlaunch_choice
import distlaunch_session

_PR_SET_PDEATHSIG = 1
_PROBLEM_CHARACTERS = 4000
_OF_PROBLEMS = ("problem", "unreachable", "late", "refused", "ssh", "python_used")
_FILES_TIMES = 10
"""How much longer than a question the user's files may take."""


class ActionModule(ActionBase):
    """Arguments are those of the role, see its tasks/ask.yml and defaults."""

    def run(self, tmp=None, task_vars=None):
        """`answers` by step and host, `choice`, `problems` by host, `notes`; failed where no run could be started."""
        result = super().run(tmp, task_vars)
        self._args = args = dict(self._task.args)
        _end_with_parent()
        result.update(changed=False, answers={}, problems={}, notes=[])
        if self._task.check_mode and args["do"] in ("start", "runs"):
            return {**result, "skipped": True}
        _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        self._result, self._lock, self._sessions = result, threading.Lock(), {}
        self._limit_s = float(args["timeout_s"])
        with open(args["agent"], "rb") as file:
            self._agent = file.read()
        self._rule_text, self._rule = distlaunch_session.rule_of(self._agent)
        self._trusted = list(args.get("trust") or [])
        hosts = list(args["hosts"])
        self._own = {host: self._host_variables(host, task_vars["hostvars"]) for host in hosts}
        secrets = self._secrets() if args["do"] == "start" else {}
        try:
            with ThreadPoolExecutor(len(hosts)) as pool:
                self._pool = pool
                found = self._look(hosts)
                if args["do"] == "start":
                    self._start(found, secrets)
                elif args["do"] in ("runs", "find"):
                    self._runs(found)
                else:
                    self._choose(found)
        finally:
            with ThreadPoolExecutor(len(hosts)) as pool:
                list(pool.map(lambda session: session.close(), self._sessions.values()))
        if args["do"] in ("look", "start") and result["problems"] and not self._good_enough():
            said = "; ".join(f"{host}: {problem['message']}" for host, problem in result["problems"].items())
            result.update(failed=True, msg=said)
        if args.get("report"):  # it has all of it already
            result["answers"] = {}
        return result

    # -- steps --------------------------------------------------------------------------------------------------------

    def _look(self, hosts):
        """Every host's facts; those of hosts that do not answer say why."""
        request = {name: self._args[name] for name in ("dir", "run", "digest", "cwd")}
        if self._args["do"] == "find":
            request["run"] = ""
        request.update(call="preflight", starts=self._args["do"] == "start")
        request["agent"] = self._rule.agent_name(self._agent)
        request.update(rule=self._rule_text, trusted=self._trusted)

        def look(host):
            python = self._own[host]["python"]
            argv = self._own[host]["ssh"]
            if self._own[host]["refused"]:
                return {"problem": self._own[host]["refused"], "refused": True}
            if argv is None:
                connection = self._own[host]["connection"]
                return {"problem": f"it is not reached by ssh (ansible_connection: {connection}); distlaunch local runs here"}
            session = self._sessions[host] = distlaunch_session.Session(argv, python)
            began = time.time()
            answer = session.ask(request, limit_s=self._limit_s)
            if answer.get("lacks"):
                began = time.time()
                answer = session.ask({}, self._agent, limit_s=self._limit_s)
            answer = distlaunch_choice.misfit("preflight", answer) or answer
            if not answer.get("problem"):
                answer["clock_s"] = [round(answer["time"] - time.time(), 3), round(answer["time"] - began, 3)]
            return {**answer, "refused": False, "ssh": argv, "python_used": python}  # what is ours to say is not the host's

        return self._each("preflight", hosts, look)

    def _choose(self, found):
        """The choice, and what is wrong with hosts; None where there are too few."""
        args = {**self._args, "own_disk": [host for host in found if self._own[host]["shared"] is False]}
        problems, notes, choice = distlaunch_choice.choose(found, args)
        self._result.update(problems=problems, notes=notes, choice=choice or {})
        self._report(problems=problems, notes=notes, choice=choice or {})
        return choice

    def _start(self, found, secrets):
        """Files to those that lack them, node 0, then all others; where one cannot, what has started is stopped."""
        choice = self._choose(found)
        if choice is None:
            return
        facts = {host: found[host] for host in choice["ranks"]}
        with open(self._args["job"], encoding="ascii") as file:  # no variable: templates in a script's arguments are the script's
            job = json.load(file)
        key = _key(os.path.join(os.path.dirname(self._args["job"]), "key"))

        def unpack(host):
            request = {"call": "files", "dir": self._args["dir"], "digest": self._args["digest"]}
            return self._ask(host, request, self._args["payload"], _FILES_TIMES)

        def start(host, **where):
            return self._ask(
                host,
                {
                    "call": "start",
                    "folder": facts[host]["folder"],
                    "copies": host in choice["copying"],
                    "node_rank": choice["ranks"][host],
                    "workers": self._own[host]["workers"],
                    "job": job,
                    "key": key,
                    "secrets": secrets,
                    **{name: self._args[name] for name in ("dir", "digest", "cwd")},
                    **where,
                },
            )

        if choice["lacking"] and self._failed(self._each("files", choice["lacking"], unpack)):
            return
        first = choice["master"]
        answer = self._each("start", [first], lambda host: start(host, addr=self._own[host]["addr"]))[first]
        if not answer.get("problem") and not _is_meeting_point(answer):
            answer = {"problem": "it answers, but not as an agent does: it tells nowhere to meet"}
        if not self._failed({first: answer}) and choice["others"]:
            where = self._meet(choice, facts, answer)
            if where is not None:
                started = self._each(
                    "start", choice["others"], lambda host: start(host, reached=where[host], port=answer["port"])
                )
                self._failed(started)
        if self._result["problems"].keys() & facts.keys():
            self._stop(facts)

    def _meet(self, choice, facts, first):
        """Which of node 0's addresses each of the others uses: all are tried by all of them. None where one reaches none."""

        def reach(host):
            request = {"call": "reach", "candidates": first["addresses"], "port": first["port"], "folder": facts[host]["folder"]}
            return self._ask(host, {**request, "node_rank": choice["ranks"][host]})

        answers = self._each("reach", choice["others"], reach)
        if any(answer.get("problem") for answer in answers.values()):
            master = choice["master"]
            request = {"call": "ended", "folder": facts[master]["folder"], "node_rank": choice["ranks"][master]}
            why = self._each("ended", [master], lambda host: self._ask(host, request))[master].get("ended")
            if why:  # then it is no wonder that it was not reached
                answers = {master: {"problem": f"the agent of node 0 has ended: {why}"}}
        if self._failed(answers):
            return None
        known = list(first["addresses"])  # what else a host says to have tried counts for nothing
        tried = {host: {one: bool(answer["tried"].get(one)) for one in known} for host, answer in answers.items()}
        chosen, common, reason = distlaunch_choice.meeting_point(tried)
        meeting = {"port": first["port"], "address": common, "reason": reason, "tried": tried}
        self._result["meeting"] = meeting
        self._report(meeting=meeting)
        return chosen

    def _runs(self, found):
        """The run's nodes on each host, and the signal to them."""
        request = {"call": "runs", **{name: self._args[name] for name in ("dir", "run", "signal", "force")}}
        request["find"] = self._args["do"] == "find"
        good = [host for host, facts in found.items() if not facts.get("problem")]
        self._failed({host: facts for host, facts in found.items() if host not in good})
        answers = self._each("runs", good, lambda host: self._ask(host, request), request)
        self._failed(answers)
        distlaunch_choice.place(answers)

    def _stop(self, facts):
        """End what has started, as not all could."""
        request = {"call": "runs", "dir": self._args["dir"], "run": self._args["run"], "signal": 15, "force": True}
        started = [host for host, answer in self._result["answers"].get("start", {}).items() if answer.get("agent")]
        self._each("stop", [host for host in facts if host in started], lambda host: self._ask(host, request))

    # -- hosts --------------------------------------------------------------------------------------------------------

    def _ask(self, host, request, payload=None, times=1):
        return self._sessions[host].ask(request, payload, limit_s=self._limit_s * times)

    def _each(self, step, hosts, work, asked=None):
        """What `work` gives for each host, all at once; `asked`: what an answer is held to."""

        def one(host):
            answer = work(host)
            answer = distlaunch_choice.misfit(step, answer, asked) or answer
            if answer.get("problem"):  # what else the host says was held to no form
                answer = {name: answer[name] for name in _OF_PROBLEMS if name in answer}
                answer["problem"] = str(answer["problem"])[:_PROBLEM_CHARACTERS]
            with self._lock:
                self._result["answers"].setdefault(step, {})[host] = answer
                self._report(step=step, host=host, answer=answer)
            done_there = {key for key, value in answer.items() if value}
            if {"agent", "unpacked", "signalled"} & done_there and "running" not in done_there:
                self._result["changed"] = True
            return answer

        self._report(step=step, hosts=list(hosts))
        return dict(zip(hosts, self._pool.map(one, hosts), strict=True))

    def _failed(self, answers):
        """Note the problems among these answers; whether there are any."""
        found = {}
        for host, answer in answers.items():
            if answer.get("problem"):
                kind = "unreachable" if answer.get("unreachable") else "host"
                found[host] = {"kind": kind, "message": str(answer["problem"]).strip()}
        self._result["problems"].update(found)
        if found:
            self._report(problems=found)
        return bool(found)

    def _good_enough(self):
        """Whether all nodes could take part: hosts with problems were left out, or nothing was to be started."""
        choice = self._result.get("choice")
        return bool(choice) and not self._result["problems"].keys() & choice["ranks"].keys()

    def _host_variables(self, host, hostvars):
        """What the inventory says of a host: how it is reached, and our own variables."""
        try:
            known = hostvars[host]
        except (KeyError, AnsibleError):
            raise AnsibleActionFail(f"{host} is not in the inventory") from None
        names = [name for name in constants.config.get_plugin_vars("connection", "ssh") if name in known]
        transport = str(known.get("ansible_connection") or "ssh")
        argv, refused = None, ""
        if transport in ("ssh", "smart", "ansible.builtin.ssh"):
            connection = connection_loader.get("ssh", self._play_context, new_stdin=None)
            keys = {"timeout": self._play_context.timeout, "remote_user": self._play_context.remote_user}
            variables = {name: known[name] for name in names}
            connection.set_options(task_keys=keys, var_options={"inventory_hostname": host, **variables})
            places = [self._args.get("here") or os.getcwd(), str(known.get("inventory_dir") or os.getcwd())]
            try:
                self._check_user(known, connection)
                argv = distlaunch_session.ssh_argv(connection, self._rule, self._trusted, list(dict.fromkeys(places)))
            except distlaunch_session.RefusedError as error:
                refused = str(error)
        python = known.get("distlaunch_python") or known.get("ansible_python_interpreter") or "python3"
        return {
            "ssh": argv,
            "refused": refused,
            "connection": transport,
            "python": str(python),
            "workers": str(known.get("distlaunch_workers") or "auto"),
            "addr": str(known.get("distlaunch_addr") or ""),
            "shared": _truth(known.get("distlaunch_shared", True)),
        }

    def _check_user(self, known, connection):
        """Refuse what would be a run of another user's, or with another secret, than Ansible's own tasks have there."""
        context = self._play_context
        user = str(known.get("ansible_become_user") or context.become_user or "root")
        if boolean(known.get("ansible_become", context.become), strict=False) and user != connection.get_option("remote_user"):
            raise distlaunch_session.RefusedError(
                f"become is set, to {user}: a run is its ssh user's; set ansible_user={user} and ansible_become=false"
            )
        for name in ("password", "private_key", "private_key_passphrase"):
            with contextlib.suppress(AnsibleError, KeyError):  # an Ansible that does not know it
                if connection.get_option(name) or (name == "password" and context.password):
                    what = f"{name.replace('_', ' ')} is given (ansible_{name}), and only keys that ssh itself finds are used"
                    raise distlaunch_session.RefusedError(f"a {what}: ssh-copy-id, ssh-agent, or ansible_ssh_private_key_file")

    def _secrets(self):
        """The values that the workers get, unseen."""
        names, values = list(self._args.get("secrets") or []), dict(os.environ)
        if self._args.get("secrets_file"):
            with open(self._args["secrets_file"], encoding="ascii") as file:
                values = json.load(file)
        missing = [name for name in names if name not in values]
        if missing:
            raise AnsibleActionFail(f"the secrets {', '.join(missing)} are not in the environment: export them first")
        return {name: values[name] for name in names}

    def _report(self, **what):
        """A line for the launcher, which reads along."""
        if self._args.get("report"):
            line = json.dumps(what).encode("ascii") + b"\n"
            fd = os.open(self._args["report"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(fd, line)
            finally:
                os.close(fd)


def _end_with_parent():
    """Ansible gives a task a session of its own: without this it goes on, and starts agents, when Ansible itself was killed."""
    with contextlib.suppress(OSError, AttributeError):  # Linux has it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _key(path):
    """The run's secret, by which its nodes know one another: made when it is started for the first time."""
    with contextlib.suppress(FileNotFoundError), open(path, encoding="ascii") as file:
        if key := file.read():
            return key
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(key := os.urandom(32).hex() + "\n")
    return key


def _is_meeting_point(answer):
    addresses, port = answer.get("addresses"), answer.get("port")
    good = isinstance(addresses, list) and addresses and all(isinstance(one, str) for one in addresses)
    return bool(good) and isinstance(port, int) and 0 < port < 65536


def _truth(value):
    return str(value).strip().lower() not in ("false", "no", "off", "0")
