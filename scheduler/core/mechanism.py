"""The place of a round mechanism: what turns a policy's decision into starts and stops, event by event.

Ours is `OwedRounds` (design 2; its steps are in `rounds.py`), or for policies that plan `PlannedEvents` (`plans.py`).
`RoundRules.mechanism` names the one in force; a core is handed the others it may use, such as those that reproduce
another scheduler's.
"""

from collections.abc import Callable

from optimizer.policy import OrderPolicy, PlanPolicy, Policy
from scheduler.core import resolve
from scheduler.core.cycle import Cycle, RoundMechanism
from scheduler.core.discipline import BySharesOwed
from scheduler.core.handlers import jobs
from scheduler.core.intake import fill_lines_anew, set_round_timer, take_in
from scheduler.core.orders import ByOrder
from scheduler.core.plans import PlannedEvents
from scheduler.core.profiling import explore
from scheduler.core.rounds import compare, fill
from scheduler.core.rules import OWED, RoundRules

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
        rules = cycle.standing.rules
        if cycle.refill:
            fill_lines_anew(cycle)
        pressing = take_in(cycle) if cycle.freed or cycle.arrived else ()
        if not rules.idle_to_round_end or cycle.round_ended:
            fill(cycle)
        for job in pressing:
            jobs.press(cycle, job)
        if rules.round_s == 0 or (cycle.round_ended and not self._awaits_answer(cycle)):
            compare(cycle)
            explore(cycle)
            take_in(cycle)
            fill(cycle)
        cycle.round_ended = cycle.answered = False
        if cycle.dirty and cycle.standing.sharing is not None:
            resolve.ask_if_due(cycle)
        set_round_timer(cycle)

    def _awaits_answer(self, cycle: Cycle) -> bool:
        """Whether a solve is asked for at this round's end: its answer, or its failure, is when jobs are compared.

        Exchanges by shares that are about to be replaced would cost restarts in vain. An answer that is not here when
        the next round ends is waited for no longer.
        """
        if not cycle.answered and cycle.dirty and cycle.standing.sharing is not None:
            resolve.ask_if_due(cycle)
        return not cycle.answered and cycle.in_flight > 0 and cycle.asked_at == cycle.now


def _ours(cycle: Cycle, policy: Policy, rules: RoundRules) -> RoundMechanism:
    """What is owed is a matter of shares and orders; a plan says who runs."""
    return PlannedEvents(cycle, policy, rules) if isinstance(policy, PlanPolicy) else OwedRounds(cycle, policy, rules)


#: What every core knows.
MECHANISMS: dict[str, MakeMechanism] = {OWED: _ours}
