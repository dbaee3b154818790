"""Channels between the processes of one node."""

from __future__ import annotations

from typing import Any

from launcher.agent.channel import Channel


def test_an_end_that_sends_nothing_any_more_is_heard_of_at_once_and_still_receives() -> None:
    one: Channel[Any, Any]
    one, other = Channel.pair()
    one.send({"last": True})

    one.end()

    assert other.receive() == ({"last": True}, [])
    assert other.ready(1.0)
    assert other.receive() == (None, [])
    assert other.send({"to": "one"})
    assert one.receive() == ({"to": "one"}, [])
    other.close()
    one.end()  # the other end is gone
    one.close()
