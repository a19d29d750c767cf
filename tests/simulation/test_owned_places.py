"""What a project owns by type: lent while idle, back within a round and a restart, not eroded by other loans."""

from collections.abc import Sequence
from math import inf
from random import Random

import pytest

from optimizer.check.certificate import check_decision
from optimizer.decision import Plan
from optimizer.policy import PolicySpec
from optimizer.registry import make
from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.core import SchedulerCore
from scheduler.core.events import EntityShare, ShareLimit
from scheduler.core.explain.pending_reasons import dominant_reason
from scheduler.core.explain.share_standing import owned_standings
from scheduler.core.rules import RoundRules
from scheduler.world.attempts import AttemptCosts, SimulatedJob, WorldParameters
from scheduler.world.engine import RunLimits
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import Scenario, Simulation
from walras.cluster import Pool, PoolId, Shape
from walras.job_request import ANY_ACCELERATOR, Demand, JobId, JobRequest, Kind
from walras.states import Reason

KIND, ROUND_S, GRACE_S = Kind("k"), 60.0, 30.0
#: Seconds within which lent places are back: a round, the stop of those who borrow, and a start of either.
BACK_S = ROUND_S + GRACE_S + 2 * 12.0
H100, A100 = "h100-80gb", "a100-40gb"
POLICIES = ("walras", "max_min_fairness", "fifo", "srtf")
OWNS_8 = (EntityShare("vision", owned=(ShareLimit("h100", 8),)),)


class World:
    """A run in virtual time: who holds what since when, by job."""

    def __init__(
        self, policy: str, shares: Sequence[EntityShare], machines: tuple[int, int] = (1, 1), size: int = 8
    ) -> None:
        pools = tuple(
            PoolModel(Pool(PoolId(f"{name}/owned"), Shape(name, name, size, 64.0, 2**36)), machines=many)
            for name, many in zip((H100, A100), machines, strict=True)
            if many
        )
        speeds = {SpeedKey(KIND, H100): 2.0, SpeedKey(KIND, A100): 1.0}
        self.scenario = Scenario(
            pools,
            GroundTruth(speeds, {KIND: AttemptCosts(10.0, 1.0, 60.0)}),
            PolicySpec(policy),
            RoundRules(round_s=ROUND_S, resolve_min_s=1.0, restart_default_s=10.0, min_runtime_s=20.0),
            WorldParameters(report_s=30.0, speed_noise=0.0, prepare_s=0.2),
            limits=RunLimits(until_at=1e6, max_events=60_000),
            shares=tuple(shares),
        )
        self.simulation = Simulation(self.scenario)
        core = self.simulation.core
        assert isinstance(core, SchedulerCore)
        self.core = core
        #: Of each job: when it was placed, on what, and when it left, for each attempt.
        self.places: dict[int, list[tuple[float, str, float]]] = {}
        self.stops: list[tuple[float, int]] = []
        self.solves: list[cmd.Solve] = []

    def run(self, jobs: Sequence[SimulatedJob], until_at: float = inf) -> "World":
        self.simulation.begin(sorted(jobs, key=lambda job: job.at), self._note)
        result = self.simulation.engine.run(RunLimits(until_at=min(until_at, 1e6), max_events=60_000))
        assert result is not None
        return self

    def _note(self, event: ev.Event, commands: list[cmd.Command]) -> None:
        for command in commands:
            match command:
                case cmd.AttemptTransitioned(placement=placement) if placement is not None:
                    name = placement.parts[0].node_id.rpartition("-")[0]
                    self.places.setdefault(command.job_id, []).append((event.at, name, inf))
                case cmd.AttemptTransitioned() if command.state.is_final:
                    at, name, _ = self.places[command.job_id][-1]
                    self.places[command.job_id][-1] = (at, name, event.at)
                case cmd.Solve():
                    self.solves.append(command)
                case cmd.Revoke(reason=Reason.POLICY_PREEMPTED):
                    self.stops.append((event.at, command.job_id))

    def began(self, number: int, where: str = "") -> float:
        """When the job had its first place on machines of this name; inf if it never had."""
        return next((at for at, name, _ in self.places.get(number, ()) if where in name), inf)


def a_job(number: int, at: float, count: int, project: str, hours: float = 2.0, **more: object) -> SimulatedJob:
    accelerator, user = str(more.pop("accelerator", ANY_ACCELERATOR)), str(more.pop("user", "ada"))
    request = JobRequest(
        JobId(number), KIND, demands=(Demand(accelerator, count),), project=project, user=user, steps=hours * 7200.0,
        grace_s=GRACE_S, **more,  # type: ignore[arg-type]
    )  # fmt: skip
    return SimulatedJob(at, request, hours * 7200.0)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("many", "size"), [(1, 8), (8, 1)])
def test_eight_lent_accelerators_are_back_within_a_round_and_a_restart(policy: str, many: int, size: int) -> None:
    """Guests have all sixteen; the owner's gang comes after an hour. Two rounds later it is still there."""
    guests = [a_job(number, 0.0, size, "guests", hours=9.0) for number in range(1, 2 * many + 1)]
    world = World(policy, OWNS_8).run([*guests, a_job(99, 3600.0, 8, "vision", accelerator="h100")], 9000.0)
    assert all(world.began(number) < 120.0 for number in range(1, 2 * many + 1))
    assert 3600.0 <= world.began(99, H100) <= 3600.0 + BACK_S
    assert world.places[99] == [(world.began(99), H100, inf)]


@pytest.mark.parametrize("policy", POLICIES)
def test_loans_of_another_type_do_not_erode_what_a_project_owns(policy: str) -> None:
    """The owner's jobs hold as many A100 as it owns, which nobody owns, and its H100 are lent: it has them back."""
    early = [a_job(1, 0.0, 8, "vision", hours=9.0, accelerator="a100"), a_job(2, 0.0, 8, "guests", hours=9.0)]
    world = World(policy, OWNS_8).run([*early, a_job(3, 3600.0, 8, "vision", accelerator="h100")], 9000.0)
    assert world.began(3) <= 3600.0 + BACK_S
    assert len(world.places[3]) == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_not_used_is_lent_and_a_job_that_could_not_leave_again_borrows_nothing(policy: str) -> None:
    """It waits for what nobody owns, and says so, though eight owned ones stand idle."""
    lasting = a_job(1, 0.0, 4, "guests", preemptible=False, accelerator="h100")
    world = World(policy, OWNS_8).run([lasting, a_job(2, 0.0, 4, "guests", accelerator="h100")], 400.0)
    assert world.began(2) < 120.0
    assert world.began(1) == inf
    assert "project vision lends its h100 to jobs that can be stopped without loss" in dominant_reason(
        world.core, JobId(1)
    )


def test_explain_and_share_say_who_has_them() -> None:
    guests = [a_job(1, 0.0, 4, "guests", preemptible=False), a_job(2, 0.0, 8, "guests", hours=9.0, accelerator="h100")]
    world = World("walras", OWNS_8).run([*guests, a_job(3, 3600.0, 8, "vision", accelerator="h100")], 3600.5)
    assert dominant_reason(world.core, JobId(3)).endswith(
        "your project owns 8 x h100: 0 used by its own jobs, 8 lent (to job 2); a credit of 8.0 accelerator-hours"
    )
    world.simulation.engine.run(RunLimits(until_at=4000.0, max_events=60_000))
    (owned,) = owned_standings(world.core.ledger, "vision")
    assert (owned.here, owned.used, owned.lent, owned.borrowers) == (8, 8, 0.0, ())


def test_what_was_lent_is_a_credit_for_as_much_time_beyond_what_is_owned() -> None:
    """Four of eight are owned and lent for four hours: sixteen accelerator-hours, for four more during four hours."""
    shares = (EntityShare("vision", owned=(ShareLimit("h100", 4),)),)
    guests = [a_job(number, 0.0, 4, "guests", hours=40.0, accelerator="h100") for number in (1, 2)]
    own = [a_job(number, 4 * 3600.0, 4, "vision", hours=40.0, accelerator="h100") for number in (3, 4)]
    world = World("walras", shares, (1, 0)).run([*guests, *own], 4 * 3600.0 - 1.0)
    (claim,) = world.core.ledger.usage.owned.claims
    assert world.core.ledger.usage.owned.credit_s(claim) / 3600.0 == pytest.approx(16.0, rel=0.02)
    world.simulation.engine.run(RunLimits(until_at=7 * 3600.0, max_events=60_000))
    assert max(world.began(3), world.began(4)) <= 4 * 3600.0 + BACK_S
    assert not [stop for stop in world.stops if stop[1] in (3, 4)]
    world.simulation.engine.run(RunLimits(until_at=14 * 3600.0, max_events=60_000))
    assert world.core.ledger.usage.owned.credit_s(claim) < 1800.0


@pytest.mark.parametrize("policy", POLICIES)
def test_a_higher_class_takes_owned_places_too_and_an_equal_one_takes_none(policy: str) -> None:
    """Shorter, older, or owed more: jobs of others wait for the owner's to end, unless their class is higher."""
    own = a_job(1, 0.0, 8, "vision", hours=4.0)
    equal = [a_job(number, 600.0 * number, 8, "guests", hours=0.2, accelerator="h100") for number in range(2, 6)]
    world = World(policy, OWNS_8, (1, 0)).run([own, *equal], 7200.0)
    assert len(world.places[1]) == 1
    world = World(policy, OWNS_8, (1, 0)).run([own, a_job(2, 1200.0, 8, "guests", hours=0.2, priority=90)], 7200.0)
    assert world.began(2) < 1500.0 or policy == "fifo"


def test_users_of_the_owner_take_turns_on_its_accelerators_while_others_wait() -> None:
    """Two gangs of two users, each of all that is owned, and a guest that would be worth more."""
    own = [a_job(number, 0.0, 8, "vision", hours=12.0, user=user) for number, user in ((1, "ada"), (2, "bob"))]
    world = World("walras", OWNS_8, (1, 0)).run([*own, a_job(3, 60.0, 8, "guests", hours=0.1)], 10 * 3600.0)
    assert min(len(world.places.get(number, ())) for number in (1, 2)) >= 1
    assert len(world.stops) <= 12


@pytest.mark.parametrize("seed", range(4))
def test_no_owner_waits_longer_beside_what_others_have_of_its_own(seed: int) -> None:
    """Two owners of four each, whose jobs come one at a time, among guests who ask for more than there is."""
    draw, jobs = Random(seed), list[SimulatedJob]()
    shares = [EntityShare(name, owned=(ShareLimit("h100", 4),)) for name in ("vision", "speech")]
    for number in range(1, 25):
        accelerator = draw.choice([ANY_ACCELERATOR, "h100"])
        at, gang, hours = draw.uniform(0, 2e4), draw.choice([1, 2, 4, 8]), draw.uniform(0.2, 4)
        jobs.append(a_job(number, at, gang, "guests", hours, accelerator=accelerator))
    for name, first in (("vision", 100), ("speech", 200)):
        at = draw.uniform(0, 3600)
        for number in range(first, first + 5):
            jobs.append(a_job(number, at, draw.choice([1, 2, 4]), name, 0.5, accelerator="h100"))
            at += 3600.0 + draw.uniform(0, 1800)
    world = World(POLICIES[seed % 4], shares, (1, 1)).run(jobs, 3e4)
    late = {
        job.request.job_id: round(world.began(job.request.job_id) - job.at)
        for job in jobs
        if job.request.job_id >= 100 and world.began(job.request.job_id) - job.at > BACK_S
    }
    assert late == {}
    for solve in world.solves[:20] if POLICIES[seed % 4] == "walras" else ():
        plan, _ = make(solve.policy).decide(solve.problem, solve.memory)
        assert isinstance(plan, Plan)
        assert check_decision(solve.problem, solve.policy, plan, solve.memory).complaints == ()
