"""`protected_s`: a running job keeps its place for so long, whoever outranks it, under orders, shares and plans."""

from dataclasses import dataclass, field, replace
from random import Random

import pytest
from fake_fleet import FakeFleet, cluster, job
from planned_fleet import measured

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.cycle.solve_requests import run_solve
from scheduler.core.rules import RoundRules, parse_rules
from scheduler.core.speed_events import ThroughputMeasured
from walras.errors import ConfigError
from walras.job_request import JobId, Kind
from walras.states import Reason

RULES = RoundRules(
    round_s=10, resolve_min_s=0, min_runtime_s=5, restart_default_s=2, profiling_share=0, protected_s=100
)
LOW, NORMAL, HIGH = 10, 50, 90


def fleet_of(policy: str, machines: str = "c", rules: RoundRules = RULES, **parameters: object) -> FakeFleet:
    """One accelerator of type c, unless said otherwise; every speed is known."""
    return measured(cluster(policy, rules=rules, machines=machines, **parameters))


def submit(fleet: FakeFleet, number: int, priority: int, at: float, **more: object) -> list[cmd.Command]:
    """Submits a job; what was granted starts at once. Returns the commands."""
    asked = job(number, "c", priority=priority, **{"steps": 1e5, **more})
    return settled(fleet, fleet.tell(ev.JobSubmitted(at, asked)))


def settled(fleet: FakeFleet, commands: list[cmd.Command]) -> list[cmd.Command]:
    """Answers solves as the policy would, and starts what was granted."""
    while fleet.solves:
        solve = fleet.solves.pop()
        commands = commands + fleet.tell(ev.Solved(fleet.at, solve.request_id, run_solve(solve)))
    for attempt in list(fleet.attempts.values()):
        job_record = fleet.core.ledger.jobs[attempt.job_id]
        if attempt.started and str(job_record.state) == "STARTING":
            commands = commands + fleet.tell(ev.AttemptStarted(fleet.at, attempt.job_id, attempt.number))
    return commands


def revoked_until(fleet: FakeFleet, at: float) -> dict[int, float]:
    """Lets rounds end; who was asked to go, and when."""
    found: dict[int, float] = {}
    while fleet.wake_at <= at:
        commands = settled(fleet, fleet.wake())
        found |= {command.job_id: fleet.at for command in commands if isinstance(command, cmd.Revoke)}
    fleet.at = at
    return found


@pytest.mark.parametrize("policy", ["srtf", "las", "max_min_fairness", "walras"])
@pytest.mark.parametrize("priority", [NORMAL, HIGH])
def test_a_higher_class_waits_for_the_end_of_the_protection(policy: str, priority: int) -> None:
    """Counted from when all ranks ran; then it takes the place at the next round's end."""
    fleet = fleet_of(policy)
    submit(fleet, 1, LOW, 3.0)
    assert list(fleet.attempts) == [1]
    commands = submit(fleet, 2, priority, 20.0, steps=50.0)
    assert not [command for command in commands if isinstance(command, cmd.Revoke)]
    assert revoked_until(fleet, 102.5) == {}
    (moved,) = revoked_until(fleet, 125.0).items()
    assert moved[0] == 1
    assert 103.0 <= moved[1] <= 113.0


@pytest.mark.parametrize("policy", ["srtf", "las", "max_min_fairness", "walras"])
def test_without_the_rule_a_higher_class_does_not_wait(policy: str) -> None:
    """The default: the highest class takes the place at once, or with the next answer."""
    fleet = fleet_of(policy, rules=RoundRules(round_s=10, resolve_min_s=0, restart_default_s=2, profiling_share=0))
    submit(fleet, 1, LOW, 3.0)
    commands = submit(fleet, 2, HIGH, 20.0, steps=50.0)
    at = revoked_until(fleet, 45.0)
    assert [command.job_id for command in commands if isinstance(command, cmd.Revoke)] == [1] or at[1] <= 40.0


def test_a_job_of_its_own_class_waits_as_long() -> None:
    """The longer of `min_runtime_s` and `protected_s` counts."""
    fleet = fleet_of("srtf", margin=0.0)
    submit(fleet, 1, NORMAL, 0.0)
    submit(fleet, 2, NORMAL, 1.0, steps=50.0)
    assert revoked_until(fleet, 99.0) == {}
    assert list(revoked_until(fleet, 125.0)) == [1]


@pytest.mark.parametrize("policy", ["fifo", "srtf"])
def test_where_no_round_compares_jobs_the_highest_class_comes_at_the_very_end_of_it(policy: str) -> None:
    """One that ends or is cancelled meanwhile is forgotten; one that finds a free place before needs none."""
    parameters = {} if policy == "fifo" else {"preemptive": False}
    fleet = fleet_of(policy, **parameters)
    submit(fleet, 1, LOW, 3.0)
    for number, at in ((2, 20.0), (3, 30.0)):
        assert not [each for each in submit(fleet, number, HIGH, at) if isinstance(each, cmd.Revoke)]
    fleet.tell(ev.JobCancelled(40.0, JobId(2), "ada"))
    assert fleet.wake_at == 103.0
    assert revoked_until(fleet, 103.0) == {1: 103.0}
    fleet.end(JobId(1), 85)
    assert list(fleet.attempts) == [3]


def test_who_is_protected_can_leave_for_other_reasons() -> None:
    """Cancelled by its owner, or with its machine."""
    fleet = fleet_of("srtf")
    submit(fleet, 1, LOW, 0.0)
    commands = fleet.tell(ev.JobCancelled(5.0, JobId(1), "ada"))
    assert [command.reason for command in commands if isinstance(command, cmd.Revoke)] == [Reason.USER_CANCELLED]


@pytest.mark.parametrize("policy", ["sia", "walras"])
def test_who_is_protected_is_not_sent_elsewhere_to_learn_a_speed(policy: str) -> None:
    """Nor is it stopped for a job that would learn in its place."""
    rules = replace(RULES, profiling_share=0.5, profiling_s=20)
    fleet = cluster(policy, rules=rules, machines="ac")
    fleet.tell(ThroughputMeasured(0.0, Kind("k"), "a", 1, 4.0))
    settled(fleet, fleet.tell(ev.JobSubmitted(3.0, job(1, steps=1e5))))
    assert fleet.attempts[JobId(1)].placement.pool_id == "a"
    assert revoked_until(fleet, 102.5) == {}
    assert list(revoked_until(fleet, 125.0)) == [1]


def test_the_rule_is_a_length_of_time() -> None:
    assert parse_rules({"protected_s": 3600}).protected_s == 3600.0
    assert parse_rules({}).protected_s == 0.0
    with pytest.raises(ConfigError, match="protected_s"):
        parse_rules({"protected_s": -1})


@pytest.mark.parametrize("policy", ["fifo", "srtf", "las", "max_min_fairness", "walras"])
@pytest.mark.parametrize("seed", range(3))
def test_no_job_is_preempted_before_and_all_end(policy: str, seed: int) -> None:
    """Jobs of all classes come and end at random: none that was stopped for another had run less than it is protected,
    and nobody waits for ever.
    """
    chance, fleet = Random(seed), fleet_of(policy, "cc")
    running = Running(fleet)
    for number in range(1, 26):
        at = fleet.at + chance.uniform(0.0, 60.0)
        running.pass_time(at)
        submit(fleet, number, chance.choice((LOW, NORMAL, HIGH)), at, steps=float(chance.randint(20, 400)))
    for _ in range(600):
        if not fleet.core.ledger.jobs:
            break
        running.pass_time(fleet.at + 10.0)
    assert not fleet.core.ledger.jobs
    began: dict[int, float] = {}
    protected = []
    for event, commands in fleet.log:
        if isinstance(event, ev.AttemptStarted):
            began[event.job_id] = event.at
        for command in commands:
            if isinstance(command, cmd.Revoke) and command.reason in (Reason.POLICY_PREEMPTED, Reason.POLICY_MOVED):
                protected.append(event.at >= began[command.job_id] + RULES.protected_s)
    assert protected
    assert all(protected)


@dataclass
class Running:
    """Jobs that do a step in a second, and keep what they did when they are asked to leave."""

    fleet: FakeFleet
    #: When each job that runs is through, and what is left of those that were stopped, in seconds.
    due: dict[JobId, float] = field(default_factory=dict)
    left: dict[JobId, float] = field(default_factory=dict)

    def pass_time(self, until: float) -> None:
        """Lets happen what happens until then: jobs end, leave when they are asked to, and rounds end."""
        fleet = self.fleet
        while True:
            for job_id, attempt in list(fleet.attempts.items()):
                if attempt.stopping:
                    self.left[job_id] = self.due.pop(job_id) - fleet.at
                    settled(fleet, fleet.end(job_id, 85))
                    break
                if attempt.started and job_id not in self.due:
                    steps = fleet.core.ledger.jobs[job_id].request.steps or 0.0
                    self.due[job_id] = fleet.at + self.left.get(job_id, steps)
            else:
                at = min(min(self.due.values(), default=until), fleet.wake_at)
                if at >= until:
                    fleet.at = until
                    return
                fleet.at = max(fleet.at, at)
                over = [job_id for job_id, end in self.due.items() if end <= fleet.at]
                if over:
                    del self.due[over[0]]
                    settled(fleet, fleet.end(over[0], 0))
                else:
                    settled(fleet, fleet.wake())
