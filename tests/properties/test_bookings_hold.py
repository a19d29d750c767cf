"""Inside its window a booked machine has its project's jobs alone, whatever comes and goes; what can be honoured, is.

Jobs come at random, run truthfully for what they state, may or may not be stopped, may state nothing; bookings are made
at random for as much as `choose_machines` says can be had. Under an order, shares and a plan alike.
"""

from dataclasses import dataclass, field
from math import inf
from random import Random

import pytest
from fake_fleet import FakeFleet, cluster, job
from planned_fleet import carried_out, measured
from rules_oracle import RulesOracle

from scheduler.core import events as ev
from scheduler.core.commands import JobTransitioned
from scheduler.core.events import NOBODY, Booking, BookingsDeclared
from scheduler.core.handlers.booking_windows import choose_machines
from scheduler.core.rules import RoundRules
from scheduler.core.state.fleet import MachineCondition
from walras.job_request import JobId, JobRequest

RULES = RoundRules(round_s=30, resolve_min_s=0, min_runtime_s=5, restart_default_s=2)
MACHINES, LENGTH_S = "aaa", 4000.0
#: Steps a second of one accelerator.
RATE = 4.0


@dataclass
class Scene:
    """A fleet in virtual time."""

    policy: str
    chance: Random
    fleet: FakeFleet = field(init=False)
    #: When an attempt ends by itself, and when it has stopped, by (job, attempt).
    ends: dict[tuple[JobId, int], float] = field(default_factory=dict)
    lengths: dict[JobId, float] = field(default_factory=dict)
    made: list[Booking] = field(default_factory=list)
    submitted: int = 0
    oracle: RulesOracle = field(default_factory=RulesOracle)

    def __post_init__(self) -> None:
        self.fleet = measured(cluster(self.policy, rules=RULES, machines=MACHINES))

    def submit(self) -> None:
        chance, self.submitted = self.chance, self.submitted + 1
        request: JobRequest = job(
            self.submitted, "a", chance.choice((1, 2, 4)), project=chance.choice(("vision", "other", "speech")),
            preemptible=chance.random() < 0.5, steps=None if chance.random() < 0.4 else chance.uniform(50.0, 8000.0),
            max_runtime_s=chance.uniform(60.0, 900.0) if chance.random() < 0.3 else inf,
        )  # fmt: skip
        self.lengths[request.job_id] = chance.uniform(20.0, 1500.0)
        self.fleet.tell(ev.JobSubmitted(self.fleet.at, request))

    def book(self) -> None:
        chance, at = self.chance, self.fleet.at
        starts = at + chance.uniform(120.0, 1200.0)
        project = chance.choice(("vision", "speech", NOBODY))
        wanted = Booking(
            len(self.made) + 1, project, (), starts, starts + chance.uniform(60.0, 600.0), "a", chance.choice((2, 4, 8))
        )
        declared = self.fleet.core.cycle.bookings.declared
        nodes, why = choose_machines(self.fleet.core.ledger, declared, wanted)
        assert bool(nodes) is not bool(why)
        if nodes:
            made = Booking(wanted.booking_id, project, nodes, starts, wanted.until_at, "a", wanted.accelerators)
            self.made.append(made)
            self.fleet.tell(BookingsDeclared(at, (*declared, made)))

    def settle(self) -> None:
        """Answers solves, lets ranks come up, and foresees when attempts end."""
        carried_out(self.fleet)
        for attempt in list(self.fleet.attempts.values()):
            record = self.fleet.core.ledger.jobs[attempt.job_id]
            key = attempt.job_id, attempt.number
            if attempt.started and record.running_at == inf and not attempt.stopping:
                self.fleet.tell(ev.AttemptStarted(self.fleet.at, *key))
                request, count = record.request, attempt.placement.accelerators
                known = None if request.steps is None else (request.steps - record.start_steps) / (RATE * count)
                self.ends[key] = self.fleet.at + (self.lengths[attempt.job_id] if known is None else known)
            elif attempt.started and attempt.stopping:
                stopped = self.fleet.at + self.chance.uniform(0.0, record.request.grace_s)
                self.ends[key] = min(self.ends.get(key, inf), stopped)
        carried_out(self.fleet)

    def step(self, until: float) -> None:
        """The next thing that happens before this instant, or nothing until then."""
        alive = {(each.job_id, each.number): each for each in self.fleet.attempts.values()}
        self.ends = {key: at for key, at in self.ends.items() if key in alive}
        key, ends_at = min(self.ends.items(), key=lambda each: each[1], default=((JobId(0), 0), inf))
        at = min(until, ends_at, self.fleet.wake_at)
        if at == ends_at and at < self.fleet.wake_at:
            self.fleet.at = at
            self.fleet.end(key[0], exit_code=85 if alive[key].stopping else 0)
        else:
            self.fleet.tell(ev.Woke(at))
        self.settle()
        self.check()

    def check(self) -> None:
        """Nobody else is there; and nobody of the project waits beside an idle machine of its own."""
        self.oracle.read(self.fleet.log)
        fleet, at = self.fleet.core.ledger.fleet, self.fleet.at
        for booking in self.fleet.core.cycle.bookings.declared:
            machines = [fleet.machine(node_id) for node_id in booking.node_ids] if booking.is_active(at) else []
            for machine in machines:
                assert machine.condition is MachineCondition.BOOKED, f"{machine.node_id} at {at}: {booking}"
                for job_id in machine.holders:
                    held_by = self.fleet.core.ledger.jobs[job_id].request
                    assert booking.is_open_to(held_by.project), f"{held_by} on {machine.node_id} at {at}: {booking}"
                if machine.holders or booking.project == NOBODY:
                    continue
                waiting = [
                    each.job_id
                    for each in self.fleet.core.ledger
                    if each.waits and each.ready_at <= at and booking.is_open_to(each.request.project)
                    and not self.fleet.core.cycle.closed_to(each, 0)
                ]  # fmt: skip
                assert not waiting, f"{waiting} wait beside {machine.node_id}, which is theirs"


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fifo", "walras", "max_min_fairness"])
def test_a_booked_machine_serves_its_project_alone(policy: str) -> None:
    """Over some hours of several random days; some bookings began, and jobs of others ran around them."""
    begun = served = 0
    for seed in range(4):
        scene = Scene(policy, Random(seed))
        next_at = 0.0
        while scene.fleet.at < LENGTH_S:
            if scene.fleet.at >= next_at:
                (scene.book if scene.chance.random() < 0.15 else scene.submit)()
                scene.settle()
                next_at = scene.fleet.at + scene.chance.expovariate(1 / 60.0)
            scene.step(next_at)
        begun += sum(booking.from_at < scene.fleet.at for booking in scene.made)
        commands = [each for _, commands in scene.fleet.log for each in commands]
        served += sum(isinstance(each, JobTransitioned) and each.state.is_final for each in commands)
    assert begun > 8
    assert served > 80
