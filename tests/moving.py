"""A script that is moved from one cluster to another, and what it must have printed."""

from __future__ import annotations

STEPS = """
import os, signal, sys, time
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
done = 0
state = "out/state-" + os.environ["RANK"]
if os.path.exists(state):
    with open(state) as file:
        done = int(file.read())
print("begins after", done, "attempt", os.environ.get("DISTLAUNCH_ATTEMPT", "0"), flush=True)
while done < int(sys.argv[1]):
    time.sleep(0.1)
    done += 1
    print("step", done, flush=True)
    if stop:
        os.makedirs("out", exist_ok=True)
        with open(state, "w") as file:
            file.write(str(done))
        sys.exit(143)
"""
"""Goes on after the step that its checkpoint names, which it writes when it is stopped."""


def went_on(text: str, steps: int, attempts: int) -> None:
    """Rank 0 has made each step once, in that many attempts, each of which began where the last one had stopped."""
    lines = [line.partition("] ")[2] for line in text.splitlines() if line.startswith("[0:0] ")]
    begun = [line.split() for line in lines if line.startswith("begins")]
    assert [words[-1] for words in begun] == [str(number) for number in range(attempts)], text
    assert begun[0][2] == "0", text
    assert all(0 < int(words[2]) < steps for words in begun[1:]), text
    assert [line for line in lines if line.startswith("step")] == [f"step {number + 1}" for number in range(steps)]
