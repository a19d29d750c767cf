"""Our policy for one job with a deadline on spot machines: spend slack where it saves most.

Slack buys three things: idling through a gap instead of paying for on-demand machines, the changeovers of leaving them
for spot, and safety. For each market that was fitted on earlier traces the cost to go is computed once (`slack_value`);
in each slot the choice is the one that costs least in the mean over the markets, weighed by what this trace has shown
so far. It never gambles with the deadline: a choice after which the next slot could leave too little time is `NEVER`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.cloud.deadline_job import DeadlineJob, Held, Standing
from scheduler.cloud.slack_value import Mode, after_the_deadline, lost_spot, moves, step
from scheduler.cloud.spot_market import STATES, Belief, SpotMarket, spot_states


@dataclass(frozen=True, slots=True, eq=False)
class SlackPlan:
    """Costs to go of one job under each market. Made once, used by any number of runs."""

    job: DeadlineJob
    markets: tuple[SpotMarket, ...]
    #: Expected value after a slot: hypothesis, slots left after it, slack, mode, state of the market in the slot.
    ahead: NDArray[np.float32]

    def policy(self) -> "SlackPolicy":
        """For one run."""
        return SlackPolicy(self, Belief(self.markets))


def plan_slack(job: DeadlineJob, markets: Sequence[SpotMarket], taken: Sequence[float] = ()) -> SlackPlan:
    """The costs to go of a job under each of some markets.

    Args:
        taken: for each market the chance per slot that the machine is taken while others can be had (several zones).
    """
    chances = taken or [0.0] * len(markets)
    plans = [_ahead(job, market, chance) for market, chance in zip(markets, chances, strict=True)]
    return SlackPlan(job, tuple(markets), np.stack(plans))


def _ahead(job: DeadlineJob, market: SpotMarket, taken: float) -> NDArray[np.float32]:
    spot, chances, lost = spot_states(), market.transitions().T, lost_spot(job)
    value = after_the_deadline(job, STATES)
    found: list[NDArray[np.float32]] = []
    for slots_left in range(job.slots):
        value = value if slots_left == 0 else step(job, slots_left, found[-1].astype(np.float64), spot)
        # A machine that the market takes at the end of the slot is nothing at the start of the next.
        gone = value[:, lost]
        arrived = np.where(spot, (1 - taken) * value + taken * gone, gone)
        found.append((arrived @ chances).astype(np.float32))
    return np.stack(found)


@dataclass(slots=True)
class SlackPolicy:
    """One run under a plan."""

    _plan: SlackPlan
    _belief: Belief

    def watch(self, before: Sequence[bool]) -> None:
        """Take in slots of the same market from before the job came, where somebody watched it."""
        for available in before:
            self._belief.see(available)

    def hold(self, job: DeadlineJob, now: Standing) -> Held:
        """See `SpotPolicy`."""
        self._belief.see(now.spot)
        worth = self.worth(job, now)
        return min(worth, key=lambda held: worth[held])

    def worth(self, job: DeadlineJob, now: Standing) -> dict[Held, float]:
        """Money until the end, in slots of spot and in the mean, of each choice in the slot that was seen last.

        What may miss the deadline is worth more than any bill: the chance of it times `slack_value.NEVER`.
        """
        weights, state = self._belief.weights, self._belief.state
        after = self._plan.ahead[:, now.time_left // job.slot - 1]
        worth: dict[Held, float] = {}
        for move in moves(job, Mode(now.held, now.pending)):
            if (move.held is Held.SPOT and not now.spot) or now.slack < move.slack:
                continue
            ended = move.held is not Held.NOTHING and now.work_left <= move.work
            to_come = 0.0 if ended else float(weights @ after[:, now.slack - move.slack, move.mode, state])
            worth[move.held] = float(move.usd(job, np.array([float(now.work_left)]))[0]) + to_come
        return worth
