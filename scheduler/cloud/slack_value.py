"""What slack is worth to a job with a deadline: the cost to go, by dynamic programming backwards from the deadline.

    V[r](s, m, z) = min over what to hold of  paid + E[ V[r-1](s', m', z') | z ]

r slots left, s slack, m what is held (and how much of its changeover is unpaid), z the market's state. A state from
which the deadline could be missed is worth `NEVER`, so no plan that follows these values gambles with it. The same step
serves a market that is known (one state, the next one certain) and one that is guessed.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.cloud.deadline_job import DeadlineJob, Held

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

#: Worth of a state that may miss the deadline: above any bill times the rarest change of the market (1e-4).
NEVER = 1e12


@dataclass(frozen=True, slots=True)
class Mode:
    """What is held at the start of a slot."""

    held: Held
    pending: int


def modes(job: DeadlineJob) -> tuple[Mode, ...]:
    """Everything that can be held at the start of a slot, nothing first."""
    unpaid = {max(job.changeover - slots * job.slot, 0) for slots in range(1, job.changeover // job.slot + 2)}
    return (Mode(Held.NOTHING, 0), *(Mode(held, p) for held in (Held.SPOT, Held.ON_DEMAND) for p in sorted(unpaid)))


@dataclass(frozen=True, slots=True)
class Move:
    """One choice in one mode: how slack and mode change, and what is paid (work permitting)."""

    held: Held
    #: Slack that the slot takes.
    slack: int
    #: Work that it could do.
    work: int
    #: Position in `modes` afterwards.
    mode: int
    #: Money per unit that is held.
    price: float

    def usd(self, job: DeadlineJob, work_left: FloatArray) -> FloatArray:
        """Paid in the slot: all of it, or until the work is done."""
        if self.held is Held.NOTHING:
            return np.zeros_like(work_left)
        return (self.slack + np.minimum(float(self.work), work_left)) * self.price


def moves(job: DeadlineJob, mode: Mode) -> tuple[Move, ...]:
    """The choices in a mode, in the order of `Held`."""
    places = {known: position for position, known in enumerate(modes(job))}
    found = [Move(Held.NOTHING, job.slot, 0, 0, 0.0)]
    for held, price in ((Held.SPOT, 1.0), (Held.ON_DEMAND, job.on_demand_price)):
        pending = mode.pending if mode.held is held else job.changeover
        warming = min(pending, job.slot)
        after = places[Mode(held, pending - warming)]
        found.append(Move(held, warming, job.slot - warming, after, price / job.slot))
    return tuple(found)


def lost_spot(job: DeadlineJob) -> NDArray[np.intp]:
    """The mode that each mode becomes when spot machines are taken back."""
    return np.array([0 if mode.held is Held.SPOT else place for place, mode in enumerate(modes(job))], dtype=np.intp)


def step(job: DeadlineJob, slots_left: int, ahead: FloatArray, spot: BoolArray) -> FloatArray:
    """Values with `slots_left` to go, from what is expected after the slot.

    Args:
        ahead: expected value after the slot, by slack, mode after it, and the market's state now (s, m, z).
        spot: in which states of the market a spot machine can be held (z,).
    """
    many = len(ahead)
    slack = np.arange(many)
    work_left = slots_left * job.slot - slack
    value = np.full_like(ahead, NEVER)
    for place, mode in enumerate(modes(job)):
        for move in moves(job, mode):
            after = slack - move.slack
            paid = move.usd(job, np.maximum(work_left, 0).astype(np.float64))
            to_come = np.where((after >= 0)[:, None], ahead[np.maximum(after, 0), move.mode], NEVER)
            ended = work_left <= move.work if move.held is not Held.NOTHING else work_left <= 0
            worth = paid[:, None] + np.where(ended[:, None], 0.0, to_come)
            if move.held is Held.SPOT:
                worth = np.where(spot[None, :], worth, NEVER)
            value[:, place] = np.minimum(value[:, place], worth)
    value[work_left <= 0] = 0.0
    return value


def after_the_deadline(job: DeadlineJob, states: int) -> FloatArray:
    """Values when no slot is left: slack that is not negative means that the work is done (s, m, z)."""
    return np.zeros((job.deadline - job.work + 1, len(modes(job)), states))
