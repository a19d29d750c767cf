"""The place of a round mechanism: what turns a policy's decision into starts and stops, event by event.

`OwedRounds` is ours (design 2; its steps are in `rounds.py`). `RoundRules.mechanism` names the one in force; a core is
handed the others it may use, such as those that reproduce another scheduler's.
"""

from collections.abc import Callable
from typing import Protocol

from optimizer.policy import OrderPolicy, Policy
from scheduler.core import jobs, resolve
from scheduler.core.claims import offer
from scheduler.core.cycle import Cycle
from scheduler.core.discipline import BySharesOwed
from scheduler.core.ledger import JobRecord
from scheduler.core.orders import ByOrder
from scheduler.core.profiling import explore
from scheduler.core.rounds import compare, fill
from scheduler.core.rules import OWED, RoundRules


class RoundMechanism(Protocol):
    """Called after every event with what it left in the cycle; starts and stops attempts and asks for solves."""

    def settle(self, cycle: Cycle) -> None:
        """Do what is due now."""
        ...


#: Makes a mechanism for a policy that has just come into force.
MakeMechanism = Callable[[Cycle, Policy, RoundRules], RoundMechanism]


class OwedRounds:
    """Whoever is owed most runs: free places are filled at once, incumbents compared once a round."""

    def __init__(self, cycle: Cycle, policy: Policy, rules: RoundRules) -> None:
        if isinstance(policy, OrderPolicy):
            cycle.discipline = ByOrder(cycle.ledger, rules, policy)
        else:
            cycle.discipline = BySharesOwed(cycle.ledger, rules)

    def settle(self, cycle: Cycle) -> None:
        """Freed machines to claims, newcomers judged, places filled, incumbents compared, a solve asked for."""
        assert cycle.discipline is not None
        if cycle.refill:
            cycle.refill = False
            cycle.lines.clear()
            cycle.discipline.fill_lines(cycle.lines)
            cycle.stale_pools.update(range(len(cycle.ledger.fleet.pools)))
        pressing = _take_in(cycle)
        if not cycle.standing.rules.idle_to_round_end or cycle.round_ended:
            fill(cycle)
        for job in pressing:
            jobs.press(cycle, job)
        if cycle.round_ended or cycle.standing.rules.round_s == 0:
            cycle.round_ended = False
            compare(cycle)
            explore(cycle)
            _take_in(cycle)
            fill(cycle)
        resolve.ask_if_due(cycle)
        _set_round_timer(cycle)


#: What every core knows.
MECHANISMS: dict[str, MakeMechanism] = {OWED: OwedRounds}


def _take_in(cycle: Cycle) -> list[JobRecord]:
    """Offer freed machines to claims and judge newcomers, until neither brings more. Returns the newcomers."""
    seen: list[JobRecord] = []
    while cycle.freed or cycle.arrived:
        freed, cycle.freed = cycle.freed, {}
        for row in freed:
            machine = cycle.ledger.fleet.machines[row]
            if machine is not None:
                offer(cycle, machine)
        newcomers, cycle.arrived = cycle.arrived, []
        for job_id in newcomers:
            job = cycle.ledger.jobs.get(job_id)
            if job is not None:
                jobs.arrived(cycle, job)
                seen.append(job)
    return seen


def _set_round_timer(cycle: Cycle) -> None:
    """A round is worth a timer only if somebody waits, or is owed time on another pool."""
    rules, now = cycle.standing.rules, cycle.now
    if rules.round_s <= 0 or (cycle.round_timer_at > now and cycle.round_timer_at < float("inf")):
        return
    discipline = cycle.discipline
    if discipline is None or not (discipline.compares or rules.idle_to_round_end):
        return
    if not cycle.ledger.jobs:
        cycle.round_timer_at = float("inf")
        return
    cycle.round_timer_at = (now // rules.round_s + 1) * rules.round_s
    cycle.timers.set(cycle.round_timer_at, "round")
