"""Small allocation problems, built by naming only what matters to the test."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from optimizer.problem import Columns, Entities, Jobs, Pools, Problem


@dataclass(frozen=True)
class Setting:
    """A problem of single-pool gangs: `speeds[job][pool]` steps per second, None where the job has no configuration."""

    speeds: Sequence[Sequence[float | None]]
    capacity: Sequence[float]
    gangs: Sequence[float] = ()
    weights: Sequence[float] = ()
    #: Project of each job, and the projects' weights; none: no projects.
    entity: Sequence[int] = ()
    entity_weights: Sequence[float] = ()
    rentable: Sequence[float] = ()
    rented: Sequence[float] = ()
    machine_size: Sequence[float] = ()
    usd_per_h: Sequence[float] = ()
    boot_s: Sequence[float] = ()
    minimum_billing_s: Sequence[float] = ()
    values: Sequence[float] = ()
    submitted_at: Sequence[float] = field(default=())
    remaining_steps: Sequence[float] = ()


def build(setting: Setting) -> Problem:
    """The setting as arrays."""
    n, p = len(setting.speeds), len(setting.capacity)
    gangs = _floats(setting.gangs, n, 1.0)
    listed = [(j, r, s) for j, row in enumerate(setting.speeds) for r, s in enumerate(row) if s is not None]
    job = np.array([j for j, _, _ in listed], dtype=np.int64)
    c = len(listed)
    return Problem(
        at=0.0,
        jobs=Jobs(
            job_id=np.arange(1, n + 1), weight=_floats(setting.weights, n, 1.0), gang=gangs,
            remaining_steps=_floats(setting.remaining_steps, n, np.inf),
            submitted_at=_floats(setting.submitted_at, n, 0.0), attained_s=np.zeros(n), deadline_at=np.full(n, np.inf),
            value_usd_per_h=_floats(setting.values, n, np.nan), priority_class=np.ones(n, dtype=np.int64),
            entity=np.array(setting.entity or [0] * n, dtype=np.int64),
        ),
        columns=Columns(
            job=job, steps_per_s=np.array([s for _, _, s in listed], dtype=float), use_column=np.arange(c),
            use_pool=np.array([r for _, r, _ in listed], dtype=np.int64), use_count=gangs[job],
            running=np.zeros(c, dtype=bool),
        ),
        pools=Pools(
            pool_id=tuple(f"pool-{r}" for r in range(p)), accelerator=tuple(f"type-{r}" for r in range(p)),
            capacity=np.array(setting.capacity, dtype=float), rentable=_floats(setting.rentable, p, 0.0),
            machine_size=_floats(setting.machine_size, p, 1.0), usd_per_h=_floats(setting.usd_per_h, p, 0.0),
            rented=_floats(setting.rented, p, 0.0), boot_s=np.array(setting.boot_s, dtype=float),
            minimum_billing_s=np.array(setting.minimum_billing_s, dtype=float),
        ),
        entities=Entities(
            tuple(f"project-{e}" for e in range(len(setting.entity_weights))), np.array(setting.entity_weights, float)
        ),
    )  # fmt: skip


def shares_of(problem: Problem, x: np.ndarray) -> np.ndarray:
    """Shares as a table of jobs and pools (n, p)."""
    table = np.zeros((len(problem.jobs), len(problem.pools)))
    columns = problem.columns
    np.add.at(table, (columns.job[columns.use_column], columns.use_pool), x[columns.use_column])
    return table


def rates_of(problem: Problem, x: np.ndarray) -> np.ndarray:
    """Steps per second that the shares give each job (n,)."""
    return np.bincount(problem.columns.job, weights=problem.columns.steps_per_s * x, minlength=len(problem.jobs))


def _floats(values: Sequence[float], size: int, default: float) -> np.ndarray:
    return np.array(values, dtype=float) if len(values) else np.full(size, default)
