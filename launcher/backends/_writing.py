"""Writes what belongs in a run's directory, on any backend."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from launcher.agent.secret_files import FUNCTION_FILE, KEY_FILE, NOTIFY_FILE
from launcher.system import storage, trust

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from launcher.agent.job import Job


def write_beside(directory: Path, job: Job) -> tuple[str, ...]:
    """Write what belongs next to a run's spec.json, for its owner only; returns the names."""
    storage.write_whole(directory / KEY_FILE, new_key().encode("ascii"), mode=0o600)
    return (KEY_FILE, *write_secrets(directory, job))


def write_secrets(directory: Path, job: Job) -> tuple[str, ...]:
    """Write the files of `secret_texts`; returns their names."""
    texts = secret_texts(job)
    for name, text in texts.items():
        storage.write_whole(directory / name, text.encode("ascii"), mode=0o600)
    return tuple(texts)


def forget_beside(directory: Path, job: Job, others: Iterable[str] = ()) -> None:
    """Remove what the run that was rendered here before had and this one has not, as it would be taken for this one's.

    `others`: such files besides those of `secret_texts`.
    """
    with storage.storage_errors(directory):
        for name in {FUNCTION_FILE, NOTIFY_FILE, *others} - {*secret_texts(job)}:
            (directory / name).unlink(missing_ok=True)


def secret_texts(job: Job) -> dict[str, str]:
    """Other fields of the job that are not in spec.json, by the names of their files."""
    texts = ((FUNCTION_FILE, job.function), (NOTIFY_FILE, job.notify))
    return {name: text for name, text in texts if text}


def new_key() -> str:
    """A new secret by which a run's nodes recognize each other."""
    return os.urandom(32).hex() + "\n"


def write_files(directory: Path, contents: Mapping[str, bytes]) -> None:
    """Write files below a directory, creating directories as needed; files appear whole, links are not followed."""
    for inner in dict.fromkeys((directory / name).parent for name in contents):
        with storage.storage_errors(inner):
            trust.make("directory", inner, 0o755)
    for name, content in contents.items():
        storage.write_whole(directory / name, content)
