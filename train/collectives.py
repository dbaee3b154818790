"""Measures collectives and point-to-point operations, checks every result, and shows what bounds them.

    torchrun --nproc-per-node 4 collectives.py --max-size 64M --plot busbw.svg
    torchrun --nproc-per-node 4 collectives.py --pairs pairs.svg
    torchrun --nproc-per-node 4 collectives.py --lesson ring-all-reduce

Time, algbw and busbw are defined as in nccl-tests, so that they can be compared with those of other tools. The exit
status is 1 if a result was wrong. Runs over NCCL on GPUs, over gloo elsewhere or with --backend gloo, and over MPI
with --backend mpi if torch was built with it. Needs only torch.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from comm import heat_map, links, pairs, show
from comm.leave import leave
from comm.lessons import LESSONS
from comm.operations import DTYPES, OPERATIONS
from comm.timing import Manner, Row, measure

if TYPE_CHECKING:
    from datetime import timedelta

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size(text: str) -> int:
    """Bytes in `8`, `64K`, `16M`, `1G` (powers of 1024)."""
    match = re.fullmatch(r"(\d+)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 8, 64K, 16M or 1G")
    return int(match[1]) * _UNITS[match[2].upper()]


def names(known: Any) -> Any:
    """A parser for a comma-separated list of names, or `all`."""

    def parse(text: str) -> list[str]:
        given = list(known) if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
        unknown = [name for name in given if name not in known]
        if unknown or not given:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown) or 'nothing'}; known: {', '.join(known)}")
        return given

    return parse


def options(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="collectives.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ops", type=names(OPERATIONS), default=["all_reduce"], help="all_reduce,broadcast,... or all")
    parser.add_argument("--backend", choices=("auto", "nccl", "gloo", "mpi"), default="auto")
    parser.add_argument("-b", "--min-size", dest="min", type=size, default=8, metavar="SIZE")
    parser.add_argument("-e", "--max-size", dest="max", type=size, default=16 << 20, metavar="SIZE")
    parser.add_argument("-f", "--factor", type=int, default=4, help="between one size and the next")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="float32")
    parser.add_argument("--iters", type=int, default=0, help="0: as many as fit into --seconds")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each line")
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--no-check", action="store_true", help="do not check the results")
    parser.add_argument(
        "--limit", type=float, metavar="GB/s", help="draw the limit here, instead of where the facts say"
    )
    parser.add_argument("--json", metavar="FILE", help="all rows as JSON")
    parser.add_argument("--plot", metavar="FILE", help="busbw over size, as .svg, or as .png by matplotlib")
    parser.add_argument(
        "--pairs", metavar="FILE", nargs="?", const="", help="bandwidth and latency of every pair of ranks"
    )
    parser.add_argument("--lesson", type=names(LESSONS), metavar="NAME", help=f"{', '.join(LESSONS)}, or all")
    chosen = parser.parse_args(argv)
    for name in ("plot", "pairs"):
        path = getattr(chosen, name)
        if path and not path.endswith((".svg", ".png")):
            parser.error(f"--{name} {path}: pictures are SVG or PNG; name a file that ends in .svg or .png")
        if path and path.endswith(".png") and importlib.util.find_spec("matplotlib") is None:
            parser.error(
                f"--{name} {path}: PNG needs matplotlib (pip install matplotlib); name a file that ends in .svg"
            )
    for path in (chosen.json, chosen.plot, chosen.pairs):
        if path and not os.path.isdir(os.path.dirname(path) or "."):
            parser.error(f"{path}: there is no directory {os.path.dirname(path)!r}")
    if chosen.min > chosen.max:
        parser.error(f"--min-size {chosen.min} is above --max-size {chosen.max}")
    if chosen.factor < 2:
        parser.error(f"--factor {chosen.factor}: at least 2")
    return chosen


def join(backend: str, store: Any = None, timeout: timedelta | None = None) -> torch.device:
    """Join torchrun's process group, or create one for this process alone; return the device of this rank's buffers.

    A `store` that all ranks already share is used instead of a new one.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if backend == "auto":
        backend = "nccl" if torch.cuda.is_available() else "gloo"
    if backend == "mpi" and not dist.is_mpi_available():
        raise SystemExit("collectives.py: error: this torch was built without MPI; use --backend gloo or nccl")
    if backend == "nccl" and local_rank >= torch.cuda.device_count():
        have = torch.cuda.device_count()
        raise SystemExit(
            f"collectives.py: error: local rank {local_rank} has no GPU of its own: the host shows {have}; "
            "use --backend gloo"
        )
    device = torch.device("cuda", local_rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    launched = "RANK" in os.environ or backend == "mpi"
    if not launched:
        store = dist.HashStore()  # type: ignore[attr-defined]  # public, but missing from torch's exports
    alone = {"RANK": "0", "WORLD_SIZE": "1"}
    dist.init_process_group(
        backend,
        store=store,
        rank=-1 if store is None else int({**alone, **os.environ}["RANK"]),
        world_size=-1 if store is None else int({**alone, **os.environ}["WORLD_SIZE"]),
        timeout=timeout,
        device_id=device if backend == "nccl" else None,
    )
    return device


def say(text: str) -> None:
    """Print a line on rank 0."""
    if dist.get_rank() == 0:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def write(path: str, text: str) -> None:
    """Write a file on rank 0."""
    if dist.get_rank() == 0:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        say(f"wrote {path}")


def draw(path: str, what: str, *about: Any) -> None:
    """Draw a `plot` or a `heat_map` on rank 0, in the format of the file's suffix."""
    if not path.endswith(".png"):
        write(path, heat_map.svg(*about) if what == "heat_map" else show.plot(*about))
    elif dist.get_rank() == 0:
        from comm import png  # matplotlib takes a second to import

        getattr(png, what)(path, *about)
        say(f"wrote {path}")


def main() -> int:
    """Measure, print and check; return the exit status."""
    chosen = options()
    device = join(chosen.backend)
    try:
        if chosen.lesson:
            return learn(chosen.lesson, device)
        where = links.hosts()
        return pair_up(chosen, device, where) if chosen.pairs is not None else table(chosen, device, where)
    finally:
        if sys.exc_info()[0] is None:  # else peers may have exited, and destroying the group could wait for them
            leave()


def learn(lessons: list[str], device: torch.device) -> int:
    """Run lessons; return 1 if one fails."""
    for name in lessons:
        say(f"{name}: {LESSONS[name].__doc__}")
        if name == "ping-pong" and dist.get_world_size() < 2:
            raise SystemExit("collectives.py: error: ping-pong takes two ranks; start with --nproc-per-node 2")
        try:
            for text in LESSONS[name](device):
                say(f"  {text}")
        except AssertionError as error:
            say(f"  wrong: {error}")
            return 1
    return 0


def pair_up(chosen: argparse.Namespace, device: torch.device, where: list[str]) -> int:
    """Measure and show the matrix of all pairs."""
    many = len(set(where)) < len(where)
    labels = [f"{host.split()[0]}:{rank}" if many else host.split()[0] for rank, host in enumerate(where)]
    matrix = pairs.measure(device, labels, size_bytes=min(chosen.max, 4 << 20))
    for text in heat_map.terminal(matrix).splitlines():
        say(text)
    for rank in matrix.slow_ranks():
        say(f"slow: {labels[rank]}, with most others")
    for one, other, part in matrix.slow()[:10]:
        say(f"slow: {labels[one]} - {labels[other]}, {part:.0%} of the median")
    if chosen.json:
        write(
            chosen.json,
            json.dumps({"names": labels, "latency_s": matrix.latency_s, "gbytes_per_s": matrix.gbytes_per_s}),
        )
    if chosen.pairs:
        draw(chosen.pairs, "heat_map", matrix, f"{len(labels)} ranks over {dist.get_backend()}")
    return 0


def table(chosen: argparse.Namespace, device: torch.device, where: list[str]) -> int:
    """Measure and print the time over size of each operation."""
    manner = Manner(device, chosen.dtype, chosen.warmup, chosen.iters, chosen.seconds, not chosen.no_check)
    ranks, backend = dist.get_world_size(), dist.get_backend()
    title = f"{ranks} ranks on {len(set(where))} host{'s' * (len(set(where)) > 1)} over {backend}"
    limit = links.Limit(chosen.limit, "given") if chosen.limit else links.limit(device, backend, len(set(where)) > 1)
    say(
        f"# {title}, torch {torch.__version__}"
        + (f"; limit {limit.gbytes_per_s:g} GB/s ({limit.what})" if limit else "")
    )
    say(show.HEAD)
    rows: list[Row] = []
    for name in chosen.ops:
        at = chosen.min
        while at <= chosen.max:
            try:
                row = measure(OPERATIONS[name], at, manner)
            except (RuntimeError, NotImplementedError) as error:
                if "support" not in str(error).lower() and "implement" not in str(error).lower():
                    raise
                say(f"{name:<17}not with {backend}: {str(error).splitlines()[0]}")
                break
            rows.append(row)
            say(show.line(row))
            at *= chosen.factor
    wrong = sum(row.wrong or 0 for row in rows)
    if wrong:
        say(f"{wrong} elements were wrong")
    about = {
        "ranks": ranks,
        "hosts": len(set(where)),
        "backend": str(backend),
        "torch": str(torch.__version__),
        "limit": limit,
    }
    if chosen.json:
        write(chosen.json, json.dumps({**about, "rows": [row.to_json() for row in rows]}, indent=1) + "\n")
    if chosen.plot and rows:
        draw(chosen.plot, "plot", rows, limit, title)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
