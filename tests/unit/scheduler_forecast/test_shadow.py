"""A policy in the shadow on a recorded run: the same policy differs by nothing, another by what its order is."""

from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path
from statistics import mean

import pytest

from optimizer.policy import PolicySpec
from optimizer.policy_files import FILE_PREFIX
from scheduler.core.commands import Command
from scheduler.core.core import SchedulerCore
from scheduler.core.events import (
    Event,
    JobCancelled,
    JobSubmitted,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    PolicyChanged,
    PoolDeclared,
)
from scheduler.core.rules import RoundRules
from scheduler.forecast.core_copy import CoreSnapshot, snapshot_at_once
from scheduler.forecast.past_jobs import PastJobs
from scheduler.forecast.recorded_period import PeriodReader, PoolPrices, RecordedPeriod
from scheduler.forecast.shadow_run import ShadowAnswer, ShadowJob, run_shadow
from simulator.reports.baselines import BoundsChoice
from simulator.reports.run_spec import GeneratorOptions, RunSpec, WorkloadSource, prepare_run
from simulator.simulation import Simulation
from tests.support.fake_fleet import FakeFleet, job, pool
from walras.cluster import NodeId, PoolId
from walras.job_request import JobId

#: (events of the period, the core's state at its end)
Recorded = tuple[RecordedPeriod, CoreSnapshot]


@cache
def recorded(policy: str, jobs: int = 80) -> Recorded:
    """A simulated run and its period: from when a fifth of the jobs has come, until a while after the last."""
    source = WorkloadSource("generate:gavel", made=GeneratorOptions(jobs=jobs, rate_per_h=10.0))
    ready = prepare_run(RunSpec(source, "gavel-12-12-12", policy, 0, BoundsChoice.NONE))
    simulated = list(ready.jobs)
    simulation = Simulation(ready.scenario)
    core = simulation.core
    assert isinstance(core, SchedulerCore)
    readers: list[PeriodReader] = []
    found: list[Recorded] = []

    def begin(at: float, _: object) -> tuple[Event, ...]:
        readers.append(PeriodReader(snapshot_at_once(core, at)))
        return ()

    def end(at: float, _: object) -> tuple[Event, ...]:
        found.append((readers.pop().period(at), snapshot_at_once(core, at)))
        return ()

    def saw(event: Event, commands: list[Command]) -> None:
        if readers:
            readers[0].event(event)
            for command in commands:
                readers[0].command(event.at, command)

    simulation.engine.schedule(simulated[jobs // 5].at + 1.0, begin, None)
    simulation.engine.schedule(1.5 * simulated[-1].at, end, None)
    simulation.run(simulated, saw)
    return found[0]


def shadowed(policy: str, spec: PolicySpec | None = None) -> ShadowAnswer:
    """Of the run under this policy; None: the same one in the shadow."""
    period, now = recorded(policy)
    live = period.begin.policy
    return run_shadow(period, now, (spec or live.policy, live.rules), PastJobs(), most_draws=2)


def completion_s(jobs: list[ShadowJob], run: str) -> float:
    """Mean over jobs of known length."""
    return mean((job.live if run == "live" else getattr(job, run)[0]).ends_at - job.submitted_at for job in jobs)


@pytest.mark.parametrize("policy", ["fifo", "srtf"])
def test_the_live_policy_in_the_shadow_is_exactly_the_baseline_which_is_close_to_life(policy: str) -> None:
    answer = shadowed(policy)
    assert answer.fault == ""
    assert all(job.own == job.shadow for job in answer.jobs)
    known = [job for job in answer.jobs if job.is_known]
    assert 10 < len(known) < len(answer.jobs), "some have not ended"
    assert len(answer.jobs[0].own) == 2, "lengths that are not known are drawn"
    assert completion_s(known, "own") == pytest.approx(completion_s(known, "live"), rel=0.02)
    assert sum(job.own[0].usd for job in known) == pytest.approx(sum(job.live.usd for job in known), rel=0.02)
    assert sum(job.own[0].preemptions for job in known) == sum(job.live.preemptions for job in known)


def test_another_policy_differs_by_its_order() -> None:
    """Short jobs first: those that end sooner outweigh those that end later; and back the other way."""
    answer = shadowed("fifo", PolicySpec("srtf"))
    known = [job for job in answer.jobs if job.is_known]
    assert completion_s(known, "own") == pytest.approx(completion_s(known, "live"), rel=1e-6)
    assert completion_s(known, "shadow") < completion_s(known, "own")
    assert any(job.shadow[0].ends_at > job.own[0].ends_at for job in answer.jobs)
    back = shadowed("srtf", PolicySpec("fifo"))
    known = [job for job in back.jobs if job.is_known]
    assert completion_s(known, "shadow") > completion_s(known, "own")


def test_a_policy_that_raises_is_told_of_by_method_and_error(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "from optimizer.policies.queue_orders import Fifo\n"
        "@dataclass(frozen=True)\n"
        "class Wrong(Fifo):\n"
        "    def key(self, facts):\n"
        "        raise RuntimeError('no order')\n"
    )
    answer = shadowed("fifo", PolicySpec(f"{FILE_PREFIX}{file}"))
    assert "key() failed" in answer.fault
    assert "no order" in answer.fault
    assert answer.jobs == ()


def test_what_takes_too_long_is_given_up_and_said() -> None:
    period, now = recorded("fifo")
    answer = run_shadow(period, now, (PolicySpec("srtf"), RoundRules()), PastJobs(), cpu_s=0.0)
    assert "processor time" in answer.fault


# ---------------------------------------------------------------------------------------------------- what happens


class Life:
    """A fleet of which everything that happens from `begin` on is read."""

    def __init__(self, machines: int = 2) -> None:
        self.fleet = FakeFleet()
        self.reader: PeriodReader | None = None
        self.tell(PolicyChanged(0.0, PolicySpec("fifo"), RoundRules(round_s=60.0)))
        self.tell(PoolDeclared(0.0, replace(pool("a"), usd_per_h=3600.0)))
        for number in range(1, machines + 1):
            self.tell(NodeJoined(0.0, NodeId(f"n{number}"), PoolId("a")))

    def tell(self, event: Event) -> None:
        """Something happens."""
        commands = self.fleet.tell(event)
        if self.reader is not None:
            self.reader.event(event)
            for command in commands:
                self.reader.command(event.at, command)

    def begin(self, at: float) -> None:
        """The period begins."""
        self.reader = PeriodReader(snapshot_at_once(self.fleet.core, at))

    def shadow(self, at: float, name: str = "fifo") -> dict[JobId, ShadowJob]:
        """What is told at the period's end, by job."""
        assert self.reader is not None
        now = snapshot_at_once(self.fleet.core, at)
        rules = RoundRules(round_s=60.0)
        answer = run_shadow(self.reader.period(at), now, (PolicySpec(name), rules), PastJobs())
        assert answer.fault == ""
        return {each.job_id: each for each in answer.jobs}


def _submitted(at: float, number: int, **more: object) -> Event:
    return JobSubmitted(at, job(number, "a", project="p", user="u", **more))  # type: ignore[arg-type]


def test_cancels_prices_and_lost_machines_happen_again() -> None:
    life = Life()
    life.begin(1.0)
    life.tell(_submitted(10.0, 1, steps=1000.0))
    life.tell(_submitted(11.0, 2, steps=1000.0))
    life.tell(_submitted(12.0, 3, steps=1000.0))
    life.tell(JobCancelled(50.0, JobId(3)))
    life.tell(PoolDeclared(100.0, replace(pool("a"), usd_per_h=7200.0)))
    life.tell(NodeLeaving(200.0, NodeId("n2"), inf))
    life.tell(NodeLost(210.0, NodeId("n2")))
    found = life.shadow(300.0)
    assert found[JobId(3)].is_cancelled
    assert found[JobId(3)].own[0].ends_at == pytest.approx(50.0, abs=1.0)
    first, second = sorted((found[JobId(1)], found[JobId(2)]), key=lambda each: each.own[0].ends_at)
    assert not first.is_known
    assert first.own[0].ends_at < second.own[0].ends_at - 500.0, "one machine is left for both"
    assert found[JobId(1)].own == found[JobId(1)].shadow


def test_money_counts_each_stretch_at_its_price() -> None:
    cheap, dear = replace(pool("a"), usd_per_h=3600.0), replace(pool("a"), usd_per_h=7200.0)
    prices = PoolPrices([(0.0, cheap), (100.0, dear)])
    each = 1.0 / cheap.shape.accelerators
    assert prices.usd(PoolId("a"), 1.0, 50.0, 150.0) == pytest.approx(each * (50.0 + 100.0))
    assert prices.usd(PoolId("a"), 2.0, 0.0, 10.0) == pytest.approx(2 * each * 10.0)
    assert prices.usd(PoolId("gone"), 2.0, 0.0, 10.0) == 0.0


def test_the_live_policys_own_changes_are_in_the_baseline_and_not_in_the_shadow() -> None:
    life = Life(machines=1)
    life.begin(1.0)
    life.tell(_submitted(10.0, 1, steps=1000.0))
    life.tell(PolicyChanged(20.0, PolicySpec("srtf"), RoundRules(round_s=60.0)))
    life.tell(_submitted(30.0, 2, steps=900.0))
    life.tell(_submitted(40.0, 3, steps=100.0))
    found = life.shadow(50.0)
    assert found[JobId(3)].own[0].ends_at < found[JobId(2)].own[0].ends_at, "shortest first since it was changed"
    assert found[JobId(2)].shadow[0].ends_at < found[JobId(3)].shadow[0].ends_at, "first come, first served"
