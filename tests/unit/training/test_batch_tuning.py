"""A job that chooses its batch: which it takes, what its updates count for, and how far it is from the best."""

import random
import statistics
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.bench_batch_choice import DrawnJob
from optimizer.prediction.loss_curve import statistical_efficiency
from walras.training import Checkpoint, Loop, measurements
from walras.training.batch_source import BatchSource
from walras.training.batch_tuning import (
    COMPARISONS_LEAST,
    WINDOWS_TO_TRY,
    BatchTuner,
    batch_tuner_for,
    fit_update_s,
    gain_of_update,
)
from walras.training.gang import Gang
from walras.training.measurements import ThroughputMeter
from walras.training.supervisor_link import ControlRequest, JobEnvironment


class Batches(BatchSource):
    """The numbers from 0 to 23 in batches, of a size that may change."""

    def __init__(self) -> None:
        super().__init__(self)
        self.batch_size = 4

    def __iter__(self) -> Iterator[list[int]]:
        return self.begin(0, 0)

    def begin(self, epoch: int, skip: int) -> Iterator[list[int]]:
        size = self.batch_size
        assert size is not None
        return iter([list(range(at, min(24, at + size))) for at in range(skip * size, 24, size)])

    def resize(self, batch_size: int) -> bool:
        self.batch_size = batch_size
        return True


class Seen:
    """The state of a job: the numbers it saw."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        return {"numbers": self.numbers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.numbers = list(state["numbers"])


def test_an_update_counts_for_what_the_simulator_says() -> None:
    """By the law of `optimizer.prediction.loss_curve`; two batches tell it, and samples give no time back."""
    for noise in (0.0, 1.0, 64.0, 1e6):
        for batch in (64, 96, 128, 4096):
            assert gain_of_update(batch, 64, noise) == pytest.approx(
                batch / 64 * statistical_efficiency(noise, batch, 64), rel=1e-12
            )
    assert gain_of_update(64, 64, 0.0) == 1.0
    assert gain_of_update(4096, 64, 0.0) == 1.0  # no noise: the larger batch says nothing new
    assert fit_update_s({64: 0.1 + 0.001 * 64, 128: 0.1 + 0.001 * 128}) == pytest.approx((0.1, 0.001))
    fixed, per_sample = fit_update_s({64: 0.2, 128: 0.1})
    assert per_sample == 0.0
    assert 0.1 < fixed < 0.2
    fixed, per_sample = fit_update_s({64: 0.1, 128: 0.4})
    assert fixed == 0.0
    assert 0.1 / 64 < per_sample < 0.4 / 128


def _request(tuner: BatchTuner, update_s: float, noise: float | None, windows: int = WINDOWS_TO_TRY) -> int | None:
    return tuner.request(windows, 1.0 / update_s, noise)


def test_nothing_is_tried_before_speed_and_noise_are_known_or_where_it_cannot_pay() -> None:
    tuner = BatchTuner(64, 1024, 2)
    assert _request(tuner, 0.1, None) is None
    assert _request(tuner, 0.1, 500.0, windows=WINDOWS_TO_TRY - 1) is None
    assert _request(BatchTuner(64, 1024, 2), 0.1, 1.0) is None  # an update of 128 is worth 1.01 of 64
    assert _request(tuner, 0.1, 500.0) == 128


def test_no_batch_is_beyond_what_the_job_or_a_rank_may_have_or_twice_what_was_timed() -> None:
    tuner, taken = BatchTuner(64, 1000, 4, largest_per_rank=200), []
    for _ in range(12):
        found = _request(tuner, 0.5 + 1e-9 * tuner.batch, 1e9)
        if found is None or found == tuner.batch:
            break
        assert found <= 2 * max(taken, default=64)
        tuner.noise = 1e9
        tuner.took(found)
        taken.append(found)
    assert taken == [128, 256, 512, 768]
    assert all(batch % 4 == 0 and batch <= 800 for batch in taken)


def test_what_was_found_goes_on_after_a_restart_on_another_gang() -> None:
    """The batch is kept as far as it fits; its time is measured anew, and half of it is tried where none is larger."""
    tuner = BatchTuner(64, 1024, 1)
    tuner.noise = 500.0
    tuner.took(1024)
    saved = tuner.as_saved()
    again = BatchTuner(64, 1024, 8)
    assert again.restore(saved) == 1024
    assert again.gain == pytest.approx(gain_of_update(1024, 64, 500.0))
    assert _request(again, 1.0, 500.0) == 512
    small = BatchTuner(64, 1024, 2, largest_per_rank=100)
    assert small.restore(saved) == 192
    assert BatchTuner(64, 128, 1).restore({}) == 64


def test_updates_add_up_to_what_they_are_worth_and_end_at_the_limit() -> None:
    tuner = BatchTuner(64, 1024, 1)
    tuner.noise = 200.0
    tuner.took(256)
    assert 1.0 < tuner.gain < 4.0
    assert sum(tuner.steps_done(None, 0) for _ in range(1000)) == pytest.approx(1000 * tuner.gain, abs=1.0)
    assert tuner.steps_done(11, 10) == 1
    assert BatchTuner(64, 64, 1).steps_done(None, 0) == 1


class Noise:
    """A noise meter that knows."""

    def __init__(self, scale: float | None, comparisons: int = COMPARISONS_LEAST) -> None:
        self.scale, self.comparisons, self.samples, self.batches, self.every = scale, comparisons, None, 0, 5

    def resize(self, samples: int | None) -> None:
        self.comparisons = COMPARISONS_LEAST


class Optimizer(Seen):
    """Nothing but the sign of a torch optimizer."""

    def register_step_pre_hook(self, hook: object) -> None:
        pass


def _meter(rate: float, windows: int) -> Any:
    meter = ThroughputMeter()
    meter.samples, meter.steps_per_s = windows, rate
    return meter


def test_rank_0_asks_until_the_ranks_have_agreed_and_others_ask_for_nothing() -> None:
    tuner, meter, noise = BatchTuner(64, 1024, 2), _meter(10.0, WINDOWS_TO_TRY), Noise(500.0)
    nothing = ControlRequest()
    assert BatchTuner(64, 1024, 2).with_request(nothing, meter, None) is nothing
    early: Any = Noise(500.0, COMPARISONS_LEAST - 1)
    assert BatchTuner(64, 1024, 2).with_request(nothing, meter, early) is nothing
    known: Any = noise
    wanted = tuner.with_request(nothing, meter, known)
    assert (wanted.samples, wanted.noise) == (128, 500_000)
    assert tuner.with_request(nothing, meter, known) == wanted  # the ranks have not met yet
    assert tuner.with_request(ControlRequest(stop=True), meter, known) == ControlRequest(stop=True)
    assert tuner.agreed(wanted) == 128
    tuner.took(128)
    assert tuner.gain == pytest.approx(gain_of_update(128, 64, 500.0))
    assert tuner.with_request(nothing, meter, known) is nothing


def test_ranks_that_do_not_know_each_other_and_scripts_that_bear_no_change_keep_their_batch() -> None:
    told: list[str] = []
    settings = JobEnvironment(batch=64, largest_batch=256)
    gang = Gang(0)
    assert batch_tuner_for(JobEnvironment(batch=64), gang, True, told.append) is None
    assert told == []
    assert batch_tuner_for(settings, gang, False, told.append) is None
    assert "on_change" in told[-1]
    assert batch_tuner_for(JobEnvironment(batch=64, largest_batch=256, world_size=2), gang, True, told.append) is None
    assert "do not know each other" in told[-1]
    assert batch_tuner_for(settings, gang, True, told.append) is not None


def test_a_loop_changes_its_batch_and_counts_steps_at_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sample once, whatever the batches; updates of the larger batch count for more; the limit is in steps."""
    monkeypatch.setattr(measurements, "WINDOW_S", 0.0)
    monkeypatch.setattr("walras.training.batch_source.resumable_source", lambda batches, seed: batches)
    for name, value in {"WALRAS_BATCH": "4", "WALRAS_BATCH_MAX": "8", "WALRAS_STEPS": "400"}.items():
        monkeypatch.setenv(name, value)
    seen, changes = Seen(), list[int]()
    loop = Loop(Checkpoint(seen=seen, rates=Optimizer(), every_s=None), on_change=changes.append, seed=1)
    quiet: Any = Noise(1e6)
    loop._noise = quiet
    updates, data = 0, Batches()
    for epoch in loop.epochs():
        for batch in loop.steps(data):
            seen.numbers.extend(batch)
            updates += 1
        if epoch and not loop._is_at_limit:
            assert sorted(seen.numbers[-24:]) == list(range(24)), epoch
    assert changes == [4, 8]
    assert loop.step == 400
    assert 200 <= updates < 230  # twice the batch, and next to nothing lost
    assert loop._tuner.gain == pytest.approx(2.0, rel=1e-4)


@pytest.mark.parametrize("first", [0, 1000])
def test_without_earlier_runs_a_job_takes_at_most_a_tenth_more_than_with_the_best_batch(first: int) -> None:
    """Jobs of ten minutes with laws drawn at random; the best is the fastest of all batches, known in advance."""
    tuned, unchanged = [], []
    for seed in range(first, first + 25):
        rng = random.Random(seed)
        job = DrawnJob.of(rng, 600.0)
        best_s = job.best_time_s()
        tuned.append(job.tuned_time_s(rng) / best_s)
        unchanged.append(job.fixed_time_s(job.initial) / best_s)
    assert max(tuned) <= 1.10
    assert statistics.mean(tuned) <= 1.03
    assert statistics.mean(unchanged) >= 1.2  # the jobs are such that choosing matters
