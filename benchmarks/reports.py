"""`distlaunch report` of a large run, against `wc -l` of its streams: seconds, memory, and the size of the page.

    python benchmarks/reports.py [--rounds 3] [--nodes 8] [--ranks 64] [--lines 100000] [--hours 24]

Each rank has written `--lines` lines; each node has a sample every 10 s for `--hours`. The page is checked: it has the
cause, every rank's last line, and nothing that a browser would fetch.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import ROOT, Contender, environment, median, paired_ratios, side_by_side, verdict
from benchmarks._recorded import Recorded

LIMIT_S, LIMIT_MB, PAGE_KB = 5.0, 300.0, 500.0


def problem(page: Path, run: Recorded) -> str | None:
    """What is missing in the page."""
    text = page.read_text()
    last = f"step {run.lines_per_rank // 2 - 1} "
    ranks = set(re.findall(r"\[rank (\d+)\] " + last, text))
    if len(ranks) != run.nodes * run.ranks_per_node:
        return f"the last lines of {len(ranks)} ranks are there"
    if fetched := re.findall(r"""(?:src|href)=["'](?!#|data:)[^"']*|@import|url\(""", text):
        return f"it would fetch {fetched[0]}"
    return None if "CUDA out of memory" in text else "the cause is missing"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--hours", type=float, default=24.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        each = options.ranks // options.nodes
        run = Recorded(nodes=options.nodes, ranks_per_node=each, lines_per_rank=options.lines, hours=options.hours)
        root = Path(scratch, "runs")
        run.write(root)
        written = sum(path.stat().st_size for path in root.rglob("stream"))
        page = Path(scratch, "run.html")
        env = {**environment(Path(scratch)), "DISTLAUNCH_RUNS_DIR": str(root)}
        argv = [sys.executable, "-m", "launcher", "report", run.name, "-o", str(page)]
        report = Contender("report", argv, env, str(ROOT), check=lambda _: problem(page, run), limit_s=300)
        streams = Contender("wc", ["wc", "-l", *map(str, sorted(root.rglob("stream")))], env, str(ROOT))
        taken = side_by_side([report, streams], rounds=options.rounds)
        samples = taken["report"]
        print(f"{options.ranks} ranks x {options.lines} lines, {options.hours:g} h: {written / 1e6:.0f} MB")
        print(f"report, wall s: {verdict([one.wall_s for one in samples], at_most=LIMIT_S)}")
        print(f"report, cpu s: {median(samples, 'cpu_s'):.3f}")
        print(f"report / wc -l, wall ratio: {verdict(paired_ratios(samples, taken['wc'], 'wall_s'))}")
        print(f"report, rss MB: {verdict([one.rss_bytes / 1e6 for one in samples], at_most=LIMIT_MB)}")
        print(f"page, KB: {verdict([page.stat().st_size / 1e3], at_most=PAGE_KB)}")


if __name__ == "__main__":
    main()
