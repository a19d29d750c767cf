"""What Scavenger's search costs a real job, over having known the best configuration from the start.

    python -m benchmarks scavenger

A convolutional network on handwritten digits, 4 batches x 1-2 workers on this machine's processors. The search trains
the job to its target, trials and moves included. The oracle is the job from its first step in one configuration:
with one worker it is trained to the target for every batch, two jobs at a time; with two workers, whose steps are the
same steps, seconds of a step are measured and multiplied. At scale 1 it takes about seven minutes of two quiet
processors, and nothing else should use them; the targets hold for that length, as moves cost the same however short a
job is. Oracle and search run one after the other: where the machine is not as fast in between, seconds say nothing
of the search. So its attempts are also told in the oracle's seconds: its steps, where it made them, and its starts.
"""

import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.tables import Measured
from optimizer.performance.choice import Goal, Option, choose
from optimizer.performance.search import Search, Space, samples_by_root
from walras.searching import Aim, Configuration, Trial
from workers.search_main import Extent, search_job
from workers.trial_runs import AttemptTold, MovingJob, Progress

_SCRIPTS = Path(__file__).parents[1] / "configs/jobs/training"
_USD_PER_H = 0.13402
_LOSS = 0.1
_RATE = 0.0006
#: Samples that earlier runs with another seed, and this rate of learning, needed: batch and samples.
_EARLIER_RATE = 0.02
_EARLIER = ((32, 2113 * 32.0), (256, 672 * 256.0))
_TIMEOUT_S = 1800.0
_SPACE = Space((1, 2), (32, 64, 128, 256), _USD_PER_H, Aim.KNEE)


@dataclass(frozen=True, slots=True)
class _Truth:
    """Of one configuration from start to end."""

    configuration: Configuration
    iteration_s: float
    time_s: float
    #: Of these, what is not steps: starting and ending.
    start_s: float

    def told_s(self, steps: int) -> float:
        """Of an attempt with so many steps."""
        return self.start_s + steps * self.iteration_s

    @property
    def usd(self) -> float:
        return self.time_s / 3600.0 * self.configuration.workers * _USD_PER_H


def measure(scale: float) -> list[Measured]:
    """One table. `scale` shortens the job by learning faster."""
    rate = _RATE / scale
    with tempfile.TemporaryDirectory(prefix="walras-scavenger-") as folder:
        truths = _oracle(Path(folder), rate)
        search = Search(_SPACE, samples_by_root([(b, count * _EARLIER_RATE / rate) for b, count in _EARLIER]))
        return [_choices(truths, search), _live(Path(folder), rate, truths, search)]


def _live(folder: Path, rate: float, truths: list[_Truth], search: Search) -> Measured:
    measured = Measured("Scavenger's search in a live job", f"digits to loss {_LOSS}, rate {rate:g}, knee")
    job = _job(folder / "search", rate)
    found = search_job(
        job, search, lambda done, ahead: None, Extent(4, 300.0, True, _TIMEOUT_S), lambda ahead, moved: None
    )
    assert found.finished
    best = _pick(truths, Aim.KNEE)
    time_s = sum(moved.wall_s for moved in found.moves)
    usd = sum(moved.wall_s / 3600.0 * moved.configuration.workers * _USD_PER_H for moved in found.moves)
    measured.add("trials", len(found.trials), "")
    measured.add("   of them moves: seconds in all", sum(trial.move_s for trial in found.trials), "s")
    for configuration, what in ((best.configuration, "oracle"), (found.moves[-1].configuration, "search")):
        measured.add(f"workers of the {what}", configuration.workers, "")
        measured.add(f"   batch of the {what}", configuration.batch, "")
    measured.add("time of the oracle", best.time_s, "s")
    measured.add("time with the search, over the oracle", 100 * (time_s / best.time_s - 1.0), "%", at_most=10)
    measured.add("cost with the search, over the oracle", 100 * (usd / best.usd - 1.0), "%", at_most=9)
    known = {truth.configuration: truth for truth in truths}
    priced = [(moved.configuration.workers, known[moved.configuration].told_s(moved.steps)) for moved in found.moves]
    priced_s = sum(seconds for _, seconds in priced)
    priced_usd = sum(seconds / 3600.0 * workers * _USD_PER_H for workers, seconds in priced)
    measured.add("   in the oracle's seconds: time, over the oracle", 100 * (priced_s / best.time_s - 1.0), "%")
    measured.add("   and cost, over the oracle", 100 * (priced_usd / best.usd - 1.0), "%")
    measured.add("worst configuration's time, over the oracle's", max(t.time_s for t in truths) / best.time_s, "x")
    return measured


def _choices(truths: list[_Truth], search: Search) -> Measured:
    """What the search would settle on for each aim, with the oracle's speeds in place of trials."""
    measured = Measured("what the search settles on", "with the measured speeds, and no cost of moving")
    known = {truth.configuration: truth for truth in truths}
    for aim in (Aim.TIME, Aim.MONEY):
        asked = Search(Space(_SPACE.workers, _SPACE.batches, _USD_PER_H, aim), search.samples)
        trials: list[Trial] = []
        while not (ahead := asked(trials)).settled:
            trials.append(Trial(ahead.configuration, 1, known[ahead.configuration].iteration_s, 0.0))
        taken, best = known[ahead.configuration], _pick(truths, aim)
        over = taken.time_s / best.time_s if aim is Aim.TIME else taken.usd / best.usd
        measured.add(f"least {aim}: over the least, in {len(trials)} trials", 100 * (over - 1.0), "%", at_most=9)
    off = [abs(e.time_s / (ahead.left * known[e.configuration].time_s) - 1.0) for e in ahead.expected]
    measured.add("times told by the laws, median error", 100 * median(off), "%")
    return measured


def _pick(truths: list[_Truth], aim: Aim) -> _Truth:
    if aim is Aim.TIME:
        return min(truths, key=lambda truth: truth.time_s)
    if aim is Aim.MONEY:
        return min(truths, key=lambda truth: truth.usd)
    options = {
        Option((truth.configuration.workers, truth.configuration.batch), truth.time_s, truth.usd): truth
        for truth in truths
    }
    choice = choose(options, Goal())
    assert choice is not None
    return options[choice.option]


def _oracle(folder: Path, rate: float) -> list[_Truth]:
    alone = [each for each in _SPACE.all if each.workers == 1]

    def to_the_end(each: Configuration) -> AttemptTold:
        job = _job(folder / f"alone-{each.batch}", rate)
        return job.attempt(1, each, None, None, lambda progress: False, _TIMEOUT_S)

    with ThreadPoolExecutor(2 if (os.cpu_count() or 1) > 1 else 1) as pool:
        ended = dict(zip(alone, pool.map(to_the_end, alone), strict=True))
    truths = []
    for each, told in ended.items():
        second = _seconds(told.progress)
        truths.append(_Truth(each, second, told.wall_s, max(0.0, told.wall_s - told.progress.steps * second)))
    for each in _SPACE.all:
        if each.workers > 1:
            told = _job(folder / f"together-{each.batch}", rate).attempt(
                1, each, None, None, lambda progress: progress.windows >= 8, _TIMEOUT_S
            )
            same = ended[Configuration(1, each.batch)].progress.steps
            second = _seconds(told.progress)
            rest = max(0.0, told.wall_s - told.progress.steps * second)
            truths.append(_Truth(each, second, rest + same * second, rest))
    return truths


def _seconds(progress: Progress) -> float:
    assert progress.steps_per_s, "the job is too short to be timed: --scale"
    return 1.0 / progress.steps_per_s


def _job(folder: Path, rate: float) -> MovingJob:
    argv = (sys.executable, "digits_cnn.py", "--until-loss", str(_LOSS), "--rate", str(rate), "--epochs", "1000000")
    return MovingJob("digits_cnn", "digits_cnn", argv, {}, str(_SCRIPTS), folder, os.environ)
