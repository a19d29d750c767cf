"""Generated jobs: seeded, in order, of the stated distributions, and Gavel's own draw for draw."""

from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import pytest

from simulator.ground_truth import SpeedKey
from simulator.workloads.formats import read_trace
from simulator.workloads.generators import (
    GENERATORS,
    HADAR_CLASSES_H,
    HADAR_MODELS,
    KINDS,
    SPREADABLE,
    GeneratorRequest,
    diurnal_rate,
    gavel_jobs,
    generate_jobs,
    generator_request,
)
from simulator.workloads.trace_binding import with_seeded_speeds
from simulator.workloads.trace_source import TraceJob
from walras.errors import ConfigError
from walras.job_request import Kind

HOUR_S = 3600.0


@pytest.mark.parametrize("name", GENERATORS)
def test_the_same_seed_gives_the_same_jobs_in_order(name: str) -> None:
    asked = generator_request(name, jobs=200, rate_per_h=50.0, seed=3)
    first, second = list(generate_jobs(name, asked)), list(generate_jobs(name, asked))
    assert first == second
    assert len({job.name for job in first}) == 200
    assert all(before.at <= after.at for before, after in pairwise(first))
    assert all((job.duration_s or 0) > 0 and job.gang in (1, 2, 4, 8) for job in first)
    assert list(generate_jobs(name, replace(asked, seed=4))) != first


@pytest.mark.parametrize("name", ["poisson", "diurnal", "burst", "hadar-60"])
def test_asking_for_more_changes_nothing_else(name: str) -> None:
    """Weights and deadlines are drawn from streams of their own."""
    plain = generate_jobs(name, generator_request(name, jobs=100, seed=1))
    rich = list(generate_jobs(name, generator_request(name, jobs=100, seed=1, priorities=True, slos=True)))
    assert [replace(job, weight=1.0, slo=None) for job in rich] == list(plain)
    assert {job.weight for job in rich} == {1.0, 5.0}
    assert {job.slo for job in rich} == {1.2, 2.0, 10.0}


@pytest.mark.parametrize("name", GENERATORS)
def test_one_accelerator_each_and_shorter_jobs_on_request(name: str) -> None:
    asked = generator_request(name, jobs=50, rate_per_h=0.0, gangs=False)
    jobs = list(generate_jobs(name, asked))
    assert {(job.gang, job.at) for job in jobs} == {(1, 0.0)}
    short = list(generate_jobs(name, replace(asked, stretch=0.1)))
    assert all(
        a.duration_s == pytest.approx((b.duration_s or 0) / 10, abs=0.11, rel=1e-3)
        for a, b in zip(short, jobs, strict=True)
    )


def test_jobs_follow_the_published_distribution() -> None:
    """Gangs of 1, 2, 4, 8 for 70, 10, 15, 5 %; four in five run 31 minutes to 17 hours, the rest up to a week."""
    jobs = list(generate_jobs("poisson", generator_request("poisson", jobs=20_000, rate_per_h=100.0)))
    gangs = Counter(job.gang for job in jobs)
    assert [gangs[size] / 20_000 for size in (1, 2, 4, 8)] == pytest.approx([0.7, 0.1, 0.15, 0.05], abs=0.01)
    durations = [job.duration_s or 0.0 for job in jobs]
    assert sum(duration <= 60_000 for duration in durations) / 20_000 == pytest.approx(0.8, abs=0.01)
    assert min(durations) > 60 * 10**1.49
    assert max(durations) <= 600_000
    assert {job.kind for job in jobs} == set(KINDS)
    assert {job.kind for job in jobs if job.gang > 1} == set(SPREADABLE)
    assert jobs[-1].at / HOUR_S == pytest.approx(200, rel=0.03)


def test_days_have_a_rhythm() -> None:
    """Nine times as many arrivals at 15:00 as at 3:00, half as many on the sixth and seventh day."""
    assert diurnal_rate(15 * HOUR_S) == pytest.approx(1.8)
    assert diurnal_rate(3 * HOUR_S) == pytest.approx(0.2)
    assert diurnal_rate((5 * 24 + 15) * HOUR_S) == pytest.approx(0.9)
    jobs = list(generate_jobs("diurnal", generator_request("diurnal", jobs=20_000, rate_per_h=100.0)))
    hours = Counter(int(job.at / HOUR_S) % 24 for job in jobs)
    assert hours[14] > 5 * hours[2]
    assert sum(job.at < 5 * 24 * HOUR_S for job in jobs) == pytest.approx(12_000, rel=0.03)


def test_bursts_are_alike_and_close() -> None:
    """About ten jobs of one kind, gang and user within minutes; the mean rate is the one asked for."""
    jobs = list(generate_jobs("burst", generator_request("burst", jobs=20_000, rate_per_h=100.0)))
    assert jobs[-1].at / HOUR_S == pytest.approx(200, rel=0.1)
    sparse = list(generate_jobs("burst", generator_request("burst", jobs=1000, rate_per_h=1.0)))
    alike = [(a.kind, a.gang, a.user) == (b.kind, b.gang, b.user) for a, b in pairwise(sparse) if b.at - a.at < 120]
    assert len(alike) > 800
    assert sum(alike) / len(alike) > 0.95


def test_the_hadar_mix() -> None:
    """Five models, and accelerator-hours in four classes alike."""
    jobs = list(generate_jobs("hadar-60", generator_request("hadar-60", jobs=8000)))
    assert {job.kind for job in jobs} == set(HADAR_MODELS)
    assert {job.at for job in jobs} == {0.0}
    hours = [job.gang * (job.duration_s or 0.0) / HOUR_S for job in jobs]
    for low, high in HADAR_CLASSES_H:
        assert sum(low <= hour < high for hour in hours) / 8000 == pytest.approx(0.25, abs=0.02)


def test_durations_become_steps_with_a_table() -> None:
    """Truncated, as Gavel does; a table without the kind is refused."""
    asked = GeneratorRequest(jobs=30, rate_per_h=1.0, gangs=False)
    table = {SpeedKey(Kind(kind), "v100", 1): 2.5 for kind in KINDS}
    plain, tabled = list(gavel_jobs(asked)), list(gavel_jobs(asked, table))
    assert [job.steps for job in tabled] == [float(int((job.duration_s or 0) * 2.5)) for job in plain]
    with pytest.raises(ConfigError, match="the throughput table has no speed of"):
        list(gavel_jobs(asked, {}))


@pytest.mark.parametrize(
    ("name", "words", "complaint"),
    [
        ("poison", {}, "no generator 'poison'"),
        ("poisson", {"jobs": 0}, "0 jobs"),
        ("poisson", {"jobs": 10**9}, "1000000000 jobs"),
        ("poisson", {"rate_per_h": -1.0}, "-1.0 jobs per hour"),
        ("poisson", {"rate_per_h": float("nan")}, "nan jobs per hour"),
        ("poisson", {"stretch": 0.0}, r"durations times 0\.0"),
    ],
)
def test_what_cannot_be_generated_is_named(name: str, words: dict[str, float], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        generator_request(name, **words)  # type: ignore[arg-type]


def test_only_gavel_takes_a_table(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="poisson makes durations, not steps"):
        generate_jobs("poisson", generator_request("poisson"), tmp_path / "table.json")


def test_jobs_come_one_by_one() -> None:
    jobs = generate_jobs("burst", generator_request("burst", jobs=5_000_000, rate_per_h=1000.0))
    assert len(list(islice(jobs, 10))) == 10


def test_seeded_speeds() -> None:
    """Jobs without a kind are dealt out; every kind has one speed on each type; the same seed gives the same."""
    rows = [TraceJob(0.0, str(number), "any", 1, duration_s=5.0, duration_on="p100") for number in range(200)]
    nominal = {"v100": 3.0, "k80": 1.0}
    jobs = list(with_seeded_speeds(rows, nominal, kinds=5, seed=7))
    by_kind = {job.kind: job.speeds for job in jobs}
    assert len(by_kind) == 5
    assert all(job.speeds == by_kind[job.kind] and job.duration_on == "" for job in jobs)
    assert {tuple(name for name, _ in speeds) for speeds in by_kind.values()} == {("k80", "v100")}
    assert jobs == list(with_seeded_speeds(rows, nominal, kinds=5, seed=7))
    kept = next(with_seeded_speeds([TraceJob(0.0, "a", "bert", 1, duration_on="v100")], nominal))
    assert (kept.kind, kept.duration_on) == ("bert", "v100")


@pytest.mark.parametrize(
    ("trace", "jobs", "rate_per_h", "gangs", "priorities"),
    [
        # Its name says 1.67 jobs per hour; its arrivals are 2160 s apart in the mean.
        ("single_small_seed0_rate1.67", 1200, HOUR_S / 2160, False, False),
        ("single_small_prio_seed0_rate1.67", 1200, HOUR_S / 2160, False, True),
        ("single_big_seed0_rate3.0", 3000, 3.0, False, False),
        ("multi_small_seed0_rate0.5", 900, 0.5, True, False),
        ("static_single_seed0_n60", 60, 0.0, False, False),
    ],
)
def test_gavel_traces_are_had_again_exactly(
    reference_data: Path, trace: str, jobs: int, rate_per_h: float, gangs: bool, priorities: bool
) -> None:
    """Every column of every job of the traces that Gavel's own generator made."""
    asked = generator_request("gavel", jobs=jobs, rate_per_h=rate_per_h, gangs=gangs, priorities=priorities)
    table = reference_data / "gavel" / "throughputs" / "simulation_throughputs.json"
    recorded = read_trace(reference_data / "gavel" / "traces" / f"{trace}.tsv").jobs
    assert list(generate_jobs("gavel", asked, table)) == list(recorded)
