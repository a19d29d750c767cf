"""Exchanges that cost more than is remembered of owed time: nobody waits for ever, and nobody loses work to it."""

from fake_fleet import FakeFleet, cluster, job

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import ThroughputMeasured
from walras.job_request import JobId, Kind

#: h = 16, restarts 5 + 5, gang 4: 640 accelerator-seconds. It can be owed 240 at most, and those who run 60 too much.
DEAR = RoundRules(
    round_s=10,
    resolve_min_s=0,
    min_runtime_s=5,
    restart_default_s=5,
    hysteresis=16,
    owed_limit_rounds=6,
    profiling_share=0,
)
SINGLES = (1, 2, 3, 4)


def stopped_for_a_gang(*, loses_work: bool = False) -> list[int]:
    """Four jobs that never end hold a machine of four; a gang of four waits for 400 s: whom it has stopped."""
    fleet: FakeFleet = cluster("max_min_fairness", rules=DEAR)
    for count in (1, 4):
        fleet.tell(ThroughputMeasured(0.0, Kind("k"), "a", count, 4.0 * count))
    for number in SINGLES:
        fleet.tell(ev.JobSubmitted(0.0, job(number, "a", 1)))
        fleet.tell(ev.AttemptStarted(0.0, JobId(number), 1))
        columns = fleet.core.ledger.columns
        columns.loses_work[fleet.core.ledger.jobs[JobId(number)].slot] = loses_work
    fleet.tell(ev.JobSubmitted(0.0, job(5, "a", 4)))
    stopped: list[int] = []
    while fleet.at < 400 and not stopped:
        while fleet.solves:
            fleet.answer({number: {"a": 0.5} for number in range(1, 6)})
        stopped = [command.job_id for command in fleet.wake() if isinstance(command, cmd.Revoke)]
    return stopped


def test_a_gang_has_its_turn_where_an_exchange_costs_more_than_is_remembered() -> None:
    """Owed time is remembered up to a limit; jobs that never end must not keep their places for ever behind it."""
    assert sorted(stopped_for_a_gang()) == [*SINGLES]


def test_jobs_that_would_lose_their_work_are_not_stopped_below_what_that_costs() -> None:
    """They would never be done."""
    assert stopped_for_a_gang(loses_work=True) == []
