"""Files of conditions: what they say is what the world is like."""

import re
from dataclasses import replace
from math import exp, inf, log
from pathlib import Path
from random import Random
from statistics import fmean, pstdev
from typing import Any

import pytest

from optimizer.policy import PolicySpec
from scheduler.core.rules import RoundRules
from scheduler.providers.simulated_cloud import RentalTerms
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from scheduler.world.engine import RandomStreams, RunOutcome, SolveClock, SolveTime
from scheduler.world.machines import PoolModel
from simulator.conditions import (
    CancellationConditions,
    Conditions,
    CostConditions,
    CrashConditions,
    FaultConditions,
    IncidentConditions,
    LengthConditions,
    MarketConditions,
    NoiseConditions,
    StartConditions,
)
from simulator.faults import MarketChange, NodeDeath, NodeSlowdown, PoolRevocation, SlowPeriods
from simulator.ground_truth import (
    GroundTruth,
    LengthEstimates,
    RandomFailures,
    SpeedKey,
    inject_random_failures,
    with_estimate_error,
)
from simulator.reports.baselines import BoundsChoice
from simulator.reports.run_spec import RunSpec, WorkloadSource, describe_run, execute_run, run_key
from simulator.simulation import Scenario, simulate
from walras.cluster import Market, Pool, PoolId, Shape
from walras.errors import ConfigError
from walras.job_request import Demand, JobId, JobRequest, Kind
from walras.spec.file_model import FileModel, check_model
from walras.spec.shipped_files import shipped_files
from walras.spec.text_formats import parse_yaml

PLAIN = Scenario((), GroundTruth({}), PolicySpec("fifo"))
OWN = PoolModel(Pool(PoolId("own"), Shape("own", "a100", 2, 8.0, 2**30)), machines=2)
SPOT = PoolModel(
    Pool(PoolId("spot-a"), Shape("s", "v100", 1, 8.0, 2**30), Market.SPOT, usd_per_h=3.0, quota=4, notice_s=60.0),
    terms=RentalTerms(boot_s=5.0),
)
OTHER = replace(SPOT, pool=replace(SPOT.pool, pool_id=PoolId("spot-b")))
CLOUD = replace(PLAIN, pools=(OWN, SPOT, OTHER))
PARTS: dict[str, type[FileModel]] = {
    "costs": CostConditions, "starts": StartConditions, "noise": NoiseConditions, "faults": FaultConditions,
    "markets": MarketConditions, "incidents": IncidentConditions, "cancellations": CancellationConditions,
    "crashes": CrashConditions, "lengths": LengthConditions,
}  # fmt: skip
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "simulator.md"


def _read(text: str) -> Conditions:
    return check_model(Conditions, parse_yaml(text, source="test", max_bytes=10_000), source="test")


def test_conditions_that_say_nothing_change_nothing() -> None:
    assert Conditions().applied_to(PLAIN) == PLAIN


def test_what_a_file_says_reaches_the_scenario() -> None:
    (example,) = re.findall(r"```yaml\n(costs:.*?)```", DOCUMENT.read_text(), re.DOTALL)
    scenario = _read(example).applied_to(PLAIN)
    assert scenario.truth.default_costs == AttemptCosts(20.0, 30.0, 600.0, 10.0, 2.0, 15.0)
    assert (scenario.world.speed_noise, scenario.world.cost_noise, scenario.world.report_noise) == (0.1, 0.35, 0.02)
    assert (scenario.world.report_s, scenario.oracle) == (60.0, False)
    assert (scenario.lengths.known, scenario.lengths.spread) == (True, 0.5)
    assert (scenario.faults.death_every_s, scenario.faults.repair_s, scenario.faults.lease_s) == (
        2.592e6, 3600.0, 600.0,
    )  # fmt: skip
    assert scenario.faults.slow == SlowPeriods(172_800.0, 600.0, 0.5)
    assert (scenario.faults.uncordon_s, scenario.faults.until_at) == (inf, inf)
    assert scenario.solve_time == SolveTime(SolveClock.FIXED, 3.0)
    assert _read("solve: measured").applied_to(PLAIN).solve_time == SolveTime(SolveClock.MEASURED)


def test_markets_are_given_by_pool_or_by_kind_of_market() -> None:
    """The pool's own entry goes before that of its market; owned machines have no market; what is left out stays."""
    text = """
    markets:
      spot: {life: 6h, boot: 1m, boot_noise: 0.3, notice: 2m, capacity: 2, usd_per_h: 2, reprice_every: 30m,
             price_noise: 0.2}
      spot-b: {life: 1h}
    """
    own, first, second = _read(text).applied_to(CLOUD).pools
    assert own == OWN
    assert first.terms == RentalTerms(60.0, capacity=2)
    assert (first.pool.boot_s, first.pool.notice_s, first.pool.usd_per_h, first.pool.quota) == (60.0, 120.0, 2.0, 4)
    assert (first.mean_life_s, first.boot_noise, first.reprice_every_s, first.price_noise) == (
        21600.0, 0.3, 1800.0, 0.2,
    )  # fmt: skip
    assert second == replace(OTHER, mean_life_s=3600.0, pool=replace(OTHER.pool, boot_s=5.0))


def test_incidents_happen_to_pools_that_are_there() -> None:
    """Each is one thing at one instant; a slow spell that lasts ends again; they come after the workload's own."""
    text = """
    incidents:
      - {at: 10, revoke: spot-a, machines: 2}
      - {at: 20, kill: own, machine: 1}
      - {at: 30, slow: own, pace: 0.25, lasts: 1m}
      - {at: 40, market: spot-a, usd_per_h: 9, capacity: 0}
    """
    scenario = replace(CLOUD, incidents=(PoolRevocation(1.0, PoolId("spot-b")),))
    assert _read(text).applied_to(scenario).incidents == (
        PoolRevocation(1.0, PoolId("spot-b")), PoolRevocation(10.0, PoolId("spot-a"), 2),
        NodeDeath(20.0, PoolId("own"), 1), NodeSlowdown(30.0, PoolId("own"), 0, 0.25),
        NodeSlowdown(90.0, PoolId("own"), 0, 1.0), MarketChange(40.0, PoolId("spot-a"), 9.0, 0),
    )  # fmt: skip


def test_jobs_starts_and_kinds_have_conditions_too() -> None:
    """Costs by kind (what was measured goes before), refusals, slow attempts, cancellations, crashes, wrong lengths."""
    text = """
    costs: {start: 1}
    costs_by_kind: {cnn: {start: 9, checkpoint: null}, rnn: {migrate: 3}}
    starts: {prepare: 2, refused: 0.1}
    faults: {attempt_slow_every: 1h, attempt_slow: 5m, attempt_slow_pace: 0.25}
    cancellations: {part: 0.5, after: 10m}
    crashes: {part: 0.2, exit_code: 3, times: null}
    lengths: {factor: 2}
    end: 1d
    """
    measured = replace(PLAIN, truth=GroundTruth({SpeedKey(Kind("cnn"), "t4"): 1.0}, {Kind("rnn"): AttemptCosts(7.0)}))
    scenario = _read(text).applied_to(measured)
    assert scenario.truth.costs == {Kind("cnn"): AttemptCosts(9.0, None), Kind("rnn"): AttemptCosts(7.0)}
    assert scenario.truth.default_costs == AttemptCosts(1.0)
    assert (scenario.world.prepare_s, scenario.world.refused) == (2.0, 0.1)
    faults = scenario.faults
    assert faults.attempt_slow == SlowPeriods(3600.0, 300.0, 0.25)
    assert scenario.random_failures == RandomFailures(0.5, 600.0, 0.2, 3, None)
    assert scenario.lengths.factor == 2.0
    assert scenario.limits.until_at == 86_400.0


def test_a_world_in_which_chance_never_ends_ends_after_ten_years() -> None:
    """A run that can get no further is not to run for ever: such faults are always something under way."""
    assert _read("faults: {death_every: 1d}").applied_to(PLAIN).limits.until_at == 10 * 365 * 86_400.0
    assert _read("faults: {death_every: 1d, until: 2d}").applied_to(PLAIN).limits.until_at == inf


def test_every_field_is_documented() -> None:
    """The table of the document has each field once, and none that is not there."""
    fields = [
        f"{name}.{inner}" if name in PARTS else name
        for name in Conditions.model_fields
        for inner in (PARTS[name].model_fields if name in PARTS else ("",))
    ]
    section = DOCUMENT.read_text().split("## Conditions")[1].split("## ")[0]
    rows = re.findall(r"^\| `([a-z_.]+)` \|", section, re.MULTILINE)
    assert sorted(rows) == sorted(fields)


@pytest.mark.parametrize(
    ("name", "workload", "cluster"),
    [("rough", "three-types", "gavel-12-12-12"), ("spot-market", "deadlines", "mixed-cloud")],
)
def test_the_conditions_that_come_along_can_be_run(name: str, workload: str, cluster: str) -> None:
    """By their names, and every law holds in them."""
    ran = execute_run(RunSpec(WorkloadSource(workload), cluster, "fifo", bounds=BoundsChoice.NONE, conditions=name))
    assert ran.result.outcome is RunOutcome.COMPLETE
    assert not ran.summary.violations
    assert set(shipped_files("conditions")) == {"rough", "spot-market"}


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("incidents: [{at: 1}]", "incidents[0].revoke"),
        ("incidents: [{at: 1, kill: own, revoke: spot-a}]", "incidents[0].revoke"),
        ("incidents: [{at: 1, kill: own, pace: 0.5}]", "incidents[0].pace"),
        ("incidents: [{at: 1, market: spot-a}]", "incidents[0].market"),
        ("incidents: [{at: -1, kill: own}]", "incidents[0].at"),
        ("incidents: [{at: 1, kill: owm}]", "incidents[0].kill"),
        ("markets: {spot-c: {life: 1h}}", "markets.spot-c"),
        ("markets: {own: {life: 1h}}", "markets.own"),
        ("crashes: {part: 2}", "crashes.part"),
        ("lengths: {factor: 0}", "lengths.factor"),
        ("starts: {refused: 1}", "starts.refused"),
        ("costs_by_kind: {cnn: {begin: 1}}", "costs_by_kind.cnn.begin"),
        ("costs_by_kind: {cnnn: {start: 1}}", "costs_by_kind"),
    ],
)
def test_a_mistake_is_named_by_its_field(text: str, field: str) -> None:
    """Those that depend on the cluster too."""
    with pytest.raises(ConfigError) as refused:
        _read(text).applied_to(CLOUD)
    assert refused.value.field == field


@pytest.mark.parametrize("text", ["noise: {speeds: -1}", "faults: {slow_pace: 0}", "solve: soon", "stragglers: 1h"])
def test_what_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        _read(text)
    assert refused.value.field


def test_a_cell_runs_under_its_conditions_and_is_named_by_them(tmp_path: Path) -> None:
    """Another file of conditions is another run; the same words in another file are the same."""

    def cell(conditions: str | None) -> RunSpec:
        return RunSpec(WorkloadSource("three-types"), "gavel-12-12-12", "fifo", conditions=conditions)

    files: list[Any] = [None]
    for number, text in enumerate(
        ("costs: {start: 100s}", "costs: {start: '100s'}  # the same", "lengths: {told: false}")
    ):
        files.append(tmp_path / f"{number}.yaml")
        files[-1].write_text(text)
    keys = [run_key(describe_run(cell(None if file is None else str(file)))) for file in files]
    assert len(set(keys)) == 3
    assert keys[1] == keys[2]
    overheads = [{job.overhead_s for job in execute_run(cell(each)).result.jobs} for each in (None, str(files[1]))]
    assert overheads[0] == {0.0}
    assert min(overheads[1]) == pytest.approx(100.0)


JOBS = [
    SimulatedJob(10.0 * number, JobRequest(JobId(number), Kind("k"), demands=(Demand("a100", 1),)), 100.0)
    for number in range(1, 1001)
]


def _after(mishaps: RandomFailures, seed: int = 0) -> list[SimulatedJob]:
    return list(inject_random_failures(JOBS, mishaps, RandomStreams(seed)))


def test_nothing_befalls_anybody_by_itself() -> None:
    assert _after(RandomFailures()) == JOBS


def test_so_many_are_cancelled_after_such_a_time() -> None:
    """By parts of a thousand jobs, never before their submission."""
    delays = [job.cancel_at - job.at for job in _after(RandomFailures(cancelled=0.3, cancelled_after_s=50.0))]
    cancelled = [delay for delay in delays if delay < inf]
    assert 250 < len(cancelled) < 350
    assert min(cancelled) >= 0
    assert sum(cancelled) / len(cancelled) == pytest.approx(50.0, rel=0.2)


def test_so_many_crash_somewhere_in_their_work() -> None:
    """With the code and as often as said."""
    crashes = [
        failure for job in _after(RandomFailures(crashing=0.3, exit_code=7, crashes=2)) for failure in job.failures
    ]
    assert 250 < len(crashes) < 350
    assert {(crash.exit_code, crash.times) for crash in crashes} == {(7, 2)}
    assert 0 <= min(crash.at_steps for crash in crashes) < 5
    assert 95 < max(crash.at_steps for crash in crashes) < 100


def test_one_mishap_does_not_shift_the_other() -> None:
    """Each has a stream of its own, and a draw for every job: more cancellations are those and others."""
    few, many = _after(RandomFailures(cancelled=0.1, crashing=0.1)), _after(RandomFailures(cancelled=0.2, crashing=0.1))
    assert [job.failures for job in few] == [job.failures for job in many]
    assert all(job.cancel_at == other.cancel_at for job, other in zip(few, many, strict=True) if job.cancel_at < inf)
    assert _after(RandomFailures(cancelled=0.1)) != _after(RandomFailures(cancelled=0.1), seed=1)


KIND = Kind("k")


def _job(number: int, steps: float, at: float = 0.0, stated: float | None = None) -> SimulatedJob:
    request = JobRequest(JobId(number), KIND, demands=(Demand("a100", 1),), steps=stated or steps, duration_s=7.0)
    return SimulatedJob(at, request, steps)


def test_lengths_can_be_hidden_and_can_be_wrong() -> None:
    """The request alone changes: hidden says nothing, wrong is log-normal around the truth."""
    jobs = [_job(number, 100.0) for number in range(4000)]
    assert list(with_estimate_error(jobs, LengthEstimates(), Random(1))) == jobs
    hidden = next(with_estimate_error(jobs, LengthEstimates(known=False), Random(1)))
    assert (hidden.steps, hidden.request.steps, hidden.request.duration_s) == (100.0, None, None)
    wrong = list(with_estimate_error(jobs, LengthEstimates(spread=0.5), Random("1/lengths")))
    logs = [log(job.request.steps / 100.0) for job in wrong if job.request.steps is not None]
    assert {job.steps for job in wrong} == {100.0}
    assert (fmean(logs), pstdev(logs)) == (pytest.approx(0.0, abs=0.03), pytest.approx(0.5, rel=0.05))
    assert wrong[0].request.duration_s == pytest.approx(7.0 * exp(logs[0]))


def test_a_run_whose_lengths_are_wrong_ends_all_the_same() -> None:
    """The order follows the stated lengths, the work is the true one, and one seed gives one result."""
    pool = PoolModel(Pool(PoolId("p"), Shape("s", "a100", 2, 8.0, 2**30)), machines=1)
    truth = GroundTruth({SpeedKey(KIND, "a100"): 1.0})
    jobs = [_job(number, 50.0 + number) for number in range(1, 30)]
    ends = []
    for spread in (0.0, 1.0, 1.0):
        scenario = Scenario((pool,), truth, PolicySpec("srtf"), lengths=LengthEstimates(spread=spread), seed=3)
        result = simulate(jobs, scenario)
        assert not result.violations
        ends.append([job.job_id for job in result.jobs])
    assert ends[0] == sorted(ends[0])
    assert ends[1] == ends[2] != ends[0]


def test_a_job_that_was_said_to_be_short_does_not_keep_its_place_for_ever() -> None:
    """By its stated length it is always about to end; far beyond that, it counts as a job of unknown length."""
    pool = PoolModel(Pool(PoolId("p"), Shape("s", "a100", 1, 8.0, 2**30)), machines=1)
    truth = GroundTruth({SpeedKey(KIND, "a100"): 1.0})
    rules = RoundRules(round_s=60.0, restart_default_s=5.0, min_runtime_s=20.0)
    liar, other = _job(1, 1e5, stated=30.0), _job(2, 100.0, at=10.0)
    result = simulate([liar, other], Scenario((pool,), truth, PolicySpec("max_min_fairness"), rules))
    ended = {job.job_id: job.ended_at for job in result.jobs}
    assert ended[JobId(2)] < 2000.0
