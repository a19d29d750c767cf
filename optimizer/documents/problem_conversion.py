"""Converts a checked problem document to arrays, and arrays to a document.

Reading puts pools and jobs in ascending order of their ids. Writing gives a document that reads back to the same
problem; fields at their defaults are left out.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from optimizer.documents.problem_document import (
    EntityDocument,
    JobDocument,
    PairDocument,
    ProblemDocument,
    implied_entities,
)
from optimizer.problem import Columns, Entities, FloatArray, IntArray, Jobs, Pairs, Pools, Problem
from walras.spec.file_model import check_model


def problem_from_document(document: ProblemDocument) -> Problem:
    """Returns the problem that a document describes; configurations keep the order in which each job lists them."""
    jobs = jobs_in_order(document)
    pools = sorted(document.pools)
    pool_row = {pool: row for row, pool in enumerate(pools)}
    entities = parents_first(document.entities or implied_entities(document.jobs))
    return Problem(
        at=document.at,
        jobs=_read_jobs(jobs, {name: row for row, name in enumerate(entities)}),
        columns=_read_columns([job for _, job in jobs], pool_row),
        pools=_read_pools(document, pools),
        entities=_read_entities(entities),
        pairs=None if document.pairs is None else _read_pairs(document.pairs, [job for _, job in jobs], pool_row),
    )


def jobs_in_order(document: ProblemDocument) -> list[tuple[int, JobDocument]]:
    """Returns (id, job) in the order of the problem's rows."""
    numbered = [(place if job.id is None else job.id, job) for place, job in enumerate(document.jobs, start=1)]
    return sorted(numbered, key=lambda entry: entry[0])


def parents_first(entities: dict[str, EntityDocument]) -> dict[str, EntityDocument]:
    """Returns the entities with parents before their children, otherwise in the order of the document."""
    ordered: dict[str, EntityDocument] = {}
    for name in entities:
        ancestors = [name]
        while (above := entities[ancestors[-1]].parent) is not None:
            ancestors.append(above)
        ordered.update((each, entities[each]) for each in reversed(ancestors) if each not in ordered)
    return ordered


def _read_jobs(numbered: list[tuple[int, JobDocument]], row_of: dict[str, int]) -> Jobs:
    jobs = [job for _, job in numbered]
    return Jobs(
        job_id=_integers([job_id for job_id, _ in numbered]),
        weight=_floats([job.weight for job in jobs]),
        gang=_floats([_gang(job) for job in jobs]),
        remaining_steps=_floats([job.remaining_steps for job in jobs], missing=np.inf),
        submitted_at=_floats([job.submitted_at for job in jobs]),
        attained_s=_floats([job.attained_s for job in jobs]),
        deadline_at=_floats([job.deadline_at for job in jobs], missing=np.inf),
        value_usd_per_h=_floats([job.value_usd_per_h for job in jobs], missing=np.nan),
        priority_class=_integers([job.priority_class for job in jobs]),
        entity=_integers([row_of.get(job.entity() or "", 0) for job in jobs]),
        fork_max=_floats([float(job.fork_max) for job in jobs] if any(job.fork_max > 1 for job in jobs) else []),
        mixes=np.array([job.mixes for job in jobs] if any(job.mixes for job in jobs) else [], dtype=np.bool_),
    )


def _gang(job: JobDocument) -> float:
    if job.gang is not None:
        return job.gang
    return min((sum(configuration.held().values()) for configuration in job.configurations), default=1.0)


def _read_columns(jobs: list[JobDocument], row_of: dict[str, int]) -> Columns:
    listed = [(row, configuration) for row, job in enumerate(jobs) for configuration in job.configurations]
    uses = [
        (column, row_of[pool], count)
        for column, (_, configuration) in enumerate(listed)
        for pool, count in configuration.held().items()
    ]
    return Columns(
        job=_integers([row for row, _ in listed]),
        steps_per_s=_floats([configuration.steps_per_s for _, configuration in listed]),
        use_column=_integers([column for column, _, _ in uses]),
        use_pool=_integers([pool for _, pool, _ in uses]),
        use_count=_floats([count for _, _, count in uses]),
        running=np.array([configuration.running for _, configuration in listed], dtype=np.bool_),
    )


def _read_pools(document: ProblemDocument, ids: list[str]) -> Pools:
    pools = [document.pools[pool_id] for pool_id in ids]
    return Pools(
        pool_id=tuple(ids),
        accelerator=tuple(pool.accelerator or pool_id for pool, pool_id in zip(pools, ids, strict=True)),
        capacity=_floats([pool.capacity for pool in pools]),
        rentable=_floats([pool.rentable for pool in pools]),
        machine_size=_floats([pool.machine_size for pool in pools]),
        usd_per_h=_floats([pool.usd_per_h for pool in pools]),
        rented=_empty_if_zero([pool.rented for pool in pools]),
        coming=_empty_if_zero([pool.coming for pool in pools]),
        boot_s=_empty_if_zero([pool.boot_s for pool in pools]),
        minimum_billing_s=_empty_if_zero([pool.minimum_billing_s for pool in pools]),
    )


def _read_entities(entities: dict[str, EntityDocument]) -> Entities:
    """Returns the entities as arrays; an array in which all values are the default stays empty."""
    row_of = {name: row for row, name in enumerate(entities)}
    listed = list(entities.values())
    parent = _integers([-1 if entity.parent is None else row_of[entity.parent] for entity in listed])
    guaranteed, limit = _floats([e.guaranteed for e in listed]), _floats([e.limit for e in listed])
    borrows = np.array([entity.borrows for entity in listed], dtype=np.bool_)
    fifo = np.array([entity.inside == "fifo" for entity in listed], dtype=np.bool_)
    return Entities(
        name=tuple(entities),
        weight=_floats([entity.weight for entity in listed]),
        parent=parent if np.any(parent >= 0) else _integers([]),
        guaranteed=guaranteed if guaranteed.any() else np.zeros(0),
        limit=limit if np.any(limit < 1) else np.zeros(0),
        borrows=borrows if not borrows.all() else np.zeros(0, dtype=np.bool_),
        fifo=fifo if fifo.any() else np.zeros(0, dtype=np.bool_),
    )


def _read_pairs(pairs: tuple[PairDocument, ...], jobs: list[JobDocument], row_of: dict[str, int]) -> Pairs:
    """Returns the pairs as arrays. Kinds are numbered by their names, shorter ones first, so that `kind-2` precedes
    `kind-10`.
    """
    named = {job.kind for job in jobs if job.kind is not None}
    named.update(kind for pair in pairs for kind in (pair.first, pair.second))
    number = {name: row for row, name in enumerate(sorted(named, key=lambda name: (len(name), name)))}
    return Pairs(
        kind=_integers([-1 if job.kind is None else number[job.kind] for job in jobs]),
        first=_integers([number[pair.first] for pair in pairs]),
        second=_integers([number[pair.second] for pair in pairs]),
        pool=_integers([row_of[pair.pool] for pair in pairs]),
        first_factor=_floats([pair.first_factor for pair in pairs]),
        second_factor=_floats([pair.second_factor for pair in pairs]),
    )


def _floats(values: list[float] | list[float | None], missing: float = 0.0) -> FloatArray:
    return np.array([missing if value is None else value for value in values], dtype=np.float64)


def _empty_if_zero(values: list[float]) -> FloatArray:
    """Returns an array of the values, empty where all of them are 0."""
    return _floats([*values] if any(values) else [])


def _integers(values: list[int]) -> IntArray:
    return np.array(values, dtype=np.int64)


def problem_document_of(problem: Problem, *, about: str | None = None) -> ProblemDocument:
    """Returns the document of a valid problem. Kinds of `pairs` are named by their numbers.

    Raises:
        ConfigError: a document cannot state something, such as a number beyond its bounds.
    """
    written = {
        "about": about,
        "at": float(problem.at),
        "pools": _written_pools(problem),
        "jobs": list(_written_jobs(problem)),
        "entities": _written_entities(problem),
        "pairs": _written_pairs(problem),
    }
    return check_model(ProblemDocument, written, source="the problem")


def plain_document(document: ProblemDocument) -> dict[str, Any]:
    """Returns the document as plain data, without fields at their defaults."""
    return {"schema_version": document.schema_version} | document.model_dump(mode="json", exclude_defaults=True)


def entity_names(problem: Problem) -> list[str]:
    """Returns a unique name for each entity: entities with equal names are told apart by their parents."""
    entities, names = problem.entities, list(problem.entities.name)
    often = Counter(names)
    for row, name in enumerate(names):
        if often[name] > 1 and len(entities.parent) and entities.parent[row] >= 0:
            names[row] = f"{names[entities.parent[row]]}/{name}"
    return names


def uses_of(columns: Columns, pool_ids: tuple[str, ...]) -> list[dict[str, float]]:
    """Returns the accelerators of each pool that each column uses."""
    uses: list[dict[str, float]] = [{} for _ in range(len(columns))]
    for column, pool, count in zip(columns.use_column, columns.use_pool, columns.use_count, strict=True):
        mine = uses[column]
        mine[pool_ids[pool]] = mine.get(pool_ids[pool], 0.0) + float(count)
    return uses


def _written_pools(problem: Problem) -> dict[str, dict[str, Any]]:
    pools = problem.pools
    return {
        pool_id: {
            "capacity": float(pools.capacity[row]),
            "accelerator": pools.accelerator[row] if pools.accelerator[row] != pool_id else None,
            "machine_size": float(pools.machine_size[row]),
            "usd_per_h": float(pools.usd_per_h[row]),
            "rentable": float(pools.rentable[row]),
            "rented": float(pools.held[row]),
            "coming": _or_none(pools.coming, row),
            "boot_s": _or_none(pools.boot_s, row),
            "minimum_billing_s": _or_none(pools.minimum_billing_s, row),
        }
        for row, pool_id in enumerate(pools.pool_id)
    }


def _or_none(values: FloatArray, row: int) -> float:
    """Returns the row's value, 0 where the array is empty because no pool states one."""
    return float(values[row]) if len(values) else 0.0


def _written_jobs(problem: Problem) -> Iterator[dict[str, Any]]:
    jobs, names = problem.jobs, entity_names(problem)
    configurations = _configurations(problem)
    for row in range(len(jobs)):
        smallest = min((sum(entry["uses"].values()) for entry in configurations[row]), default=1.0)
        yield {
            "id": int(jobs.job_id[row]),
            "configurations": [_configuration(entry) for entry in configurations[row]],
            "weight": float(jobs.weight[row]),
            "gang": float(jobs.gang[row]) if jobs.gang[row] != smallest else None,
            "remaining_steps": _finite(jobs.remaining_steps[row]),
            "submitted_at": float(jobs.submitted_at[row]),
            "attained_s": float(jobs.attained_s[row]),
            "deadline_at": _finite(jobs.deadline_at[row]),
            "value_usd_per_h": _finite(jobs.value_usd_per_h[row]),
            "priority_class": int(jobs.priority_class[row]),
            "project": names[jobs.entity[row]] if names else None,
            "kind": _kind_name(int(problem.pairs.kind[row])) if problem.pairs is not None else None,
            "mixes": bool(jobs.mixes[row]) if len(jobs.mixes) else False,
            "fork_max": int(jobs.fork_max[row]) if len(jobs.fork_max) else 1,
        }


def _configurations(problem: Problem) -> list[list[dict[str, Any]]]:
    columns = problem.columns
    listed: list[list[dict[str, Any]]] = [[] for _ in range(len(problem.jobs))]
    for column, uses in enumerate(uses_of(columns, problem.pools.pool_id)):
        speed, running = float(columns.steps_per_s[column]), bool(columns.running[column])
        listed[columns.job[column]].append({"uses": uses, "steps_per_s": speed, "running": running})
    return listed


def _configuration(entry: dict[str, Any]) -> dict[str, Any]:
    """Returns a configuration of one pool in its short form (`pool`, `accelerators`), others unchanged."""
    uses = entry["uses"]
    if len(uses) > 1:
        return entry
    [(pool, count)] = uses.items()
    return {"pool": pool, "accelerators": count} | {key: value for key, value in entry.items() if key != "uses"}


def _written_entities(problem: Problem) -> dict[str, dict[str, Any]]:
    entities, names = problem.entities, entity_names(problem)

    def entry(row: int) -> dict[str, Any]:
        parent = int(entities.parent[row]) if len(entities.parent) else -1
        written: dict[str, Any] = {"weight": float(entities.weight[row])}
        written["parent"] = names[parent] if parent >= 0 else None
        if len(entities.guaranteed):
            written["guaranteed"] = float(entities.guaranteed[row])
        if len(entities.limit):
            written["limit"] = float(entities.limit[row])
        if len(entities.borrows):
            written["borrows"] = bool(entities.borrows[row])
        if len(entities.fifo):
            written["inside"] = "fifo" if entities.fifo[row] else "fairness"
        return written

    return {name: entry(row) for row, name in enumerate(names)}


def _written_pairs(problem: Problem) -> list[dict[str, Any]] | None:
    pairs = problem.pairs
    if pairs is None:
        return None
    return [
        {
            "first": _kind_name(int(pairs.first[row])),
            "second": _kind_name(int(pairs.second[row])),
            "pool": problem.pools.pool_id[pairs.pool[row]],
            "first_factor": float(pairs.first_factor[row]),
            "second_factor": float(pairs.second_factor[row]),
        }
        for row in range(len(pairs))
    ]


def _kind_name(kind: int) -> str | None:
    return None if kind < 0 else f"kind-{kind}"


def _finite(value: float) -> float | None:
    """Returns the value, None for what is unknown or unbounded."""
    return float(value) if np.isfinite(value) else None
