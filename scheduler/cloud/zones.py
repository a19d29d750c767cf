"""One job with a deadline whose spot machine may be in any of several zones: runs, and which zone to take.

Going to another zone is a start like any other and costs the job its changeover. Whether to be on spot, on demand or on
nothing is left to a policy for one market, which sees the zones as one: there is spot where any zone has it. Which zone
is decided here: the one whose machine is likely to stay longest, by what was seen of each zone since the job began (and
before it, where somebody watched), against markets that were fitted on other traces. A machine that is there is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.cloud.deadline_job import DeadlineJob, Going, Held, Outcome, SpotPolicy
from scheduler.cloud.spot_market import Belief, SpotMarket


class ZoneChoice:
    """Which zone's machine is likely to stay longest. One object serves one run."""

    def __init__(self, markets: Sequence[SpotMarket], zones: int) -> None:
        self._beliefs = [Belief(markets) for _ in range(zones)]

    def see(self, available: Sequence[bool]) -> None:
        """Take in the slot that begins, zone by zone."""
        for belief, there in zip(self._beliefs, available, strict=True):
            belief.see(there)

    def best(self, available: Sequence[bool]) -> int:
        """Of the zones that have a machine; of equals the first.

        Raises:
            ValueError: no zone has one.
        """
        there = [zone for zone, has in enumerate(available) if has]
        return max(there, key=lambda zone: self._beliefs[zone].remaining)


def run_in_zones(job: DeadlineJob, policy: SpotPolicy, choice: ZoneChoice, zones: Sequence[Sequence[bool]]) -> Outcome:
    """Run a job under a policy that sees the zones as one market; as `deadline_job.run` where there is one zone."""
    going, at = Going(job, job.work), 0
    for index in range(job.slots):
        if going.left == 0:
            break
        available = [zone[index] for zone in zones]
        choice.see(available)
        if going.held is Held.SPOT and not available[at]:
            going.lose()
        chosen = policy.hold(job, going.standing(index, any(available)))
        if chosen is Held.SPOT and going.held is not Held.SPOT:
            at = choice.best(available)
        going.spend(chosen)
    return going.outcome()


@dataclass(frozen=True, slots=True)
class Together:
    """Traces of zones laid over each other."""

    #: Whether any zone has a machine, slot by slot.
    any: tuple[bool, ...]
    #: Chance per slot that the machine one holds is taken while another zone has one.
    taken: float


def together(zones: Sequence[Sequence[bool]]) -> Together:
    """The zones as one market, over the slots that all of them have; a machine that is there is kept."""
    many = min(len(zone) for zone in zones)
    union = tuple(any(zone[index] for zone in zones) for index in range(many))
    held: int | None = None
    slots = lost = 0
    for index, there in enumerate(union):
        if held is not None and there:
            slots += 1
            lost += not zones[held][index]
        if held is None or not zones[held][index]:
            held = next((place for place, zone in enumerate(zones) if zone[index]), None)
    return Together(union, (lost + 0.5) / (slots + 1.0) if len(zones) > 1 else 0.0)
