"""What a policy is: its configuration, the protocols that it may implement, and stand-ins for policies elsewhere.

Two parts: the protocols, with parameters that several policies share, and stand-ins for a policy that runs in another
process. Code that decides never calls such a policy: it sends its questions away and goes on, and takes the answers as
they come.

`optimizer.registry` maps names to policies. Between two solves a job that arrives is admitted by its surplus: the value
that the policy sees in a configuration, minus the price of its accelerators (`best_configuration_at`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Any, ClassVar, Literal, Never, Protocol, runtime_checkable

import numpy as np
from pydantic import Field

from optimizer.decision import Decision, Memory, Plan, Quote
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem


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
    #: Market price of one accelerator-hour in every pool, USD (p,); empty: money does not count.
    usd_per_h: FloatArray = field(default_factory=lambda: np.zeros(0))
    #: Work left, and done, in steps; inf and 0 when unknown.
    remaining_steps: float = inf
    done_steps: float = 0.0
    #: The submitter's guess of the whole run on the best configuration; inf without one.
    length_s: float = inf
    #: Seconds since its submission, and what a start costs it.
    waited_s: float = 0.0
    restart_s: float = 0.0
    priority_class: int = 1
    #: The weight that the user's jobs usually state.
    usual_weight: float = 1.0

    @property
    def usable(self) -> BoolArray:
        """Whether each configuration makes progress and fits its pool while nothing else runs (c,)."""
        usable: BoolArray = (self.steps_per_s > 0) & (self.count <= self.capacity[self.pool])
        return usable

    @property
    def smallest(self) -> BoolArray:
        """Whether each configuration is usable and the smallest gang of those that are (c,)."""
        smallest: BoolArray = self.usable & (self.count <= self.count[self.usable].min(initial=inf))
        return smallest

    @property
    def relative_speeds(self) -> FloatArray:
        """The speed of each configuration over that of the fastest; zeros where there is none (c,)."""
        fastest = float(self.steps_per_s.max(initial=0.0))
        return self.steps_per_s / fastest if fastest > 0 else np.zeros(len(self.steps_per_s))


class OrderFacts(Protocol):
    """What an order policy may rank jobs by: parallel arrays, one entry per job (n,). Each is worked out when read."""

    @property
    def submitted_at(self) -> FloatArray:
        """Instant of submission."""
        ...

    @property
    def priority_class(self) -> IntArray:
        """0 low, 1 normal, 2 high."""
        ...

    @property
    def gang(self) -> FloatArray:
        """Accelerators of the whole gang."""
        ...

    @property
    def attained_s(self) -> FloatArray:
        """Accelerator-seconds received so far."""
        ...

    @property
    def served_s(self) -> FloatArray:
        """Accelerator-seconds since the job's service was last counted anew (`ResetsService`)."""
        ...

    @property
    def waited_s(self) -> FloatArray:
        """Seconds since it last held accelerators (since its submission, if never); 0 while it does."""
        ...

    @property
    def remaining_s(self) -> FloatArray:
        """Seconds left on the job's best configuration; inf when unknown."""
        ...

    @property
    def deadline_at(self) -> FloatArray:
        """Instant by which it should end; inf without a deadline."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class GivenOrderFacts:
    """`OrderFacts` given as arrays."""

    submitted_at: FloatArray
    priority_class: IntArray
    gang: FloatArray
    attained_s: FloatArray
    served_s: FloatArray
    waited_s: FloatArray
    remaining_s: FloatArray
    deadline_at: FloatArray


@runtime_checkable
class SharePolicy(Protocol):
    """Solves a program: answers `Shares` with prices."""

    def decide(self, problem: Problem, memory: Memory) -> tuple[Decision, Memory]:
        """Returns the shares of time with prices and a certificate, and the memory for the next solve's warm start.

        Raises ProblemError for a malformed problem. The certificate's status says everything else.
        """
        ...

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Worth of each configuration of a newcomer, in the quote's unit, to set against count x price (c,)."""
        ...


@runtime_checkable
class AggregatesJobs(Protocol):
    """A share policy for which many jobs are the same job: it may be asked about distinct jobs with counts instead."""

    @property
    def job_key_fields(self) -> tuple[str, ...]:
        """Fields of `Jobs` that matter to it, besides the columns. Empty: every job stands for itself."""
        ...


@runtime_checkable
class OrderPolicy(Protocol):
    """Ranks jobs by a key: no solve is ever needed.

    A key may change while the job runs; while it waits only by the passing of time, and that is seen at round ends.
    """

    #: True: a running job may be preempted for one that ranks before it (at rounds).
    preemptive: bool
    #: True: a job that does not fit blocks all jobs behind it (head-of-line blocking).
    strict: bool
    #: True: try configurations fastest first; False: in pool order, blind to speed.
    aware: bool

    def key(self, jobs: OrderFacts) -> tuple[FloatArray, ...]:
        """Columns of the sort key, most significant first, smallest first (each (n,)).

        The first column alone says who outranks whom: only a smaller one takes the place of a running job. The others
        order those who wait. Ties go by submission, then by number.
        """
        ...


@runtime_checkable
class ResetsService(Protocol):
    """An order that now and then counts a waiting job's service anew (asked at round ends)."""

    def renews(self, jobs: OrderFacts) -> BoolArray:
        """Jobs whose `served_s` begins at 0 again (n,)."""
        ...


@runtime_checkable
class PlanPolicy(Protocol):
    """Returns a `Plan` at every event: the configuration of every job. Restart costs are part of the choice.

    Jobs that cannot be moved are told to it (`Jobs.pinned`). Between plans newcomers are judged by `value`.
    """

    #: False: a running job stays where it is to its end; the problem marks all such jobs as pinned.
    moves: bool

    def decide(self, problem: Problem, memory: Memory) -> tuple[Plan, Memory]:
        """Answer the problem. Never raises for an empty one."""
        ...

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Worth of each configuration of a newcomer, in the quote's unit, to set against count x price (c,)."""
        ...


@runtime_checkable
class DeclaresLimits(Protocol):
    """A policy under which projects or users hold no more than a part of the fleet, at any instant."""

    def entity_limits(self) -> Mapping[str, float]:
        """Largest part of all accelerators by "project" or "project/user"; who is not named has none."""
        ...


@runtime_checkable
class FollowsWeights(Protocol):
    """A share policy under which projects and users have time by `Entities.weight`.

    What one has had less than it was entitled to is made up by a larger weight, for a while.
    """

    follows_weights: ClassVar[bool]


Policy = SharePolicy | OrderPolicy | PlanPolicy
#: Policies that solve something, and quote prices.
PricingPolicy = SharePolicy | PlanPolicy


class ValuesNewcomers(Protocol):
    """What says what places are worth to a newcomer: a pricing policy, or one that is asked under guard."""

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Worth of each configuration, in the quote's unit (c,)."""
        ...


HeterogeneityAware = Annotated[
    bool,
    Field(
        description="True: use each job's speed on each pool. False: heterogeneity-agnostic, every job "
        "has its average speed on every accelerator."
    ),
]
Normalised = Annotated[
    bool,
    Field(
        description="True: divide each throughput by that of an equal split and multiply by the gang "
        "size. False: count plain steps per second."
    ),
]
UnpricedAccelerator = Annotated[
    Annotated[float, Field(gt=0)] | None,
    Field(description="Price assumed for an accelerator without one, USD/h. None: the lowest price in the fleet."),
]
LeftoverRule = Annotated[
    Literal["sum", "nothing"],
    Field(
        description="Use of the capacity left after max-min. sum: maximise the sum of fair-share "
        "utilities; nothing: leave it idle."
    ),
]

#: Of orders.
FastestFirst = Annotated[
    bool,
    Field(
        description="True: take the fastest free configuration. False: heterogeneity-agnostic, take pools "
        "in their order."
    ),
]
StrictOrder = Annotated[
    bool, Field(description="True: the first job that does not fit blocks all jobs behind it (no backfill).")
]
RankMargin = Annotated[
    float,
    Field(
        ge=0,
        description="A job preempts another only if it is a whole step better; steps differ by this "
        "fraction (0.1: 10 %).",
    ),
]
LengthGuess = Annotated[
    float, Field(gt=0, description="Assumed remaining time, in seconds, of a job of unknown length (a lower bound).")
]

#: Of plans.
MovesJobs = Annotated[bool, Field(description="False: a running job is never moved or resized.")]
HidesLengths = Annotated[
    bool, Field(description="True: ignore the lengths that jobs declare; use only the service they have received.")
]
GrowthLimit = Annotated[
    float,
    Field(
        ge=1, description="Limit of growth: a job gets at most this multiple of the most accelerators it has run on."
    ),
]

SpaceSharing = Annotated[
    bool,
    Field(
        description="True: two jobs whose kinds are listed as a pair may share accelerators (space "
        "sharing), each at reduced speed; at most 30,000 pairs of different jobs in all pools, some 200 jobs."
    ),
]

#: A value within this part of the price equals it.
_SURPLUS_ROUNDING = 1e-9


def best_configuration_at(policy: ValuesNewcomers, newcomer: Newcomer, quote: Quote) -> tuple[int | None, FloatArray]:
    """The configuration with the largest value minus price, and that surplus for each of them (c,).

    None where no configuration has any value, or each costs more than its value. A surplus of exactly zero admits: that
    is what a job worth as much as the mean of those already there gets, and turning it away would be rounding's choice.
    Ties go to the first. Whether the place is free is the caller's to see.
    """
    value = policy.value(newcomer, quote)
    surplus: FloatArray = value - newcomer.count * quote.prices[newcomer.pool]
    candidates = np.where((value > 0) & (surplus >= -_SURPLUS_ROUNDING * value), surplus, -np.inf)
    best = int(np.argmax(candidates)) if len(candidates) else 0
    if not len(candidates) or candidates[best] == -np.inf:
        return None, surplus
    return best, surplus


@dataclass(frozen=True, slots=True)
class PolicyTraits:
    """What a policy says of itself: its family, and the attributes and limits of its protocol."""

    family: Literal["order", "shares", "plan"]
    preemptive: bool = False
    strict: bool = False
    aware: bool = True
    moves: bool = False
    follows_weights: bool = False
    limits: Mapping[str, float] = field(default_factory=dict)


def traits_of(policy: Policy) -> PolicyTraits:
    """Returns what the policy says of itself. Raises what its attributes raise."""
    if isinstance(policy, OrderPolicy):
        return PolicyTraits("order", bool(policy.preemptive), bool(policy.strict), bool(policy.aware))
    limits = policy.entity_limits() if isinstance(policy, DeclaresLimits) else {}
    return PolicyTraits(
        "plan" if isinstance(policy, PlanPolicy) else "shares",
        moves=isinstance(policy, PlanPolicy) and bool(policy.moves),
        follows_weights=isinstance(policy, FollowsWeights),
        limits={str(name): float(limit) for name, limit in limits.items()},
    )


class AskedOrder:
    """An order whose keys come as answers."""

    def __init__(self, traits: PolicyTraits) -> None:
        self.preemptive, self.strict, self.aware = traits.preemptive, traits.strict, traits.aware

    def key(self, jobs: OrderFacts) -> Never:
        """Is never called."""
        raise AssertionError("a policy in another process is asked there")


class AskedShares:
    """A policy of shares whose decisions come as answers; between them no configuration has a value to a newcomer."""

    def __init__(self, traits: PolicyTraits) -> None:
        self._traits = traits
        if traits.follows_weights:
            self.follows_weights = True

    def decide(self, problem: Problem, memory: Memory) -> Never:
        """Is never called."""
        raise AssertionError("a policy in another process is asked there")

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Returns zeros: the newcomer waits for a free place or the next answer (c,)."""
        return np.zeros(len(newcomer.pool))

    def entity_limits(self) -> Mapping[str, float]:
        """Returns the limits that the policy has declared."""
        return self._traits.limits


class AskedPlans(AskedShares):
    """The same for plans."""

    def __init__(self, traits: PolicyTraits) -> None:
        super().__init__(traits)
        self.moves = traits.moves


def stand_in(traits: PolicyTraits) -> Policy:
    """Returns the stand-in for a policy of this family."""
    if traits.family == "order":
        return AskedOrder(traits)
    return AskedPlans(traits) if traits.family == "plan" else AskedShares(traits)


def places_over_pools(policy: object) -> bool:
    """Returns whether a policy places gangs over several pools that are listed: one that plans, unless it says that it
    makes its own alone.
    """
    return isinstance(policy, PlanPolicy) and not getattr(policy, "makes_own_mixes", False)
