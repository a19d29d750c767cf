"""From a checked problem document to arrays. Pools and jobs are put in ascending order of their ids."""

import numpy as np

from optimizer.documents.problem import EntityDocument, JobDocument, PairDocument, ProblemDocument, implied_entities
from optimizer.problem import Columns, Entities, FloatArray, IntArray, Jobs, Pairs, Pools, Problem


def problem_of(document: ProblemDocument) -> Problem:
    """The problem that a document describes; configurations keep the order in which each job lists them."""
    jobs = jobs_in_order(document)
    pools = sorted(document.pools)
    pool_row = {pool: row for row, pool in enumerate(pools)}
    entities = in_tree_order(document.entities or implied_entities(document.jobs))
    return Problem(
        at=document.at,
        jobs=_jobs(jobs, {name: row for row, name in enumerate(entities)}),
        columns=_columns([job for _, job in jobs], pool_row),
        pools=_pools(document, pools),
        entities=_entities(entities),
        pairs=None if document.pairs is None else _pairs(document.pairs, [job for _, job in jobs], pool_row),
    )


def jobs_in_order(document: ProblemDocument) -> list[tuple[int, JobDocument]]:
    """(id, job) in the order of the problem's rows."""
    numbered = [(place if job.id is None else job.id, job) for place, job in enumerate(document.jobs, start=1)]
    return sorted(numbered, key=lambda entry: entry[0])


def in_tree_order(entities: dict[str, EntityDocument]) -> dict[str, EntityDocument]:
    """Parents before their children, otherwise in the order of the document."""
    ordered: dict[str, EntityDocument] = {}
    for name in entities:
        line = [name]
        while (above := entities[line[-1]].parent) is not None:
            line.append(above)
        ordered.update((each, entities[each]) for each in reversed(line) if each not in ordered)
    return ordered


def _jobs(numbered: list[tuple[int, JobDocument]], row_of: dict[str, int]) -> Jobs:
    jobs = [job for _, job in numbered]
    return Jobs(
        job_id=_whole([job_id for job_id, _ in numbered]),
        weight=_floats([job.weight for job in jobs]),
        gang=_floats([_gang(job) for job in jobs]),
        remaining_steps=_floats([job.remaining_steps for job in jobs], missing=np.inf),
        submitted_at=_floats([job.submitted_at for job in jobs]),
        attained_s=_floats([job.attained_s for job in jobs]),
        deadline_at=_floats([job.deadline_at for job in jobs], missing=np.inf),
        value_usd_per_h=_floats([job.value_usd_per_h for job in jobs], missing=np.nan),
        priority_class=_whole([job.priority_class for job in jobs]),
        entity=_whole([row_of.get(job.entity() or "", 0) for job in jobs]),
        fork_max=_floats([float(job.fork_max) for job in jobs] if any(job.fork_max > 1 for job in jobs) else []),
        mixes=np.array([job.mixes for job in jobs] if any(job.mixes for job in jobs) else [], dtype=np.bool_),
    )


def _gang(job: JobDocument) -> float:
    if job.gang is not None:
        return job.gang
    return min((sum(configuration.held().values()) for configuration in job.configurations), default=1.0)


def _columns(jobs: list[JobDocument], row_of: dict[str, int]) -> Columns:
    listed = [(row, configuration) for row, job in enumerate(jobs) for configuration in job.configurations]
    uses = [
        (column, row_of[pool], count)
        for column, (_, configuration) in enumerate(listed)
        for pool, count in configuration.held().items()
    ]
    return Columns(
        job=_whole([row for row, _ in listed]),
        steps_per_s=_floats([configuration.steps_per_s for _, configuration in listed]),
        use_column=_whole([column for column, _, _ in uses]),
        use_pool=_whole([pool for _, pool, _ in uses]),
        use_count=_floats([count for _, _, count in uses]),
        running=np.array([configuration.running for _, configuration in listed], dtype=np.bool_),
    )


def _pools(document: ProblemDocument, ids: list[str]) -> Pools:
    pools = [document.pools[pool_id] for pool_id in ids]
    return Pools(
        pool_id=tuple(ids),
        accelerator=tuple(pool.accelerator or pool_id for pool, pool_id in zip(pools, ids, strict=True)),
        capacity=_floats([pool.capacity for pool in pools]),
        rentable=_floats([pool.rentable for pool in pools]),
        machine_size=_floats([pool.machine_size for pool in pools]),
        usd_per_h=_floats([pool.usd_per_h for pool in pools]),
        rented=_if_any([pool.rented for pool in pools]),
        coming=_if_any([pool.coming for pool in pools]),
        boot_s=_if_any([pool.boot_s for pool in pools]),
        minimum_billing_s=_if_any([pool.minimum_billing_s for pool in pools]),
    )


def _entities(entities: dict[str, EntityDocument]) -> Entities:
    """Arrays; what holds for nobody but as the default is left empty."""
    row_of = {name: row for row, name in enumerate(entities)}
    listed = list(entities.values())
    parent = _whole([-1 if entity.parent is None else row_of[entity.parent] for entity in listed])
    guaranteed, limit = _floats([e.guaranteed for e in listed]), _floats([e.limit for e in listed])
    borrows = np.array([entity.borrows for entity in listed], dtype=np.bool_)
    fifo = np.array([entity.inside == "fifo" for entity in listed], dtype=np.bool_)
    return Entities(
        name=tuple(entities),
        weight=_floats([entity.weight for entity in listed]),
        parent=parent if np.any(parent >= 0) else _whole([]),
        guaranteed=guaranteed if guaranteed.any() else np.zeros(0),
        limit=limit if np.any(limit < 1) else np.zeros(0),
        borrows=borrows if not borrows.all() else np.zeros(0, dtype=np.bool_),
        fifo=fifo if fifo.any() else np.zeros(0, dtype=np.bool_),
    )


def _pairs(pairs: tuple[PairDocument, ...], jobs: list[JobDocument], row_of: dict[str, int]) -> Pairs:
    """Kinds are numbered by their names, shorter ones first, so that `kind-2` stands before `kind-10`."""
    named = {job.kind for job in jobs if job.kind is not None}
    named.update(kind for pair in pairs for kind in (pair.first, pair.second))
    number = {name: row for row, name in enumerate(sorted(named, key=lambda name: (len(name), name)))}
    return Pairs(
        kind=_whole([-1 if job.kind is None else number[job.kind] for job in jobs]),
        first=_whole([number[pair.first] for pair in pairs]),
        second=_whole([number[pair.second] for pair in pairs]),
        pool=_whole([row_of[pair.pool] for pair in pairs]),
        first_factor=_floats([pair.first_factor for pair in pairs]),
        second_factor=_floats([pair.second_factor for pair in pairs]),
    )


def _floats(values: list[float] | list[float | None], missing: float = 0.0) -> FloatArray:
    return np.array([missing if value is None else value for value in values], dtype=np.float64)


def _if_any(values: list[float]) -> FloatArray:
    """Empty where all of them are 0."""
    return _floats([*values] if any(values) else [])


def _whole(values: list[int]) -> IntArray:
    return np.array(values, dtype=np.int64)
