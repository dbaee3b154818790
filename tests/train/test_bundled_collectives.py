"""collectives.py: every operation checked on real gloo ranks, its bandwidths, its pictures and its lessons."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from comm import pairs

    from tests.train.conftest import Alone, Together

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("count", [2, 3])
def test_every_operation_is_right_at_every_size(ranks: Together, tmp_path: Path, count: int) -> None:
    from comm.operations import OPERATIONS
    from comm.timing import Row

    more = ("--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.svg"), "--limit", "12.5")
    done = ranks(count, "collectives.py", "--ops", "all", "-b", "4", "-e", "256K", "-f", "256", "--iters", "3", *more)

    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "a.json").read_text())
    rows = [Row(**row) for row in told["rows"]]
    assert {row.operation for row in rows} == set(OPERATIONS)
    assert {row.wrong for row in rows} == {0}
    assert all(sum(row.operation == name for row in rows) == 3 for name in OPERATIONS), "4 bytes, 1 KiB, 256 KiB"
    for row in rows:
        assert row.algbw == pytest.approx(row.size_bytes / row.time_s / 1e9)
        assert row.busbw == pytest.approx(row.algbw * OPERATIONS[row.operation].factor(count))
    assert (told["ranks"], told["hosts"], told["backend"]) == (count, 1, "gloo")
    assert done.outs[1:] == [""] * (count - 1)
    picture = ET.parse(tmp_path / "a.svg").getroot()
    assert len(picture.findall("{*}polyline")) == len(OPERATIONS)
    assert any("12.5: given" in (text.text or "") for text in picture.iter("{http://www.w3.org/2000/svg}text"))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 500])
def test_what_is_expected_is_computed_without_a_pass_over_the_buffers_for_each_rank(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from comm import operations

    values, passes = operations._values, []

    def counted(rank: int, places: torch.Tensor) -> torch.Tensor:
        passes.append(len(places))
        return values(rank, places)

    monkeypatch.setattr(operations, "_values", counted)
    size, last = 3 * count, count - 1
    source = [operations.pattern(rank, size, torch.zeros(1)) for rank in range(count)]
    whole, part = torch.zeros(size), torch.zeros(3)

    def expected(name: str, target: torch.Tensor) -> list[float]:
        passes.clear()
        found = operations.OPERATIONS[name].expected(operations.Buffers(source[last], target, last, count))
        assert found is not None
        assert sum(passes) <= 2 * size
        return found.tolist()

    total = torch.stack(source).sum(0)
    assert expected("all_reduce", whole) == total.tolist()
    assert expected("reduce_scatter", part) == total[-3:].tolist()
    assert expected("all_to_all", whole) == torch.cat([one[-3:] for one in source]).tolist()


@pytest.mark.parametrize("dtype", ["bfloat16", "int64", "uint8"])
def test_other_types_are_checked_exactly(ranks: Together, dtype: str) -> None:
    done = ranks(2, "collectives.py", "--dtype", dtype, "--iters", "2", "-b", "64", "-e", "64")

    assert done.returncode == 0, done.stderr
    assert re.search(rf"all_reduce +64 +\d+ +{dtype} .* 0$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "uint8"])
def test_sums_of_hundreds_of_ranks_are_exact_in_any_order(dtype: str) -> None:
    import torch
    from comm.operations import DTYPES, OPERATIONS, Buffers, pattern

    target = torch.zeros(6, dtype=DTYPES[dtype])
    for third in range(3):  # the worst order: what is alike first
        for rank in range(third, 750, 3):
            target += pattern(rank, 6, target)

    expected = OPERATIONS["all_reduce"].expected(Buffers(target, target, 0, 750))
    assert expected is not None
    assert expected.tolist() == target.tolist()
    sums = [OPERATIONS["all_reduce"].expected(Buffers(target, target, 0, count)) for count in range(1, 10)]
    assert all(found is not None and bool(found.all()) for found in sums), "no sum is what memory may hold by itself"


def test_a_wrong_result_is_counted_and_fails(ranks: Together, tmp_path: Path, scripts: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(
        f"import sys; sys.path.insert(0, {str(scripts)!r})\n"
        "import torch.distributed as dist, collectives\n"
        "from dataclasses import replace\n"
        "whole = collectives.OPERATIONS['all_reduce']\n"
        "def run(buffers):\n"
        "    whole.run(buffers)\n"
        "    if buffers.rank == 1: buffers.target[3] += 1\n"
        "collectives.OPERATIONS['all_reduce'] = replace(whole, run=run)\n"
        "sys.exit(collectives.main())\n"
    )
    done = ranks(2, str(broken), "--iters", "1", "-b", "64", "-e", "64")

    assert done.returncode == 1
    assert "1 elements were wrong" in done.stdout


def test_the_time_of_pairs_is_that_of_ranks_in_a_pair(ranks: Together, tmp_path: Path, scripts: Path) -> None:
    """Each run takes 2 s, and with no partner 1 s."""
    timed = tmp_path / "timed.py"
    timed.write_text(
        f"import sys; sys.path.insert(0, {str(scripts)!r})\n"
        "import collectives, comm.timing\n"
        "comm.timing.seconds_of = lambda operation, buffers, *_: 1.0 if buffers.rank == 2 else 2.0\n"
        "sys.exit(collectives.main())\n"
    )
    ops = ("--ops", "send_recv,isend_irecv", "-b", "64", "-e", "64", "--json", str(tmp_path / "a.json"))
    done = ranks(3, str(timed), *ops)

    assert done.returncode == 0, done.stderr
    assert [row["time_s"] for row in json.loads((tmp_path / "a.json").read_text())["rows"]] == [2.0, 2.0]


def test_all_lessons_hold(ranks: Together) -> None:
    done = ranks(3, "collectives.py", "--lesson", "all")

    assert done.returncode == 0, done.stderr + done.stdout
    assert "4 steps gave what all_reduce gives; each rank sent 4000 of 3000 elements" in done.stdout
    assert "DDP is backward + all_reduce / n" in done.stdout
    assert "wrong" not in done.stdout


def test_every_pair_of_ranks_is_measured(ranks: Together, tmp_path: Path) -> None:
    done = ranks(
        3, "collectives.py", "--pairs", str(tmp_path / "p.svg"), "-e", "64K", "--json", str(tmp_path / "p.json")
    )

    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "p.json").read_text())
    for matrix in (told["latency_s"], told["gbytes_per_s"]):
        assert all((matrix[a][b] > 0) == (a != b) and matrix[a][b] == matrix[b][a] for a in range(3) for b in range(3))
    assert len(ET.parse(tmp_path / "p.svg").getroot().findall("{*}rect")) == 1 + 2 * 9


def test_pictures_are_drawn_as_png(alone: Alone, tmp_path: Path) -> None:
    import matplotlib.image
    from comm import links, pairs, png
    from comm.timing import Row

    done = alone("collectives.py", "-b", "64", "-e", "256", "--iters", "1", "--plot", str(tmp_path / "alone.png"))
    rows = [Row("all_reduce", size, size // 4, "float32", 3, 1e-4, size / 1e5, size / 1e5, 0) for size in (64, 4096)]
    png.plot(str(tmp_path / "plot.png"), rows, links.Limit(9.0, "given"), "two ranks")
    png.heat_map(
        str(tmp_path / "pairs.png"), pairs.Matrix(["n1", "n2"], [[0, 1e-5], [1e-5, 0]], [[0, 2], [2, 0]]), "two"
    )

    assert done.returncode == 0, done.stderr
    for name in ("alone.png", "plot.png", "pairs.png"):
        assert min(matplotlib.image.imread(tmp_path / name).shape[:2]) > 300


def test_alone_it_is_a_world_of_one(alone: Alone) -> None:
    done = alone("collectives.py", "--ops", "all", "-b", "8", "-e", "8", "--iters", "1")

    assert done.returncode == 0, done.stderr
    assert "1 ranks on 1 host over gloo" in done.stdout
    refused = [line.split()[0] for line in done.stdout.splitlines() if "of one rank is not supported" in line]
    assert refused == ["send_recv", "isend_irecv", "ring_send_recv", "ring_isend_irecv"]
    assert alone("collectives.py", "--lesson", "ping-pong").stderr.endswith("start with --nproc-per-node 2\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--ops", "all_reduce,scatter"), "unknown: scatter; known: all_reduce, broadcast"),
        (("-e", "12Q"), "'12Q' is not a size; write 8, 64K, 16M or 1G"),
        (("-b", "1M", "-e", "8"), "--min-size 1048576 is above --max-size 8"),
        (("--plot", "a.pdf"), "pictures are SVG or PNG"),
        (("--json", "/nowhere/a.json"), "there is no directory '/nowhere'"),
        (("--backend", "mpi"), "built without MPI"),
        (("--backend", "nccl"), "has no GPU of its own"),
    ],
)
def test_wrong_input_is_one_line(alone: Alone, args: tuple[str, ...], message: str) -> None:
    done = alone("collectives.py", *args)

    assert done.returncode in (1, 2)
    assert message in done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("ranks", [2, 3, 8, 9])
def test_in_a_tournament_all_pairs_meet_once_and_no_rank_plays_twice_at_a_time(ranks: int) -> None:
    from comm import pairs

    played = pairs.rounds(ranks)

    assert sorted(pair for pairs_ in played for pair in pairs_) == [
        (a, b) for a in range(ranks) for b in range(a + 1, ranks)
    ]
    assert all(len({rank for pair in pairs_ for rank in pair}) == 2 * len(pairs_) for pairs_ in played)


def test_slow_links_and_hosts_are_found_by_comparing() -> None:
    from comm import heat_map, pairs

    names = [f"n{number}" for number in range(5)]

    def matrix(rate: dict[tuple[int, int], float]) -> pairs.Matrix:
        rates = [[0.0 if a == b else rate.get((min(a, b), max(a, b)), 10.0) for b in range(5)] for a in range(5)]
        return pairs.Matrix(names, [[1e-5] * 5 for _ in range(5)], rates)

    assert matrix({}).slow() == []
    link = matrix({(1, 3): 2.0})
    assert (link.slow(), link.slow_ranks()) == ([(1, 3, 0.2)], [])
    host = matrix({(0, 2): 1.0, (1, 2): 1.0, (2, 3): 1.0, (2, 4): 1.0})
    assert host.slow_ranks() == [2]
    assert "n2 - n3: 1</title>" in heat_map.svg(host, "test")
    assert len(heat_map.terminal(host).splitlines()) == 15


def test_the_limit_line_is_that_of_what_the_backend_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from comm import links

    files = {f"infiniband/mlx5_{at}/ports/1/rate": "400 Gb/sec (4X NDR)" for at in range(3)}
    files |= {f"infiniband/mlx5_{at}/ports/1/state": "1: DOWN" if at == 2 else "4: ACTIVE" for at in range(3)}
    files |= {"net/eth0/speed": "25000", "net/eth0/device/vendor": "0x15b3", "net/veth0/speed": "10000"}
    files |= {"net/bond0/speed": "50000", "net/bond0/lower_eth0/mtu": "1500"}
    files |= {"net/bond0.7/speed": "50000", "net/bond0.7/lower_bond0/mtu": "1500"}
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")
    monkeypatch.setattr(links, "SYS", str(tmp_path))

    def limit(backend: str, interface: str) -> links.Limit | None:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
        return links.limit(torch.device("cpu"), backend, spans_hosts=True)

    assert limit("nccl", "eth0") == links.Limit(100.0, "2 x 400 Gb/s RDMA")
    assert limit("gloo", "eth0") == links.Limit(3.125, "eth0, 25 Gb/s")
    assert limit("gloo", "bond0") == links.Limit(6.25, "bond0, 50 Gb/s")
    assert limit("gloo", "bond0.7") == links.Limit(6.25, "bond0.7, 50 Gb/s")
    assert limit("gloo", "veth0") is None
