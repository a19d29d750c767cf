"""A real job as it was recorded, moved in virtual time by Scavenger's search.

The table holds, for a convolutional network on handwritten digits, how the loss fell over the samples with
every batch, the seconds of a step in every configuration, and what starting takes: real runs on two quiet processors,
2026-11-21. Here the job goes on from a loss: in another batch it falls from there as it fell then. Rates that are told
to the search have noise of their own.
"""

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.seeds.scavenger_search import OnlineSearch, SearchSpace, Trial, TrialConfiguration, samples_by_power
from optimizer.planning.machine_choice import RunGoal, RunOption, choose_option

#: Where the job ends.
LOSS = 0.1
_TABLE = Path(__file__).with_name("scavenger_digits.json")
#: Of learning, when the table was recorded; and how much longer the job is that is made of it.
_RATE, _LONGER = 0.003, 20.0 / 3.0
#: Samples that finished runs with another seed and rate needed, by batch; as many times as many.
_EARLIER = ((32, 67584.0 * 0.02 / _RATE), (256, 171008.0 * 0.02 / _RATE))
_SPACE = SearchSpace((1, 2), (32, 64, 128, 256))
#: A window of `walras.training`, and how many of them a trial is timed for.
_WINDOW_S, _WINDOWS = 0.5, 2


@dataclass(frozen=True, slots=True)
class Recorded:
    """The table, and the job that is made of it."""

    #: By batch: losses, falling, and the samples that each took.
    curves: dict[int, tuple[tuple[float, ...], tuple[float, ...]]]
    step_s: dict[TrialConfiguration, float]
    #: Processor seconds until a rank is ready to take steps, and seconds to save here and go on there.
    start_s: float
    hand_over_s: float
    cores: int = 2

    def samples_at(self, batch: int, loss: float) -> float:
        """That a whole run with this batch took to get there."""
        losses, samples = self.curves[batch]
        return _between([-each for each in losses], samples, -loss)

    def loss_at(self, batch: int, samples: float) -> float:
        """After so many samples of a whole run."""
        losses, counts = self.curves[batch]
        return _between(counts, losses, samples)

    def time_s(self, configuration: TrialConfiguration, loss: float) -> float:
        """From the start to this loss, without a move."""
        steps = self.samples_at(configuration.batch, loss) / configuration.batch
        return self.started_s(configuration.workers, 0) + steps * self.step_s[configuration]

    def started_s(self, workers: int, beside: int) -> float:
        """Until so many ranks are ready on these cores, beside others that train, each with a core's fair share."""
        share = min(1.0, self.cores / (workers + beside))
        return self.start_s / share


@dataclass
class JobPart:
    """The part of the job that ran in one configuration."""

    configuration: TrialConfiguration
    #: Seconds of a step as the search is told it.
    iteration_s: float
    standby_s: float = 0.0
    steps: int = 0
    wall_s: float = 0.0

    @property
    def trial(self) -> Trial:
        """What the search learns of it."""
        move_s = max(0.0, self.wall_s - self.steps * self.iteration_s)
        return Trial(self.configuration, self.steps, self.iteration_s, move_s, self.standby_s)


@dataclass
class RecordedMoves:
    """The job under way, in virtual time."""

    recorded: Recorded
    random: Random
    #: Of a told rate.
    noise: float = 0.02
    parts: list[JobPart] = field(default_factory=list)
    worker_s: float = 0.0
    now: float = 0.0
    _at_loss: float = 3.0
    _ready: set[int] = field(default_factory=set)

    def train(self, configuration: TrialConfiguration, windows: float) -> bool:
        """Trains on for so many windows at most. Returns whether the loss is reached."""
        self._move(configuration)
        while self._at_loss > LOSS and windows > 0:
            self._train(_WINDOW_S)
            windows -= 1
        return self._at_loss <= LOSS

    def _move(self, configuration: TrialConfiguration) -> None:
        old = self.parts[-1].configuration if self.parts else None
        workers, recorded = configuration.workers, self.recorded
        if old == configuration:
            return
        standby_s, pause_s = 0.0, 0.0
        if old is None:
            pause_s = recorded.started_s(workers, 0)
        elif old.workers != workers:
            if workers not in self._ready:
                standby_s = recorded.started_s(workers, old.workers)
                share = min(1.0, recorded.cores / (workers + old.workers))
                self._train(standby_s, share, max(workers, old.workers))
            self._ready = {old.workers} if old.workers < workers else set()
            pause_s = recorded.hand_over_s
        told_s = recorded.step_s[configuration] * self.random.gauss(1.0, self.noise)
        self.parts.append(JobPart(configuration, told_s, standby_s))
        self._pass(pause_s, workers)

    def _train(self, seconds: float, share: float = 1.0, held: int = 0) -> None:
        part = self.parts[-1]
        batch, step_s = part.configuration.batch, self.recorded.step_s[part.configuration] / share
        before = self.recorded.samples_at(batch, self._at_loss)
        left = max(1, round((self.recorded.samples_at(batch, LOSS) - before) / batch))
        steps = min(left, max(1, round(seconds / step_s)))
        self._at_loss = LOSS if steps == left else self.recorded.loss_at(batch, before + steps * batch)
        part.steps += steps
        self._pass(steps * step_s, held or part.configuration.workers)

    def _pass(self, seconds: float, workers: int) -> None:
        self.now += seconds
        self.worker_s += seconds * workers
        self.parts[-1].wall_s += seconds


def recorded_job(longer: float = 1.0) -> Recorded:
    """From the table. `longer`: so many times the samples, as with so much lower a rate of learning."""
    table: dict[str, Any] = json.loads(_TABLE.read_text())
    curves = {
        int(batch): (tuple(losses), tuple(longer * count for count in samples))
        for batch, (losses, samples) in table["curves"].items()
    }
    step_s = {TrialConfiguration(int(w), int(b)): seconds for w, b, seconds in table["step_s"]}
    return Recorded(curves, step_s, table["start_s"], table["hand_over_s"])


def searched_in_virtual_time(seeds: int) -> list[tuple[float, float]]:
    """Returns the search's time and cost over the oracle's, in percent, for every seed."""
    recorded = recorded_job(_LONGER)
    search = OnlineSearch(_SPACE, samples_by_power([(batch, _LONGER * count) for batch, count in _EARLIER]))
    whole_s = {each: recorded.time_s(each, LOSS) for each in _SPACE.all}
    choice = choose_option((RunOption((e.workers, e.batch), s, s * e.workers) for e, s in whole_s.items()), RunGoal())
    assert choice is not None, "there are configurations"
    over = []
    for seed in range(seeds):
        moves = RecordedMoves(recorded, Random(seed))
        ahead = search([])
        while not moves.train(ahead.configuration, float("inf") if ahead.settled else _WINDOWS):
            ahead = search([part.trial for part in moves.parts])
        best = choice.option
        over.append((100.0 * (moves.now / best.time_s - 1.0), 100.0 * (moves.worker_s / best.usd - 1.0)))
    return over


def _between(keys: Sequence[float], values: Sequence[float], key: float) -> float:
    """Straight lines between points; flat outside. Keys rise."""
    if key <= keys[0]:
        return values[0]
    if key >= keys[-1]:
        return values[-1]
    index = bisect_left(keys, key)
    part = (key - keys[index - 1]) / (keys[index] - keys[index - 1])
    return values[index - 1] + part * (values[index] - values[index - 1])
