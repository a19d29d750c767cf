"""Goodput: placements, how a batch is cut, what its samples are worth, and laws that follow from it or are stated."""

from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training import steady

from optimizer.policy import PolicySpec
from scheduler.core.rules import RoundRules
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from scheduler.world.engine import RunOutcome
from scheduler.world.machines import PoolModel
from simulator.goodput import (
    AcceleratorProfile,
    Application,
    BatchSplit,
    GangLayout,
    GoodputLaw,
    GradientStatistics,
    OutsideProfileError,
    StepTimes,
    batch_gain,
    goodput,
    goodput_laws,
    packed_layout,
    split_batch,
    stated_application,
    update_time_s,
)
from simulator.ground_truth import GroundTruth
from simulator.reports.baselines import BoundsChoice
from simulator.reports.run_spec import RunSpec, WorkloadSource, describe_run, execute_run, run_key
from simulator.simulation import Scenario, simulate
from walras.cluster import Pool, PoolId, Shape
from walras.errors import ConfigError
from walras.job_request import Demand, JobId, JobRequest, Kind
from walras.spec.file_model import check_model
from walras.spec.workload_file import GoodputLawEntry


def test_a_ring_begins_where_it_reads_smallest_and_is_never_sorted() -> None:
    """Machines keep their neighbours: only the place where one starts counting changes."""
    assert GangLayout((4, 4, 2)).in_ring() == GangLayout((2, 4, 4))
    assert GangLayout((1, 4, 2)).in_ring() == GangLayout((1, 4, 2))
    assert GangLayout((4, 2, 1)).in_ring() == GangLayout((1, 4, 2))
    assert GangLayout((2, 1, 2, 1)).in_ring() == GangLayout((1, 2, 1, 2))


def test_a_packed_gang_fills_machines_and_puts_the_rest_on_one_more() -> None:
    assert packed_layout(6, 4) == GangLayout((4, 2))
    assert packed_layout(8, 4) == GangLayout((4, 4))
    assert packed_layout(1, 4) == GangLayout((1,))


def test_a_batch_is_cut_into_as_few_passes_as_fit() -> None:
    """16 samples fit on an accelerator; 64 are the largest batch."""
    net = steady()
    assert split_batch(net, "t4", 4, 16) == BatchSplit(4)
    assert split_batch(net, "t4", 2, 64) == BatchSplit(16, 1)
    assert split_batch(net, "t4", 3, 16) == BatchSplit(6)  # 18 samples: rounded up
    assert split_batch(net, "t4", 3, 64) == BatchSplit(10, 1)  # 60: 66 would be too many
    assert split_batch(net, "t4", 1, 8, accumulated_least=1) == BatchSplit(4, 1)


def test_a_gang_with_more_accelerators_than_samples_is_refused_by_name() -> None:
    with pytest.raises(OutsideProfileError, match="64 samples for 65 accelerators"):
        split_batch(steady(), "t4", 65, 64)


def test_only_the_last_pass_synchronises() -> None:
    """Two passes of 2 s, one of them with a synchronisation of 0.5 s."""
    net = steady(sync_s=0.5)
    assert update_time_s(net, "t4", packed_layout(2, 4), BatchSplit(16, 1)) == pytest.approx(2.0 + 0.5 + 2.0)


def efficiency(application: Application, batch: int) -> float:
    """The worth of one sample relative to one of the initial batch."""
    return batch_gain(application, batch, 0) * application.batch_initial / batch


def test_a_large_batch_is_worth_what_the_noise_makes_of_it() -> None:
    """Without noise a larger batch is worth one step; with noise alone it would be worth its size."""
    assert batch_gain(steady(), 64, 0) == 1.0
    noisy = steady(grad_var=3.0)
    assert batch_gain(noisy, 16, 0) == pytest.approx(4.0 / 2.5)
    assert efficiency(noisy, 16) == pytest.approx(0.8)
    assert efficiency(noisy, 8) == 1.0
    # 1.6 steps in an update of 1 s, on two accelerators of 8 samples each.
    assert goodput(noisy, "t4", packed_layout(2, 4), BatchSplit(8), 0) == pytest.approx(1.6)


@given(batch=st.integers(8, 64), more=st.integers(0, 56), grad_var=st.floats(0.0, 1e6))
def test_more_samples_are_worth_more_together_and_no_more_each(batch: int, more: int, grad_var: float) -> None:
    """Gain grows with the batch, efficiency falls, and neither leaves its range."""
    net = steady(grad_var=grad_var)
    larger = batch + more
    assert 1.0 <= batch_gain(net, batch, 0) <= batch_gain(net, larger, 0) * (1 + 1e-9)
    assert batch_gain(net, larger, 0) <= larger / 8 * (1 + 1e-9)
    assert 0.0 < efficiency(net, larger) <= efficiency(net, batch) * (1 + 1e-9) <= 1.0 + 1e-8


@given(batch=st.integers(1, 64), accelerators=st.integers(1, 32), least=st.integers(0, 1))
def test_a_split_fits_and_is_about_the_batch_that_was_wanted(batch: int, accelerators: int, least: int) -> None:
    """Never above memory or the largest batch; below what was wanted only at the largest."""
    split = split_batch(steady(), "t4", accelerators, batch, accumulated_least=least)
    made, grain = split.batch(accelerators), accelerators * (split.accumulated + 1)
    assert 1 <= split.local <= 16
    assert made <= 64
    assert made >= batch or made + grain > 64
    assert made < batch + grain + accelerators * (split.accumulated + 1)


KIND = Kind("net")


class Linear:
    """A pass takes a fixed time and one per sample; a ring over machines costs, one inside a machine hardly."""

    def times(self, placement: GangLayout, local: int) -> StepTimes:
        ring_s = 0.0 if placement.accelerators == 1 else 0.2 if placement.machines > 1 else 0.02
        return StepTimes(0.05 + 0.001 * local + ring_s, ring_s)


class Noisier:
    """Ten epochs of 100 steps; the noise of the gradient grows tenfold over them."""

    work = tuple(100.0 * epoch for epoch in range(11))

    def noise(self, batch: int, epoch: int) -> GradientStatistics:
        return GradientStatistics(1.0, 1.0 + epoch)

    def updates(self, batch: int, epochs: int) -> float:
        return 0.0


def _application() -> Application:
    return Application("net", 128, 4096, Noisier(), {"a100": AcceleratorProfile(Linear(), 16, 256)})


def test_the_speed_is_that_of_the_best_batch_of_the_epoch() -> None:
    """Never below that of any one batch, above the initial one's where the noise allows; it ends with the epoch."""
    app = _application()
    law = GoodputLaw(app)
    for epoch in (0, 5, 9):
        speed, until = law.speed_segment("a100", (4,), 100.0 * epoch + 50.0)
        assert until == (100.0 * (epoch + 1) if epoch < 9 else float("inf"))
        for batch in (128, 512, 1024):
            split = split_batch(app, "a100", 4, batch)
            assert speed >= 0.98 * goodput(app, "a100", GangLayout((4,)), split, epoch)
    early, late = (law.speed_segment("a100", (8,), steps).steps_per_s for steps in (0.0, 950.0))
    fixed = GoodputLaw(app, batch=128).speed_segment("a100", (8,), 950.0).steps_per_s
    assert late > early
    assert late > fixed
    assert law.speed_segment("v100", (1,), 0.0).steps_per_s == 0.0


def test_a_spread_gang_is_slower_and_a_larger_one_never_proportional() -> None:
    """What a configuration is worth depends on type, count and placement."""
    law = GoodputLaw(_application())
    one, packed, spread = (law.speed_segment("a100", parts, 500.0).steps_per_s for parts in ((1,), (4,), (2, 2)))
    assert one < packed < 4 * one
    assert spread < packed


@pytest.mark.parametrize("policy", ["max_min_fairness", "isolated"])
def test_an_adaptive_job_gains_from_its_own_batch(policy: str) -> None:
    """Simulated whole: with its batch free it ends sooner than with the initial one, to the sum of its epochs."""
    pool = PoolModel(Pool(PoolId("p"), Shape("s", "a100", 8, 8.0, 2**33)), machines=1)
    ends = []
    for law in (GoodputLaw(_application()), GoodputLaw(_application(), batch=128)):
        request = JobRequest(JobId(1), KIND, demands=(Demand("a100", 4),), steps=1000.0, sizes=(1, 2, 4))
        truth = GroundTruth({}, default_costs=AttemptCosts(10.0, 5.0), laws={KIND: law})
        result = simulate(
            [SimulatedJob(0.0, request, 1000.0)], Scenario((pool,), truth, PolicySpec(policy), RoundRules())
        )
        assert not result.violations
        alone_s = sum(100.0 / law.speed_segment("a100", (4,), 100.0 * epoch).steps_per_s for epoch in range(10))
        assert result.last_ended_at == pytest.approx(10.0 + alone_s)
        ends.append(result.last_ended_at)
    assert ends[0] < ends[1]


GIVEN = check_model(
    GoodputLawEntry,
    {
        "batch": {"initial": 32, "max": 1024},
        "noise_scale": {0: 32, 1000: 992},
        "steps": 5000,
        "on": {
            "a100": {"step_s": {1: {16: 0.1, 64: 0.4}, 4: {16: 0.14, 64: 0.44}}, "spread": 0.5},
            "t4": {"step_s": {4: {16: 0.5}}},
        },
    },
    source="test",
)
APPLICATION = stated_application("net", GIVEN)


def test_step_times_are_those_of_the_table_and_linear_between_samples() -> None:
    """Synchronisation is what a gang takes longer than one accelerator; a gang on several machines takes longer yet."""
    law = APPLICATION.on["a100"].law
    assert law.times(GangLayout((1,)), 40).step_s == pytest.approx(0.25)
    assert law.times(GangLayout((1,)), 40).sync_s == 0.0
    together, apart = law.times(GangLayout((4,)), 16), law.times(GangLayout((2, 2)), 16)
    assert (together.step_s, together.sync_s) == (pytest.approx(0.14), pytest.approx(0.04))
    assert (apart.step_s, apart.sync_s) == (pytest.approx(0.28), pytest.approx(0.18))
    # Three passes, the first two without synchronisation.
    assert update_time_s(APPLICATION, "a100", GangLayout((4,)), BatchSplit(16, 2)) == pytest.approx(0.14 + 2 * 0.1)
    assert APPLICATION.on["t4"].law.times(GangLayout((4,)), 16).sync_s == 0.0


@pytest.mark.parametrize(("parts", "local"), [((2,), 16), ((1,), 8), ((1,), 65)])
def test_what_the_table_does_not_say_is_not_guessed(parts: tuple[int, ...], local: int) -> None:
    with pytest.raises(OutsideProfileError):
        APPLICATION.on["a100"].law.times(GangLayout(parts), local)
    assert GoodputLaw(APPLICATION).speed_segment("a100", (2,), 0.0).steps_per_s == 0.0


def test_a_step_is_worth_what_the_noise_scale_says() -> None:
    """(noise + initial) / (noise / s + initial) steps of the initial batch, of a batch s times as large."""
    assert batch_gain(APPLICATION, 32, 0) == 1.0
    assert batch_gain(APPLICATION, 64, 0) == pytest.approx((32 + 32) / (32 / 2 + 32))
    assert batch_gain(APPLICATION, 1024, 1) == pytest.approx((992 + 32) / (992 / 32 + 32))
    assert APPLICATION.learning.updates(32, 1) == pytest.approx(1000.0)
    assert APPLICATION.learning.updates(64, 1) == pytest.approx(1000.0 * 48 / 64)


def test_the_speed_follows_the_noise_and_the_bounds_of_the_batch() -> None:
    """Another from 1,000 steps on; the wider the choice, the faster."""
    free, bounded, fixed = GoodputLaw(APPLICATION), GoodputLaw(APPLICATION, 64, 128), GoodputLaw(APPLICATION, 64)
    for steps, until in ((0.0, 1000.0), (1000.0, inf)):
        paces = [law.speed_segment("a100", (4,), steps) for law in (free, bounded, fixed)]
        assert [pace.until_steps for pace in paces] == [until] * 3
        # Batches are tried in steps, so the best of many may be missed by a little.
        assert paces[0].steps_per_s >= 0.97 * paces[1].steps_per_s
        assert paces[1].steps_per_s >= paces[2].steps_per_s > 0
    early, late = (free.speed_segment("a100", (4,), steps).steps_per_s for steps in (0.0, 1000.0))
    assert late > 1.5 * early
    assert fixed.speed_segment("a100", (4,), 0.0).steps_per_s == pytest.approx(batch_gain(APPLICATION, 64, 0) / 0.14)


def test_a_kind_stands_for_a_law_and_its_batches() -> None:
    """Jobs with equal batches are of one kind; a batch beyond the law is refused by name."""
    laws = goodput_laws({"net": GIVEN})
    kinds = [
        laws.kind_of("net", batch, most, "here") for batch, most in ((None, None), (64, None), (64, 256), (None, 64))
    ]
    assert kinds == ["net", "net (batch size 64)", "net (batch size 64 to 256)", "net (batch size 32 to 64)"]
    assert list(laws.of) == kinds
    assert laws.kind_of("net", 64, None, "here") == kinds[1]
    assert (laws.steps("net"), laws.batch_most("net"), "net" in laws, "other" in laws) == (5000.0, 1024, True, False)
    with pytest.raises(ConfigError, match="here: a batch of 2048 is above 1024"):
        laws.kind_of("net", 64, 2048, "here")


def test_profiles_that_were_measured_are_laws_of_a_trace(reference_data: Path, tmp_path: Path) -> None:
    """A folder of them in place of a table: rows of the artifact's workloads have its epochs' work, and run."""
    (tmp_path / "c.yaml").write_text(
        "pools: [{shape: t4x4, accelerator: t4, accelerators: 4, cpus: 48, memory: 192GB, machines: 16}]"
    )
    pollux = reference_data / "golden" / "pollux"
    source = WorkloadSource(str(pollux / "workloads" / "workload-6.csv"), speeds=str(pollux / "profiles"))
    cell = RunSpec(source, str(tmp_path / "c.yaml"), "fifo", bounds=BoundsChoice.NONE)
    ran = execute_run(cell)
    assert (ran.result.outcome, len(ran.result.jobs), ran.summary.violations) == (RunOutcome.COMPLETE, 160, ())
    assert run_key(describe_run(cell))


def test_the_run_time_of_a_job_sums_its_stretches() -> None:
    """From the beginning; endless where it makes no step."""
    laws = goodput_laws({"net": GIVEN})
    kind = laws.kind_of("net", 64, None, "here")
    truth = GroundTruth({}, laws=laws.of)
    early, late = (truth.speed_segment(kind, "a100", (4,), steps).steps_per_s for steps in (0.0, 1000.0))
    assert truth.run_time_s(kind, "a100", (4,), 3000.0) == pytest.approx(1000.0 / early + 2000.0 / late)
    assert truth.run_time_s(kind, "a100", (3,), 3000.0) == inf
    assert truth.run_time_s(Kind(kind), "a100", (4,), 0.0) == 0.0
