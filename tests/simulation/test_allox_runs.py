"""AlloX under the real core: it never preempts, and it sends jobs where they gain most."""

from random import Random

from fake_fleet import job, pool

from optimizer.policy import PolicySpec
from scheduler.core.commands import Command, Revoke
from scheduler.core.events import Event
from scheduler.core.rules import RoundRules
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from scheduler.world.engine import RunLimits, RunOutcome
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import Scenario, simulate
from walras.job_request import Kind

RULES = RoundRules(round_s=60, resolve_min_s=1, opportunistic_rate=2, profiling_share=0)
#: Speeds on the fast and on the slow type: one kind gains much, the other hardly.
SPEEDS = {"picky": (10.0, 1.0), "easy": (1.2, 1.0)}


def run(policy: str, seed: int) -> tuple[float, list[Revoke]]:
    """Mean completion time of forty jobs on two fast and four slow accelerators, and who was asked to go."""
    random, at, jobs = Random(f"{seed}/allox"), 0.0, []
    for number in range(1, 41):
        kind = random.choice(sorted(SPEEDS))
        steps = min(5000.0, 100.0 * random.paretovariate(1.0)) * SPEEDS[kind][0]
        jobs.append(SimulatedJob(at, job(number, "*", kind=Kind(kind), steps=steps), steps))
        at += random.expovariate(1 / 60.0)
    speeds = {SpeedKey(Kind(k), name): s for k, both in SPEEDS.items() for name, s in zip("ab", both, strict=True)}
    scenario = Scenario(
        (PoolModel(pool("a", 2), 1), PoolModel(pool("b", 2), 2)), GroundTruth(speeds, {}, AttemptCosts(5.0, 1.0)),
        PolicySpec(policy), RULES, limits=RunLimits(until_at=1e6),
    )  # fmt: skip
    revoked: list[Revoke] = []

    def watch(_: Event, commands: list[Command]) -> None:
        revoked.extend(command for command in commands if isinstance(command, Revoke))

    result = simulate(jobs, scenario, recorder=watch)
    assert result.outcome is RunOutcome.COMPLETE
    assert not result.violations
    assert len(result.jobs) == 40
    return sum(m.ended_at - m.submitted_at for m in result.jobs) / 40, revoked


def test_allox_beats_first_come_first_served_without_preempting() -> None:
    """On three seeds; nobody who was placed is ever asked to go."""
    for seed in (1, 2, 3):
        allox, revoked = run("allox", seed)
        fifo, _ = run("fifo", seed)
        assert revoked == []
        assert allox < 0.8 * fifo
