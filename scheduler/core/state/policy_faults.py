"""What a policy does wrong while it is asked: caught, named by method and line, and survived.

A policy is code of others. Whatever it raises must not end the scheduler, nor leave an event half handled. So the core
asks it through these guards: from its first fault on the policy is not asked again, jobs go in the order of their
submission, newcomers wait for places instead of prices, and `ActivePolicy.fault` says what happened. Whoever owns the
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

#: Of texts that others wrote.
_LONGEST_ERROR, _LONGEST_TRACE = 300, 8000


@dataclass(frozen=True, slots=True)
class PolicyFault:
    """A method of a policy that raised, or answered what is no answer."""

    #: `key`, `renews`, `value`, `decide`, or `make` for its parameters.
    method: str
    #: File and line of the innermost frame, "" where nobody knows.
    where: str
    error: str
    trace: str = ""

    def __str__(self) -> str:
        at = f" at {self.where}" if self.where else ""
        return f"{self.method}() failed{at}: {self.error}"


#: Told of the first fault.
ReportFault = Callable[[PolicyFault], None]


def fault_of(method: str, error: BaseException) -> PolicyFault:
    """The fault that an exception is. The line is that of the innermost frame, which is the policy's or one below."""
    frames = traceback.extract_tb(error.__traceback__)
    # An answer that was refused here has no line in the policy.
    known = bool(frames) and frames[-1].filename != __file__ and not isinstance(error, ConfigError)
    where = f"{PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if known else ""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    trace = "".join(traceback.format_exception(error))
    return PolicyFault(method, where, text[:_LONGEST_ERROR], trace[-_LONGEST_TRACE:])


def checked_key(policy: OrderPolicy, facts: OrderFacts, n: int) -> list[FloatArray]:
    """The policy's key columns of n jobs. Raises what the policy raises, and ValueError where they are no columns."""
    columns = [np.asarray(column, dtype=np.float64) for column in policy.key(facts)]
    if not columns or any(column.shape != (n,) for column in columns):
        shapes = ", ".join(str(column.shape) for column in columns)
        raise ValueError(f"a key has columns of shape ({n},), one at least; these are: {shapes or 'none'}")
    for column in columns:
        # A number that is none has no place in an order; x != x is true of it alone.
        if (column != column).any():
            raise ValueError("a key holds NaN, which has no place in an order")
    return columns


def checked_renewal(policy: ResetsService, facts: OrderFacts, n: int) -> BoolArray:
    """Which of n jobs are counted anew. Raises what the policy raises, and ValueError where that is no answer."""
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
        # Read once: attributes of others may be properties.
        self.preemptive = bool(policy.preemptive)
        self.strict = bool(policy.strict)
        self.aware = bool(policy.aware)

    def key(self, facts: OrderFacts, n: int) -> list[FloatArray]:
        """Key columns of n jobs; one column of zeros after a fault."""
        if not self._failed:
            try:
                return checked_key(self._policy, facts, n)
            except (Exception, SystemExit) as error:  # code of others: whatever it was, the event is handled to its end
                self._fail("key", error)
        return [np.zeros(n)]

    def renews(self, facts: OrderFacts, n: int) -> BoolArray | None:
        """Which of n jobs the policy counts anew; None where it never does, and after a fault."""
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
