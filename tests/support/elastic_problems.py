"""Problems of elastic jobs: what a policy that plans is asked, built by naming only what matters to the test."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st
from problems import Setting, build

from optimizer.decision import Plan
from optimizer.problem import Columns, Problem

#: Steps per second by (pool, accelerators).
Speeds = Mapping[tuple[int, int], float]


@dataclass(frozen=True)
class Elastic:
    """Jobs with their speeds, and pools with their accelerators."""

    speeds: Sequence[Speeds]
    capacity: Sequence[float]
    remaining_steps: Sequence[float] = ()
    deadline_at: Sequence[float] = ()
    submitted_at: Sequence[float] = ()
    #: (pool, accelerators) in which a job runs, by its row.
    running: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    pinned: Sequence[int] = ()
    restart_s: float = 0.0
    at: float = 0.0


def problem_of(setting: Elastic) -> Problem:
    """The setting as arrays."""
    n = len(setting.speeds)
    least = [float(min((count for _, count in speeds), default=1)) for speeds in setting.speeds]
    base = build(
        Setting(
            speeds=[[1.0]] * n, capacity=setting.capacity, gangs=least, remaining_steps=setting.remaining_steps,
            submitted_at=setting.submitted_at,
        )
    )  # fmt: skip
    listed = [
        (row, pool, count, speed)
        for row, speeds in enumerate(setting.speeds)
        for (pool, count), speed in sorted(speeds.items())
    ]
    columns = Columns(
        job=np.array([row for row, _, _, _ in listed], dtype=np.int64),
        steps_per_s=np.array([speed for _, _, _, speed in listed], dtype=float),
        use_column=np.arange(len(listed)),
        use_pool=np.array([pool for _, pool, _, _ in listed], dtype=np.int64),
        use_count=np.array([count for _, _, count, _ in listed], dtype=float),
        running=np.array([setting.running.get(row) == (pool, count) for row, pool, count, _ in listed], dtype=bool),
    )
    jobs = replace(
        base.jobs, deadline_at=np.array(setting.deadline_at or [np.inf] * n, dtype=float), done_steps=np.zeros(n),
        length_s=np.full(n, np.inf), restart_s=np.full(n, setting.restart_s),
        pinned=np.isin(np.arange(n), setting.pinned),
    )  # fmt: skip
    return replace(base, at=setting.at, jobs=jobs, columns=columns)


def places_of(problem: Problem, plan: Plan) -> list[tuple[int, int] | None]:
    """(pool, accelerators) planned for each job."""
    columns = problem.columns
    return [
        None if column < 0 else (int(columns.use_pool[column]), int(columns.use_count[column]))
        for column in plan.column.tolist()
    ]


def permuted(problem: Problem, order: Sequence[int]) -> Problem:
    """The same problem with its jobs in another order (their ids go with them)."""
    jobs, columns = problem.jobs, problem.columns
    row = np.array(order, dtype=np.int64)
    place = np.argsort(row)
    by_job = np.argsort(place[columns.job], kind="stable")
    fields = {
        name: getattr(jobs, name)[row]
        for name in jobs.__dataclass_fields__
        if len(getattr(jobs, name)) == len(jobs) and len(jobs)
    }
    return replace(
        problem,
        jobs=replace(jobs, **fields),
        columns=Columns(
            job=place[columns.job][by_job], steps_per_s=columns.steps_per_s[by_job], use_column=np.arange(len(columns)),
            use_pool=columns.use_pool[by_job], use_count=columns.use_count[by_job], running=columns.running[by_job],
        ),
    )  # fmt: skip


@st.composite
def elastic_settings(draw: st.DrawFn, max_jobs: int = 12) -> Elastic:
    """Jobs whose speed grows ever less with their accelerators, on up to three pools; some run, some have deadlines."""
    capacity = draw(st.lists(st.integers(0, 12), min_size=1, max_size=3))
    speeds: list[dict[tuple[int, int], float]] = []
    for _ in range(draw(st.integers(1, max_jobs))):
        scaling = draw(st.integers(1, 10)) / 10
        alone = draw(st.lists(st.integers(0, 40), min_size=len(capacity), max_size=len(capacity)))
        most = draw(st.sampled_from([1, 2, 4, 8]))
        counts = [count for count in (1, 2, 4, 8) if count <= most]
        speeds.append({(r, k): a / 4 * k**scaling for r, a in enumerate(alone) for k in counts})
    n = len(speeds)
    running: dict[int, tuple[int, int]] = {}
    free = list(capacity)
    for row in range(n):
        pool, count = draw(st.integers(0, len(capacity) - 1)), draw(st.sampled_from([1, 2, 4]))
        if draw(st.booleans()) and speeds[row].get((pool, count), 0) > 0 and free[pool] >= count:
            running[row] = (pool, count)
            free[pool] -= count
    return Elastic(
        speeds=speeds,
        capacity=[float(each) for each in capacity],
        remaining_steps=draw(st.lists(st.integers(1, 10_000).map(float), min_size=n, max_size=n)),
        deadline_at=draw(st.lists(st.sampled_from([np.inf, 1_100.0, 3_000.0, 9_000.0]), min_size=n, max_size=n)),
        submitted_at=draw(st.lists(st.integers(0, 1000).map(float), min_size=n, max_size=n)),
        running=running,
        pinned=[row for row in running if draw(st.integers(0, 3)) == 0],
        restart_s=draw(st.sampled_from([0.0, 30.0])),
        at=1000.0,
    )
