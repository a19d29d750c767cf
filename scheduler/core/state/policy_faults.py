"""Faults of a policy: caught when it is called, named by method and line, and survived.

A policy is foreign code. Whatever it raises must not end the scheduler, nor leave an event half handled. So the core
calls it through these guards: after its first fault the policy is not called again, jobs go in the order of their
submission, newcomers wait for places instead of prices, and `ActivePolicy.fault` states what happened. The owner of the
core then puts another policy in force (`PolicyChanged`). The same policy fails at the same event in a replay, which
therefore gives the same commands.
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from optimizer.policy import OrderFacts, OrderPolicy, ResetsService
from optimizer.problem import BoolArray, FloatArray
from walras.errors import ConfigError

#: Limits of texts from foreign code, characters.
_LONGEST_ERROR, _LONGEST_TRACE = 300, 8000


@dataclass(frozen=True, slots=True)
class PolicyFault:
    """A method of a policy that raised, or returned an invalid answer."""

    #: `key`, `renews`, `value`, `decide`, or `make` for its parameters.
    method: str
    #: File and line of the innermost frame, "" if unknown.
    where: str
    error: str
    trace: str = ""

    def __str__(self) -> str:
        at = f" at {self.where}" if self.where else ""
        return f"{self.method}() failed{at}: {self.error}"


#: Called with the first fault.
ReportFault = Callable[[PolicyFault], None]


def fault_of(method: str, error: BaseException) -> PolicyFault:
    """Returns the fault for an exception. Its line is that of the innermost frame, in the policy or below it."""
    frames = traceback.extract_tb(error.__traceback__)
    # An answer that was rejected here has no line in the policy.
    known = bool(frames) and frames[-1].filename != __file__ and not isinstance(error, ConfigError)
    where = f"{PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if known else ""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    trace = "".join(traceback.format_exception(error))
    return PolicyFault(method, where, text[:_LONGEST_ERROR], trace[-_LONGEST_TRACE:])


def checked_key(policy: OrderPolicy, facts: OrderFacts, n: int) -> list[FloatArray]:
    """Returns the policy's key columns of n jobs. Raises what the policy raises, and ValueError for invalid columns."""
    columns = [np.asarray(column, dtype=np.float64) for column in policy.key(facts)]
    if not columns or any(column.shape != (n,) for column in columns):
        shapes = ", ".join(str(column.shape) for column in columns)
        raise ValueError(f"a key has columns of shape ({n},), one at least; these are: {shapes or 'none'}")
    for column in columns:
        # NaN has no place in an order; x != x is true only of NaN.
        if (column != column).any():
            raise ValueError("a key holds NaN, which has no place in an order")
    return columns


def checked_renewal(policy: ResetsService, facts: OrderFacts, n: int) -> BoolArray:
    """Returns which of n jobs are counted anew. Raises what the policy raises, and ValueError for an invalid answer."""
    again = np.asarray(policy.renews(facts))
    if again.shape != (n,) or again.dtype != np.bool_:
        raise ValueError(f"renews() answers booleans of shape ({n},), not {again.dtype} of shape {again.shape}")
    return again


class GuardedOrder:
    """An order policy that cannot fail: after a fault all jobs are equal, and go by class and submission."""

    def __init__(self, policy: OrderPolicy, report: ReportFault) -> None:
        self._policy = policy
        self._renewing = policy if isinstance(policy, ResetsService) else None
        self._report = report
        self._failed = False
        # Read once, because attributes of foreign code may be properties.
        self.preemptive = bool(policy.preemptive)
        self.strict = bool(policy.strict)
        self.aware = bool(policy.aware)

    def key(self, facts: OrderFacts, n: int) -> list[FloatArray]:
        """Returns key columns of n jobs; one column of zeros after a fault."""
        if not self._failed:
            try:
                return checked_key(self._policy, facts, n)
            except (Exception, SystemExit) as error:  # foreign code may raise anything
                self._fail("key", error)
        return [np.zeros(n)]

    def renews(self, facts: OrderFacts, n: int) -> BoolArray | None:
        """Returns which of n jobs the policy counts anew; None if it never does, and after a fault."""
        if self._failed or self._renewing is None:
            return None
        try:
            return checked_renewal(self._renewing, facts, n)
        except (Exception, SystemExit) as error:  # see above
            self._fail("renews", error)
            return None

    def _fail(self, method: str, error: BaseException) -> None:
        self._failed = True
        self._report(fault_of(method, error))
