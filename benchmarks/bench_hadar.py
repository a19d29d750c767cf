"""What mixed gangs and idling change in Hadar's rounds.

    python -m benchmarks hadar

The policy alone in exact rounds: places are decided at the beginning of each and kept to its end, gangs sit anywhere on
the accelerators of a pool, a change of accelerators costs ten seconds. The jobs and the cluster of `hadar-60`, all at
once and at .8 and 1.2 of the load that the fluid fleet could just bear.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from benchmarks.tables import Measured
from optimizer.decision import Memory, Plan, with_added
from optimizer.policies.hadar import Hadar
from optimizer.policies.walras import Walras
from optimizer.problem import Columns, Entities, FloatArray, Jobs, Pools, Problem
from simulator.workloads.generators import generate_jobs, generator_request

_JOBS = 480
_ROUND_S, _RESTART_S = 360.0, 10.0
#: Arrivals per hour at which the fluid fleet is just busy: 480 jobs over their fluid makespan, mean of five seeds.
_FULL_PER_H = 1.5
_LOADS = {"all at once": 0.0, "load .8": 0.8 * _FULL_PER_H, "load 1.2": 1.2 * _FULL_PER_H}
_SEEDS = (0, 1)
_VARIANTS = {
    "one pool a gang": Hadar(mixed=False),
    "mixed gangs": Hadar(),
    "mixed gangs, a tenth slower": Hadar(comm=0.1),
    "strict, one pool a gang": Hadar(mixed=False, strict=True),
}
_CLUSTER = Path(__file__).resolve().parents[1] / "configs" / "clusters" / "hadar-60.yaml"


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Jobs and the fleet: n jobs, p pools."""

    arrived_at: FloatArray
    gang: FloatArray
    steps: FloatArray
    #: Of the whole gang (n, p).
    steps_per_s: FloatArray
    capacity: FloatArray
    #: Parts that each job may be forked into; above 1 what sits in several pools is a fork, which loses so much.
    fork_max: float = 1.0
    sync: float = 0.0
    #: Whether gangs may be mixed.
    mixes: bool = True


@dataclass(frozen=True, slots=True)
class Served:
    """What a policy made of the jobs, in seconds, and the part of given accelerator-time that mixed gangs had.

    `used`: the part of all accelerator-time, to the end of the last job, that was given out and not lost to restarts.
    """

    mean_s: float
    makespan_s: float
    mixed: float
    used: float


def measure(scale: float) -> list[Measured]:
    """A table for every load."""
    jobs = max(20, round(_JOBS * scale))
    return [_at_load(name, rate, jobs) for name, rate in _LOADS.items()]


def _at_load(name: str, rate_per_h: float, jobs: int) -> Measured:
    measured = Measured(f"hadar in exact rounds, {name}", f"hadar-60, {jobs} jobs, mean of {len(_SEEDS)} seeds")
    for variant, policy in _VARIANTS.items():
        runs = [serve(work_of(jobs, rate_per_h, seed), policy) for seed in _SEEDS]
        measured.add(f"{variant}: JCT", float(np.mean([run.mean_s for run in runs])) / 3600, "h")
        measured.add(f"{variant}: makespan", float(np.mean([run.makespan_s for run in runs])) / 3600, "h")
        if policy.mixed:
            measured.add(f"{variant}: time in them", 100 * float(np.mean([run.mixed for run in runs])), "%")
    return measured


def work_of(jobs: int, rate_per_h: float, seed: int) -> Work:
    """Jobs of the generator on the cluster of its name."""
    cluster = yaml.safe_load(_CLUSTER.read_text())
    pools = cluster["pools"]
    trace = list(generate_jobs("hadar-60", generator_request("hadar-60", jobs=jobs, rate_per_h=rate_per_h, seed=seed)))
    speeds = [[cluster["speeds"][job.kind][pool["accelerator"]] for pool in pools] for job in trace]
    return Work(
        arrived_at=np.array([job.at for job in trace]),
        gang=np.array([float(job.gang) for job in trace]),
        steps=np.array([job.duration_s or 0.0 for job in trace]),
        steps_per_s=np.array(speeds),
        capacity=np.array([float(pool["machines"] * pool["accelerators"]) for pool in pools]),
    )


def serve(work: Work, policy: Hadar | Walras, round_s: float = _ROUND_S) -> Served:
    """Run rounds until all jobs are done."""
    n = len(work.steps)
    left, ended_at, held = work.steps.copy(), np.full(n, np.inf), np.zeros(work.steps_per_s.shape)
    at, given, mixed, used_s = 0.0, 0.0, 0.0, 0.0
    memory: Memory = None
    while np.isinf(ended_at).any():
        active = np.flatnonzero((work.arrived_at <= at) & np.isinf(ended_at))
        problem = problem_at(work, active, at, left, held)
        (use, rate), memory = _decided(problem, policy, memory)
        moved = (use != held[active]).any(axis=1) & (rate > 0)
        held[:] = 0.0
        held[active] = use
        productive_s = round_s - np.where(moved, _RESTART_S, 0.0)
        done = (rate > 0) & (left[active] <= rate * productive_s)
        needed_s = np.divide(left[active], rate, out=np.zeros(len(active)), where=rate > 0)
        ended_at[active[done]] = at + (round_s - productive_s + needed_s)[done]
        left[active] -= rate * productive_s
        given += use.sum()
        used_s += float(use.sum(axis=1) @ np.minimum(needed_s, productive_s))
        mixed += use[(use > 0).sum(axis=1) > 1].sum()
        at += round_s
    makespan_s = float(ended_at.max())
    used = used_s / float(work.capacity.sum() * makespan_s)
    return Served(float((ended_at - work.arrived_at).mean()), makespan_s, float(mixed / given), used)


def _decided(problem: Problem, policy: Hadar | Walras, memory: Memory) -> tuple[tuple[FloatArray, FloatArray], Memory]:
    """Accelerators of each pool for the active jobs and their steps per second, (m, p) and (m,); what to remember."""
    m, p = len(problem.jobs), len(problem.pools)
    told, memory = policy.decide(problem, memory)
    whole, plan = with_added(problem, told)
    assert isinstance(plan, Plan)
    columns = whole.columns
    use, rate = np.zeros((m, p)), np.zeros(m)
    placed = plan.column >= 0
    rate[placed] = columns.steps_per_s[plan.column[placed]]
    chosen = plan.column[columns.job[columns.use_column]] == columns.use_column
    use[columns.job[columns.use_column[chosen]], columns.use_pool[chosen]] = columns.use_count[chosen]
    return (use, rate), memory


def _columns(work: Work, active: np.ndarray, held: FloatArray) -> Columns:
    """One column for each job and pool, and one for each mixed gang or fork that is held."""
    m, p = len(active), len(work.capacity)
    gang, speed, has = work.gang[active], work.steps_per_s[active], held[active]
    alone = ((has > 0).sum(axis=1) == 1)[:, None] & (has == gang[:, None])
    mixed = np.flatnonzero((has > 0).any(axis=1) & ~alone.any(axis=1))
    row, pool = np.nonzero(has[mixed])
    if work.fork_max > 1:
        rate = (has / gang[:, None] * speed)[mixed].sum(axis=1) * (1.0 - work.sync)
    else:
        rate = np.where(has > 0, speed, np.inf)[mixed].min(axis=1, initial=np.inf)
    job = np.concatenate([np.repeat(np.arange(m), p), mixed])
    order = np.argsort(job, kind="stable")
    place = np.argsort(order)
    use_column = place[np.concatenate([np.arange(m * p), m * p + row])]
    grouped = np.argsort(use_column, kind="stable")
    return Columns(
        job=job[order],
        steps_per_s=np.concatenate([speed.ravel(), rate])[order],
        use_column=use_column[grouped],
        use_pool=np.concatenate([np.tile(np.arange(p), m), pool])[grouped],
        use_count=np.concatenate([np.repeat(gang, p), has[mixed[row], pool]])[grouped],
        running=np.concatenate([alone.ravel(), np.ones(len(mixed), dtype=np.bool_)])[order],
    )


def problem_at(work: Work, active: np.ndarray, at: float, left: FloatArray, held: FloatArray) -> Problem:
    """What a policy is asked at this instant about the active jobs, which hold these accelerators (m, p)."""
    m, p = len(active), len(work.capacity)
    gang, zeros = work.gang[active], np.zeros(m)
    return Problem(
        at=at,
        jobs=Jobs(
            job_id=active,
            weight=np.ones(m),
            gang=gang,
            remaining_steps=left[active],
            submitted_at=work.arrived_at[active],
            attained_s=zeros,
            deadline_at=np.full(m, np.inf),
            value_usd_per_h=np.full(m, np.nan),
            priority_class=np.ones(m, dtype=np.int64),
            entity=np.zeros(m, dtype=np.int64),
            done_steps=work.steps[active] - left[active],
            restart_s=np.full(m, _RESTART_S),
            mixes=np.full(m, work.mixes),
            fork_max=np.full(m, work.fork_max),
        ),
        columns=_columns(work, active, held),
        pools=Pools(
            pool_id=tuple(f"pool-{row}" for row in range(p)),
            accelerator=tuple(f"type-{row}" for row in range(p)),
            capacity=work.capacity,
            rentable=np.zeros(p),
            machine_size=np.full(p, 4.0),
            usd_per_h=np.zeros(p),
        ),
        entities=Entities(),
    )
