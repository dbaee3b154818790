"""One ssh connection per host for all that is asked of it: a Python there that answers line by line until its stdin ends.

A request is a line of JSON, then so many bytes as it announces; an answer is a line that begins with a mark, as login files may
print before it. The other end is `launcher.agent.host`, which a few lines of Python install where it is missing.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import random
import re
import select
import shlex
import subprocess
import tempfile
import time
import types
import zipfile

ANSWER = "distlaunch-host-1 "
_MARK = f"\n{ANSWER}".encode()
_BLOCK_BYTES = 1 << 16
_TRIES = 4
_INSTALL_S = 15
"""A host that has not installed the agent on a shared disk by then may have failed: another one does it, too."""

_ANSWER_BYTES = 16 << 20
_LAST_BYTES = 1 << 16
_LATE = {"problem": "no answer within its limit of time", "late": True}
_BUSY = ("kex_exchange_identification", "Connection reset by peer", "Connection closed by remote host")
"""What ssh says where a server refuses connections because too many begin at once (MaxStartups)."""

# Read by any Python since 2.7, so that one that is too old can say so. The agent is asked for where it is not there yet, by one
# of the hosts that share a disk. It is unpacked, its byte-code to where Python looks for it; it is seen once it can answer.
# Whose folders these are, and that the agent is the one that its name says, is seen before any of it is run: by the rule of
# launcher/agent/trust.py, which comes with the first request.
_BOOT = f"""
def say(answer):
    sys.stdout.write("\\n{ANSWER}" + json.dumps(answer) + "\\n")
    sys.stdout.flush()
import json, os
if sys.version_info < (3, 9):
    about = (sys.executable, sys.version_info[0], sys.version_info[1])
    say({{"problem": "%s is Python %d.%d, and 3.9 or newer is needed" % about}})
    sys.exit(0)
import time
request = json.loads(sys.stdin.buffer.readline())
rule = {{"__name__": "distlaunch_rule"}}
exec(request.pop("rule"), rule)
trusted = request.pop("trusted")
def refuse(found):
    if found:
        say({{"problem": "%s; mend it there: %s" % found}})
        sys.exit(0)
base = os.path.expanduser(request["dir"])
folder = os.path.join(base, "agents")
path = os.path.join(folder, request["agent"] + ".pyz")
turn = path + ".new"
mine = False
began = time.time()
try:
    for one in (folder, os.path.join(base, "snapshots"), os.path.join(base, "runs")):
        refuse(rule["make"](one, 0o700, trusted))
        refuse(rule["problem"](one, trusted, searched=True))
    while not mine and (not os.path.lexists(path) or rule["agent_problem"](path, trusted)):
        try:
            os.mkdir(turn, 0o700)
            mine = True
        except FileExistsError:
            time.sleep(0.02)
            mine = time.time() - began > {_INSTALL_S}
    if mine:
        import io, shutil, zipfile
        say({{"lacks": "agent"}})
        size = json.loads(sys.stdin.buffer.readline())["bytes"]
        own = "%s.%d-%s" % (path, os.getpid(), os.urandom(4).hex())
        umask = os.umask(0o077)
        try:
            found = rule["agent_problem"](path, trusted) if os.path.lexists(path) else None
            if found:
                request["replaced"] = found[0]
                os.rename(path, own + ".old")
                shutil.rmtree(own + ".old", ignore_errors=True)
            archive = zipfile.ZipFile(io.BytesIO(sys.stdin.buffer.read(size)))
            archive.extractall(own)
            code = os.path.join(own, "distlaunch_agent")
            for name in [name for name in os.listdir(code) if name.endswith(".pyc")]:
                where = "%s.%s.pyc" % (name[:-4], archive.comment.decode())
                os.renames(os.path.join(code, name), os.path.join(code, "__pycache__", where))
            sys.path.insert(0, own)
            from distlaunch_agent import host
            os.rename(own, path)
        except OSError:
            if not os.path.exists(path):
                raise
        finally:
            os.umask(umask)
            shutil.rmtree(own, ignore_errors=True)
            try:
                os.rmdir(turn)
            except OSError:
                pass
        sys.path[:] = [one for one in sys.path if one != own]
        for name in [name for name in sys.modules if name.startswith("distlaunch_agent")]:
            del sys.modules[name]
        refuse(rule["agent_problem"](path, trusted))
    sys.path.insert(0, path)
    from distlaunch_agent import host
except OSError as error:
    say({{"problem": "%s: %s" % (error.filename or folder, error.strerror or error)}})
    sys.exit(0)
task = host.converse(request)
if not task:
    os._exit(0)  # there is nothing to take apart
task()
"""


# Where a login has no locale, Python sets this one for its children (PEP 538); with it, it is like one of them.
_LOCALE = '[ "$LC_ALL$LC_CTYPE$LANG" ] || export LC_CTYPE=C.UTF-8; '


def rule_of(agent):
    """The text of the rule about whose paths count, as the agent has it, and the rule itself."""
    with zipfile.ZipFile(io.BytesIO(agent)) as archive:
        text = archive.read("distlaunch_agent/trust.py").decode()
    module = types.ModuleType("distlaunch_rule")
    exec(text, module.__dict__)  # noqa: S102 - the agent's own; the launcher is not there where this is run by hand
    return text, module


class Session:
    """A host, and the connection to it while there is one. What goes wrong is an answer, too: `{"problem": ...}`."""

    def __init__(self, argv, python):
        self.argv, self.python = argv, python
        self.broken = None
        self._process = None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._data = b""
        self._answer = None

    def ask(self, request, payload=None, *, limit_s):
        """The answer to a request; `payload` is a path or bytes that follow it."""
        limit = time.monotonic() + limit_s
        tries = _TRIES if self._process is None and self.broken is None else 1
        while self.broken is None:
            if self._process is None:
                self._open()
            if self.broken is None:
                self._exchange(request, payload, limit)
            tries -= 1
            if self.broken is None:
                return self._answer
            if not (self.broken.pop("busy", False) and tries):
                break
            self.broken = None
            time.sleep(random.uniform(0.2, 1.0) * (_TRIES - tries))  # noqa: S311 - no secret
        return dict(self.broken)

    def close(self):
        """End the connection; the Python there ends with it."""
        self._end()
        self._said.close()

    def _open(self):
        code = base64.b64encode(_BOOT.encode()).decode()
        # Without the working folder, where a user may have files of any name; -u as agent/prefork.py needs it.
        start = "import sys;sys.path[:]=filter(None,sys.path);import base64"
        argv = [self.python, "-u", "-c", f"{start};exec(base64.b64decode('{code}').decode())"]
        # A python that is a path with blanks, or begins with a tilde.
        words = [arg if arg.startswith("~/") and shlex.quote(arg[2:]) == arg[2:] else shlex.quote(arg) for arg in argv]
        command = f"/bin/sh -c {shlex.quote(_LOCALE + 'exec ' + ' '.join(words))}"
        options = ("-T", "-o", "BatchMode=yes", "-o", "ForwardAgent=no")
        self._said.seek(0)  # theirs, too: else what the next one says would begin where the last one ended
        self._said.truncate()
        try:
            self._process = subprocess.Popen(
                [self.argv[0], *options, *self.argv[1:], command],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said,
            )  # fmt: skip
        except OSError as error:
            self.broken = {"problem": f"{self.argv[0]} cannot be started: {error.strerror}", "unreachable": True}
            return
        os.set_blocking(self._process.stdin.fileno(), False)
        self._data = b""

    def _exchange(self, request, payload, limit):
        """Send, and read the answer; `broken` says why there is none."""
        if isinstance(payload, str):
            with open(payload, "rb") as file:
                self._send_and_read(request, file, os.fstat(file.fileno()).st_size, limit)
        elif payload is not None:
            self._send_and_read(request, io.BytesIO(payload), len(payload), limit)
        else:
            self._send_and_read(request, None, 0, limit)

    def _send_and_read(self, request, file, size, limit):
        waiting = memoryview(json.dumps({**request, "bytes": size} if file else request).encode() + b"\n")
        stdin, stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        poll = select.poll()
        poll.register(stdout, select.POLLIN)
        poll.register(stdin, select.POLLOUT)
        self._answer = None
        while self._answer is None and self.broken is None:
            left = limit - time.monotonic()
            events = dict(poll.poll(max(0.0, min(left, 1.0)) * 1000))
            if os.fstat(self._said.fileno()).st_size > _ANSWER_BYTES:
                self._break({"problem": f"it has said more than {_ANSWER_BYTES >> 20} MB on stderr"})
                return
            if not events and left <= 0:
                self._break(_LATE)
                return
            if stdin in events:
                waiting = self._write(stdin, waiting, file)
                if not waiting:
                    poll.unregister(stdin)
            if stdout in events and not self._read(stdout):
                self._break(self._why(limit))
                return

    def _write(self, stdin, waiting, file):
        """What is left to send; nothing where nobody reads it any more: the answer says why."""
        try:
            waiting = waiting[os.write(stdin, waiting) :]
        except BlockingIOError:
            return waiting
        except OSError:
            return b""
        return waiting or memoryview(file.read(_BLOCK_BYTES) if file else b"")

    def _read(self, stdout):
        """Take what has come; False at its end. A host may be anybody's: what it says is bounded, and held to its form."""
        data = os.read(stdout, _BLOCK_BYTES)
        self._data += data
        if len(self._data) > _ANSWER_BYTES:
            self._break({"problem": f"it has said more than {_ANSWER_BYTES >> 20} MB that are no answer"})
            return True
        _, mark, rest = (b"\n" + self._data).partition(_MARK)
        line, end, left = rest.partition(b"\n")
        if mark and end:
            self._data = left
            try:
                self._answer = json.loads(line)
            except (ValueError, RecursionError):
                self._answer = None
            if not isinstance(self._answer, dict):
                self._answer = None
                self._break({"problem": f"it answers, but not as an agent does: {line[:40]!r}"})
                return True
        return bool(data) or self._answer is not None

    def _why(self, limit):
        """What ssh, or the other end's shell, said before it ended."""
        try:
            code = self._process.wait(max(0.0, limit - time.monotonic()))
        except subprocess.TimeoutExpired:  # it has only closed its stdout
            return _LATE
        self._said.seek(max(0, os.fstat(self._said.fileno()).st_size - _LAST_BYTES))
        said = self._said.read().decode(errors="replace").strip()
        if code == 255:
            busy = any(words in said for words in _BUSY)
            return {"problem": said or "ssh ended with code 255", "unreachable": True, "busy": busy}
        if code in (126, 127):
            return {"problem": f"there is no {self.python} (looked for along the PATH of a login without a terminal)"}
        last = (said or self._data.decode(errors="replace").strip() or "it said nothing").splitlines()[-1]
        return {"problem": f"{self.python} ended with code {code}: {last}"}

    def _break(self, why):
        self._end()
        self.broken = dict(why)

    def _end(self):
        process, self._process = self._process, None
        if process is None:
            return
        process.stdin.close()
        process.stdout.close()
        for stop in (None, process.terminate, process.kill):
            if stop:
                stop()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2)
                break


def ssh_argv(connection, rule, trusted, places):
    """How Ansible reaches the host that its ssh connection plugin is set to, as an argument list whose last is the host.

    Files that it names are looked for in `places`: ssh is started elsewhere, also to follow the run. Raises `RefusedError`.
    """
    argv = [connection.get_option("ssh_executable") or "ssh"]
    for option in ("ssh_args", "ssh_common_args", "ssh_extra_args"):
        argv += shlex.split(connection.get_option(option) or "")
    if connection.get_option("host_key_checking") is False:
        argv += ["-o", "StrictHostKeyChecking=no"]  # the user's own setting, as Ansible heeds it
    key = os.path.expanduser(str(connection.get_option("private_key_file") or ""))
    if key and not os.path.isabs(key) and _found(key, places) == key:
        raise RefusedError(f"its key file {key} is neither in {' nor in '.join(places)}")
    options = (("Port", "port"), ("IdentityFile", key), ("User", "remote_user"), ("ConnectTimeout", "timeout"))
    for name, option in options:
        value = option if name == "IdentityFile" else connection.get_option(option)
        if value:
            argv += ["-o", f"{name}={value}"]
    argv.append(str(connection.get_option("host")))
    words = _whole_paths(list(map(str, argv)), places)
    for path in _programs(words):
        found = rule.problem(os.path.expanduser(path), trusted)
        if found:
            raise RefusedError(f"what SSH executes here: {found.message}; {found.hint}")
    folder = os.path.expanduser(str(connection.get_option("control_path_dir")))
    return _shared(words, folder, lambda path: rule.problem(path, trusted, searched=True), rule.make)


class RefusedError(Exception):
    """What the inventory or Ansible's settings ask for is not done."""


_FILES = ("identityfile", "certificatefile", "userknownhostsfile", "globalknownhostsfile", "revokedhostkeys")
"""Options of ssh that name files."""


def _whole_paths(words, places):
    """The words with relative paths of files made whole."""
    found, before = [], ""
    for word in words:
        flag, value = (before, word) if before in ("-i", "-F", "-o") else (word[:2], word[2:])
        start = word[: len(word) - len(value)]
        if flag in ("-i", "-F") and value:
            value = _found(value, places)
        elif flag == "-o":
            name, sign, path = re.match(r"(\w*)(\s*=\s*|\s+|)(.*)", value, re.DOTALL).groups()
            if name.lower() in _FILES:
                value = name + sign + " ".join(_found(one, places) for one in path.split(" "))
        found.append(start + value)
        before = word if len(word) == 2 else ""
    return found


def _programs(words):
    """The files of an ssh command that say what is executed here: ssh itself where it is a path, and settings (`-F`)."""
    settings = [word[2:] or following for word, following in zip(words, [*words[1:], ""], strict=True) if word[:2] == "-F"]
    return [word for word in words[:1] if "/" in word] + [path for path in settings if path != "none"]


def _shared(words, folder, problem, make):
    """The words with a socket in that folder, where a connection is to be shared. It is the host to ssh, whoever has made it."""
    if any("ControlPersist" in word for word in words) and not any("controlpath" in word.lower() for word in words):
        import hashlib

        make(folder)
        path = os.path.join(folder, hashlib.sha256("\0".join(words).encode()).hexdigest()[:10])
        words[-1:-1] = ["-o", f"ControlPath={path}"]
    for place in _control_folders(words):
        found = problem(place)
        if found:
            mend = found.hint if place == folder else "name one of your own: -o ControlPath=~/.ssh/cm-%C"
            raise RefusedError(f"the folder of SSH's connections here: {found.message}; {mend}")
    return words


def _control_folders(words):
    """Where the sockets of shared connections are that these words name, as far as no host's name is in it."""
    for before, word in zip(["", *words], words, strict=False):
        text = word if before in ("-o", "-S") else word[2:] if word[:2] in ("-o", "-S") else ""
        value = re.fullmatch(r'\s*ControlPath(?:\s*=\s*|\s+)"?(.+?)"?\s*', text, re.IGNORECASE | re.DOTALL)
        path = value[1] if value else text if "-S" in (before, word[:2]) else ""
        if path not in ("", "none"):
            path = os.path.expandvars(os.path.expanduser(path.replace("%d", "~")))
            yield os.path.dirname(re.split("[%$]", path)[0])


def _found(path, places):
    """The path in the first of these folders that has it; as it is where none does, or it is whole already."""
    whole = [os.path.join(place, path) for place in places if path and not path.startswith(("/", "~", "%", "$"))]
    return next((one for one in whole if os.path.exists(one)), path)
