"""One call to a host in one SSH command: the request and what goes with it on stdin, the answer as the task's result.

Like `raw` it needs no module on the host, which is what makes it quick; unlike `raw` it has a stdin, so files and secrets travel
without a further connection, and never in an argument list. Calls: preflight, files, start, runs (see launcher/agent/host.py).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shlex
import time

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

_ANSWER = "distlaunch-host-1 "
_STDIN_BYTES = 4_000_000
"""More than this goes by sftp, which does not hold it in memory."""

# Read by any Python since 2.7, so that one that is too old can say so. Installs the agent, then is the agent's `preflight`.
_BOOT = f"""
import sys
def say(problem):
    sys.stdout.write("\\n{_ANSWER}" + json.dumps({{"problem": problem}}) + "\\n")
import json, os
if sys.version_info < (3, 9):
    say("%s is Python %d.%d, and 3.9 or newer is needed" % (sys.executable, sys.version_info[0], sys.version_info[1]))
    sys.exit(0)
import io
header = sys.stdin.buffer.readline()
request = json.loads(header)
agent = sys.stdin.buffer.read()
folder = os.path.join(os.path.expanduser(request["dir"]), "agents")
path = os.path.join(folder, request["agent"] + ".pyz")
try:
    for one in (os.path.dirname(folder), folder, os.path.join(os.path.dirname(folder), "snapshots")):
        os.makedirs(one, mode=0o700, exist_ok=True)
    if not os.path.exists(path):
        with open("%s.%d" % (path, os.getpid()), "wb") as file:
            file.write(agent)
        os.replace(file.name, path)
    sys.path.insert(0, path)
    sys.stdin = io.TextIOWrapper(io.BytesIO(header))
    from distlaunch_agent import host
    host.main(["preflight"])
except OSError as error:
    say("%s: %s" % (error.filename or folder, error.strerror or error))
"""


class ActionModule(ActionBase):
    """`call`, `request`, `python`; for some `agent`, `job`, `payload`, `secrets_file` (paths here) and `secrets` (names)."""

    def run(self, tmp=None, task_vars=None):
        """The answer's fields, with `ssh`: how this host is reached, as an argument list."""
        result = super().run(tmp, task_vars)
        args = self._task.args
        call, python = args["call"], args["python"]
        result["changed"] = False
        if self._task.check_mode and call != "preflight":
            return {**result, "skipped": True}
        request, payload = self._request(call, args)
        if call == "preflight":
            code = base64.b64encode(_BOOT.encode()).decode()
            argv = [python, "-c", f"import base64;exec(base64.b64decode('{code}').decode())"]
        else:
            argv = [python, args["agent_path"], "host", call]
        began = time.time()
        # A python that is a path with blanks, or begins with a tilde.
        command = " ".join(arg if arg.startswith("~/") and shlex.quote(arg[2:]) == arg[2:] else shlex.quote(arg) for arg in argv)
        done = self._low_level_execute_command(command, sudoable=False, in_data=json.dumps(request).encode() + b"\n" + payload)
        before, mark, answer = done["stdout"].rpartition(f"\n{_ANSWER}")
        if mark:
            result.update(json.loads(answer.splitlines()[0]))
        else:
            said = (done["stderr"].strip() or before.strip() or done["stdout"].strip()).splitlines()
            result["problem"] = f"{python} ended with code {done['rc']}: {said[-1] if said else 'it said nothing'}"
            if done["rc"] in (126, 127):
                result["problem"] = f"there is no {python} (looked for along the PATH of a login without a terminal)"
        if "time" in result:
            result["clock_s"] = [round(result["time"] - time.time(), 3), round(result["time"] - began, 3)]
        result.update(ssh=self._ssh(), python_used=python)
        done_there = {key for key, value in result.items() if value}
        result["changed"] = bool({"agent", "unpacked", "signalled"} & done_there) and "running" not in done_there
        if result.get("problem") and call != "preflight":
            result.update(failed=True, msg=result["problem"])
        return result

    def _request(self, call, args):
        """The request as the host gets it, and the bytes that follow."""
        request = dict(args.get("request") or {})
        if call == "preflight":
            with open(args["agent"], "rb") as file:
                agent = file.read()
            return {**request, "agent": hashlib.sha256(agent).hexdigest()[:24]}, agent
        if call == "start":
            with open(
                args["job"], encoding="ascii"
            ) as file:  # not a variable: templates in a script's arguments are the script's
                request["job"] = json.load(file)
            values = dict(os.environ)
            if args.get("secrets_file"):
                with open(args["secrets_file"], encoding="ascii") as file:
                    values = json.load(file)
            missing = [name for name in args.get("secrets") or [] if name not in values]
            if missing:
                raise AnsibleActionFail(f"the secrets {', '.join(missing)} are not in the environment: export them first")
            request["secrets"] = {name: values[name] for name in args.get("secrets") or []}
        if call == "files":
            if os.path.getsize(args["payload"]) > _STDIN_BYTES:
                request["tar"] = f"{args['request']['folder']}/.incoming-{os.getpid()}.tar"
                self._connection.put_file(args["payload"], request["tar"])
            else:
                with open(args["payload"], "rb") as file:
                    return request, file.read()
        return request, b""

    def _ssh(self):
        """How Ansible reaches this host, for whoever follows the run; None where that is not ssh."""
        connection = self._connection
        if connection.transport != "ssh":
            return None
        argv = [connection.get_option("ssh_executable") or "ssh"]
        for option in ("ssh_args", "ssh_common_args", "ssh_extra_args"):
            argv += shlex.split(connection.get_option(option) or "")
        if connection.get_option("host_key_checking") is False:
            argv += ["-o", "StrictHostKeyChecking=no"]  # the user's own setting, as Ansible heeds it
        for name, option in (("Port", "port"), ("IdentityFile", "private_key_file"), ("User", "remote_user")):
            if connection.get_option(option):
                argv += ["-o", f"{name}={os.path.expanduser(str(connection.get_option(option)))}"]
        control = getattr(connection, "control_path", None)
        if control and not any("ControlPath" in arg for arg in argv):
            folder = os.path.expanduser(str(getattr(connection, "control_path_dir", "")))
            argv += ["-o", f"ControlPath={control % {'directory': folder}}"]
        return [*map(str, argv), str(connection.get_option("host") or connection.host)]
