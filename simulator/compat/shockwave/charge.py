"""What a start costs in Shockwave's simulator: part of the round's steps."""

from math import floor

#: A job that was not running in the round before loses this much of a round...
OVERHEAD_S = 20.0
#: ...if it ran for longer than this.
SPARED_S = 115.0


def received_s(ran_s: float, started: bool) -> float:
    """What counts of the time a job ran in a round."""
    return ran_s - OVERHEAD_S if started and ran_s > SPARED_S else ran_s


def steps_left_over(steps: float, ran_s: float, started: bool) -> float:
    """What counts of the steps it made in that time: whole ones."""
    if not (started and ran_s > SPARED_S):
        return steps
    return float(floor(steps * (ran_s - OVERHEAD_S) / ran_s))
