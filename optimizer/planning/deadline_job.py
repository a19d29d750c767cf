"""One job with a deadline that may run on spot machines: its state slot by slot, and simple policies.

Time goes in slots: at the start of each it is seen whether a spot machine can be held during the slot, and the policy
says what to hold. Every start of a machine takes `changeover` of paid time without progress. After Wu and others,
"Can't Be Late" (NSDI'24). Lengths are counted in whole units, so that the plans by dynamic programming and the runs
follow the same arithmetic.

Uniform Progress keeps pace with the line from nothing to all work at the deadline: idle and behind it, it goes on
demand; ahead of it by two changeovers, it leaves on-demand machines again, but for a spot machine only, never to idle.
Greedy takes spot where there is any, else idles. Both go on demand for good once the slack is down to the job's margin.
Neither is told anything but the present.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol


class HeldMachine(IntEnum):
    """What the job holds during a slot."""

    NOTHING = 0
    SPOT = 1
    ON_DEMAND = 2


@dataclass(frozen=True, slots=True)
class DeadlineJob:
    """The work, its deadline, and the market; lengths in units, spot costs 1 per slot."""

    #: Units in one slot.
    slot: int
    work: int
    #: A whole number of slots.
    deadline: int
    #: Paid time without progress at each start of a machine.
    changeover: int
    on_demand_price: float

    @property
    def slots(self) -> int:
        """Slots until the deadline."""
        return self.deadline // self.slot

    @property
    def margin(self) -> int:
        """Slack below which a job must be on demand: one more slot elsewhere might leave too little for the change."""
        return max(2 * self.changeover, self.changeover + self.slot)


@dataclass(frozen=True, slots=True)
class DeadlineState:
    """Where the job stands at the start of a slot."""

    #: Units until the deadline, and of work.
    time_left: int
    work_left: int
    #: What it held in the slot before; a spot machine that the market took back is nothing.
    held: HeldMachine
    #: Part of the changeover that is still to be paid on it.
    pending: int
    spot: bool

    @property
    def slack(self) -> int:
        """Time that may be spent without progress."""
        return self.time_left - self.work_left


class SpotPolicy(Protocol):
    """What to hold, slot by slot. One object serves one run."""

    def hold(self, job: DeadlineJob, now: DeadlineState) -> HeldMachine:
        """What to hold in the slot that begins; `HeldMachine.SPOT` only where `now.spot`."""
        ...


@dataclass(frozen=True, slots=True)
class DeadlineOutcome:
    """What a run came to; lengths in units, money in slots of spot."""

    spot_work: int
    on_demand_work: int
    cost: float
    starts: int
    #: Work that was not done by the deadline.
    late: int


@dataclass(slots=True)
class DeadlineRun:
    """A run on its way: what is held, paid and done. For whoever drives a job slot by slot."""

    job: DeadlineJob
    left: int
    held: HeldMachine = HeldMachine.NOTHING
    pending: int = 0
    cost: float = 0.0
    starts: int = 0
    #: Work that was done, by what was held.
    done: list[int] = field(default_factory=lambda: [0, 0, 0])

    def lose(self) -> None:
        """The market took the machine back."""
        self.held, self.pending = HeldMachine.NOTHING, 0

    def state_at(self, index: int, spot: bool) -> DeadlineState:
        """What a policy sees at the start of a slot."""
        return DeadlineState(self.job.deadline - index * self.job.slot, self.left, self.held, self.pending, spot)

    def spend(self, chosen: HeldMachine) -> None:
        """Pass a slot with what was chosen."""
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
        """What it came to."""
        return DeadlineOutcome(
            self.done[HeldMachine.SPOT], self.done[HeldMachine.ON_DEMAND], self.cost, self.starts, self.left
        )


def run_deadline_job(job: DeadlineJob, policy: SpotPolicy, available: Sequence[bool]) -> DeadlineOutcome:
    """Run a job under a policy over the slots of a trace, of which there must be enough until its deadline."""
    going = DeadlineRun(job, job.work)
    for index in range(job.slots):
        if going.left == 0:
            break
        spot = available[index]
        if going.held is HeldMachine.SPOT and not spot:
            going.lose()
        chosen = policy.hold(job, going.state_at(index, spot))
        if chosen is HeldMachine.SPOT and not spot:
            raise ValueError("a policy may hold a spot machine only where there is one")
        going.spend(chosen)
    return going.outcome()


@dataclass(slots=True)
class _SafetyNet:
    """Whether the job has to stay on demand until its end."""

    sprung: bool = False

    def holds(self, job: DeadlineJob, now: DeadlineState) -> bool:
        if now.slack < job.margin:
            self.sprung = True
        return self.sprung


class OnDemandPolicy:
    """No spot machine ever: what there is to save from."""

    def hold(self, job: DeadlineJob, now: DeadlineState) -> HeldMachine:
        """See `SpotPolicy`."""
        return HeldMachine.ON_DEMAND


@dataclass(slots=True)
class GreedySpotPolicy:
    """Spot where there is any, else nothing, until only on-demand machines can make the deadline."""

    _net: _SafetyNet = field(default_factory=_SafetyNet)

    def hold(self, job: DeadlineJob, now: DeadlineState) -> HeldMachine:
        """See `SpotPolicy`."""
        if self._net.holds(job, now):
            return HeldMachine.ON_DEMAND
        return HeldMachine.SPOT if now.spot else HeldMachine.NOTHING


@dataclass(slots=True)
class UniformProgress:
    """Keep pace with the straight line to the deadline, on spot machines where there are any."""

    _net: _SafetyNet = field(default_factory=_SafetyNet)

    def hold(self, job: DeadlineJob, now: DeadlineState) -> HeldMachine:
        """See `SpotPolicy`."""
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
        """Whether the progress is what the line asks for so much later."""
        line = (job.deadline - now.time_left + later) * job.work / job.deadline
        return job.work - now.work_left >= line
