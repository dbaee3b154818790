"""GPUs of NVIDIA in samples: real agents with a library in NVML's place, also one that fails, hangs, or is old."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.fabric import discovery
from launcher.runs import directories, samples
from testbed import wait_until
from tests.fabric import hosts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from launcher.runs.samples import GpuSample
    from tests.command import Cli

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="the library is built with gcc")

GIB = 1 << 30
UUIDS = ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-89fe1c5a-0b1e-9a35-6bf1-6b6ac2a5e1d0")
MIG = "MIG-4c3e2a1b-5f60-5d3c-9c1e-1f2e3d4c5b6a"
WAITS = """
import os, time
while not os.path.exists("go"):
    time.sleep(0.05)
"""
LOST = 15


def build(directory: Path, *flags: str) -> Path:
    """Compile the library; returns its directory."""
    directory.mkdir()
    source = Path(__file__).with_name("nvml_stub.c")
    argv = ["gcc", "-shared", "-fPIC", *flags, "-o", str(directory / "libnvidia-ml.so.1"), str(source)]
    subprocess.run(argv, check=True, timeout=60)
    return directory


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The library, and one of an old driver."""
    at = tmp_path_factory.mktemp("nvml")
    return {"new": build(at / "new"), "old": build(at / "old", "-DOLD")}


@dataclass
class Gpus:
    """The GPUs of this machine, as its library tells them, and a run there."""

    cli: Cli
    library: Path

    @property
    def directory(self) -> Path:
        """Where the library looks."""
        return self.cli.directory / "stub"

    def env(self, **more: str) -> dict[str, str | None]:
        """Programs with these variables find the library."""
        return {"LD_LIBRARY_PATH": str(self.library), "NVML_STUB": str(self.directory), **more}

    def are(self, *lines: Sequence[object]) -> None:
        """Give the GPUs these values: UUID, use, MiB in use, all MiB, milliwatts, and the code of every call."""
        self.directory.mkdir(exist_ok=True)
        text = "".join(" ".join(map(str, (*line, 0)[:6])) + "\n" for line in lines)
        (self.directory / "new").write_text(text)
        (self.directory / "new").replace(self.directory / "gpus")

    def hang(self) -> None:
        """No call returns from now on."""
        (self.directory / "hang").touch()

    def answer(self) -> None:
        """Calls return again."""
        (self.directory / "hang").unlink(missing_ok=True)

    def start(self, *options: str, **env: str) -> None:
        """Start a run that is sampled each second."""
        self.cli.write("waits.py", WAITS)
        how = ("--detach", "--samples", "1", *options, "waits.py")
        done = self.cli("local", *how, env=self.env(**env), real=True)
        assert done.exit_code == 0, done.stderr

    def samples(self) -> list[samples.NodeSample]:
        """The run's samples so far."""
        return samples.of_node(directories.find(self.cli.runs, "last"), 0)

    def until(self, met: Callable[[tuple[GpuSample, ...]], object]) -> tuple[GpuSample, ...]:
        """Wait until the last sample has that."""
        wait_until("such a sample", lambda: (now := self.samples()) and met(now[-1].gpus))
        return self.samples()[-1].gpus

    def warnings(self) -> str:
        """What the agent has warned of."""
        return "".join(path.read_text() for path in self.cli.runs.glob("*/nodes/0/stream"))


@pytest.fixture
def gpus(distlaunch: Cli, libraries: dict[str, Path]) -> Iterator[Gpus]:
    """Two GPUs; what was started ends with the test."""
    made = Gpus(distlaunch, libraries["new"])
    made.are((UUIDS[0], 90, 1024, 81920, 300_400), (UUIDS[1], 10, 512, 81920, 80_000))
    yield made
    made.answer()
    distlaunch.write("go", "")
    if distlaunch.runs.exists():
        distlaunch("wait", "last")


def both(found: tuple[GpuSample, ...]) -> bool:
    return len(found) == 2


def test_use_memory_and_power_are_in_samples_top_metrics_and_the_report(gpus: Gpus) -> None:
    """`--nproc-per-node auto` starts a worker for each."""
    gpus.start()
    first, second = gpus.until(both)
    gpus.until(lambda _: len(gpus.samples()) >= 3)
    top = gpus.cli("top", "last", "--output", "json").json["result"]
    metrics = gpus.cli("metrics", "last").stdout
    report = gpus.cli("report", "last", "--format", "json").stdout

    assert (first.use, first.memory_bytes, first.memory_total_bytes, first.power_w) == (90, GIB, 80 * GIB, 300)
    assert (second.use, second.power_w) == (10, 80)
    assert [rank["gpu"] for rank in sorted(top["ranks"], key=lambda rank: rank["rank"])] == [90, 10]
    node: dict[str, Any] = top["nodes"][0]
    assert (node["gpu"], node["gpu_memory_bytes"], node["power_w"]) == (50, 1536 << 20, 380)
    watts = [line for line in metrics.splitlines() if line.startswith("distlaunch_gpu_power_watts{")]
    assert [line.rpartition(" ")[2] for line in watts] == ["300.0", "80.0"]
    assert all(name in report for name in ('"gpu_memory"', '"gpu_power"', '"GPU use"'))


@pytest.mark.parametrize(
    ("visible", "uses"),
    [
        ("1", [10]),
        ("1,0", [10, 90]),
        (UUIDS[1], [10]),
        (UUIDS[1][:8], [10]),
        ("GPU-89", []),
        (f"{UUIDS[1]},GPU-none,0", [10]),
        (f"{MIG},0", [None, 90]),
        ("", []),
    ],
    ids=["index", "order", "uuid", "short", "ambiguous", "unknown", "mig", "none"],
)
def test_those_that_workers_see_are_read_in_the_order_of_their_device_numbers(
    gpus: Gpus, visible: str, uses: list[int | None]
) -> None:
    gpus.are((UUIDS[0], 90, 1024, 81920, 300_000), (UUIDS[1], 10, 512, 81920, 80_000), (MIG, 55, 128, 9728, 70_000))
    gpus.start("--nproc-per-node", "1", CUDA_VISIBLE_DEVICES=visible)
    gpus.until(lambda _: gpus.samples()[-1].ranks)

    found = gpus.samples()[-1].gpus
    assert [gpu.use for gpu in found] == uses
    if visible.startswith("MIG-"):
        assert (found[0].memory_bytes, found[0].memory_total_bytes, found[0].power_w) == (128 << 20, 9728 << 20, None)


def test_a_mig_instance_is_near_what_the_gpu_is_near_that_it_is_a_part_of(gpus: Gpus, tmp_path: Path) -> None:
    host = hosts.dgx_h100(tmp_path / "host")
    gpus.are(*((gpu.uuid, 0, 0, 81920, 0) for gpu in discovery.read(host.tree()).gpus), (MIG, 0, 0, 9728, 0))
    asks = "from launcher.agent.fabric import placement, sources; import sys; tree = sources.Tree(sys.argv[1])"
    shows = f"{asks}; print(placement.near_ports(1, ['{MIG}'], {{}}, tree)[0]['NCCL_IB_HCA'])"
    env = gpus.cli.env(gpus.env())

    done = subprocess.run([sys.executable, "-c", shows, str(host.root)], env=env, capture_output=True, check=True)

    assert done.stdout == b"=mlx5_11:1\n"


@pytest.mark.parametrize(("options", "workers"), [((), 1), (("--virtual-local-rank",), 2)], ids=["seen", "apart"])
def test_a_run_has_as_many_workers_as_have_a_mig_instance(gpus: Gpus, options: tuple[str, ...], workers: int) -> None:
    gpus.cli.write("shows.py", "import os\nprint(os.environ['LOCAL_WORLD_SIZE'], os.environ['CUDA_VISIBLE_DEVICES'])\n")
    env = gpus.env(CUDA_VISIBLE_DEVICES=f"{MIG},{MIG}x")

    done = gpus.cli("local", "--log-ranks", "all", *options, "shows.py", env=env, real=True)

    assert done.exit_code == 0, done.stderr
    assert done.stdout.count(f"{workers} MIG-") == workers


def test_a_gpu_that_is_lost_is_named_once_and_the_others_are_read(gpus: Gpus) -> None:
    gpus.start("--nproc-per-node", "2")
    gpus.until(both)
    gpus.are((UUIDS[0], 90, 1024, 81920, 300_400), (UUIDS[1], 10, 512, 81920, 80_000, LOST))
    first, lost = gpus.until(lambda found: found[1].use is None)
    gpus.until(lambda _: gpus.warnings().count("GPU 1 is lost"))
    count = len(gpus.samples())
    gpus.until(lambda _: len(gpus.samples()) > count + 1)

    assert (first.use, lost.memory_bytes, lost.power_w) == (90, None, None)
    assert gpus.warnings().count("GPU 1 is lost") == 1


def test_a_gpu_that_was_lost_before_keeps_its_place(gpus: Gpus) -> None:
    gpus.are((UUIDS[0], 90, 1024, 81920, 300_400, LOST), (UUIDS[1], 10, 512, 81920, 80_000))
    gpus.start("--nproc-per-node", "2")

    assert [gpu.use for gpu in gpus.until(both)] == [None, 10]


def test_calls_that_fail_leave_the_rest_of_a_sample(gpus: Gpus) -> None:
    gpus.are((UUIDS[0], 90, 1024, 81920, 300_400, 999), (UUIDS[1], 10, 512, 81920, 80_000, 4))
    gpus.start("--nproc-per-node", "2")
    gpus.until(lambda _: len(gpus.samples()) > 1)

    assert gpus.samples()[-1].gpus == ()
    assert gpus.samples()[-1].cpu is not None
    assert '"event":"warning"' not in gpus.warnings()


def test_the_library_of_an_old_driver_lacks_functions(gpus: Gpus, libraries: dict[str, Path]) -> None:
    gpus.library = libraries["old"]
    gpus.start()
    first, second = gpus.until(both)

    assert (first.use, first.memory_bytes, first.power_w) == (90, GIB, None)
    assert second.use == 10
    assert len(gpus.samples()[-1].ranks) == 2


def test_while_the_driver_hangs_samples_have_the_rest_and_then_its_gpus_again(gpus: Gpus) -> None:
    gpus.start("--nproc-per-node", "2")
    gpus.until(both)
    gpus.hang()
    gpus.until(lambda found: not found)
    gpus.until(lambda _: "the driver of the GPUs does not answer" in gpus.warnings())
    assert {rank.state for rank in gpus.samples()[-1].ranks} <= {"S", "R"}
    gpus.answer()

    assert [gpu.use for gpu in gpus.until(both)] == [90, 10]


def test_a_run_ends_while_the_driver_hangs(gpus: Gpus) -> None:
    gpus.start("--nproc-per-node", "2")
    gpus.until(both)
    gpus.hang()
    gpus.until(lambda found: not found)
    gpus.cli.write("go", "")

    assert gpus.cli("wait", "last").exit_code == 0


@pytest.mark.slow
def test_a_driver_that_never_answers_ends_a_start_that_needs_its_count_and_no_other(gpus: Gpus) -> None:
    gpus.hang()
    gpus.cli.write("waits.py", WAITS)
    gpus.cli.write("go", "")
    auto = gpus.cli("local", "--nproc-per-node", "auto", "waits.py", env=gpus.env(), real=True)
    told = gpus.cli("local", "--nproc-per-node", "1", "waits.py", env=gpus.env(), real=True)

    assert auto.exit_code == 3
    assert "the driver of NVIDIA's GPUs does not answer within 30 s" in auto.stderr
    assert told.exit_code == 0, told.stderr
    assert len(os.listdir(gpus.cli.runs)) == 1


@pytest.mark.slow
def test_a_driver_that_never_answers_is_the_cause_if_workers_are_placed_by_their_gpus(gpus: Gpus) -> None:
    gpus.hang()
    gpus.cli.write("waits.py", WAITS)
    words = ("--nproc-per-node", "1", "--numa-binding", "node", "--output", "json")

    cause = gpus.cli("local", *words, "waits.py", env=gpus.env(), real=True).json["result"]["cause"]

    assert cause["class"] == "node"
    assert cause["message"] == "the driver of NVIDIA's GPUs does not answer within 30 s: see dmesg"
