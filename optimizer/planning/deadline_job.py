"""One job with a deadline that may run on spot machines: its state in each time slot, and simple policies.

Time is divided into slots. At the start of each slot the policy learns whether a spot machine is available for the
slot, and decides what to hold. Every start of a machine takes `changeover` units of time that are paid but make no
progress. The model is that of Wu and others, "Can't Be Late" (NSDI'24). Lengths are whole numbers of units, so that
dynamic programs and replayed runs use the same arithmetic.

Uniform Progress follows the straight line from no work at the start to all work at the deadline. When it is idle and
behind the line, it takes an on-demand machine. When it is ahead of the line by two changeovers, it leaves the on-demand
machine for a spot machine, but never to idle. Greedy takes a spot machine whenever one is available and idles
otherwise. Both stay on demand until the end once the slack falls below the job's margin. Neither knows anything but the
present slot.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol


class HeldMachine(IntEnum):
    """What the job holds during a slot: no machine, a spot machine or an on-demand machine."""

    NOTHING = 0
    SPOT = 1
    ON_DEMAND = 2


@dataclass(frozen=True, slots=True)
class DeadlineJob:
    """A job, its deadline, and its market. Lengths are in units; the spot price is 1 per slot."""

    #: Number of units in one slot.
    slot: int
    work: int
    #: Units from the start to the deadline: a whole number of slots.
    deadline: int
    #: Units that each start of a machine takes: they are paid and make no progress.
    changeover: int
    on_demand_price: float

    @property
    def slots(self) -> int:
        """Number of slots until the deadline."""
        return self.deadline // self.slot

    @property
    def margin(self) -> int:
        """Slack (units) below which the job must run on demand: after one more slot elsewhere, too little slack could
        be left for the changeover.
        """
        return max(2 * self.changeover, self.changeover + self.slot)


@dataclass(frozen=True, slots=True)
class DeadlineState:
    """State of the job at the start of a slot."""

    #: Units of time until the deadline, and units of work left.
    time_left: int
    work_left: int
    #: What the job held in the slot before: `NOTHING` if the market revoked its spot machine.
    held: HeldMachine
    #: Units of the held machine's changeover that are still to come.
    pending: int
    spot: bool

    @property
    def slack(self) -> int:
        """Units of time that may pass without progress before the deadline is lost."""
        return self.time_left - self.work_left


class SpotPolicy(Protocol):
    """A policy that decides slot by slot what to hold. One object serves one run."""

    def hold(self, job: DeadlineJob, now: DeadlineState) -> HeldMachine:
        """Returns what to hold in the slot that begins: `HeldMachine.SPOT` only where `now.spot` is true."""
        ...


@dataclass(frozen=True, slots=True)
class DeadlineOutcome:
    """Result of a run. Lengths are in units; money is in prices of one spot slot."""

    spot_work: int
    on_demand_work: int
    cost: float
    starts: int
    #: Units of work that were not done by the deadline.
    late: int


@dataclass(slots=True)
class DeadlineRun:
    """The state of a run in progress: what it holds, what it has paid and done. Simulators advance it slot by slot."""

    job: DeadlineJob
    left: int
    held: HeldMachine = HeldMachine.NOTHING
    pending: int = 0
    cost: float = 0.0
    starts: int = 0
    #: Units of work that were done, by the kind of machine that did them.
    done: list[int] = field(default_factory=lambda: [0, 0, 0])

    def lose(self) -> None:
        """Records that the market revoked the held machine."""
        self.held, self.pending = HeldMachine.NOTHING, 0

    def state_at(self, index: int, spot: bool) -> DeadlineState:
        """Returns the state that a policy sees at the start of slot `index`."""
        return DeadlineState(self.job.deadline - index * self.job.slot, self.left, self.held, self.pending, spot)

    def spend(self, chosen: HeldMachine) -> None:
        """Advances by one slot in which the job holds `chosen`."""
        job = self.job
        if chosen is not self.held and chosen is not HeldMachine.NOTHING:
            self.pending = job.changeover
            self.starts += 1
        self.held = chosen
        if chosen is HeldMachine.NOTHING:
            return
        warming = min(self.pending, job.slot)
        progress = min(job.slot - warming, self.left)
        self.pending -= warming
        self.left -= progress
        self.done[chosen] += progress
        self.cost += (warming + progress) / job.slot * (1.0 if chosen is HeldMachine.SPOT else job.on_demand_price)

    def outcome(self) -> DeadlineOutcome:
        """Returns the result of the run so far."""
        return DeadlineOutcome(
            self.done[HeldMachine.SPOT], self.done[HeldMachine.ON_DEMAND], self.cost, self.starts, self.left
        )


def run_deadline_job(job: DeadlineJob, policy: SpotPolicy, available: Sequence[bool]) -> DeadlineOutcome:
    """Runs a job under a policy over a trace of spot availability, one value per slot.

    Raises ValueError if the policy holds a spot machine in a slot without one. The trace must reach to the deadline.
    """
    return run_slots(job, [available], lambda now, at, there: (policy.hold(job, now), 0))


def run_slots(
    job: DeadlineJob,
    zones: Sequence[Sequence[bool]],
    choose: Callable[[DeadlineState, int, Sequence[bool]], tuple[HeldMachine, int]],
) -> DeadlineOutcome:
    """Runs a job over traces of spot availability by zone.

    Args:
        job: any.
        zones: one value per slot; each trace reaches to the deadline.
        choose: returns what to hold and in which zone, from the state at the start of a slot, the zone of the last spot
            machine, and which zones have one. Another zone is another machine.

    Raises ValueError if a spot machine is chosen where there is none.
    """
    going, at = DeadlineRun(job, job.work), 0
    for index in range(job.slots):
        if going.left == 0:
            break
        there = [zone[index] for zone in zones]
        if going.held is HeldMachine.SPOT and not there[at]:
            going.lose()
        held, zone = choose(going.state_at(index, any(there)), at, there)
        if held is HeldMachine.SPOT:
            if not there[zone]:
                raise ValueError("a policy may hold a spot machine only where there is one")
            if zone != at and going.held is HeldMachine.SPOT:
                going.lose()
            at = zone
        going.spend(held)
    return going.outcome()


@dataclass(slots=True)
class _SafetyNet:
    """Remembers whether the job must stay on demand until its end."""

    sprung: bool = False

    def holds(self, job: DeadlineJob, now: DeadlineState) -> bool:
        if now.slack < job.margin:
            self.sprung = True
        return self.sprung


class OnDemandPolicy:
    """Always holds an on-demand machine: the baseline against which savings are measured."""

    def hold(self, job: DeadlineJob, now: DeadlineState) -> HeldMachine:
        """See `SpotPolicy.hold`."""
        return HeldMachine.ON_DEMAND


@dataclass(slots=True)
class GreedySpotPolicy:
    """Holds a spot machine when one is available and nothing otherwise, until only on-demand machines meet the
    deadline.
    """

    _net: _SafetyNet = field(default_factory=_SafetyNet)

    def hold(self, job: DeadlineJob, now: DeadlineState) -> HeldMachine:
        """See `SpotPolicy.hold`."""
        if self._net.holds(job, now):
            return HeldMachine.ON_DEMAND
        return HeldMachine.SPOT if now.spot else HeldMachine.NOTHING


@dataclass(slots=True)
class UniformProgress:
    """Follows the straight line to the deadline, on spot machines where they are available (see the module)."""

    _net: _SafetyNet = field(default_factory=_SafetyNet)

    def hold(self, job: DeadlineJob, now: DeadlineState) -> HeldMachine:
        """See `SpotPolicy.hold`."""
        if self._net.holds(job, now):
            return HeldMachine.ON_DEMAND
        if now.held is HeldMachine.ON_DEMAND:
            ahead = self._ahead(job, now, 2 * job.changeover)
            return HeldMachine.SPOT if now.spot and ahead else HeldMachine.ON_DEMAND
        if now.spot:
            return HeldMachine.SPOT
        return HeldMachine.NOTHING if self._ahead(job, now, 0) else HeldMachine.ON_DEMAND

    @staticmethod
    def _ahead(job: DeadlineJob, now: DeadlineState, later: int) -> bool:
        """Returns whether the work done is at least what the line requires `later` units from now."""
        line = (job.deadline - now.time_left + later) * job.work / job.deadline
        return job.work - now.work_left >= line
