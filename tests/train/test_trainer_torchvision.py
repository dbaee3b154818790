"""torchvision's data sets that ranks download or unpack: one does it, and the others wait for it."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.train.conftest import Together

pytestmark = pytest.mark.torch

DRIVER = """
import sys; sys.path.insert(0, {scripts!r})
import train
from torchvision import datasets
from torchvision.datasets import imagenet, mnist

def logged(module, name):
    def call(*args, inner=getattr(module, name), **more):
        with open({log!r}, "a") as log:
            log.write(name + "\\n")
        inner(*args, **more)
    setattr(module, name, call)

logged(mnist, "download_and_extract_archive")
logged(imagenet, "parse_devkit_archive")
logged(imagenet, "parse_train_archive")
{change}
sys.exit(train.main())
"""
"""train.py, and a line in a log for each archive that a rank fetches or unpacks."""


class Handler(SimpleHTTPRequestHandler):
    """Serves files, and does not print that."""

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    """The address of MNIST in small, as its servers have it; the files are in `mirror`."""
    (tmp_path / "mirror").mkdir()
    for part, count in (("train", 20), ("t10k", 10)):
        pixels = np.random.default_rng(0).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        images = np.array([0x0803, *pixels.shape], ">u4").tobytes() + pixels.tobytes()
        labels = np.array([0x0801, count], ">u4").tobytes() + bytes(number % 10 for number in range(count))
        for name, blob in ((f"{part}-images-idx3", images), (f"{part}-labels-idx1", labels)):
            (tmp_path / f"mirror/{name}-ubyte.gz").write_bytes(gzip.compress(blob))
    handler = partial(Handler, directory=str(tmp_path / "mirror"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture
def driver(scripts: Path, tmp_path: Path) -> Any:
    def write(change: str) -> Path:
        path = tmp_path / "driver.py"
        path.write_text(DRIVER.format(scripts=str(scripts), log=str(tmp_path / "log"), change=change))
        return path

    return write


def test_what_all_ranks_need_is_downloaded_once(mirror: str, ranks: Together, driver: Any, tmp_path: Path) -> None:
    files = [(path.name, md5(path)) for path in (tmp_path / "mirror").iterdir()]
    script = driver(f"datasets.MNIST.mirrors, datasets.MNIST.resources = [{mirror!r}], {files}")
    flags = ("--data", "mnist", "--data-dir", str(tmp_path / "new/data"), "--epochs", "1", "--batch-size", "4")

    refused = ranks(2, script, *flags, watched=False)
    done = ranks(2, script, *flags, "--download", env={"no_proxy": "*"})

    assert refused.codes == [2, 2]
    assert "add --download, or set --data-dir" in refused.errs[0]
    assert done.codes == [0, 0], done.stderr
    assert "20 training and 10 test samples" in done.stdout
    assert (tmp_path / "log").read_text() == "download_and_extract_archive\n" * 4, "each file once"


def test_imagenets_archives_are_unpacked_once(ranks: Together, driver: Any, tmp_path: Path) -> None:
    root = tmp_path / "imagenet"
    root.mkdir()
    archives = {"train": train_archive(root), "val": val_archive(root), "devkit": devkit(root)}
    about = {kind: (path.name, md5(path)) for kind, path in archives.items()}
    script = driver(f"imagenet.ARCHIVE_META.update({about})")
    flags = ("--data", "imagenet", "--data-dir", str(root), "--model", "small", "--image-shape", "3x32x32")

    done = ranks(2, script, *flags, "--epochs", "1", "--batch-size", "4")

    assert done.codes == [0, 0], done.stderr
    assert "40 training and 4 test samples" in done.stdout
    assert (tmp_path / "log").read_text() == "parse_devkit_archive\nparse_train_archive\n"


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def photograph(number: int) -> bytes:
    import torch
    from torchvision.io import encode_jpeg

    generator = torch.Generator().manual_seed(number)
    return bytes(encode_jpeg(torch.randint(0, 256, (3, 40, 50), dtype=torch.uint8, generator=generator)).numpy())


def packed(files: dict[str, bytes], mode: str = "w") -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode=mode) as tar:  # type: ignore[call-overload]
        for name, blob in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(blob)
            tar.addfile(info, io.BytesIO(blob))
    return whole.getvalue()


def train_archive(root: Path) -> Path:
    """Two classes of 20 photographs, each an archive in the archive."""
    inner = {
        f"n0000000{label}.tar": packed({f"n0000000{label}_{number}.JPEG": photograph(number) for number in range(20)})
        for label in (1, 2)
    }
    path = root / "ILSVRC2012_img_train.tar"
    path.write_bytes(packed(inner))
    return path


def val_archive(root: Path) -> Path:
    path = root / "ILSVRC2012_img_val.tar"
    path.write_bytes(packed({f"ILSVRC2012_val_0000000{number}.JPEG": photograph(number) for number in range(4)}))
    return path


def devkit(root: Path) -> Path:
    """The names of the classes, and those of the validation set."""
    from scipy.io import savemat  # type: ignore[import-untyped]

    kinds = [("ILSVRC2012_ID", int), ("WNID", "O"), ("words", "O"), ("gloss", "O"), ("num_children", int)]
    classes = np.array([(label, f"n0000000{label}", f"kind {label}", "", 0) for label in (1, 2)], kinds)
    table = io.BytesIO()
    savemat(table, {"synsets": classes})
    inside = {"meta.mat": table.getvalue(), "ILSVRC2012_validation_ground_truth.txt": b"1\n2\n1\n2\n"}
    path = root / "ILSVRC2012_devkit_t12.tar.gz"
    path.write_bytes(packed({f"ILSVRC2012_devkit_t12/data/{name}": blob for name, blob in inside.items()}, "w:gz"))
    return path
