"""How evenly a run treated its jobs: finish-time fairness in both definitions, and Jain's index.

`docs/metrics.md` states the formulas. Nothing here looks at the scheduler: arrivals, ends, gangs and true speeds do.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan

import numpy as np

from simulator.bounds.instance import FloatArray
from simulator.metrics import JobMeasure
from simulator.study.roster import Roster
from walras.ids import JobId

_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Fairness:
    """Over the jobs that succeeded. nan where there is nothing to say."""

    #: Completion time / time in an equal share of the fleet, by the competition that the job met (Themis).
    rho_mean: float = nan
    rho_max: float = nan
    #: Part of the jobs whose rho is above 1 (by more than rounding): an equal share would have served them better.
    unfair: float = nan
    #: Completion time / completion time of the same job under the policy `isolated` on the same trace (Gavel).
    isolated_mean: float = nan
    isolated_max: float = nan
    #: Jain's index of the jobs' paces (time alone / completion time).
    jain: float = nan


def jain_index(values: Iterable[float]) -> float:
    """(sum x)^2 / (n sum x^2): 1 if all are equal, 1/n if one has everything; nan of nothing."""
    x = np.fromiter(values, dtype=float)
    square = float((x * x).sum())
    return float(x.sum()) ** 2 / (len(x) * square) if square > 0 else nan


def contention(jobs: Sequence[JobMeasure], until_at: float) -> FloatArray:
    """Mean number of jobs in the system while each of these was, itself included (n,). Without an end: till now."""
    begin = np.array([job.submitted_at for job in jobs])
    end = np.array([job.ended_at if isfinite(job.ended_at) else until_at for job in jobs])
    at = np.concatenate([begin, end])
    change = np.concatenate([np.ones(len(jobs)), -np.ones(len(jobs))])
    order = np.argsort(at, kind="stable")
    at, active = at[order], np.cumsum(change[order])
    passed = np.concatenate([[0.0], np.cumsum(active[:-1] * np.diff(at))])
    length = end - begin
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = (np.interp(end, at, passed) - np.interp(begin, at, passed)) / length
    return np.where(length > 0, np.maximum(mean, 1.0), 1.0)


def themis_rho(jobs: Sequence[JobMeasure], roster: Roster, accelerators: float, until_at: float) -> dict[JobId, float]:
    """Of every job that has ended: completion time / (time alone x max(1, contention x gang / accelerators)).

    A job of g accelerators that competes with n in a fleet of M has M/n of them to itself in an equal share: it runs at
    full pace if that is at least g, and g n / M times as long otherwise.
    """
    rivals = contention(jobs, until_at)
    rho: dict[JobId, float] = {}
    for job, n in zip(jobs, rivals.tolist(), strict=True):
        if isfinite(job.ended_at) and accelerators > 0:
            shared_s = roster.alone_s(job.job_id) * max(1.0, n * roster.gang(job.job_id) / accelerators)
            rho[job.job_id] = job.jct_s / shared_s
    return rho


def fairness_of(
    done: Sequence[JobMeasure],
    rho: Mapping[JobId, float],
    roster: Roster,
    isolated_jct_s: Mapping[JobId, float] | None,
) -> Fairness:
    """Over `done`, the jobs that succeeded. `isolated_jct_s`: completion times of the reference run, if it was made."""
    rhos = np.array([rho[job.job_id] for job in done])
    alone = isolated_jct_s or {}
    ratios = np.array([job.jct_s / alone[job.job_id] for job in done if alone.get(job.job_id, 0.0) > 0.0])
    paces = (roster.alone_s(job.job_id) / job.jct_s for job in done if job.jct_s > 0)
    return Fairness(
        float(rhos.mean()) if len(rhos) else nan,
        float(rhos.max()) if len(rhos) else nan,
        float((rhos > 1.0 + _ROUNDING).mean()) if len(rhos) else nan,
        float(ratios.mean()) if len(ratios) else nan,
        float(ratios.max()) if len(ratios) else nan,
        jain_index(paces),
    )
