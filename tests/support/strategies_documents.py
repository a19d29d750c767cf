"""Hypothesis strategies for problem documents and for problems of every shape that a document can hold."""

import numpy as np
from hypothesis import strategies as st

from optimizer.problem import Columns, Entities, Jobs, Pairs, Pools, Problem

_AMOUNT = st.floats(0, 1e12, allow_nan=False)
_POSITIVE = st.floats(1e-6, 1e6)


def _floats(draw: st.DrawFn, values: st.SearchStrategy[float], size: int) -> np.ndarray:
    return np.array(draw(st.lists(values, min_size=size, max_size=size)), dtype=float)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """A small valid problem that uses every array: mixed gangs, a tree of entities, pairs, rents, unknowns."""
    n, p, k = draw(st.integers(0, 4)), draw(st.integers(1, 3)), draw(st.integers(0, 4))
    columns = _columns(draw, n, p)
    gang = np.array([_gang(columns, row) for row in range(n)])
    if draw(st.booleans()):
        gang = gang * 2
    unknown = st.one_of(_AMOUNT, st.just(np.inf))
    entities, leaves = _entities(draw, k)
    jobs = Jobs(
        job_id=np.array(sorted(draw(st.sets(st.integers(0, 10**6), min_size=n, max_size=n))), dtype=np.int64),
        weight=_floats(draw, _AMOUNT, n),
        gang=gang,
        remaining_steps=_floats(draw, unknown, n),
        submitted_at=_floats(draw, st.floats(-1e9, 1e9), n),
        attained_s=_floats(draw, _AMOUNT, n),
        deadline_at=_floats(draw, unknown, n),
        value_usd_per_h=_floats(draw, st.one_of(_AMOUNT, st.just(np.nan)), n),
        priority_class=np.array([draw(st.integers(-5, 5)) for _ in range(n)], dtype=np.int64),
        entity=np.array([draw(st.sampled_from(leaves)) if leaves else 0 for _ in range(n)], dtype=np.int64),
    )
    capacity = _floats(draw, _AMOUNT, p)
    pools = Pools(
        pool_id=tuple(f"pool-{row}" for row in range(p)),
        accelerator=tuple(draw(st.sampled_from(["a100", "V100 (old)"])) for _ in range(p)),
        capacity=capacity,
        rentable=_floats(draw, _AMOUNT, p),
        machine_size=_floats(draw, _AMOUNT, p),
        usd_per_h=_floats(draw, _AMOUNT, p),
        rented=capacity * _floats(draw, st.floats(0, 1), p) if draw(st.booleans()) else np.zeros(0),
        coming=_floats(draw, st.integers(1, 3), p) if draw(st.booleans()) else np.zeros(0),
        boot_s=_floats(draw, st.floats(1, 600), p) if draw(st.booleans()) else np.zeros(0),
        minimum_billing_s=_floats(draw, st.floats(1, 3600), p) if draw(st.booleans()) else np.zeros(0),
    )
    return Problem(draw(st.floats(0, 1e9)), jobs, columns, pools, entities, _pairs(draw, n, p))


def _columns(draw: st.DrawFn, n: int, p: int) -> Columns:
    job = np.repeat(np.arange(n), [draw(st.integers(0, 3)) for _ in range(n)]) if n else np.zeros(0, dtype=np.int64)
    used = [draw(st.sets(st.integers(0, p - 1), min_size=1, max_size=p)) for _ in job]
    return Columns(
        job=job.astype(np.int64),
        steps_per_s=_floats(draw, _AMOUNT, len(job)),
        use_column=np.array([c for c, pools in enumerate(used) for _ in pools], dtype=np.int64),
        use_pool=np.array([pool for pools in used for pool in pools], dtype=np.int64),
        use_count=np.array([draw(_POSITIVE) for pools in used for _ in pools], dtype=float),
        running=np.array([draw(st.booleans()) for _ in job], dtype=np.bool_),
    )


def _gang(columns: Columns, row: int) -> float:
    totals = [float(columns.use_count[columns.use_column == c].sum()) for c in np.flatnonzero(columns.job == row)]
    return min(totals, default=1.0)


def _entities(draw: st.DrawFn, k: int) -> tuple[Entities, list[int]]:
    parent = np.array([draw(st.integers(-1, row - 1)) for row in range(k)], dtype=np.int64)
    everything = draw(st.booleans())
    guaranteed = np.zeros(k)
    for row in range(k):  # what siblings are guaranteed is a part of what their parent is
        guaranteed[row] = draw(st.floats(0, 1)) / (k + 1) * (0.5 if parent[row] < 0 else guaranteed[parent[row]])
    entities = Entities(
        name=tuple(f"entity-{row}" for row in range(k)),
        weight=_floats(draw, _AMOUNT, k),
        parent=parent,
        guaranteed=guaranteed if everything else np.zeros(0),
        limit=_floats(draw, st.floats(0.5, 1), k) if everything else np.zeros(0),
        borrows=np.array([draw(st.booleans()) for _ in range(k if everything else 0)], dtype=np.bool_),
        fifo=np.array([draw(st.booleans()) for _ in range(k if everything else 0)], dtype=np.bool_),
    )
    return entities, [row for row in range(k) if row not in parent]


def _pairs(draw: st.DrawFn, n: int, p: int) -> Pairs | None:
    if draw(st.booleans()):
        return None
    listed = [(a, b, pool) for a in range(3) for b in range(a, 3) for pool in range(p)]
    chosen = draw(st.lists(st.sampled_from(listed), unique=True, max_size=4))
    kinds = [draw(st.integers(-1, 2)) for _ in range(n)]
    dense = {kind: row for row, kind in enumerate(sorted({*kinds, *(k for a, b, _ in chosen for k in (a, b))} - {-1}))}
    dense[-1] = -1
    factor = _floats(draw, st.floats(0, 1), len(chosen))
    alike = np.array([a == b for a, b, _ in chosen], dtype=bool)
    return Pairs(
        kind=np.array([dense[kind] for kind in kinds], dtype=np.int64),
        first=np.array([dense[a] for a, _, _ in chosen], dtype=np.int64),
        second=np.array([dense[b] for _, b, _ in chosen], dtype=np.int64),
        pool=np.array([pool for _, _, pool in chosen], dtype=np.int64),
        first_factor=factor,
        second_factor=np.where(alike, factor, _floats(draw, st.floats(0, 1), len(chosen))),
    )
