"""Which configuration to try next while a job trains, and when to stop trying (Scavenger, CCGrid 2023).

    tau = a + a_1 b + s_1 K            seconds per iteration; b samples per worker, K workers

The partial online search: another batch is had at once, other workers have to start. So the smallest gang goes first
through the ends of the range of batches and to what is best between them; then the largest gang is tried, once, where
it would be best if it scaled without loss. Then the seconds of an iteration follow a law, and what is best is a
forecast: the job moves there, which it would have to do anyway, and is measured there. It stays unless somewhere that
nobody tried could still be better by more than a move is worth, given how far the law was off where it was tried.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import inf

import numpy as np

from optimizer.planning.machine_choice import RunGoal, RunOption, choose_option
from optimizer.prediction.predictor import CannotPredict
from optimizer.problem import FloatArray
from walras.configuration_search import ConfigurationForecast, SearchAim, SearchStep, Trial, TrialConfiguration
from walras.contract import SECONDS_PER_HOUR


def iteration_s(law: tuple[float, float, float], workers: int, batch: float) -> float:
    """tau by its three coefficients; never below 0, whatever the fit."""
    start, per_sample, per_worker = law
    return max(0.0, start + per_sample * batch / workers + per_worker * workers)


def fit_iteration_law(runs: Sequence[tuple[int, float, float]]) -> tuple[float, float, float]:
    """tau from (workers, batch, seconds). Raises CannotPredict where the runs do not tell the coefficients apart."""
    design = [[1.0, batch / workers, float(workers)] for workers, batch, _ in runs]
    coefficients = relative_least_squares(
        np.array(design), np.array([seconds for _, _, seconds in runs]), "iteration time"
    )
    return float(coefficients[0]), float(coefficients[1]), float(coefficients[2])


def relative_least_squares(design: FloatArray, values: FloatArray, what: str) -> FloatArray:
    """Coefficients with the smallest relative misses. Raises CannotPredict if the rows do not determine them."""
    if design.ndim != 2 or np.linalg.matrix_rank(design) < design.shape[1]:
        raise CannotPredict(f"too few different runs to tell {what} by")
    relative = 1.0 / np.maximum(np.abs(values), 1e-12)
    return np.asarray(np.linalg.lstsq(design * relative[:, None], values * relative, rcond=None)[0])


#: Samples to the end of the whole job, by batch.
SamplesByBatch = Callable[[int], float]
#: The law is never believed more closely than this.
_LAW_ERROR_LEAST = 0.02
#: Nor than this, where it was tried in no more places than it has coefficients, and so meets all of them.
_LAW_ERROR_UNTOLD = 0.05


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """What may be tried, what is wanted, and what a worker costs."""

    workers: tuple[int, ...]
    batches: tuple[int, ...]
    usd_per_h: float = 1.0
    aim: SearchAim = SearchAim.KNEE
    #: At most so many trials; the forecast decides then.
    trials_most: int = 6
    #: What has at most this much to win (a part of time or money) is not tried.
    worth: float = 0.03

    @property
    def all(self) -> tuple[TrialConfiguration, ...]:
        """Every configuration whose batch its workers can share evenly."""
        pairs = product(sorted(self.workers), sorted(self.batches))
        return tuple(TrialConfiguration(workers, batch) for workers, batch in pairs if batch % workers == 0)


@dataclass(frozen=True, slots=True)
class OnlineSearch:
    """The decision as a function of the trials so far. Raises ValueError where there is nothing to choose from."""

    space: SearchSpace
    samples: SamplesByBatch

    def __post_init__(self) -> None:
        if not self.space.all:
            raise ValueError("no batch can be shared evenly by any number of workers")

    def __call__(self, trials: Sequence[Trial]) -> SearchStep:
        left = self.left(trials)
        tried = {trial.configuration: trial.iteration_s for trial in trials}
        opening = self._opening(tried)
        if opening is not None and len(trials) < self.space.trials_most and left > 0.0:
            return SearchStep(opening[0], False, opening[1], left=left)
        try:
            law, error = self._law(tried)
        except CannotPredict:
            return self._next_without_law(tried, trials, left)
        seconds = {each: tried.get(each) or iteration_s(law, each.workers, each.batch) for each in self.space.all}
        expected = self._expected(seconds, tried, trials, left)
        best = self._best(expected)
        if len(trials) >= self.space.trials_most or left <= 0.0:
            return SearchStep(best.configuration, True, "as many trials as may be", expected, left)
        if not best.measured:
            return SearchStep(best.configuration, False, f"the best by the law (off by {error:.0%})", expected, left)
        rival = self._rival(expected, best, error)
        if rival is None:
            return SearchStep(
                best.configuration, True, "measured, and nothing untried can be worth a move", expected, left
            )
        return SearchStep(
            rival.configuration, False, f"could be better, as the law is off by {error:.0%}", expected, left
        )

    def left(self, trials: Sequence[Trial]) -> float:
        """Part of the job that the trials have not done; each sample counts by how many its batch needs."""
        done = sum(t.steps * t.configuration.batch / self.samples(t.configuration.batch) for t in trials)
        return max(0.0, 1.0 - done)

    def _opening(self, tried: dict[TrialConfiguration, float]) -> tuple[TrialConfiguration, str] | None:
        """What is tried whatever comes of it, and why; None: that is done."""
        smallest, largest = self.space.all[0].workers, self.space.all[-1].workers
        row = [each for each in self.space.all if each.workers == smallest]
        for end in (row[0], row[-1]):
            if end not in tried:
                return end, "an end of the range of batches"
        if len(row) > 1:
            low, high = row[0], row[-1]
            per_sample = (tried[high] - tried[low]) / (high.batch - low.batch)

            def seconds(each: TrialConfiguration) -> float:
                """If a worker's samples were all that mattered."""
                each_has = each.batch / each.workers - low.batch / low.workers
                tau = tried.get(each) or max(0.0, tried[low] + per_sample * smallest * each_has)
                return self.samples(each.batch) / each.batch * tau

            best = min(row, key=lambda each: (seconds(each), each))
            if best not in tried:
                return best, "the best batch by what its ends take"
            if largest > smallest and not any(each.workers == largest for each in tried):
                gang = [each for each in self.space.all if each.workers == largest]
                return min(gang, key=lambda each: (seconds(each), each)), "the largest gang, where it could be best"
        return None

    def _law(self, tried: dict[TrialConfiguration, float]) -> tuple[tuple[float, float, float], float]:
        runs = [(each.workers, float(each.batch), seconds) for each, seconds in tried.items()]
        law = fit_iteration_law(runs)
        off = [iteration_s(law, workers, batch) / seconds - 1.0 for workers, batch, seconds in runs]
        # Three coefficients are fitted: the residuals of n runs are those of n - 3.
        error = float(np.sqrt(sum(each * each for each in off) / max(1, len(off) - 3)))
        return law, max(error, _LAW_ERROR_LEAST if len(off) > 3 else _LAW_ERROR_UNTOLD)

    def _next_without_law(
        self, tried: dict[TrialConfiguration, float], trials: Sequence[Trial], left: float
    ) -> SearchStep:
        """A range of one or two values tells no law: what lies in the middle of the largest gap, else what was best."""
        untried = [index for index, each in enumerate(self.space.all) if each not in tried]
        if untried and len(trials) < self.space.trials_most and left > 0.0:
            known = [index for index, each in enumerate(self.space.all) if each in tried]
            low, high = max(pairwise([-1, *known, len(self.space.all)]), key=lambda gap: gap[1] - gap[0])
            middle = self.space.all[min(untried, key=lambda index: abs(2 * index - low - high))]
            return SearchStep(middle, False, "too few trials to tell a law", left=left)
        expected = self._expected(tried, tried, trials, left)
        return SearchStep(self._best(expected).configuration, True, "the best of those tried", expected, left)

    def _expected(
        self,
        seconds: dict[TrialConfiguration, float],
        tried: dict[TrialConfiguration, float],
        trials: Sequence[Trial],
        left: float,
    ) -> tuple[ConfigurationForecast, ...]:
        here = trials[-1].configuration
        forecasts = []
        for each, iteration in seconds.items():
            move_s, standby_s = (0.0, 0.0) if each == here else _move_s(here, each, trials)
            time_s = left * self.samples(each.batch) / each.batch * iteration + move_s
            forecasts.append(ConfigurationForecast(each, time_s, self._usd(each, time_s + standby_s), each in tried))
        return tuple(sorted(forecasts, key=lambda each: (each.time_s, each.configuration)))

    def _usd(self, configuration: TrialConfiguration, time_s: float) -> float:
        return time_s / SECONDS_PER_HOUR * configuration.workers * self.space.usd_per_h

    def _best(self, expected: Sequence[ConfigurationForecast]) -> ConfigurationForecast:
        if self.space.aim is SearchAim.TIME:
            return min(expected, key=lambda each: (each.time_s, each.usd, each.configuration))
        if self.space.aim is SearchAim.MONEY:
            return min(expected, key=lambda each: (each.usd, each.time_s, each.configuration))
        by_option = {RunOption((e.configuration.workers, e.configuration.batch), e.time_s, e.usd): e for e in expected}
        choice = choose_option(by_option, RunGoal())
        assert choice is not None, "there is at least one configuration"
        return by_option[choice.option]

    def _rival(
        self, expected: Sequence[ConfigurationForecast], best: ConfigurationForecast, error: float
    ) -> ConfigurationForecast | None:
        """What nobody tried, and would be taken if the law were as wrong there as it was where it was tried."""
        found, most = None, self.space.worth
        for rival in expected:
            if rival.measured:
                continue
            time_s = rival.time_s * (1.0 - error)
            hopeful = ConfigurationForecast(rival.configuration, time_s, self._usd(rival.configuration, time_s), False)
            taken = self._best([*(each for each in expected if each != rival), hopeful])
            gain = self._gain(hopeful, best) if taken == hopeful else -inf
            if gain > most:
                found, most = rival, gain
        return found

    def _gain(self, rival: ConfigurationForecast, best: ConfigurationForecast) -> float:
        time, money = 1.0 - rival.time_s / best.time_s, 1.0 - rival.usd / best.usd
        return {SearchAim.TIME: time, SearchAim.MONEY: money, SearchAim.KNEE: (time + money) / 2.0}[self.space.aim]


def _move_s(here: TrialConfiguration, there: TrialConfiguration, trials: Sequence[Trial]) -> tuple[float, float]:
    """What such a move has taken, in which the workers change or the batch alone: seconds without steps, and seconds
    that the next workers start beside these. Where there was none such yet, all moves tell."""
    changes = here.workers != there.workers
    moves = [(before.configuration.workers != after.configuration.workers, after) for before, after in pairwise(trials)]
    like = [after for changed, after in moves if changed == changes] or list(trials)
    return float(np.median([each.move_s for each in like])), float(np.median([each.standby_s for each in like]))


def samples_by_power(earlier: Sequence[tuple[int, float]]) -> SamplesByBatch:
    """Samples to the target from finished runs, (batch, samples) each: a power of the batch. One run, or one batch: the
    same for every batch.

    Small batches need as many samples as any, large ones as many steps, and over the wide range in between a straight
    line in both logarithms tells what lies between two runs. Of what the noise of the gradient would make of it, a +
    c/sqrt(batch) (Scavenger) lies above it there, and a (1 + batch/phi) (McCandlish) below.
    """
    batches = {batch for batch, _ in earlier}
    if not earlier or min(count for _, count in earlier) <= 0.0:
        raise CannotPredict("no finished run tells how many samples the job needs")
    counts = np.log([count for _, count in earlier])
    if len(batches) < 2:
        mean = float(np.exp(counts.mean()))
        return lambda batch: mean
    design = np.array([[1.0, np.log(batch)] for batch, _ in earlier])
    base, slope = np.linalg.lstsq(design, counts, rcond=None)[0]
    return lambda batch: float(np.exp(base + slope * np.log(batch)))
