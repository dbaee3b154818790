"""What the command line costs, against an empty Python and the command lines of torchrun and torchx.

    python benchmarks/cli.py [--rounds 9] [--runs 1000]

`ls` lists as many finished runs as `--runs` says.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import Contender, show, side_by_side

ROOT = Path(__file__).resolve().parent.parent


def make_runs(directory: Path, count: int) -> None:
    """Finished runs as the launcher records them."""
    for number in range(count):
        name = f"train-20250101-{number // 3600:02}{number // 60 % 60:02}{number % 60:02}-aaaa"
        nodes = [{"node_rank": rank, "host": f"gpu-{rank:03}", "workers": 8} for rank in range(4)]
        about = {"backend": "local", "command": ["train.py", "--lr", "3"], "created": 1.0, "cwd": "/", "nodes": "4"}
        result = {"state": "success", "exit_code": 0, "cause": None, "nodes": [{"node": rank} for rank in range(4)]}
        (directory / name).mkdir(parents=True)
        (directory / name / "run.json").write_text(json.dumps({**about, "handle": {}, "plan": {"nodes": nodes}}))
        (directory / name / "result.json").write_text(json.dumps(result))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--no-warm-up", action="store_true", help="count the first round, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        make_runs(Path(scratch, "many"), options.runs)
        make_runs(Path(scratch, "few"), 10)
        Path(scratch, "x.py").write_text("")
        env = {**os.environ, "PYTHONPATH": str(ROOT), "DISTLAUNCH_RUNS_DIR": f"{scratch}/few"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)

        def ours(*args: str, runs: str = "few") -> Contender:
            name = " ".join(["distlaunch", *args]) + (f" ({options.runs} runs)" if runs == "many" else "")
            argv = [sys.executable, "-m", "launcher", *args]
            return Contender(name, argv, {**env, "DISTLAUNCH_RUNS_DIR": f"{scratch}/{runs}"}, scratch)

        contenders = [Contender("python -c pass", [sys.executable, "-c", "pass"], env)]
        contenders += [ours("--help"), ours("ls"), ours("ls", runs="many"), ours("status", "last")]
        contenders += [ours("local", "--dry-run", "x.py")]
        for peer, package in (("torchrun", "torch"), ("torchx", "torchx")):
            path = shutil.which(peer, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
            if path:
                contenders.append(Contender(f"{peer} --help", [path, "--help"], env))
            else:
                print(f"{peer} is not here to compare with; pip install {package}", file=sys.stderr)
        print(show(side_by_side(contenders, rounds=options.rounds, warm=not options.no_warm_up), base=contenders[0].name))


if __name__ == "__main__":
    main()
