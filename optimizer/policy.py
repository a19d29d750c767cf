"""What a policy is: its configuration and what it must answer. `optimizer.registry` maps names to policies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from optimizer.decision import Decision, Memory, Quote
from optimizer.problem import FloatArray, IntArray, Problem


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy as configuration: its registered name and its parameters. Hashable by `repr`, replayable, JSON."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Newcomer:
    """A job that arrived after the last solve: its configurations, one pool each (all arrays (c,))."""

    steps_per_s: FloatArray
    #: Row of the quote's pools.
    pool: IntArray
    count: FloatArray
    weight: float
    #: Capacity of every pool, accelerators (p,).
    capacity: FloatArray
    #: Market price of one accelerator-hour in every pool, USD (p,); empty: nobody asked for money.
    usd_per_h: FloatArray = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True, slots=True)
class OrderFacts:
    """What an order policy may rank a job by."""

    job_id: int
    submitted_at: float
    priority_class: int
    gang: int
    #: Accelerator-seconds received so far.
    attained_s: float
    #: Seconds left on the job's best configuration; inf when unknown.
    remaining_s: float
    deadline_at: float


@runtime_checkable
class SharePolicy(Protocol):
    """Solves a program: answers `Shares` with prices."""

    def decide(self, problem: Problem, memory: Memory) -> tuple[Decision, Memory]:
        """Answer the problem. Never raises for an empty or infeasible problem: the certificate says so."""
        ...

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Worth of each configuration of a newcomer, in the quote's unit, to set against count x price (c,)."""
        ...


@runtime_checkable
class OrderPolicy(Protocol):
    """Ranks jobs by a key that changes only when the job itself changes: no solve is ever needed."""

    #: True: a running job may be preempted for one that ranks before it (at rounds).
    preemptive: bool
    #: True: a job that does not fit blocks everybody behind it (strict head of line).
    strict: bool
    #: True: try configurations fastest first; False: in pool order, blind to speed.
    aware: bool

    def key(self, job: OrderFacts) -> tuple[float, ...]:
        """Sort key: smallest first. Ties end in the job id, so keys never compare equal."""
        ...


Policy = SharePolicy | OrderPolicy
