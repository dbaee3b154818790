"""Unpacks archives that come with the run in pieces: `NAME.tgz.000`, `NAME.tgz.001`, ... to a directory NAME."""

from __future__ import annotations

import io
import os
import tarfile
from typing import Any, Dict, List

_SEPARATOR = ".tgz."


class _Pieces(io.RawIOBase):
    """Several files, read as one."""

    def __init__(self, paths: List[str]) -> None:
        self._paths = list(reversed(paths))
        self._file = open(self._paths.pop(), "rb", buffering=0)  # noqa: SIM115 - read to its end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)
        while not count and self._paths:
            self._file.close()
            self._file = open(self._paths.pop(), "rb", buffering=0)  # noqa: SIM115
            count = self._file.readinto(buffer)
        return count or 0

    def close(self) -> None:
        self._file.close()
        super().close()


def unpack(source: str, directory: str) -> None:
    """Unpack all archives in `source` below `directory`. Raises `OSError` or `tarfile.TarError`."""
    archives: Dict[str, List[str]] = {}
    for name in sorted(os.listdir(source)):
        stem, found, _ = name.partition(_SEPARATOR)
        if found:
            archives.setdefault(stem, []).append(os.path.join(source, name))
    for stem, paths in archives.items():
        target = os.path.join(directory, stem)
        os.makedirs(target, exist_ok=True)
        with io.BufferedReader(_Pieces(paths), 1 << 20) as whole, tarfile.open(fileobj=whole, mode="r|gz") as tar:
            if hasattr(tarfile, "tar_filter"):  # "data" would refuse links to what is outside of the directory
                tar.extractall(target, filter="tar")
            else:  # an old Python; the launcher packs no path that leads out of the directory
                tar.extractall(target)  # noqa: S202
