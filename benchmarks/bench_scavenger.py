"""What Scavenger's search costs a real job, over having known the best configuration from the start.

    python -m benchmarks scavenger

A convolutional network on handwritten digits, 4 batches x 1-2 workers on this machine's processors. The search trains
the job to its target, trials and moves included. The oracle is the job from its first step in one configuration:
with one worker it is trained to the target for every batch, two jobs at a time; with two workers, whose steps are the
same steps, seconds of a step are measured and multiplied. What is best by that is trained once more, alone, as the
search is: that is the oracle's time. At scale 1 it takes about nine minutes of two quiet processors, and nothing else
should use them; the targets hold for that length, as trials cost the same however short a job is.

A worker is a processor of this machine, paid for as long as it is held: ranks that start for a larger gang while the
smaller one trains on share the larger one's processors, and what they take from each other is in the seconds. Oracle
and search run one after the other: where the machine is not as fast in between, seconds say nothing of the search. So
its parts are also told in the oracle's seconds: its steps, where it made them, and its moves.
"""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from benchmarks.digits_jobs import LOSS, Truth, digits_job, timed, whole
from benchmarks.recorded_job import searched_in_virtual_time
from benchmarks.tables import Measured
from optimizer.planning.machine_choice import RunGoal, RunOption, choose_option
from optimizer.planning.online_search import OnlineSearch, SearchSpace, samples_by_power
from walras.configuration_search import SearchAim, Trial, TrialConfiguration
from workers.trials.configuration_trials import Extent, search_job

_USD_PER_H = 0.13402
_RATE = 0.00045
#: Samples that earlier runs with another seed, and this rate of learning, needed: batch and samples.
_EARLIER_RATE = 0.02
_EARLIER = ((32, 2113 * 32.0), (256, 672 * 256.0))
_TIMEOUT_S = 1800.0
_SPACE = SearchSpace((1, 2), (32, 64, 128, 256), _USD_PER_H, SearchAim.KNEE)
_WINDOWS = 2


def measure(scale: float) -> list[Measured]:
    """Three tables. `scale` shortens the job by learning faster."""
    rate = _RATE / scale
    with tempfile.TemporaryDirectory(prefix="walras-scavenger-") as folder:
        truths = _oracle(Path(folder), rate)
        search = OnlineSearch(_SPACE, samples_by_power([(b, count * _EARLIER_RATE / rate) for b, count in _EARLIER]))
        return [_recorded(), _choices(truths, search), _live(Path(folder), rate, truths, search)]


def _recorded() -> Measured:
    measured = Measured("Scavenger's search on a recorded job", "digits, virtual time, 20 seeds of 2 % noise")
    over = searched_in_virtual_time()
    measured.add("time over the oracle, worst seed", max(time for time, _ in over), "%", at_most=10)
    measured.add("cost over the oracle, worst seed", max(usd for _, usd in over), "%", at_most=9)
    return measured


def _live(folder: Path, rate: float, truths: list[Truth], search: OnlineSearch) -> Measured:
    measured = Measured("Scavenger's search in a live job", f"digits to loss {LOSS}, rate {rate:g}, knee")
    best = whole(digits_job(folder / "oracle", rate), _pick(truths, SearchAim.KNEE).configuration)
    extent = Extent(_WINDOWS, 300.0, True, _TIMEOUT_S)
    found = search_job(
        digits_job(folder / "search", rate), search, lambda done, ahead: None, extent, lambda ahead, moved: None
    )
    assert found.finished
    time_s, usd = sum(moved.wall_s for moved in found.moves), found.worker_s / 3600.0 * _USD_PER_H
    measured.add("trials", len(found.trials), "")
    measured.add("   seconds without steps, the first start aside", sum(each.move_s for each in found.moves[1:]), "s")
    measured.add("   seconds of ranks starting beside others", sum(each.standby_s for each in found.moves), "s")
    for configuration, what in ((best.configuration, "oracle"), (found.moves[-1].configuration, "search")):
        measured.add(f"workers of the {what}", configuration.workers, "")
        measured.add(f"   batch of the {what}", configuration.batch, "")
    measured.add("time of the oracle", best.time_s, "s")
    measured.add("time with the search, over the oracle", 100 * (time_s / best.time_s - 1.0), "%", at_most=10)
    measured.add("cost with the search, over the oracle", 100 * (usd / best.usd(_USD_PER_H) - 1.0), "%", at_most=9)
    known = {truth.configuration: truth for truth in truths} | {best.configuration: best}
    told_s = sum(m.steps * known[m.configuration].iteration_s + m.move_s for m in found.moves[1:])
    told_s += known[found.moves[0].configuration].told_s(found.moves[0].steps)
    measured.add("   in the oracle's seconds: time, over the oracle", 100 * (told_s / best.time_s - 1.0), "%")
    measured.add("worst configuration's time, over the oracle's", max(t.time_s for t in truths) / best.time_s, "x")
    return measured


def _choices(truths: list[Truth], search: OnlineSearch) -> Measured:
    """What the search would settle on for each aim, with the oracle's speeds in place of trials."""
    measured = Measured("what the search settles on", "with the measured speeds, and no cost of moving")
    known = {truth.configuration: truth for truth in truths}
    for aim in (SearchAim.TIME, SearchAim.MONEY):
        asked = OnlineSearch(SearchSpace(_SPACE.workers, _SPACE.batches, _USD_PER_H, aim), search.samples)
        trials: list[Trial] = []
        while not (ahead := asked(trials)).settled:
            trials.append(Trial(ahead.configuration, 1, known[ahead.configuration].iteration_s, 0.0))
        taken, best = known[ahead.configuration], _pick(truths, aim)
        over = taken.time_s / best.time_s if aim is SearchAim.TIME else taken.usd(_USD_PER_H) / best.usd(_USD_PER_H)
        measured.add(f"least {aim}: over the least, in {len(trials)} trials", 100 * (over - 1.0), "%", at_most=9)
    off = [abs(e.time_s / (ahead.left * known[e.configuration].time_s) - 1.0) for e in ahead.expected]
    measured.add("times told by the laws, median error", 100 * median(off), "%")
    return measured


def _pick(truths: list[Truth], aim: SearchAim) -> Truth:
    if aim is SearchAim.TIME:
        return min(truths, key=lambda truth: truth.time_s)
    if aim is SearchAim.MONEY:
        return min(truths, key=lambda truth: truth.usd(_USD_PER_H))
    options = {
        RunOption((truth.configuration.workers, truth.configuration.batch), truth.time_s, truth.usd(_USD_PER_H)): truth
        for truth in truths
    }
    choice = choose_option(options, RunGoal())
    assert choice is not None
    return options[choice.option]


def _oracle(folder: Path, rate: float) -> list[Truth]:
    alone = [each for each in _SPACE.all if each.workers == 1]

    def to_the_end(each: TrialConfiguration) -> Truth:
        return whole(digits_job(folder / f"alone-{each.batch}", rate), each)

    with ThreadPoolExecutor(2 if (os.cpu_count() or 1) > 1 else 1) as pool:
        truths = list(pool.map(to_the_end, alone))
    steps = {truth.configuration.batch: truth.steps for truth in truths}
    together = [each for each in _SPACE.all if each.workers > 1]
    return truths + [
        timed(digits_job(folder / f"together-{each.batch}", rate), each, steps[each.batch]) for each in together
    ]
