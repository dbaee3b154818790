"""What a backend says that it can do, and what it then has."""

from __future__ import annotations

import pytest

from launcher import backends
from launcher.backends._base import Backend

CAPABILITIES = {"can_requeue": "requeue", "can_adopt": "adopt", "can_list": "found", "has_terminals": "open_terminal"}


@pytest.mark.parametrize("name", backends.names())
def test_a_backend_has_exactly_what_it_says_it_can_do(name: str) -> None:
    backend = backends.load(name)

    said = {method for capability, method in CAPABILITIES.items() if getattr(backend, capability)}

    assert said == {method for method in CAPABILITIES.values() if getattr(backend, method) is not getattr(Backend, method)}


def test_every_capability_is_had_by_one_and_none_is_the_backends_by_itself() -> None:
    classes = [backends.load(name) for name in backends.names()]

    for capability in CAPABILITIES:
        assert any(getattr(each, capability) for each in classes), capability
        assert not getattr(Backend, capability)
