"""Waiting for states. Machines are shared: a wait ends as soon as the state is there, and is given up late."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

#: A wait is given up after so many times what it takes at most on a quiet machine.
PATIENCE = 5.0


def _pause_s(waited_s: float) -> float:
    """A twentieth of what it has waited: looks cost a server and its machine work, above all while others wait too."""
    return min(max(0.05 * waited_s, 0.01), 0.25)


def wait_for(look: Callable[[], Any], quiet_s: float, what: str, then: Callable[[], Any] = str) -> Any:
    """The first truthy look; fails loudly in the end, with what `then` says of the state at that time.

    `quiet_s`: what it takes at most on a quiet machine.
    """
    began = time.monotonic()
    while not (seen := look()):
        waited_s = time.monotonic() - began
        assert waited_s < PATIENCE * quiet_s, f"not within {PATIENCE * quiet_s} s: {what}; {then()}"
        time.sleep(_pause_s(waited_s))
    return seen


def stays(look: Callable[[], Any], for_s: float, what: str) -> None:
    """Fails as soon as the look is not true: of what must not happen no state tells that it will not."""
    until = time.monotonic() + for_s
    while time.monotonic() < until:
        assert look(), f"no longer: {what}"
        time.sleep(0.1)


async def until(look: Callable[[], Any], quiet_s: float, what: str, then: Callable[[], Any] = str) -> Any:
    """The same in an event loop."""
    began = time.monotonic()
    while not (seen := look()):
        waited_s = time.monotonic() - began
        assert waited_s < PATIENCE * quiet_s, f"not within {PATIENCE * quiet_s} s: {what}; {then()}"
        await asyncio.sleep(_pause_s(waited_s))
    return seen
