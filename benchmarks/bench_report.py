"""The report of a server's past: how long it takes for 10,000 jobs, and whether its bound is ever beaten.

    python -m benchmarks report

Tables: 10,000 jobs of 20 kinds on 96 accelerators of two types over a week, gangs of 1 to 8, lengths lognormal, first
come first served, at a load of .5 to 1.1; what is timed is all from the rows to the answer, compiled before. Journals:
60 jobs of three generators on the cluster `hadar-60` under every policy; the bound that is proved from one policy's
run, with all speeds known, is held against what every policy achieved for the same jobs.
"""

import heapq
import json
import time
from random import Random
from statistics import fmean
from typing import Any

from benchmarks.tables import Measured
from optimizer.bounds.hindsight import hindsight_bound
from optimizer.registry import names
from scheduler.live.services.past_report import ReportQuestion, report_past
from scheduler.live.store.event_journal import dump_json
from scheduler.live.store.usage_sums import PastRows
from tests.support.past_runs import past_of, run_of
from walras.job_request import Demand, JobId, JobRequest, Kind
from walras.resources.money import ClusterReport, RegretView

JOBS, LOADS = 10_000, (0.5, 0.7, 0.9, 1.0, 1.1)
_WEEK_S, _MOST_S = 7 * 86_400.0, 5.0
#: Rows of journals, seeds of each, and how many jobs a small journal has.
_PIECES, _SEEDS, _FEWEST, _MOST = 5, 3, 12, 25
_LARGE, _LARGE_JOBS = "journals-of-60", 60
ROWS = ("time", *(f"journals-{piece + 1}" for piece in range(_PIECES)), _LARGE)
_FLEET = {"a": (64, 1.0), "b": (32, 0.6)}
_GENERATORS = ("poisson", "burst", "hadar-60")


def tables(seed: int, load: float, jobs: int = JOBS) -> ReportQuestion:
    """A week of a cluster; kinds are measured on both types, and run where they are sooner at an end."""
    chance = Random(f"report/{seed}/{load}")
    free = {name: [0.0] * count for name, (count, _) in _FLEET.items()}
    drawn = [(chance.lognormvariate(0.0, 1.2), chance.choice([1, 2, 4, 8])) for _ in range(jobs)]
    room_s = sum(count * speed for count, speed in _FLEET.values()) * _WEEK_S * load
    scale = room_s / sum(length * gang for length, gang in drawn)
    arrivals = sorted(chance.uniform(0.0, _WEEK_S) for _ in range(jobs))
    rows: list[list[Any]] = []
    attempts: list[list[Any]] = []
    for number, (at, (length, gang)) in enumerate(zip(arrivals, drawn, strict=True), 1):
        ends = {
            name: max(at, heapq.nsmallest(gang, free[name])[-1]) + length * scale / speed
            for name, (_, speed) in _FLEET.items()
        }
        name = min(ends, key=lambda each: ends[each])
        for _ in range(gang):
            heapq.heapreplace(free[name], ends[name])
        began = ends[name] - length * scale / _FLEET[name][1]
        kind, project = f"k{number % 20}", f"p{number % 7}"
        request = dump_json(JobRequest(JobId(number), Kind(kind), demands=(Demand("*", gang),)))
        rows.append([number, project, kind, "SUCCEEDED", at, ends[name], length * scale, None, request])
        place = json.dumps([name, number])
        attempts.append([number, 1, "SUCCEEDED", name, gang, began, began, ends[name], place, None, None])
    speeds = [
        [f"k{kind}", name, gang, speed]
        for kind in range(20)
        for name, (_, speed) in _FLEET.items()
        for gang in (1, 2, 4, 8)
    ]
    machines = [[name, "up", 0.0] for name, (count, _) in _FLEET.items() for _ in range(count)]
    tables_of_rows: tuple[list[list[Any]], ...] = (rows, attempts, speeds, machines, [], [])
    in_order = ("jobs", "attempts", "speeds", "machines", "rents", "uses")
    texts = {name: [json.dumps(each)] for name, each in zip(in_order, tables_of_rows, strict=True)}
    pieces, until_at = PastRows(**texts, job_count=jobs), max(row[5] for row in rows)
    return ReportQuestion(0.0, until_at, 0.0, pieces, (), (), {name: (name, 1) for name in _FLEET}, False)


def _timed(measured: Measured, jobs: int) -> None:
    report_past(tables(0, 0.5, 50))
    took, worked = [], []
    for seed, load in enumerate(LOADS):
        question = tables(seed, load, jobs)
        began, worked_before = time.perf_counter(), time.process_time()
        report = ClusterReport.model_validate_json(report_past(question))
        took.append(time.perf_counter() - began)
        worked.append(time.process_time() - worked_before)
        assert isinstance(report.total.regret, RegretView)
        assert report.total.regret.jobs == jobs
        measured.add(f"load {load:g}: first come first served above the bound", 100 * report.total.regret.above, "%")
    measured.add("a report, mean", fmean(took), "s")
    measured.add("a report, processor time, mean", fmean(worked), "s")
    measured.add("a report, processor time, worst", max(worked), "s")
    measured.add("a report, worst", max(took), "s", at_most=_MOST_S)


def _beaten(measured: Measured, journals: list[tuple[int, int]]) -> None:
    """The bound of each of these (seed, jobs), from every policy's run."""
    policies = names()
    beaten, closest = 0, []
    for generator in _GENERATORS:
        for seed, jobs in journals:
            found = [
                hindsight_bound(*past_of(run_of(generator, name, seed, jobs), known_everywhere=True))
                for name in policies
            ]
            best = min(each.achieved_s for each in found if each.jobs == found[0].jobs)
            beaten += sum(each.bound_s > best * (1 + 1e-9) for each in found)
            closest.append(best / max(each.bound_s for each in found) - 1)
    measured.add("journals", len(closest) * len(policies), "")
    measured.add("bounds that some policy beat", beaten, "", at_most=0)
    measured.add("best policy above the bound, mean", 100 * fmean(closest), "%")
    measured.add("best policy above the bound, worst", 100 * max(closest), "%")


def _journals(row: str, scale: float) -> list[tuple[int, int]]:
    """(seed, jobs) of the row's journals."""
    if row == _LARGE:
        return [(0, _LARGE_JOBS)]
    first = (int(row.removeprefix("journals-")) - 1) * _SEEDS
    sizes = Random(row)
    return [(first + seed, sizes.randint(_FEWEST, _MOST)) for seed in range(max(1, round(_SEEDS * scale)))]


def measure(scale: float, row: str) -> list[Measured]:
    """Time, or truth of some journals."""
    if row == "time":
        jobs = max(100, round(JOBS * scale))
        timed = Measured("a report of the past", f"{jobs:,} jobs, loads {LOADS}, seeds 0-4")
        _timed(timed, jobs)
        return [timed]
    journals = _journals(row, scale)
    told = ", ".join(f"seed {seed}: {jobs} jobs" for seed, jobs in journals)
    judged = Measured(f"the bound in hindsight, {row}", f"{told}; {len(_GENERATORS)} generators, every policy")
    _beaten(judged, journals)
    return [judged]
