"""How far a run is, and what is odd about it, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.console import summary

if TYPE_CHECKING:
    from launcher.results.progress import Finding, Progress


def line(progress: Progress) -> str:
    """`step 120 of 1000 (12 %), loss 0.31, 4.2 steps/s, 3 min 30 s left`."""
    step, steps = progress["step"], progress["steps"]
    parts = [f"step {step}"]
    if steps:
        parts = [f"step {step} of {steps} ({100 * step / steps:.0f} %)"]
    if progress["loss"] is not None:
        parts.append(f"loss {progress['loss']:.4g}")
    if progress["rate"]:
        parts.append(rate(progress["rate"]))
    if progress["eta_s"] is not None:
        parts.append(f"{summary.duration(progress['eta_s'])} left")
    return ", ".join(parts)


def rate(steps_per_s: float) -> str:
    """`4.2 steps/s`; slow ones as `12 s/step`."""
    return f"{steps_per_s:.3g} steps/s" if steps_per_s >= 1 else f"{1 / steps_per_s:.3g} s/step"


def finding(one: Finding) -> str:
    """The finding with its host and source."""
    return f"{one['host']}: {one['message']} ({one['source']})"
