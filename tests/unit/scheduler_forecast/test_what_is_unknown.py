"""Draws of what nobody knows, and intervals corrected by what came."""

from itertools import takewhile
from math import inf
from random import Random
from statistics import mean, median

import pytest

from scheduler.forecast.job_forecasts import Interval, IntervalCalibration, promised_quantile, quantiles
from scheduler.forecast.past_jobs import DrawnLengths, EndedJob, PastJobs, drawn_arrivals
from walras.job_request import Demand, JobId, JobRequest, Kind


def request(job_id: int = 1, user: str = "ada", kind: str = "cnn", **more: object) -> JobRequest:
    return JobRequest(job_id=JobId(job_id), kind=Kind(kind), user=user, demands=(Demand("a", 1),), **more)  # type: ignore[arg-type]


def test_a_length_is_drawn_from_jobs_alike_and_lies_beyond_what_the_job_has_had() -> None:
    ended = [EndedJob("ada", "cnn", 600.0)] * 40 + [EndedJob("bob", "bert", 36_000.0)] * 40
    lengths, chance = DrawnLengths(ended), Random(0)
    fresh = [lengths.length_s(request(), 0.0, chance) for _ in range(400)]
    assert median(fresh) == pytest.approx(600.0, rel=0.1)
    others = [lengths.length_s(request(user="bob", kind="bert"), 0.0, chance) for _ in range(400)]
    assert median(others) == pytest.approx(36_000.0, rel=0.1)
    # It has outlived its like: what is left are the long ones.
    old = [lengths.length_s(request(), 1200.0, chance) for _ in range(400)]
    assert min(old) > 1200.0
    assert median(old) > 20_000.0


def test_jobs_that_have_not_ended_count_as_longer_than_they_have_run() -> None:
    """Ten ended after 100 s and ten run since 200 s: a length is above 200 s half of the time, and not once in 20."""
    ended = [EndedJob("ada", "cnn", 100.0)] * 10
    running = [EndedJob("ada", "cnn", 200.0)] * 10
    chance, asked = Random(0), request()
    plain, counted = DrawnLengths(ended), DrawnLengths(ended, running)
    longer = [sum(lengths.length_s(asked, 0.0, chance) > 200.0 for _ in range(1000)) for lengths in (plain, counted)]
    assert longer[0] < 50
    assert 450 < longer[1] < 560
    mixed = DrawnLengths([*ended, *[EndedJob("ada", "cnn", 300.0)] * 10], running)
    assert 0.6 < sum(mixed.length_s(asked, 0.0, chance) > 200.0 for _ in range(1000)) / 1000 < 0.72


def test_whoever_understates_is_not_believed() -> None:
    """Ended jobs of a user were three times what they said; those of another were what they said."""
    ended = [EndedJob("ada", "cnn", 600.0, 3.0)] * 40 + [EndedJob("bob", "cnn", 600.0, 1.0)] * 40
    lengths, chance = DrawnLengths(ended), Random(0)
    assert median(lengths.ratio(request(), 0.2, chance) for _ in range(300)) == pytest.approx(3.0, rel=0.1)
    assert median(lengths.ratio(request(user="bob"), 0.2, chance) for _ in range(300)) == pytest.approx(1.0, rel=0.1)
    assert all(lengths.ratio(request(user="bob"), 2.0, chance) > 2.0 for _ in range(100))


def test_jobs_come_as_often_as_they_came_and_in_bursts_if_they_did() -> None:
    past, now = PastJobs(), 40 * 3600.0
    for hour in range(40):
        for index in range(12 if hour % 4 == 0 else 0):
            past.arrived(hour * 3600.0 + index, request(index + 1))
    counts, longest = [], 0
    for seed in range(60):
        come = list(takewhile(lambda each: each.at < now + 10 * 3600.0, drawn_arrivals(past, now, Random(seed))))
        assert [each.at for each in come] == sorted(each.at for each in come)
        counts.append(len(come))
        longest = max(longest, sum(each.at - come[0].at < 60.0 for each in come))
    assert mean(counts) == pytest.approx(30.0, rel=0.25)
    assert longest >= 12
    assert list(drawn_arrivals(PastJobs(), now, Random(0))) == []


@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_intervals_that_are_always_wrong_in_the_same_way_are_put_right(factor: float) -> None:
    """What comes takes `factor` as long as was said, and spreads far more: corrected, four in five hold."""
    chance, calibration, held = Random(1), IntervalCalibration(), []
    for job in range(900):
        ahead_s, at = 2000.0 * chance.lognormvariate(0.0, 1.0), 1e4 * job
        raw = Interval(at + 0.9 * ahead_s, at + ahead_s, at + 1.1 * ahead_s)
        came = at + factor * ahead_s * chance.lognormvariate(0.0, 0.6)
        told = calibration.corrected(at, raw)
        assert at <= told.p10 <= told.p50 <= told.p90
        if job >= 300:
            held.append(told.p10 <= came <= told.p90)
        calibration.said(JobId(job), at, raw)
        calibration.came(JobId(job), came)
    assert 0.75 <= mean(held) <= 0.85


def test_quantiles_of_futures_of_which_some_were_given_up() -> None:
    told = quantiles([1.0, 2.0, 3.0, 4.0, inf])
    assert told.p50 == 3.0
    assert told.p90 == inf
    assert quantiles([5.0]) == Interval(5.0, 5.0, 5.0)


@pytest.mark.parametrize("draws", [5, 12, 20, 40])
def test_an_end_is_promised_late_enough_however_few_futures_were_drawn(draws: int) -> None:
    """Lengths are exponential: 95 in 100 are kept, though of five draws none lies where that is."""
    chance = Random(7)
    kept = [
        chance.expovariate(1.0) <= promised_quantile([chance.expovariate(1.0) for _ in range(draws)])
        for _ in range(4000)
    ]
    assert 0.92 <= mean(kept) <= 0.97


def test_no_end_is_promised_that_many_futures_do_not_reach() -> None:
    assert promised_quantile([1.0, 2.0, 3.0, 4.0, inf]) == inf
    assert IntervalCalibration().promised(0.0, Interval(1.0, 2.0, 3.0), inf) == inf


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_promises_are_kept_19_times_in_20_whatever_the_futures_are_wrong_about(factor: float) -> None:
    chance, calibration, kept = Random(3), IntervalCalibration(), []
    for job in range(700):
        ahead_s, at = 2000.0 * chance.lognormvariate(0.0, 1.0), 1e4 * job
        raw, end_by = Interval(at + 0.8 * ahead_s, at + ahead_s, at + 1.2 * ahead_s), at + 1.3 * ahead_s
        promised = calibration.promised(at, raw, end_by)
        assert promised >= calibration.corrected(at, raw).p90
        came = at + factor * ahead_s * chance.lognormvariate(0.0, 0.5)
        if job >= 200:
            kept.append(came <= promised)
        calibration.said(JobId(job), at, raw)
        calibration.came(JobId(job), came)
    assert 0.93 <= mean(kept) <= 0.98


def test_a_wait_for_many_jobs_of_unknown_length_is_as_uncertain_as_their_lengths_were_seen() -> None:
    """Thirty jobs are waited for, fifteen were seen: ten futures hold the sum three times in five, and not always.

    Futures that all draw from the same fifteen agree far too well on it: they hold it less than half of the time.
    """
    chance, held = Random(5), []
    for case in range(150):
        seen = DrawnLengths([EndedJob("", "", 1000.0 * chance.lognormvariate(0.0, 1.0)) for _ in range(15)])
        sums = []
        for draw in range(10):
            future = seen.of_future(f"{case}/{draw}")
            sums.append(sum(future.length_s(request(), 0.0, chance) for _ in range(30)))
        told = quantiles(sums)
        held.append(told.p10 <= sum(1000.0 * chance.lognormvariate(0.0, 1.0) for _ in range(30)) <= told.p90)
    assert 0.6 <= mean(held) <= 0.9


def test_a_future_weighs_the_past_in_its_own_way_and_always_alike() -> None:
    seen = DrawnLengths([EndedJob("", "", 10.0**power) for power in range(6)])
    means = [mean(seen.of_future(luck).length_s(request(), 0.0, Random(1)) for _ in range(9)) for luck in "abca"]
    assert means[0] == means[3]
    assert len(set(means)) > 1
    many = DrawnLengths([EndedJob("", "", 100.0)] * 500)
    assert many.of_future("a") is many, "of many, weights say little and cost much"


def test_who_was_always_as_long_as_stated_is_believed() -> None:
    """A hundred jobs of others were as long as they said: one draw in a hundred may differ, and by little."""
    lengths, chance = DrawnLengths([EndedJob("bob", "bert", 600.0, 1.0)] * 100), Random(2)
    drawn = sorted(lengths.ratio(request(), 0.0, chance) for _ in range(1000))
    assert drawn[-1] < 2.0
    assert drawn[900] - drawn[100] < 0.02
