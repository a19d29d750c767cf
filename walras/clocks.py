"""Sources of time and randomness for the shells. They are arguments, so that a whole system can run in virtual time.

The server, the agents and the command line take a `Clocks` and a `random.Random`; the real ones are the defaults at
their outermost edge (`main`). Code below the edge calls neither `time` nor `random` nor `secrets` itself.
"""

import base64
import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Clocks:
    #: Unix seconds; the clock may be set forwards and backwards.
    wall: Callable[[], float] = time.time
    #: Seconds that never decrease, and stand still while the machine sleeps.
    monotonic: Callable[[], float] = time.monotonic
    #: Seconds that never decrease, and go on while the machine sleeps: leases are counted in them.
    boottime: Callable[[], float] = _boottime


SYSTEM_CLOCKS = Clocks()


def random_hex(chance: random.Random | None, digits: int) -> str:
    """Returns an unguessable text of hexadecimal digits, or one drawn from `chance` where a run must repeat."""
    return secrets.token_hex(digits // 2) if chance is None else f"{chance.getrandbits(4 * digits):0{digits}x}"


def random_token(chance: random.Random | None) -> str:
    """Returns an unguessable text of letters, digits, `-` and `_` (256 bits), or one drawn from `chance`."""
    if chance is None:
        return secrets.token_urlsafe(32)
    return base64.urlsafe_b64encode(chance.randbytes(32)).rstrip(b"=").decode()


def random_pause(chance: random.Random | None, longest_s: float) -> float:
    """Returns a pause between half of the longest and the longest, so that callers do not call in step."""
    return longest_s * (random.uniform(0.5, 1.0) if chance is None else chance.uniform(0.5, 1.0))
