"""Tries a policy that is not part of Walras on a copy of the live state, in its own process, before it is put in force.

The server itself never runs the policy: the trial also tells it what the policy says of itself (`PolicyTraits`). A step
of the loop copies what an order policy reads of all live jobs, or the problem that a policy of shares or plans
would get. A worker process makes the policy and asks all that the scheduler will ask. So a policy that raises, hangs,
answers no columns, or ends its process is refused while the one before it is still in force. Policies that are part of
Walras have their own tests and are not tried.
"""

from collections.abc import Iterable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from math import inf

import numpy as np

from optimizer.decision import Quote
from optimizer.policy import (
    GivenOrderFacts,
    Newcomer,
    OrderPolicy,
    PlanPolicy,
    Policy,
    PolicySpec,
    PolicyTraits,
    ResetsService,
    traits_of,
)
from optimizer.registry import is_built_in, make
from scheduler.core.commands import Solve
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.problem_snapshot import plan_problem
from scheduler.core.cycle.solve_requests import run_solve
from scheduler.core.ordering.plan_ordering import PlanOrdering
from scheduler.core.ordering.rank_ordering import LedgerOrderFacts, copied_facts
from scheduler.core.state.policy_faults import PolicyFault, checked_key, checked_renewal, fault_of
from scheduler.live.loop.worker_process import ask_worker_process
from scheduler.live.store.table_rows import JobRow
from walras.job_request import JobId, JobRequest

#: Seconds, the start of the process included; callers over HTTP wait 30 s for the answer.
TRIAL_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class PolicyTrial:
    """A policy, and the copy of the live state on which it is tried."""

    spec: PolicySpec
    facts: GivenOrderFacts
    #: The question for a policy of shares or plans; None: it is not asked for a decision.
    question: Solve | None = None


def trial_on_live_state(core: SchedulerCore, spec: PolicySpec, delay_usd_per_h: float) -> PolicyTrial | None:
    """Returns the trial, copied in a step of the loop; None for a policy of Walras itself."""
    if is_built_in(spec.name):
        return None
    ledger = core.ledger
    rows = ledger.columns.active.nonzero()[0]
    facts = copied_facts(LedgerOrderFacts(ledger, rows))
    # Arrays of the problem may be the ledger's own; they are copied on their way to the other process, after this step.
    problem = plan_problem(ledger, PlanOrdering(ledger, moves=True))
    return PolicyTrial(spec, facts, Solve(0, problem, spec, None, delay_usd_per_h))


def trial_on_stored_jobs(
    spec: PolicySpec, rows: Iterable[JobRow], requests: dict[JobId, JobRequest], used_s: dict[JobId, float], now: float
) -> PolicyTrial | None:
    """Returns the trial from the tables, before a core has the jobs (whose rest is unknown then); None as above."""
    if is_built_in(spec.name):
        return None
    jobs = [(row, requests[row.job_id]) for row in rows if row.job_id in requests]
    had = np.array([used_s.get(row.job_id, 0.0) for row, _ in jobs], dtype=np.float64)
    submitted = np.array([row.submitted_at for row, _ in jobs], dtype=np.float64)
    facts = GivenOrderFacts(
        submitted_at=submitted,
        priority_class=np.array([request.priority_class for _, request in jobs], dtype=np.int64),
        gang=np.ones(len(jobs)),
        attained_s=had,
        served_s=had.copy(),
        waited_s=np.maximum(now - submitted, 0.0),
        remaining_s=np.full(len(jobs), inf),
        deadline_at=np.full(len(jobs), inf),
    )
    return PolicyTrial(spec, facts)


async def try_policy(trial: PolicyTrial, timeout_s: float = TRIAL_TIMEOUT_S) -> PolicyFault | PolicyTraits:
    """Returns what the policy did wrong in a new process, or what it says of itself."""
    try:
        return await ask_worker_process(run_trial, trial, timeout_s)
    except TimeoutError:
        return PolicyFault("trial", "", f"the policy gave no answer within {timeout_s:g} s")
    except BrokenProcessPool:
        return PolicyFault("trial", "", "the policy ended the process that it was tried in")
    except Exception as error:  # the error itself cannot be sent between processes
        return fault_of("trial", error)


def run_trial(trial: PolicyTrial) -> PolicyFault | PolicyTraits:
    """In the worker process: asks the policy all that the scheduler will ask. Returns its fault, else its traits."""
    method = "make"
    try:
        policy = make(trial.spec)
        traits = traits_of(policy)
        if isinstance(policy, OrderPolicy):
            method = "key"
            n = len(trial.facts.submitted_at)
            _ask_key(policy, trial.facts, n)
            if isinstance(policy, ResetsService):
                method = "renews"
                checked_renewal(policy, trial.facts, n)
            return traits
        method = "value"
        _ask_value(policy)
        if trial.question is not None:
            method = "decide"
            run_solve(trial.question)
    except (Exception, SystemExit) as error:  # other people's code: whatever it raises is the answer
        return fault_of(method, error)
    return traits


def _ask_key(policy: OrderPolicy, facts: GivenOrderFacts, n: int) -> None:
    """Ask for the keys of all jobs, of one job alone (as for an arrival), of none, and of a made-up one."""
    checked_key(policy, facts, n)
    checked_key(policy, _slice(facts, slice(0, 0)), 0)
    if n:
        checked_key(policy, _slice(facts, slice(0, 1)), 1)
    one = np.ones(1)
    made_up = GivenOrderFacts(one, np.ones(1, np.int64), one, 0 * one, 0 * one, one, inf * one, inf * one)
    checked_key(policy, made_up, 1)


def _slice(facts: GivenOrderFacts, rows: slice) -> GivenOrderFacts:
    return GivenOrderFacts(**{name: getattr(facts, name)[rows] for name in GivenOrderFacts.__slots__})


def _ask_value(policy: Policy) -> None:
    """Ask for the value of a newcomer's configuration, in a fleet of one pool."""
    assert isinstance(policy, PlanPolicy) or not isinstance(policy, OrderPolicy)
    newcomer = Newcomer(np.ones(1), np.zeros(1, np.int64), np.ones(1), 1.0, np.ones(1), np.zeros(1), 3600.0)
    value = np.asarray(policy.value(newcomer, Quote(np.zeros(1), "none", 1.0)), dtype=np.float64)
    if value.shape != (1,) or np.isnan(value).any():
        raise ValueError(f"value() answers one number for each configuration, not {value!r}"[:200])
