"""A fleet under a policy that plans: its speeds are known, and what it asks is answered by the policy itself."""

from fake_fleet import FakeFleet

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.cycle.solve_requests import run_solve
from scheduler.core.speed_events import ThroughputMeasured
from walras.job_request import JobRequest, Kind


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
