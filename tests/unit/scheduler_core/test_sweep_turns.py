"""A sweep never has more of its jobs running than its limit, whatever happens to them."""

from random import Random

import pytest
from fake_fleet import FakeFleet, cluster, job, remembered_state
from planned_fleet import carried_out

from scheduler.core import events as ev
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.core.rules import RoundRules
from walras.job_request import JobId, JobRequest
from walras.states import Reason

QUICK = RoundRules(round_s=10, resolve_min_s=0, min_runtime_s=5, restart_default_s=2)


def member(number: int, at_most: int, **more: object) -> JobRequest:
    return job(number, "a", 1, sweep=JobId(1), sweep_limit=at_most, steps=1e6, **more)


def submit(fleet: FakeFleet, *requests: JobRequest) -> None:
    for request in requests:
        fleet.tell(ev.JobSubmitted(fleet.at, request))
    carried_out(fleet)


def running(fleet: FakeFleet) -> list[int]:
    return sorted(fleet.attempts)


@pytest.mark.parametrize("policy", ["fifo", "max_min_fairness", "walras"])
def test_the_next_job_starts_when_one_is_over(policy: str) -> None:
    """Two at a time of five on eight accelerators, in order; a job outside the sweep is not kept back."""
    fleet = cluster(policy, rules=QUICK, machines="aa")
    submit(fleet, *(member(number, 2) for number in range(1, 6)), job(9, "a", 1))
    assert running(fleet) == [1, 2, 9]
    first = pending_reasons(fleet.core, JobId(3))[0]
    assert (first.reason, first.detail) == (Reason.WAIT_SWEEP, "2 jobs of its sweep may run at once, and do")
    fleet.end(JobId(2))
    carried_out(fleet)
    assert running(fleet) == [1, 3, 9]
    fleet.tell(ev.JobCancelled(fleet.at, JobId(4), "ada"))
    fleet.end(JobId(1), exit_code=1)
    carried_out(fleet)
    assert running(fleet) == [3, 5, 9]


def test_a_held_job_lets_another_run_and_waits_for_a_turn_when_released() -> None:
    """Held before it starts it gives its turn up at once; released, it is no third."""
    fleet = cluster("fifo", rules=QUICK, machines="aa")
    submit(fleet, *(member(number, 1) for number in (1, 2, 3)))
    fleet.tell(ev.JobHeld(fleet.at, JobId(1), Reason.HOLD_USER))
    assert running(fleet) == [1], "it is still being stopped"
    fleet.end(JobId(1), exit_code=85)
    assert running(fleet) == [2]
    fleet.tell(ev.JobReleased(fleet.at, JobId(1)))
    assert running(fleet) == [2]
    fleet.end(JobId(2))
    assert running(fleet) == [1]


@pytest.mark.parametrize("seed", range(4))
def test_the_limit_holds_over_anything_that_happens(seed: int) -> None:
    """Ends, failures, holds, cancels, lost machines, restarts of the core: in the end all have run, never four."""
    random, fleet = Random(seed), cluster("max_min_fairness", rules=QUICK, machines="aaaa")
    submit(fleet, *(member(number, 3) for number in range(1, 13)))
    for _ in range(300):
        fleet.at += 1.0
        known = [each.job_id for each in fleet.core.ledger]
        if not known:
            break
        chosen, act = random.choice(known), random.random()
        if act < 0.1:
            fleet.tell(ev.JobHeld(fleet.at, chosen, Reason.HOLD_USER))
        elif act < 0.3:
            fleet.tell(ev.JobReleased(fleet.at, chosen))
        elif act < 0.33:
            fleet.tell(ev.JobCancelled(fleet.at, chosen, "ada"))
        elif act < 0.36:
            fleet.restart(remembered_state(fleet.core.ledger))
        elif (attempt := fleet.some_attempt(random)) is not None:
            fleet.end(attempt.job_id, exit_code=85 if attempt.stopping else 0)
        carried_out(fleet)
        assert len(fleet.attempts) <= 3, (seed, running(fleet))
    assert not list(fleet.core.ledger), "a job never had its turn"
