"""Where a torch lacks a private name that the trainer uses, a public one has the same result."""

from __future__ import annotations

from io import StringIO
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.torch


def test_copies_are_the_same_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from trainer import torch_private

    values = [torch.randn(3, 2), torch.arange(4)]
    for lacks in (False, True):
        if lacks:
            monkeypatch.delattr(torch, "_foreach_copy_")
        into = [torch.empty(3, 2), torch.empty(4, dtype=torch.long)]
        torch_private.copy_each(into, values)
        assert all(torch.equal(one, value) for one, value in zip(into, values, strict=True))


def test_resized_images_are_the_same_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from trainer import torch_private

    image = torch.randint(0, 256, (1, 3, 40, 30), dtype=torch.uint8)
    slots = torch.zeros(2, 1, 3, 16, 16, dtype=torch.uint8)
    torch_private.resize_into(slots[0], image)
    monkeypatch.setattr(torch.ops, "aten", SimpleNamespace())
    torch_private.resize_into(slots[1], image)
    assert torch.equal(slots[0], slots[1])
    assert slots[0].float().std() > 1


def test_a_cpu_of_which_torch_knows_nothing_computes_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from trainer import torch_private

    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, name, raising=False)
    assert not torch_private.has_fast_bfloat16()


@pytest.mark.parametrize(
    ("maker", "tiles", "fast"),
    [("GenuineIntel", False, False), ("GenuineIntel", True, True), ("AuthenticAMD", False, True)],
)
def test_bfloat16_of_a_cpu_is_chosen_only_where_it_is_faster(
    monkeypatch: pytest.MonkeyPatch, maker: str, *, tiles: bool, fast: bool
) -> None:
    import torch
    from trainer import torch_private

    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles, raising=False)
    monkeypatch.setattr(torch_private, "open", lambda *_, **__: StringIO(f"vendor_id\t: {maker}\n"), raising=False)
    assert torch_private.has_fast_bfloat16() is fast
