"""A real job as it was recorded, moved in virtual time: what a search is worth, to the same figures each time.

    python -m benchmarks.recorded_job          records the table again: two minutes of two quiet processors

The table holds, for the digits CNN, how the loss fell over the samples with every batch, the seconds of a step in every
configuration, and what starting takes. Here the job goes on from a loss: in another batch it falls from there as it
fell then. Told rates have noise of their own.
"""

import json
import tempfile
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from benchmarks.digits_jobs import LOSS, Truth, digits_job, timed, whole
from optimizer.planning.machine_choice import RunGoal, RunOption, choose_option
from optimizer.planning.online_search import OnlineSearch, SearchSpace, samples_by_power
from walras.configuration_search import SearchAim, TrialConfiguration
from walras.wire import Manifest
from workers.trials.configuration_trials import Extent, search_moving_job
from workers.trials.local_ranks import TrialProgress
from workers.trials.moving_job import IsEnough, StepsLimit, TrialPart

TABLE = Path(__file__).with_name("digits_table.json")
#: Of learning, when the table was recorded; and how much longer the job is that is made of it.
_RATE, _LONGER = 0.003, 20.0 / 3.0
#: Samples that finished runs with another seed and rate needed, by batch; as many times as many.
_EARLIER = ((32, 67584.0 * 0.02 / _RATE), (256, 171008.0 * 0.02 / _RATE))
_SPACE = SearchSpace((1, 2), (32, 64, 128, 256), 1.0, SearchAim.KNEE)
#: A loss that is not this much below the last one adds no point to a curve.
_FALL = 0.03
#: A window of `walras.training`.
_WINDOW_S = 0.5


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
class RecordedMoves:
    """As `workers.trials.moving_job.MovingRun`, in virtual time."""

    recorded: Recorded
    #: Where the job ends.
    loss: float
    random: Random
    #: Of a told rate.
    noise: float = 0.02
    parts: list[TrialPart] = field(default_factory=list)
    checkpoint: Manifest | None = None
    worker_s: float = 0.0
    now: float = 0.0
    _at_loss: float = 3.0
    _ready: set[int] = field(default_factory=set)

    def train(self, configuration: TrialConfiguration, limit: StepsLimit, enough: IsEnough, timeout_s: float) -> bool:
        """Train on until it was `enough` by so many windows; true: the loss is reached."""
        self._move(configuration)
        part, windows = self.parts[-1], 0
        part.iteration_s = self.recorded.step_s[configuration] * self.random.gauss(1.0, self.noise)
        while self._at_loss > self.loss:
            if enough(TrialProgress(part.to_step, 1.0 / part.iteration_s, windows)):
                part.move_s = max(0.0, part.wall_s - part.steps * part.iteration_s)
                return False
            self._train(_WINDOW_S)
            windows += 1
        return True

    def halt(self) -> None:
        """Nothing runs."""

    def _move(self, configuration: TrialConfiguration) -> None:
        old = self.parts[-1].configuration if self.parts else None
        workers, recorded = configuration.workers, self.recorded
        if old == configuration:
            return
        standby_s, pause_s, step = 0.0, 0.0, self.parts[-1].to_step if self.parts else 0
        if old is None:
            pause_s = recorded.started_s(workers, 0)
        elif old.workers != workers:
            if workers not in self._ready:
                standby_s = recorded.started_s(workers, old.workers)
                share = min(1.0, recorded.cores / (workers + old.workers))
                self._train(standby_s, share, max(workers, old.workers))
                step = self.parts[-1].to_step
            self._ready = {old.workers} if old.workers < workers else set()
            pause_s = recorded.hand_over_s
        self.parts.append(TrialPart(configuration, step, step, standby_s=standby_s))
        self._pass(pause_s, workers)

    def _train(self, seconds: float, share: float = 1.0, held: int = 0) -> None:
        part = self.parts[-1]
        batch, step_s = part.configuration.batch, self.recorded.step_s[part.configuration] / share
        before = self.recorded.samples_at(batch, self._at_loss)
        left = max(1, round((self.recorded.samples_at(batch, self.loss) - before) / batch))
        steps = min(left, max(1, round(seconds / step_s)))
        self._at_loss = self.loss if steps == left else self.recorded.loss_at(batch, before + steps * batch)
        part.to_step += steps
        self._pass(steps * step_s, held or part.configuration.workers)

    def _pass(self, seconds: float, workers: int) -> None:
        self.now += seconds
        self.worker_s += seconds * workers
        self.parts[-1].wall_s += seconds


def recorded_job(longer: float = 1.0) -> Recorded:
    """From the table. `longer`: so many times the samples, as with so much lower a rate of learning."""
    table: dict[str, Any] = json.loads(TABLE.read_text())
    curves = {
        int(batch): (tuple(losses), tuple(longer * count for count in samples))
        for batch, (losses, samples) in table["curves"].items()
    }
    step_s = {TrialConfiguration(int(w), int(b)): seconds for w, b, seconds in table["step_s"]}
    return Recorded(curves, step_s, table["start_s"], table["hand_over_s"])


def searched_in_virtual_time(seeds: int = 20, windows: int = 2) -> list[tuple[float, float]]:
    """Time and cost over the oracle's, in percent, for every seed."""
    recorded = recorded_job(_LONGER)
    search = OnlineSearch(_SPACE, samples_by_power([(batch, _LONGER * count) for batch, count in _EARLIER]))
    whole_s = {each: recorded.time_s(each, LOSS) for each in _SPACE.all}
    choice = choose_option((RunOption((e.workers, e.batch), s, s * e.workers) for e, s in whole_s.items()), RunGoal())
    assert choice is not None, "there are configurations"
    over = []
    for seed in range(seeds):
        moves = RecordedMoves(recorded, LOSS, Random(seed))
        found = search_moving_job(
            moves, search, lambda done, ahead: None, Extent(windows, 300.0, True), lambda a, b: None
        )
        assert found.finished, "it goes to the end"
        best = choice.option
        over.append((100.0 * (moves.now / best.time_s - 1.0), 100.0 * (found.worker_s / best.usd - 1.0)))
    return over


def record() -> dict[str, Any]:
    """The table, by real runs to the end: one worker each, then two for a few seconds."""
    curves: dict[int, tuple[list[float], list[float]]] = {}
    truths: list[Truth] = []
    with tempfile.TemporaryDirectory(prefix="walras-recorded-") as folder:
        for each in _SPACE.all:
            job = digits_job(Path(folder) / f"{each.workers}-{each.batch}", _RATE)
            if each.workers > 1:
                steps = next(truth.steps for truth in truths if truth.configuration.batch == each.batch)
                truths.append(timed(job, each, steps))
                continue
            losses, samples = curves.setdefault(each.batch, ([3.0], [0.0]))

            def see(
                progress: TrialProgress,
                batch: int = each.batch,
                losses: list[float] = losses,
                at: list[float] = samples,
            ) -> None:
                loss = progress.values.get("loss", losses[-1])
                if LOSS < loss < (1.0 - _FALL) * losses[-1] and progress.steps * batch > at[-1]:
                    losses.append(round(loss, 4))
                    at.append(float(progress.steps * batch))

            truths.append(whole(job, each, see))
            losses.append(LOSS)
            samples.append(float(truths[-1].steps * each.batch))
    return {
        "curves": curves,
        "step_s": [[t.configuration.workers, t.configuration.batch, round(t.iteration_s, 6)] for t in truths],
        "start_s": round(median(truth.start_s for truth in truths), 2),
        "hand_over_s": 0.3,
    }


def _between(keys: Sequence[float], values: Sequence[float], key: float) -> float:
    """Straight lines between points; flat outside. Keys rise."""
    if key <= keys[0]:
        return values[0]
    if key >= keys[-1]:
        return values[-1]
    index = bisect_left(keys, key)
    part = (key - keys[index - 1]) / (keys[index] - keys[index - 1])
    return values[index - 1] + part * (values[index] - values[index - 1])


if __name__ == "__main__":
    TABLE.write_text(json.dumps(record()) + "\n")
