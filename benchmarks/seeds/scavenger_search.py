"""The configuration to try next while a job trains, and when to stop trying (Scavenger, CCGrid 2023).

    tau = a + a_1 b + s_1 K            seconds per iteration; b samples per worker, K workers

This is Scavenger's partial online search. A batch size can be changed at once, while other workers must first start.
The smallest gang therefore tries both ends of the range of batch sizes and the best batch between them; then the
largest gang is tried once, at the batch where it would be best if it scaled without loss. From these trials the law
above is fitted, and the best configuration is a forecast. The job moves there, which it would have to do anyway, and
measures it. The search ends unless an untried configuration could still be better by more than a move is worth, given
the law's error on the configurations that were tried.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import inf

import numpy as np

from optimizer.planning.machine_choice import RunGoal, RunOption, choose_option
from optimizer.prediction.predictor import CannotPredict
from optimizer.problem import FloatArray
from walras.contract import SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True, order=True)
class TrialConfiguration:
    """A number of workers, and the batch that they share, in samples."""

    workers: int
    batch: int


@dataclass(frozen=True, slots=True)
class Trial:
    """A part of the job that ran in one configuration; its steps count."""

    configuration: TrialConfiguration
    steps: int
    #: Median seconds per step over undisturbed windows, without the first steps.
    iteration_s: float
    #: Seconds without steps: start, loading and saving the checkpoint, end.
    move_s: float
    #: Seconds before that, in which its workers started while the part before it still trained.
    standby_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ConfigurationForecast:
    """Forecast of the rest of the job in one configuration, the move there included."""

    configuration: TrialConfiguration
    time_s: float
    usd: float
    #: Whether it was measured; if not, the fitted law predicts it.
    measured: bool


@dataclass(frozen=True, slots=True)
class SearchStep:
    """The configuration in which the job continues. `settled`: to its end."""

    configuration: TrialConfiguration
    settled: bool


def iteration_s(law: tuple[float, float, float], workers: int, batch: float) -> float:
    """Returns tau in seconds from the law's three coefficients; the fit may be negative, the result is at least 0."""
    start, per_sample, per_worker = law
    return max(0.0, start + per_sample * batch / workers + per_worker * workers)


def fit_iteration_law(runs: Sequence[tuple[int, float, float]]) -> tuple[float, float, float]:
    """Fits tau to (workers, batch, seconds). Raises CannotPredict where the runs do not determine the coefficients."""
    design = [[1.0, batch / workers, float(workers)] for workers, batch, _ in runs]
    coefficients = relative_least_squares(
        np.array(design), np.array([seconds for _, _, seconds in runs]), "iteration time"
    )
    return float(coefficients[0]), float(coefficients[1]), float(coefficients[2])


def relative_least_squares(design: FloatArray, values: FloatArray, what: str) -> FloatArray:
    """Returns coefficients with the least squared relative residuals. Raises CannotPredict if rank-deficient."""
    if design.ndim != 2 or np.linalg.matrix_rank(design) < design.shape[1]:
        raise CannotPredict(f"too few different runs to fit {what}")
    relative = 1.0 / np.maximum(np.abs(values), 1e-12)
    return np.asarray(np.linalg.lstsq(design * relative[:, None], values * relative, rcond=None)[0])


#: Samples to the end of the whole job, as a function of the batch size.
SamplesByBatch = Callable[[int], float]
#: The law's relative error is taken to be at least this.
_LAW_ERROR_LEAST = 0.02
#: Least relative error where the law has no more points than coefficients, and therefore fits all of them exactly.
_LAW_ERROR_UNTOLD = 0.05


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The configurations that may be tried, and the price of a worker. The aim is the knee of time against money."""

    workers: tuple[int, ...]
    batches: tuple[int, ...]
    usd_per_h: float = 1.0
    #: Largest number of trials; after them the forecast decides.
    trials_most: int = 6
    #: A configuration is tried only if it can save more than this part of time or money.
    worth: float = 0.03

    @property
    def all(self) -> tuple[TrialConfiguration, ...]:
        """Returns every configuration whose batch divides evenly among its workers."""
        pairs = product(sorted(self.workers), sorted(self.batches))
        return tuple(TrialConfiguration(workers, batch) for workers, batch in pairs if batch % workers == 0)


@dataclass(frozen=True, slots=True)
class OnlineSearch:
    """Decides the next step from the trials so far. The space has several batches, and configurations for the law."""

    space: SearchSpace
    samples: SamplesByBatch

    def __call__(self, trials: Sequence[Trial]) -> SearchStep:
        left = self.left(trials)
        tried = {trial.configuration: trial.iteration_s for trial in trials}
        opening = self._opening(tried)
        if opening is not None and len(trials) < self.space.trials_most and left > 0.0:
            return SearchStep(opening, False)
        law, error = self._law(tried)
        seconds = {each: tried.get(each) or iteration_s(law, each.workers, each.batch) for each in self.space.all}
        expected = self._expected(seconds, tried, trials, left)
        best = self._best(expected)
        if len(trials) >= self.space.trials_most or left <= 0.0:
            return SearchStep(best.configuration, True)
        if not best.measured:
            return SearchStep(best.configuration, False)
        rival = self._rival(expected, best, error)
        return SearchStep(best.configuration, True) if rival is None else SearchStep(rival.configuration, False)

    def left(self, trials: Sequence[Trial]) -> float:
        """Returns the part of the job that the trials left undone; a sample counts by the samples that its batch size
        needs.
        """
        done = sum(t.steps * t.configuration.batch / self.samples(t.configuration.batch) for t in trials)
        return max(0.0, 1.0 - done)

    def _opening(self, tried: dict[TrialConfiguration, float]) -> TrialConfiguration | None:
        """Returns the next configuration of the fixed opening; None once the opening is complete."""
        smallest, largest = self.space.all[0].workers, self.space.all[-1].workers
        row = [each for each in self.space.all if each.workers == smallest]
        for end in (row[0], row[-1]):
            if end not in tried:
                return end
        if len(row) > 1:
            low, high = row[0], row[-1]
            per_sample = (tried[high] - tried[low]) / (high.batch - low.batch)

            def seconds(each: TrialConfiguration) -> float:
                """Seconds per job if an iteration's time depended only on the samples per worker."""
                each_has = each.batch / each.workers - low.batch / low.workers
                tau = tried.get(each) or max(0.0, tried[low] + per_sample * smallest * each_has)
                return self.samples(each.batch) / each.batch * tau

            best = min(row, key=lambda each: (seconds(each), each))
            if best not in tried:
                return best
            if largest > smallest and not any(each.workers == largest for each in tried):
                gang = [each for each in self.space.all if each.workers == largest]
                return min(gang, key=lambda each: (seconds(each), each))
        return None

    def _law(self, tried: dict[TrialConfiguration, float]) -> tuple[tuple[float, float, float], float]:
        runs = [(each.workers, float(each.batch), seconds) for each, seconds in tried.items()]
        law = fit_iteration_law(runs)
        off = [iteration_s(law, workers, batch) / seconds - 1.0 for workers, batch, seconds in runs]
        # Three coefficients are fitted, so the residuals of n runs have n - 3 degrees of freedom.
        error = float(np.sqrt(sum(each * each for each in off) / max(1, len(off) - 3)))
        return law, max(error, _LAW_ERROR_LEAST if len(off) > 3 else _LAW_ERROR_UNTOLD)

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
        by_option = {RunOption((e.configuration.workers, e.configuration.batch), e.time_s, e.usd): e for e in expected}
        choice = choose_option(by_option, RunGoal())
        assert choice is not None, "there is at least one configuration"
        return by_option[choice.option]

    def _rival(
        self, expected: Sequence[ConfigurationForecast], best: ConfigurationForecast, error: float
    ) -> ConfigurationForecast | None:
        """Returns the untried configuration that would be chosen if the law overestimated its time by its error; None
        if none.
        """
        found, most = None, self.space.worth
        for rival in expected:
            if rival.measured:
                continue
            time_s = rival.time_s * (1.0 - error)
            hopeful = ConfigurationForecast(rival.configuration, time_s, self._usd(rival.configuration, time_s), False)
            taken = self._best([*(each for each in expected if each != rival), hopeful])
            gain = 1.0 - (hopeful.time_s / best.time_s + hopeful.usd / best.usd) / 2.0 if taken == hopeful else -inf
            if gain > most:
                found, most = rival, gain
        return found


def _move_s(here: TrialConfiguration, there: TrialConfiguration, trials: Sequence[Trial]) -> tuple[float, float]:
    """Returns median seconds without steps, and seconds in which the next workers start while the old ones still run.

    The medians are over earlier moves of the same sort (workers change, or only the batch does), or over all moves
    where there was none of that sort.
    """
    changes = here.workers != there.workers
    moves = [(before.configuration.workers != after.configuration.workers, after) for before, after in pairwise(trials)]
    like = [after for changed, after in moves if changed == changes] or list(trials)
    return float(np.median([each.move_s for each in like])), float(np.median([each.standby_s for each in like]))


def samples_by_power(earlier: Sequence[tuple[int, float]]) -> SamplesByBatch:
    """Returns the samples to the target as a function of the batch size, from finished runs of (batch, samples).

    The function is a power of the batch, by at least two runs. Small batches need as
    many samples as any, and large ones as many steps. Over the wide range between, a straight line in both logarithms
    interpolates two runs better than the formulas of gradient noise: a + c/sqrt(batch) (Scavenger) lies above it there,
    and a (1 + batch/phi) (McCandlish) below.
    """
    counts = np.log([count for _, count in earlier])
    design = np.array([[1.0, np.log(batch)] for batch, _ in earlier])
    base, slope = np.linalg.lstsq(design, counts, rcond=None)[0]
    return lambda batch: float(np.exp(base + slope * np.log(batch)))
