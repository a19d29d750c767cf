"""The partial online search: what it tries, when it stops, and how good what it finds is."""

from math import sqrt
from random import Random

import pytest

from optimizer.planning.online_search import OnlineSearch, SearchSpace, samples_by_power
from optimizer.prediction.predictor import CannotPredict
from walras.configuration_search import SearchAim, SearchStep, Trial, TrialConfiguration

WORKERS, BATCHES = (1, 2, 4, 8), (64, 128, 256, 512)


def samples(batch: int) -> float:
    return 4e6 * (1.6 - 8.0 / sqrt(batch))


def iteration_s(configuration: TrialConfiguration) -> float:
    return 0.01 + 0.0004 * configuration.batch / configuration.workers + 0.004 * configuration.workers


def followed(
    search: OnlineSearch, random: Random, noise: float = 0.05, move_s: float = 10.0
) -> tuple[list[Trial], SearchStep]:
    """The trials of a made-up job whose iterations have noise of their own; 20 of them in a trial."""
    trials: list[Trial] = []
    while not (ahead := search(trials)).settled:
        mean = sum(random.gauss(1.0, noise) for _ in range(20)) / 20
        trials.append(Trial(ahead.configuration, 20, iteration_s(ahead.configuration) * mean, move_s))
        assert len(trials) <= search.space.trials_most
    return trials, ahead


def left_s(configuration: TrialConfiguration) -> float:
    return samples(configuration.batch) / configuration.batch * iteration_s(configuration)


def test_batches_come_first_and_a_larger_gang_is_tried_where_it_could_be_best() -> None:
    """Moves that cost nothing are made first, and the largest gang is started for one trial."""
    trials, _ = followed(OnlineSearch(SearchSpace(WORKERS, BATCHES), samples), Random(1))
    first = [(trial.configuration.workers, trial.configuration.batch) for trial in trials[:3]]
    assert first == [(1, 64), (1, 512), (8, 512)]

    def steep(batch: int) -> float:
        return float(1e6 * batch**0.3)

    trials, _ = followed(OnlineSearch(SearchSpace(WORKERS, (32, 64, 128, 256)), steep), Random(1))
    first = [(trial.configuration.workers, trial.configuration.batch) for trial in trials[:4]]
    assert first == [(1, 32), (1, 256), (1, 64), (8, 256)], "between the ends it is best at 64, for one worker"


def test_a_move_counts_by_what_such_moves_have_taken() -> None:
    """Another batch costs what other batches have cost, other workers what those took to start, in money too."""
    space = SearchSpace((1, 2), (64, 128), usd_per_h=3600.0, aim=SearchAim.TIME, trials_most=3)
    done = [
        Trial(TrialConfiguration(1, 64), 1, 0.1, 9.0),
        Trial(TrialConfiguration(1, 128), 1, 0.1, 0.0),
        Trial(TrialConfiguration(2, 128), 1, 0.1, 3.0, 5.0),
    ]
    ahead = OnlineSearch(space, lambda batch: 12800.0)(done)
    told = {each.configuration: each for each in ahead.expected}
    whole_s = {batch: ahead.left * 12800.0 / batch * 0.1 for batch in (64, 128)}
    assert told[TrialConfiguration(2, 128)].time_s == pytest.approx(whole_s[128])
    assert told[TrialConfiguration(1, 128)].time_s == pytest.approx(whole_s[128] + 3.0)
    assert told[TrialConfiguration(1, 128)].usd == pytest.approx(whole_s[128] + 3.0 + 5.0)
    assert told[TrialConfiguration(1, 64)].time_s == pytest.approx(whole_s[64] + 3.0)


@pytest.mark.parametrize("aim", list(SearchAim))
def test_where_it_settles_was_measured(aim: SearchAim) -> None:
    """With trials to spare the job stays where its speed is known, never where a law alone praises it."""
    for seed in range(20):
        trials, ahead = followed(
            OnlineSearch(SearchSpace(WORKERS, BATCHES, aim=aim, trials_most=16), samples), Random(seed)
        )
        assert ahead.configuration in {trial.configuration for trial in trials}


def test_five_percent_of_noise_leaves_times_within_four() -> None:
    """Told times of all configurations are off by 4 % at most, and what is chosen is near the best."""
    for seed in range(50):
        trials, ahead = followed(
            OnlineSearch(SearchSpace(WORKERS, BATCHES, aim=SearchAim.TIME), samples), Random(seed), move_s=0.0
        )
        off = [abs(each.time_s / (ahead.left * left_s(each.configuration)) - 1.0) for each in ahead.expected]
        assert sum(off) / len(off) <= 0.04
        fastest = min(left_s(each) for each in SearchSpace(WORKERS, BATCHES).all)
        assert left_s(ahead.configuration) <= 1.1 * fastest
        assert len(trials) <= 6


def test_trials_count_as_work() -> None:
    """What is left shrinks by the samples of each trial, by how many its batch needs."""
    search = OnlineSearch(SearchSpace((1,), (64, 256)), samples)
    steps = round(samples(64) / 64 / 4)
    assert search.left([Trial(TrialConfiguration(1, 64), steps, 0.1, 1.0)]) == pytest.approx(0.75, abs=1e-3)


def test_a_move_that_costs_more_than_it_saves_is_not_made() -> None:
    """Near its end a job stays where it is."""
    space = SearchSpace((1, 2), (64, 128), aim=SearchAim.TIME)
    done = [Trial(each, 1, iteration_s(each), 50.0) for each in space.all[:-1]]
    last = space.all[0]
    nearly = round(0.999 * samples(last.batch) / last.batch)
    ahead = OnlineSearch(space, samples)([*done, Trial(space.all[-1], 1, 0.02, 50.0), Trial(last, nearly, 0.04, 50.0)])
    assert ahead.settled
    assert ahead.configuration == last


def test_a_law_that_was_far_off_is_not_trusted_where_nobody_tried() -> None:
    """Where measured speeds contradict the law, what could be better is tried, and what cannot be is not."""
    space = SearchSpace((1, 2, 3), (60, 120, 240), aim=SearchAim.TIME, trials_most=9)
    search = OnlineSearch(space, lambda batch: 1e6)
    odd = {TrialConfiguration(2, 240): 0.05}

    def told(each: TrialConfiguration) -> Trial:
        return Trial(each, 20, odd.get(each, 0.1 + 0.0001 * each.batch), 0.0)

    trials: list[Trial] = []
    while not (ahead := search(trials)).settled:
        trials.append(told(ahead.configuration))
    assert len({trial.configuration for trial in trials}) == len(trials)
    assert (
        ahead.configuration
        == min(
            (trial for trial in trials), key=lambda trial: trial.iteration_s / trial.configuration.batch
        ).configuration
    )


def test_ranges_of_one_value_need_no_law() -> None:
    """One batch and two gangs: both are tried and the better one is taken."""
    trials, ahead = followed(
        OnlineSearch(SearchSpace((1, 4), (64,), aim=SearchAim.MONEY), samples), Random(3), move_s=0.1
    )
    assert len(trials) == 2
    assert ahead.configuration == TrialConfiguration(1, 64)
    alone = OnlineSearch(SearchSpace((2,), (64,)), samples)
    assert not alone([]).settled
    assert alone([Trial(TrialConfiguration(2, 64), 20, 0.1, 1.0)]).settled


def test_trials_are_bounded() -> None:
    """However many configurations there are, no more trials than allowed are asked for."""
    for most in (1, 2, 3, 5):
        trials, ahead = followed(OnlineSearch(SearchSpace(WORKERS, BATCHES, trials_most=most), samples), Random(5))
        assert len(trials) <= most
        assert ahead.settled


def test_a_batch_that_cannot_be_shared_is_left_out() -> None:
    """Three workers have no even part of 64 samples; where nothing can be shared there is nothing to search."""
    assert SearchSpace((1, 3), (64,)).all == (TrialConfiguration(1, 64),)
    with pytest.raises(ValueError, match="evenly"):
        OnlineSearch(SearchSpace((3,), (64,)), samples)


def test_samples_follow_a_power_of_the_batch() -> None:
    """Two finished runs tell the others; one tells the same for all; none tells nothing."""
    told = samples_by_power([(64, 1000.0), (1024, 2000.0)])
    assert [told(batch) for batch in (64, 256, 1024)] == pytest.approx([1000.0, 2000.0**0.5 * 1000.0**0.5, 2000.0])
    assert samples_by_power([(64, 5000.0)])(512) == pytest.approx(5000.0)
    with pytest.raises(CannotPredict):
        samples_by_power([])


def test_digits_that_were_trained_with_every_batch_lie_on_that_power() -> None:
    """Of four finished runs the two in the middle follow from the outer ones within 6 %."""
    trained = {32: 67584.0, 64: 91136.0, 128: 132096.0, 256: 171008.0}
    told = samples_by_power([(batch, trained[batch]) for batch in (32, 256)])
    assert [told(batch) for batch in (64, 128)] == pytest.approx([trained[64], trained[128]], rel=0.06)
