"""Whether all agents have started; where one has not, those that have are to be stopped."""

from __future__ import annotations

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """`choice`, as distlaunch_choose made it."""

    def run(self, tmp=None, task_vars=None):
        """The fact `distlaunch_undo`: hosts whose agents are to be stopped; and `problems` by host."""
        result = super().run(tmp, task_vars)
        hosts = list(self._task.args["choice"]["ranks"])
        started = {host: dict(task_vars["hostvars"][host].get("distlaunch_started") or {}) for host in hosts}
        problems = {}
        for host, answer in started.items():
            if not answer.get("agent"):
                kind = "unreachable" if answer.get("unreachable") else "host"
                message = str(answer.get("problem") or answer.get("msg") or "not started: node 0 could not be").strip()
                problems[host] = {"kind": kind, "message": message}
        undo = [host for host in hosts if host not in problems] if problems else []
        shown = "; ".join(f"{host}: {problem['message']}" for host, problem in problems.items())
        result.update(changed=False, problems=problems)
        result["ansible_facts"] = {"distlaunch_undo": undo or ["distlaunch_none"], "distlaunch_failure": shown}
        return result
