"""A worker that records in the directory $SEEN what it was given, and then does what its arguments say, one by one.

`[RANK[.RESTARTS]:]STEP[=VALUE]`: only that rank, only in that round. Other arguments have no effect.
"""

import glob
import json
import os
import select
import signal
import sys
import time

SEEN = os.environ["SEEN"]
RANK = os.environ["RANK"]
ROUND = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
noted = {"argv": sys.argv, "env": dict(os.environ), "cwd": os.getcwd(), "signals": [], "flags": sys.flags.optimize}
noted["pid"] = os.getpid()
noted["began"] = time.time()
noted["unbuffered"] = sys.stdout.write_through
noted["package"] = __package__


def note(**more):
    noted.update(more)
    path = os.path.join(SEEN, f"{ROUND}-{RANK}-{os.getpid()}")
    with open(path + ".new", "w") as file:
        json.dump(noted, file)
    os.replace(path + ".new", path + ".json")


def receive(number, frame):
    noted["signals"].append(signal.Signals(number).name)
    note()


def say(text):
    sys.stdout.write((text or f"out of {RANK}") + "\n")
    sys.stderr.write((text or f"err of {RANK}") + "\n")


def hold(text):
    """Wait for a signal, or for a file of that name."""
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, receive)
    note(ready=True)
    while not noted["signals"] and not (text and os.path.exists(os.path.join(SEEN, text))):
        time.sleep(0.05)


def work(text):
    """Like `hold`, but a signal ends the worker."""
    hold(text)
    if noted["signals"]:
        sys.exit(1)


def meet(text):
    """Wait until that rank is in `hold`, in this round."""
    while not any(
        json.load(open(path)).get("ready") for path in glob.glob(os.path.join(SEEN, f"{ROUND}-{text}-*.json"))
    ):
        time.sleep(0.05)


def see(text):
    """Wait until that rank has recorded something, in this round."""
    while not glob.glob(os.path.join(SEEN, f"{ROUND}-{text}-*.json")):
        time.sleep(0.05)


def read(text):
    note(stdin=sys.stdin.readline() if text == "line" else sys.stdin.read())


def error(text):
    """Write an error file as `record` does."""
    message = {"message": text, "extraInfo": {"py_callstack": "the trace of " + text, "timestamp": "1700000000"}}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump({"message": message}, file)


def await_file(text):
    """Wait for a file of that name, whatever signals come."""
    while not os.path.exists(os.path.join(SEEN, text)):
        time.sleep(0.05)


def fail(text):
    """Fail only the first time, in whichever round that is."""
    path = os.path.join(SEEN, "failed")
    if not os.path.exists(path):
        open(path, "w").close()
        sys.exit(int(text))


STEPS = {
    "say": say,
    "hold": hold,
    "work": work,
    "meet": meet,
    "see": see,
    "read": read,
    "error": error,
    "await": await_file,
    "fail": fail,
    "exit": lambda text: sys.exit(int(text)),
    "kill": lambda text: os.kill(os.getpid(), int(text)),
    "deaf": lambda text: signal.signal(int(text), signal.SIG_IGN),
    "raise": lambda text: (_ for _ in ()).throw(ValueError(text)),
    "note": lambda text: note(**{text: select.select([0], [], [], 0)[0] == [0]}),
}

note()
for argument in sys.argv[1:]:
    whose, _, step = argument.rpartition(":")
    name, _, value = step.partition("=")
    if name in STEPS and whose in ("", RANK, RANK + "." + ROUND):
        STEPS[name](value)
