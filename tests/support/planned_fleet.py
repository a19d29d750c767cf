"""A fleet under a policy that plans: its speeds are known, and what it asks is answered by the policy itself."""

from math import inf

from fake_fleet import FakeFleet, cluster, job

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.cycle.solve_requests import run_solve
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import ThroughputMeasured
from walras.job_request import JobRequest, Kind

QUICK = RoundRules(round_s=100, resolve_min_s=0, restart_default_s=2, profiling_share=0)
#: Rounds in which jobs take turns.
TURNS = RoundRules(round_s=10, resolve_min_s=0, min_runtime_s=5, restart_default_s=2, profiling_share=0)


def planning(
    machines: str = "ab", policy: str = "walras", rules: RoundRules = QUICK, **parameters: object
) -> FakeFleet:
    """A fleet under a policy that knows every speed, as `measured` says."""
    return measured(cluster(policy, rules=rules, machines=machines, **parameters))


def measured(fleet: FakeFleet) -> FakeFleet:
    """The fleet once every speed is known: a is fast, b half as fast, c a quarter."""
    for name, steps_per_s in (("a", 4.0), ("b", 2.0), ("c", 1.0)):
        for count in (1, 2, 4):
            fleet.tell(ThroughputMeasured(fleet.at, Kind("k"), name, count, steps_per_s * count))
    return fleet


def carried_out(fleet: FakeFleet) -> list[cmd.Command]:
    """Answer what is asked until nothing is asked any more."""
    done: list[cmd.Command] = []
    for _ in range(20):
        if not fleet.solves:
            return done
        asked = fleet.solves.pop()
        done += fleet.tell(ev.Solved(fleet.at, asked.request_id, run_solve(asked), 0.1))
    raise AssertionError("the core asks without end")


def submit(fleet: FakeFleet, at: float, request: JobRequest, *, runs: bool = False) -> list[cmd.Command]:
    """Submit a job, and carry out the plan that follows; its ranks come up."""
    commands = [*fleet.tell(ev.JobSubmitted(at, request)), *carried_out(fleet)]
    return [*commands, *fleet.run(request.job_id)] if runs else commands


def sits(fleet: FakeFleet, job_id: int, accelerator: str, count: int, **more: object) -> None:
    """A job of this size runs, and goes on for long."""
    submit(fleet, fleet.at, job(job_id, accelerator, count, **{"steps": 1e7, **more}), runs=True)


def settle(fleet: FakeFleet, brings: int = 0) -> list[cmd.Command]:
    """What is asked is answered, and the ranks of what has started come up; but not of the job `brings`."""
    commands = carried_out(fleet)
    for attempt in list(fleet.attempts.values()):
        job_id = attempt.job_id
        if attempt.started and fleet.core.ledger.jobs[job_id].running_at == inf and job_id != brings:
            commands += fleet.tell(ev.AttemptStarted(fleet.at, job_id, attempt.number))
    return commands


def think(fleet: FakeFleet, seconds: float = 0.0) -> None:
    """The policy itself answers what is asked, over some rounds."""
    until = fleet.at + seconds
    carried_out(fleet)
    while fleet.wake_at <= until:
        fleet.wake()
        carried_out(fleet)
