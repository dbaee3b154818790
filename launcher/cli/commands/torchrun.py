"""`distlaunch torchrun`, for command lines with other options before it."""

from __future__ import annotations

TAKES_ALL = True


def torchrun(words: list[str]) -> int:
    """Run a script as torchrun does, on this node, with torchrun's own options; start it once per node.

    $ distlaunch torchrun --standalone --nproc-per-node 2 train.py
    $ distlaunch torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint n1:29400 train.py
    """
    from launcher.torchrun import command

    return command.main(words)
