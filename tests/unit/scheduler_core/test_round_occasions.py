"""When running jobs are compared with waiting ones: one occasion for a round's end and the solve it asks for."""

from fake_fleet import FakeFleet, cluster, job

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.job_change_events import JobReprioritised
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import ThroughputMeasured
from walras.job_request import JobId, Kind

J1, J2 = JobId(1), JobId(2)
HALVES = {1: {"c": 0.5}, 2: {"c": 0.5}}
RULES = RoundRules(
    round_s=10, resolve_min_s=10, min_runtime_s=5, restart_default_s=1, profiling_share=0, tolerated_lag=0.0
)


def revoked(commands: list[cmd.Command]) -> list[int]:
    return [command.job_id for command in commands if isinstance(command, cmd.Revoke)]


def due_at_the_round_end() -> FakeFleet:
    """Two jobs share one accelerator; at 20 s the one that waits is owed the place, and a solve is asked for."""
    fleet = cluster("max_min_fairness", rules=RULES, machines="c")
    for name, steps_per_s in (("a", 4.0), ("b", 2.0), ("c", 1.0)):
        fleet.tell(ThroughputMeasured(0.0, Kind("k"), name, 1, steps_per_s))
    fleet.tell(ev.JobSubmitted(0.0, job(1, "c")))
    fleet.tell(ev.AttemptStarted(0.0, J1, fleet.attempts[J1].number))
    fleet.tell(ev.JobSubmitted(0.0, job(2, "c")))
    fleet.answer({1: {"c": 1.0}})
    fleet.tell(ev.Woke(10.0))
    assert revoked(fleet.answer(HALVES)) == []
    fleet.tell(JobReprioritised(11.0, J2, 50))
    assert not fleet.solves
    assert revoked(fleet.tell(ev.Woke(20.0))) == []
    assert len(fleet.solves) == 1
    return fleet


def test_a_round_that_asks_for_a_solve_compares_by_its_answer() -> None:
    """Who has the place keeps it until the new shares say whose it is."""
    assert revoked(due_at_the_round_end().answer(HALVES)) == [1]
    assert revoked(due_at_the_round_end().answer({1: {"c": 1.0}})) == []


def test_a_solve_that_failed_puts_nothing_off() -> None:
    """The shares that are in force decide."""
    fleet = due_at_the_round_end()
    assert revoked(fleet.tell(ev.SolveFailed(22.0, fleet.solves.pop().request_id, "out of time"))) == [1]


def test_no_answer_is_waited_for_longer_than_a_round() -> None:
    """A solver that takes its time does not keep anybody from its place."""
    assert revoked(due_at_the_round_end().tell(ev.Woke(30.0))) == [1]
