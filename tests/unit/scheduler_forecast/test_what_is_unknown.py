"""Draws of what nobody knows, and intervals corrected by what came."""

from dataclasses import replace
from itertools import takewhile
from math import inf
from random import Random
from statistics import mean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.events import JobSubmitted
from scheduler.core.speed_events import ThroughputMeasured
from scheduler.forecast.core_copy import known_lengths, snapshot_at_once
from scheduler.forecast.job_forecasts import (
    ForecastQuestion,
    Interval,
    IntervalCalibration,
    JobForecast,
    forecast_jobs,
    forecast_of,
    foretold,
    independent_outcomes,
    promised_quantile,
    quantiles,
    still_true,
)
from scheduler.forecast.past_jobs import DrawnLengths, EndedJob, PastJobs, drawn_arrivals
from scheduler.forecast.rollout import RolledJob
from tests.support.fake_fleet import cluster
from tests.support.fake_fleet import job as asked_job
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


def test_the_next_job_is_longer_than_all_that_are_alike_as_often_as_it_would_have_any_other_rank() -> None:
    """Nine jobs of a user and kind have ended: the tenth is longer, or shorter, than all of them once in ten each."""
    ended = [EndedJob("ada", "cnn", 100.0 * 2.0**rank) for rank in range(9)]
    # The first of its project takes no length of its group as it is.
    ended = [replace(each, project=f"{number}") for number, each in enumerate(ended)]
    chance, asked = Random(4), request(7)
    drawn = [DrawnLengths(ended).of_future(f"{draw}").length_s(asked, 0.0, chance) for draw in range(2000)]
    assert 0.07 < mean(each > 1.1 * 25_600.0 for each in drawn) < 0.12
    assert 0.07 < mean(each < 100.0 / 1.1 for each in drawn) < 0.12
    # Who has had some of it is as long as the others that are longer than that, or longer still.
    begun = [DrawnLengths(ended).length_s(asked, 5000.0, chance) for _ in range(1000)]
    assert min(begun) > 5000.0
    assert 0.19 < mean(each > 1.1 * 25_600.0 for each in begun) < 0.29


@pytest.mark.parametrize(("true_over_guess", "low", "high"), [((), 0.3, 3.5), ((1.5, 1.6, 1.7) * 5, 1.3, 1.9)])
def test_a_guessed_duration_is_believed_as_far_as_guesses_were_right(
    true_over_guess: tuple[float, ...], low: float, high: float
) -> None:
    """Whatever other jobs lasted; a job that has outlived its guess ends later."""
    ended = [EndedJob("bob", "cnn", 90_000.0)] * 20
    ended += [EndedJob("ada", "cnn", 1000.0 * ratio, guess_s=1000.0) for ratio in true_over_guess]
    lengths, chance, asked = DrawnLengths(ended), Random(3), request(duration_s=60.0)
    told = quantiles([lengths.length_s(asked, 0.0, chance) for _ in range(1000)])
    assert 60.0 * low < told.p10 < told.p90 < 60.0 * high
    assert min(lengths.length_s(asked, 600.0, chance) for _ in range(100)) > 600.0


def test_the_longest_that_has_ended_bounds_no_length_while_most_jobs_still_run() -> None:
    """Three are below 390 s, four have run that long, one ended at 400: the next is longer once in three."""
    ended = [EndedJob("ada", "cnn", length_s, project=f"{length_s}") for length_s in (100.0, 200.0, 300.0, 400.0)]
    lengths = DrawnLengths(ended, [EndedJob("ada", "cnn", 390.0)] * 4)
    chance, asked = Random(3), request(7, project="new")
    drawn = [lengths.length_s(asked, 0.0, chance) for _ in range(2000)]
    assert 0.26 < mean(each > 420.0 for each in drawn) < 0.36
    assert mean(each > 300.0 for each in drawn) == pytest.approx(2 / 3, abs=0.05)


@pytest.mark.parametrize("many", [10, 30])
def test_users_and_kinds_that_tell_nothing_of_a_length_are_not_believed(many: int) -> None:
    """Lengths are drawn by nobody's name: 94 in 100 promises are kept and four in five intervals hold."""
    chance, kept, held = Random(6), [], []
    for case in range(250):
        ended = [
            EndedJob(chance.choice("abcd"), chance.choice("klm"), chance.lognormvariate(7.0, 1.5)) for _ in range(many)
        ]
        lengths, asked = DrawnLengths(ended), request(1, chance.choice("abcd"), chance.choice("klm"))
        futures = [lengths.of_future(f"{case}/{draw}").length_s(asked, 0.0, chance) for draw in range(20)]
        came, told = chance.lognormvariate(7.0, 1.5), quantiles(futures)
        kept.append(came <= promised_quantile(futures))
        held.append(told.p10 <= came <= told.p90)
    assert mean(kept) >= 0.93
    assert 0.75 <= mean(held) <= 0.87


def test_jobs_that_have_not_ended_count_as_longer_than_they_have_run() -> None:
    """Ten ended after 100 s, ten run since 200 s or were cancelled then: half are longer, not one in 20."""
    ended = [EndedJob("ada", "cnn", 100.0)] * 10
    running = [EndedJob("ada", "cnn", 200.0)] * 10
    chance, asked = Random(0), request()
    plain, counted = DrawnLengths(ended), DrawnLengths(ended, running)
    longer = [sum(lengths.length_s(asked, 0.0, chance) > 200.0 for _ in range(1000)) for lengths in (plain, counted)]
    assert longer[0] < 50
    assert 450 < longer[1] < 560
    mixed = DrawnLengths([*ended, *[EndedJob("ada", "cnn", 300.0)] * 10], running)
    assert 0.6 < sum(mixed.length_s(asked, 0.0, chance) > 200.0 for _ in range(1000)) / 1000 < 0.72
    core = cluster("fifo", machines="a").core
    ended += [EndedJob("ada", "cnn", 200.0, is_cut=True)] * 10
    lengths = known_lengths(snapshot_at_once(core, 10.0), ended)
    assert 0.45 < mean(lengths.length_s(asked, 0.0, chance) > 200.0 for _ in range(1000)) < 0.56


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


@pytest.mark.timeout(60)
@pytest.mark.parametrize("instants", [(0.0, 100.0, 200.0), (0.0,), (90_000.0,)])
@pytest.mark.parametrize("now_d", [0.9, 1.5, 2.0, 2.5, 3.01, 9.9])
def test_arrivals_end_no_search_however_long_nobody_came(instants: tuple[float, ...], now_d: float) -> None:
    """All of them in the first part of a day, or at the instant of asking: there is a next one, or none at once."""
    past, now = PastJobs(), now_d * 86_400.0
    for at in (*instants, now):
        past.arrived(at, request())
    came = [at for at in instants if at < now]
    drawn = drawn_arrivals(past, now, Random(0))
    assert all((next(drawn).at >= now) for _ in range(3)) if came else next(drawn, None) is None


@pytest.mark.parametrize("hours", [2, 5, 20])
def test_how_often_jobs_come_is_only_estimated(hours: int) -> None:
    """Of the numbers of jobs that come in as long again, four in five intervals hold: ten an hour may be chance."""
    chance, held = Random(5), list[bool]()
    for case in range(200):
        past, at, now, counts = PastJobs(), chance.expovariate(10.0), 1.0 * hours, list[int]()
        while at < now:
            past.arrived(3600.0 * at, request())
            at += chance.expovariate(10.0)
        came, until_at = 0, 2.0 * hours
        while at < until_at:
            came, at = came + 1, at + chance.expovariate(10.0)
        for draw in range(20):
            drawn = drawn_arrivals(past, 3600.0 * now, Random(f"{case}/{draw}"))
            counts.append(sum(1 for _ in takewhile(lambda each, end=3600.0 * until_at: each.at < end, drawn)))
        told = quantiles(counts)
        held.append(told.p10 <= came <= told.p90)
    assert 0.75 <= mean(held) <= 0.87


def test_a_first_burst_is_not_taken_for_the_rate_of_an_hour() -> None:
    """Five submissions of 12 s are all of hours, or of ten minutes; steady ones of half an hour go on, or pause."""
    for apart_s, many, few_h, most_h in ((3.0, 5, 5 / 6, 30), (60.0, 30, 5, 60)):
        past, per_h = PastJobs(), list[float]()
        for index in range(many):
            past.arrived(apart_s * index, request(index + 1))
        now = apart_s * many
        for seed in range(40):
            drawn, until_at = drawn_arrivals(past, now, Random(seed)), now + 60 * 3600.0
            come = list(takewhile(lambda each, until_at=until_at: each.at < until_at, drawn))
            assert [each.at for each in come] == sorted(each.at for each in come)
            per_h.append(len(come) / 60.0)
        assert 0.9 * few_h <= min(per_h) < 1.5 * few_h < 0.8 * most_h < max(per_h) <= 1.1 * most_h


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


@given(
    st.floats(0.0, 1e6),
    st.lists(st.floats(0.0, 1e5), min_size=3, max_size=3),
    st.lists(st.floats(-0.2, 0.2), max_size=40),
)
def test_no_interval_is_narrower_than_what_costs_and_speeds_are_known_to(
    at: float, ahead_s: list[float], errors: list[float]
) -> None:
    """Half of 30 s and a hundredth on either side, until jobs have shown how near they come; never in the past."""
    calibration = IntervalCalibration()
    raw = Interval(*(at + each for each in sorted(ahead_s)))
    half_s = 0.5 * (30.0 + 0.01 * (raw.p50 - at))
    told = calibration.corrected(at, raw)
    assert told.p10 == pytest.approx(max(min(raw.p10, raw.p50 - half_s), at))
    assert told.p90 == pytest.approx(max(raw.p90, raw.p50 + half_s))
    for job, error in enumerate(errors):
        calibration.said(JobId(job), at, raw)
        calibration.came(JobId(job), raw.p50 + error * half_s)
    learnt = calibration.corrected(at, raw)
    assert at <= learnt.p10 <= learnt.p50 <= learnt.p90
    assert learnt.p90 - learnt.p10 <= told.p90 - told.p10 + 1e-6 * at


@pytest.mark.parametrize("draws", [5, 6, 8, 9, 20])
@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_four_in_five_lie_between_however_few_the_futures(draws: int, spread: float) -> None:
    """A look that has time for five futures tells the same as one with twenty: of five, one in six is above all."""
    chance, held, late = Random(8), [], []
    for _ in range(3000):
        told = foretold([chance.lognormvariate(0.0, spread) for _ in range(draws)])
        came = chance.lognormvariate(0.0, spread)
        held.append(told.p10 <= came <= told.p90)
        late.append(came > told.p90)
    assert 0.75 <= mean(held) <= 0.85
    assert 0.05 <= mean(late) <= 0.15


def test_nothing_is_told_before_the_instant_before_which_it_may_not_come() -> None:
    """Neither by few futures nor by what other jobs taught: they came at half the time."""
    fleet, calibration = cluster("fifo", machines="a"), IntervalCalibration()
    fleet.tell(JobSubmitted(1.0, asked_job(1, "a", steps=100.0, not_before_at=900.0)))
    answer = forecast_jobs(ForecastQuestion(snapshot_at_once(fleet.core, 2.0), PastJobs(), draws=5))
    start = answer.jobs[JobId(1)].start
    assert start is not None
    for number in range(2, 60):
        calibration.said(JobId(number), 0.0, Interval(800.0, 900.0, 1000.0))
        calibration.came(JobId(number), 450.0)
    assert calibration.corrected(2.0, replace(start, least=-inf)).p10 < 900.0
    assert calibration.corrected(2.0, start).p10 == 900.0
    assert foretold([900.0, 910.0, 2000.0], 900.0).p10 == 900.0


def test_the_interval_of_a_few_futures_of_which_one_was_given_up_is_open() -> None:
    assert foretold([1.0, 2.0, 3.0, 4.0, inf]).p90 == inf
    assert foretold([1.0, 2.0, inf, inf, inf]) == Interval(1.0, inf, inf)
    assert foretold([5.0]) == Interval(5.0, 5.0, 5.0)


def test_futures_that_were_given_up_are_far_quantiles_and_nothing_is_promised_where_they_are_many() -> None:
    told = quantiles([1.0, 2.0, 3.0, 4.0, inf])
    assert told.p50 == 3.0
    assert told.p90 == inf
    assert quantiles([5.0]) == Interval(5.0, 5.0, 5.0)
    assert promised_quantile([1.0, 2.0, 3.0, 4.0, inf]) == inf
    raw = Interval(1.0, 2.0, 3.0)
    assert IntervalCalibration().promised(0.0, JobForecast(None, raw)) == inf


@pytest.mark.parametrize(
    ("now", "started_at", "start", "end"),
    [
        (5.0, inf, Interval(10.0, 20.0, 30.0), Interval(40.0, 50.0, 90.0)),
        (15.0, inf, Interval(15.0, 20.0, 30.0), Interval(40.0, 50.0, 90.0)),
        (21.0, inf, None, None),
        (45.0, 25.0, None, Interval(45.0, 50.0, 90.0)),
        (45.0, 5.0, None, None),
        (45.0, 35.0, None, None),
        (51.0, 25.0, None, None),
    ],
)
def test_a_told_instant_holds_until_its_middle_or_what_happened_contradicts_it(
    now: float, started_at: float, start: Interval | None, end: Interval | None
) -> None:
    """A start is of a job that waits, and an end of one that has started when it was told to."""
    told = still_true(JobForecast(Interval(10.0, 20.0, 30.0), Interval(40.0, 50.0, 90.0)), now, started_at)
    assert (told and told.start, told and told.end) == (start, end)


@pytest.mark.parametrize("draws", [5, 12, 20, 40])
def test_an_end_is_promised_late_enough_however_few_futures_were_drawn(draws: int) -> None:
    """Lengths are exponential: 95 in 100 are kept, though of five draws none lies where that is."""
    chance = Random(7)
    kept = [
        chance.expovariate(1.0) <= promised_quantile([chance.expovariate(1.0) for _ in range(draws)])
        for _ in range(4000)
    ]
    assert 0.92 <= mean(kept) <= 0.97


def test_a_late_guess_is_promised_where_most_futures_reach_the_end_and_nothing_where_half_do_not() -> None:
    """Two of twenty futures are given up while the job runs: what it has left then is its late end there."""
    reached = [1000.0 * number for number in range(1, 19)]
    given_up = [RolledJob(late_end_at=late_at) for late_at in (60_000.0, 90_000.0)]
    told = forecast_of([*(RolledJob(0.0, at, at) for at in reached), *given_up])
    promised = IntervalCalibration().promised(0.0, told)
    assert 60_000.0 <= promised < 150_000.0
    rarely = forecast_of([RolledJob(0.0, 1000.0, 1000.0)] * 8 + [RolledJob(late_end_at=2000.0)] * 12)
    assert rarely.end.p50 == IntervalCalibration().promised(0.0, rarely) == inf


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_promises_are_kept_19_times_in_20_whatever_the_futures_are_wrong_about(factor: float) -> None:
    chance, calibration, kept = Random(3), IntervalCalibration(), []
    for job in range(700):
        ahead_s, at = 2000.0 * chance.lognormvariate(0.0, 1.0), 1e4 * job
        raw, end_by = Interval(at + 0.8 * ahead_s, at + ahead_s, at + 1.2 * ahead_s), at + 1.3 * ahead_s
        promised = calibration.promised(at, JobForecast(None, raw, end_by))
        assert promised >= calibration.corrected(at, raw).p90
        came = at + factor * ahead_s * chance.lognormvariate(0.0, 0.5)
        if job >= 200:
            kept.append(came <= promised)
        calibration.said(JobId(job), at, raw)
        calibration.came(JobId(job), came)
    assert 0.93 <= mean(kept) <= 0.98


def test_a_wait_for_many_jobs_of_unknown_length_is_as_uncertain_as_their_lengths_were_seen() -> None:
    """Thirty are waited for, fifteen were seen: ten futures hold the sum three times in five, and not always."""
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
    alike = [many.of_future(luck).length_s(request(), 0.0, Random(1)) for luck in "ab"]
    assert alike[0] == alike[1], "of many, weights say little and cost much"


def test_jobs_of_a_new_group_have_an_unknown_length_in_common() -> None:
    """Twenty turn out to be of one length: ten futures hold the sum three times in five; drawn alone, hardly ever."""
    chance, held = Random(8), {True: list[bool](), False: list[bool]()}
    for case in range(120):
        length_s = 900.0 * chance.lognormvariate(0.0, 2.0)
        together_s = sum(length_s * chance.lognormvariate(0.0, 0.5) for _ in range(20))
        for joins, holds in held.items():
            futures = [DrawnLengths(()).of_future(f"{case}/{draw}") for draw in range(10)]
            told = quantiles(
                [sum(each.length_s(request(), 0.0, chance, joins=joins) for _ in range(20)) for each in futures]
            )
            holds.append(told.p10 <= together_s <= told.p90)
    assert mean(held[True]) >= 0.55
    assert mean(held[False]) <= 0.25


def test_jobs_of_a_group_whose_lengths_never_agreed_are_drawn_alone() -> None:
    chance = Random(9)
    ended = [EndedJob("ada", "cnn", 1000.0 * chance.lognormvariate(0.0, 1.5)) for _ in range(200)]
    totals = []
    for draw in range(60):
        future = DrawnLengths(ended).of_future(f"{draw}")
        totals.append(sum(future.length_s(request(), 0.0, chance, joins=True) for _ in range(100)))
    # Independent lengths: the sum of a hundred is known within a factor of two, most times.
    told = quantiles(totals)
    assert told.p90 / told.p10 < 2.5


def test_a_job_that_is_only_tried_changes_no_length_of_others() -> None:
    ended = [EndedJob("ada", "cnn", 10.0**power) for power in range(6)]
    without, tried = DrawnLengths(ended).of_future("a"), DrawnLengths(ended).of_future("a")
    tried.length_s(request(2), 0.0, Random(5))
    lengths = [
        [each.length_s(request(3), 0.0, chance) for _ in range(5)]
        for each, chance in ((without, Random(6)), (tried, Random(6)))
    ]
    assert lengths[0] == lengths[1]


def test_lengths_are_counted_at_the_best_speed_wherever_jobs_ran() -> None:
    """Of jobs that ran at a quarter of the best speed another is a quarter as long as they took."""
    fleet = cluster("fifo", machines="ab")
    for accelerator, speed in (("a", 4.0), ("b", 1.0)):
        fleet.tell(ThroughputMeasured(0.0, Kind("k"), accelerator, 1, speed))
    asked = asked_job(1, "b", 1, steps=None)
    both = replace(asked, demands=(Demand("a", 1), Demand("b", 1)))
    ended = [EndedJob(both.user, both.kind, 1000.0, steps=1000.0, request=both)] * 30
    future = known_lengths(snapshot_at_once(fleet.core, 10.0), ended).of_future("a")
    assert median(future.length_s(both, 0.0, Random(seed)) for seed in range(99)) == pytest.approx(250.0, rel=0.1)


def test_outcomes_that_one_job_moved_together_count_as_few() -> None:
    """Forty jobs waited behind one that took four times as long as foreseen: that is one outcome, not forty."""
    calibration, many = IntervalCalibration(), IntervalCalibration()
    for number in range(40):
        shared, alone = (
            Interval(900.0, 1000.0, 1100.0),
            Interval(1e5 * number + 900.0, 1e5 * number + 1000.0, 1e5 * number + 1100.0),
        )
        calibration.said(JobId(number), 0.0, shared)
        many.said(JobId(number), 1e5 * number, alone)
        calibration.came(JobId(number), 4000.0 + number)
        many.came(JobId(number), 1e5 * number + 4000.0)
    said = Interval(1e7 + 900.0, 1e7 + 1000.0, 1e7 + 1100.0)
    told, learnt = calibration.corrected(1e7, said), many.corrected(1e7, said)
    assert told.p90 - 1e7 < 1500.0
    assert learnt.p90 - 1e7 > 3000.0
    assert independent_outcomes(calibration._outcomes) == pytest.approx(1.0)
    assert independent_outcomes(many._outcomes) == pytest.approx(40.0)
    assert independent_outcomes([]) == 0


def test_who_was_always_as_long_as_stated_is_believed() -> None:
    """A hundred jobs of others, a dozen, or one, were as long as they said: few draws may differ."""
    lengths, chance = DrawnLengths([EndedJob("bob", "bert", 600.0, 1.0)] * 100), Random(2)
    drawn = sorted(lengths.ratio(request(), 0.0, chance) for _ in range(1000))
    assert drawn[-1] < 2.0
    assert drawn[900] - drawn[100] < 0.02
    for ended, doubted in ((1, 0.12), (12, 0.03)):
        lengths = DrawnLengths([EndedJob("bob", "bert", 60.0 * (many + 1), 1.0) for many in range(ended)])
        drawn = [lengths.of_future(f"{draw}").ratio(request(), 0.0, chance) for draw in range(1000)]
        assert mean(abs(each - 1.0) > 0.05 for each in drawn) < doubted, ended


def test_an_interval_without_an_upper_end_has_none_whatever_was_learnt() -> None:
    calibration = IntervalCalibration()
    for number in range(20):
        at = 1e5 * number
        calibration.said(JobId(number), at, Interval(at + 900.0, at + 1000.0, at + 1100.0))
        calibration.came(JobId(number), at + 500.0)
    told = calibration.corrected(1e7, Interval(1e7 + 900.0, 1e7 + 1000.0, inf))
    assert told.p10 < told.p50 < told.p90 == inf
