"""One job with a deadline that may run on spot machines while there are any: what its policies see, and what they cost.

Time goes in slots: at the start of each it is seen whether a spot machine can be held during the slot, and the policy
says what to hold. Every start of a machine takes `changeover` of paid time without progress. After Wu and others,
"Can't Be Late" (NSDI'24). Lengths are counted in whole units, so that the plans by dynamic programming and the runs
follow the same arithmetic. Decides nothing: policies are in `uniform_progress` and `slack_plan`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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


def run(job: DeadlineJob, policy: SpotPolicy, available: Sequence[bool]) -> Outcome:
    """Run a job under a policy over the slots of a trace, of which there must be enough until its deadline."""
    done = [0, 0, 0]
    cost, starts, held, pending = 0.0, 0, Held.NOTHING, 0
    left = job.work
    for index in range(job.slots):
        if left == 0:
            break
        spot = available[index]
        if held is Held.SPOT and not spot:
            held, pending = Held.NOTHING, 0
        chosen = policy.hold(job, Standing(job.deadline - index * job.slot, left, held, pending, spot))
        if chosen is Held.SPOT and not spot:
            raise ValueError("a policy may hold a spot machine only where there is one")
        if chosen is not held and chosen is not Held.NOTHING:
            pending = job.changeover
            starts += 1
        held = chosen
        if held is Held.NOTHING:
            continue
        warming = min(pending, job.slot)
        progress = min(job.slot - warming, left)
        pending -= warming
        left -= progress
        done[held] += progress
        cost += (warming + progress) / job.slot * (1.0 if held is Held.SPOT else job.on_demand_price)
    return Outcome(done[Held.SPOT], done[Held.ON_DEMAND], cost, starts, left)
