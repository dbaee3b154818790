"""Sizes that the processes which read and write a node's files agree on."""

from __future__ import annotations

RESERVED_BYTES = 64 * 1024
"""Reserved in the node's directory at the start, to record how the run ended even on a full disk."""
