"""Synthetic allocation problems of any size, for the benchmarks. Speeds are a pool's speed to the power of how much a
kind of job profits from it, times lognormal noise; gangs of 1/2/4/8 with probabilities .7/.1/.15/.05."""

from dataclasses import dataclass, replace

import numpy as np

from optimizer.problem import Columns, Entities, FloatArray, IntArray, Jobs, Pools, Problem

_HOUR_S = 3600.0


@dataclass(frozen=True)
class Size:
    """`kinds` 0: every job has its own speeds. `columns` above `pools`: on the first pools also a gang twice as large.

    `load` is the demand in accelerators over the capacity.
    """

    jobs: int
    pools: int
    kinds: int = 0
    columns: int = 0
    load: float = 6.0
    #: Part of the jobs with a deadline that most can meet.
    deadlines: float = 0.0
    #: Projects, and users in each; 0: nobody shares by project.
    projects: int = 0
    users: int = 0
    #: False: every kind is one user's alone, so that there are no more classes than kinds.
    shared: bool = True


def random_problem(size: Size, seed: int = 0) -> Problem:
    """A problem of this size; equal sizes and seeds give equal problems."""
    rng = np.random.default_rng(seed)
    n, p, kinds = size.jobs, size.pools, size.kinds or size.jobs
    speed = np.geomspace(1, 12, p) ** rng.uniform(0.15, 1.1, (kinds, 1)) * rng.lognormal(0, 0.25, (kinds, p))
    speed *= rng.lognormal(0, 1.0, (kinds, 1))
    kind = rng.integers(0, kinds, n) if size.kinds else np.arange(n)
    gang = rng.choice([1.0, 2.0, 4.0, 8.0], kinds, p=[0.7, 0.1, 0.15, 0.05])[kind]
    weight = rng.choice([1.0, 2.0], kinds, p=[0.8, 0.2])[kind]
    capacity = np.maximum(8.0, np.round(rng.dirichlet(np.full(p, 5.0)) * gang.sum() / size.load))
    columns = _columns(speed[kind], gang, size.columns or p)
    steps = rng.lognormal(9, 1.2, n) * speed[kind].mean(axis=1)
    return Problem(
        at=_HOUR_S,
        jobs=Jobs(
            job_id=np.arange(n),
            weight=weight,
            gang=gang,
            remaining_steps=steps,
            submitted_at=rng.uniform(0, _HOUR_S, n),
            attained_s=np.zeros(n),
            deadline_at=_deadlines(size, rng, steps, speed[kind], gang, capacity),
            value_usd_per_h=np.full(n, np.nan),
            priority_class=np.ones(n, dtype=np.int64),
            entity=_leaves(size, rng, kind),
        ),
        columns=columns,
        pools=Pools(
            pool_id=tuple(f"pool-{r}" for r in range(p)),
            accelerator=tuple(f"type-{r}" for r in range(p)),
            capacity=capacity,
            rentable=np.zeros(p),
            machine_size=np.ones(p),
            usd_per_h=np.geomspace(0.2, 3.0, p),
        ),
        entities=_tree(size),
    )


def without(problem: Problem, row: int) -> Problem:
    """The problem once a job has left."""
    jobs, columns = problem.jobs, problem.columns
    kept = np.flatnonzero(columns.job != row)
    uses = np.flatnonzero(columns.job[columns.use_column] != row)
    position = np.cumsum(columns.job != row) - 1
    return replace(
        problem,
        jobs=Jobs(**{name: np.delete(values, row) for name in Jobs.__slots__ if len(values := getattr(jobs, name))}),
        columns=Columns(
            job=columns.job[kept] - (columns.job[kept] > row),
            steps_per_s=columns.steps_per_s[kept],
            use_column=position[columns.use_column[uses]],
            use_pool=columns.use_pool[uses],
            use_count=columns.use_count[uses],
            running=columns.running[kept],
        ),
    )


def _columns(speed: FloatArray, gang: FloatArray, per_job: int) -> Columns:
    n, p = speed.shape
    twice = per_job - p
    steps = np.hstack([speed, 1.7 * speed[:, :twice]])
    count = np.hstack([np.tile(gang[:, None], p), np.tile(2 * gang[:, None], twice)])
    total = n * per_job
    return Columns(
        job=np.repeat(np.arange(n), per_job),
        steps_per_s=steps.ravel(),
        use_column=np.arange(total),
        use_pool=np.tile(np.concatenate([np.arange(p), np.arange(twice)]), n),
        use_count=count.ravel(),
        running=np.zeros(total, dtype=bool),
    )


def _deadlines(
    size: Size, rng: np.random.Generator, steps: FloatArray, speed: FloatArray, gang: FloatArray, capacity: FloatArray
) -> FloatArray:
    """Deadlines at .5 to 5 times what an equal part of the fleet would need; inf for the others."""
    equal = speed @ capacity / gang.sum()
    due = _HOUR_S + rng.uniform(0.5, 5.0, size.jobs) * steps / equal
    return np.where(rng.random(size.jobs) < size.deadlines, due, np.inf)


def _tree(size: Size) -> Entities:
    if not size.projects:
        return Entities()
    projects, users = size.projects, size.users
    names = [f"project-{k}" for k in range(projects)]
    leaves = [f"project-{k}/user-{u}" for k in range(projects) for u in range(users)]
    parent = np.concatenate([np.full(projects, -1), np.repeat(np.arange(projects), users)])
    weight = np.resize([1.0, 2.0, 3.0], projects + projects * users)
    return Entities(name=(*names, *leaves), weight=weight, parent=parent)


def _leaves(size: Size, rng: np.random.Generator, kind: IntArray) -> IntArray:
    if not size.projects:
        return np.zeros(size.jobs, dtype=np.int64)
    users = size.projects * size.users
    return size.projects + (rng.integers(0, users, size.jobs) if size.shared else kind % users)
