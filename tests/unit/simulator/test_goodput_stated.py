"""Laws of goodput as a workload file states them: what follows from a table of step times and a noise scale."""

from math import inf
from pathlib import Path

import pytest

from simulator.engine import RunOutcome
from simulator.goodput.application import BatchSplit, GangLayout, OutsideProfileError, batch_gain, update_time_s
from simulator.goodput.laws import GoodputLaw, goodput_laws, stated_application
from simulator.ground_truth import GroundTruth
from simulator.reports.baselines import BoundsChoice
from simulator.reports.run_spec import RunSpec, WorkloadSource, describe_run, execute_run, run_key
from walras.errors import ConfigError
from walras.job_request import Kind
from walras.spec.file_model import check_model
from walras.spec.workload_file import GoodputLawEntry

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
    """Neither gangs nor samples outside of it."""
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
