"""The capabilities that a backend declares, and the methods that it has."""

from __future__ import annotations

import pytest

from launcher import backends
from launcher.backends._base import Backend

CAPABILITIES = {
    "can_requeue": "requeue",
    "can_adopt": "adopt",
    "can_list": "found",
    "can_survey": "hosts",
    "can_keep": "standing",
    "has_terminals": "open_terminal",
    "has_outputs": "open_outputs",
}


@pytest.mark.parametrize("name", backends.names())
def test_a_backend_has_exactly_the_methods_of_its_capabilities(name: str) -> None:
    backend = backends.load(name)

    said = {method for capability, method in CAPABILITIES.items() if getattr(backend, capability)}

    assert said == {
        method for method in CAPABILITIES.values() if getattr(backend, method) is not getattr(Backend, method)
    }


def test_every_capability_is_some_backends_and_none_is_the_base_class() -> None:
    classes = [backends.load(name) for name in backends.names()]

    for capability in CAPABILITIES:
        assert any(getattr(each, capability) for each in classes), capability
        assert not getattr(Backend, capability)
