"""One job with a deadline that may run on spot machines while there are any: what its policies see, and what they cost.

Time goes in slots: at the start of each it is seen whether a spot machine can be held during the slot, and the policy
says what to hold. Every start of a machine takes `changeover` of paid time without progress. After Wu and others,
"Can't Be Late" (NSDI'24). Lengths are counted in whole units, so that the plans by dynamic programming and the runs
follow the same arithmetic. Decides nothing: policies are in `uniform_progress` and `slack_plan`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol


class Held(IntEnum):
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
class Standing:
    """Where the job stands at the start of a slot."""

    #: Units until the deadline, and of work.
    time_left: int
    work_left: int
    #: What it held in the slot before; a spot machine that the market took back is nothing.
    held: Held
    #: Part of the changeover that is still to be paid on it.
    pending: int
    spot: bool

    @property
    def slack(self) -> int:
        """Time that may be spent without progress."""
        return self.time_left - self.work_left


class SpotPolicy(Protocol):
    """What to hold, slot by slot. One object serves one run."""

    def hold(self, job: DeadlineJob, now: Standing) -> Held:
        """What to hold in the slot that begins; `Held.SPOT` only where `now.spot`."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to; lengths in units, money in slots of spot."""

    spot_work: int
    on_demand_work: int
    cost: float
    starts: int
    #: Work that was not done by the deadline.
    late: int


@dataclass(slots=True)
class Going:
    """A run on its way: what is held, paid and done. For whoever drives a job slot by slot."""

    job: DeadlineJob
    left: int
    held: Held = Held.NOTHING
    pending: int = 0
    cost: float = 0.0
    starts: int = 0
    #: Work that was done, by what was held.
    done: list[int] = field(default_factory=lambda: [0, 0, 0])

    def lose(self) -> None:
        """The market took the machine back."""
        self.held, self.pending = Held.NOTHING, 0

    def standing(self, index: int, spot: bool) -> Standing:
        """What a policy sees at the start of a slot."""
        return Standing(self.job.deadline - index * self.job.slot, self.left, self.held, self.pending, spot)

    def spend(self, chosen: Held) -> None:
        """Pass a slot with what was chosen."""
        job = self.job
        if chosen is not self.held and chosen is not Held.NOTHING:
            self.pending = job.changeover
            self.starts += 1
        self.held = chosen
        if chosen is Held.NOTHING:
            return
        warming = min(self.pending, job.slot)
        progress = min(job.slot - warming, self.left)
        self.pending -= warming
        self.left -= progress
        self.done[chosen] += progress
        self.cost += (warming + progress) / job.slot * (1.0 if chosen is Held.SPOT else job.on_demand_price)

    def outcome(self) -> Outcome:
        """What it came to."""
        return Outcome(self.done[Held.SPOT], self.done[Held.ON_DEMAND], self.cost, self.starts, self.left)


def run(job: DeadlineJob, policy: SpotPolicy, available: Sequence[bool]) -> Outcome:
    """Run a job under a policy over the slots of a trace, of which there must be enough until its deadline."""
    going = Going(job, job.work)
    for index in range(job.slots):
        if going.left == 0:
            break
        spot = available[index]
        if going.held is Held.SPOT and not spot:
            going.lose()
        chosen = policy.hold(job, going.standing(index, spot))
        if chosen is Held.SPOT and not spot:
            raise ValueError("a policy may hold a spot machine only where there is one")
        going.spend(chosen)
    return going.outcome()
