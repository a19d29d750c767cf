"""Jobs that choose their batch while they train, against those that had the best one from the start.

    python -m benchmarks batch_choice

The laws of each job are drawn: half-second windows, speeds off by 3 %, a noise scale that is off by a tenth and known
after a few updates. The best batch is the fastest of all that the job may choose, each for the whole job.
"""

import math
import random
import statistics
from dataclasses import dataclass

from benchmarks.tables import Measured
from walras.training.batch_tuning import COMPARISONS_LEAST, NOISE_EVERY_AT_FIRST, BatchTuner, gain_of_update

#: Jobs, the seed of the first, and how long they would take with their first batch, seconds.
_JOBS, _FIRST_SEED, _LENGTHS_S = 400, 5000, (600.0, 3600.0)
#: The largest batch, in first ones; and the batches that the best is one of.
_LARGEST, _BATCHES = 16, (1, 2, 3, 4, 6, 8, 12, 16)
_WINDOW_S, _WARM_UP = 0.5, 2


@dataclass(frozen=True, slots=True)
class DrawnJob:
    """A job whose truth is known here, and not to the tuner."""

    initial: int
    #: Seconds of an update: this, and this for each sample.
    fixed_s: float
    per_sample_s: float
    #: Noise scale at the beginning, in samples, and by which factor it has grown at the end.
    noise: float
    growth: float
    steps: int

    @classmethod
    def of(cls, rng: random.Random, length_s: float) -> "DrawnJob":
        """Draws a job that takes so long with its first batch."""
        initial, first_s = rng.choice([16, 32, 64]), 10.0 ** rng.uniform(-1.5, 0.0)
        part, noise, growth = rng.uniform(0.05, 0.95), initial * 10.0 ** rng.uniform(-0.5, 2.0), rng.choice([1, 3, 10])
        per_sample_s = first_s * (1.0 - part) / initial
        return cls(initial, first_s * part, per_sample_s, noise, growth, int(length_s / first_s))

    def update_s(self, batch: int) -> float:
        return self.fixed_s + self.per_sample_s * batch

    def noise_at(self, done: float) -> float:
        """Noise scale after so many steps at the first batch."""
        return float(self.noise * self.growth ** (done / self.steps))

    def fixed_time_s(self, batch: int) -> float:
        """How long the whole job takes with this batch."""
        done = at = 0.0
        while done < self.steps:
            done += gain_of_update(batch, self.initial, self.noise_at(done))
            at += self.update_s(batch)
        return at

    def best_time_s(self) -> float:
        return min(self.fixed_time_s(self.initial * times) for times in _BATCHES)

    def tuned_time_s(self, rng: random.Random) -> float:
        """How long it takes where it chooses its batch, knowing nothing at the beginning."""
        tuner = BatchTuner(self.initial, _LARGEST * self.initial, 1)
        at = done = window_s = 0.0
        updates = skipped = in_window = 0
        rates: list[float] = []
        while done < self.steps:
            took = self.update_s(tuner.batch) * (1.0 + 0.03 * rng.gauss(0.0, 1.0))
            at, updates = at + took, updates + 1
            done += gain_of_update(tuner.batch, self.initial, self.noise_at(done))
            if skipped < _WARM_UP:
                skipped += 1
                continue
            window_s, in_window = window_s + took, in_window + 1
            if window_s < _WINDOW_S:
                continue
            rates, window_s, in_window = [*rates[-59:], in_window / window_s], 0.0, 0
            is_known = updates > NOISE_EVERY_AT_FIRST * COMPARISONS_LEAST
            scale = self.noise_at(done) * math.exp(0.1 * rng.gauss(0.0, 1.0)) if is_known else None
            found = tuner.request(len(rates), statistics.median(rates), scale)
            if found is not None:
                tuner.noise = scale
                if found != tuner.batch:
                    rates, skipped = [], 0
                tuner.took(found)
        return at


def measure(scale: float) -> list[Measured]:
    """A table for each length."""
    tables = []
    for length_s in _LENGTHS_S:
        tuned, first = [], []
        count = max(20, round(_JOBS * scale))
        for seed in range(_FIRST_SEED, _FIRST_SEED + count):
            rng = random.Random(seed)
            job = DrawnJob.of(rng, length_s)
            best_s = job.best_time_s()
            tuned.append(job.tuned_time_s(rng) / best_s)
            first.append(job.fixed_time_s(job.initial) / best_s)
        of_length = f"{count} drawn jobs of {length_s / 60:.0f} minutes at their first batch"
        measured = Measured("time against the best batch known in advance", of_length)
        measured.add("chosen while it trains: mean", 100 * statistics.mean(tuned) - 100, "%", at_most=10)
        measured.add("   nineteen of twenty below", 100 * statistics.quantiles(tuned, n=20)[-1] - 100, "%", at_most=10)
        measured.add("   worst", 100 * max(tuned) - 100, "%")
        measured.add("the first batch kept: mean", 100 * statistics.mean(first) - 100, "%")
        tables.append(measured)
    return tables
