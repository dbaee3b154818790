"""Coroutines in tests: the tests with a browser leave a loop in the thread of pytest, where no other can run."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


def result_of(ask: Callable[[], Awaitable[T]], limit_s: float = 60.0) -> T:
    """The result of the coroutine that the function makes, in a thread of its own."""

    async def limited() -> T:
        return await asyncio.wait_for(ask(), limit_s)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(limited())).result()
