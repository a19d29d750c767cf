"""From arrays to a problem document that reads back to the same problem. What stands at its default is left out."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from optimizer.documents.problem import ProblemDocument
from optimizer.problem import Columns, FloatArray, Problem
from walras.checking import check


def document_of(problem: Problem, *, about: str | None = None) -> ProblemDocument:
    """The document of a valid problem. Kinds of `pairs` are named by their numbers.

    Raises:
        ConfigError: something has no place in a document, such as a number beyond its bounds.
    """
    written = {
        "about": about,
        "at": float(problem.at),
        "pools": _pools(problem),
        "jobs": list(_jobs(problem)),
        "entities": _entities(problem),
        "pairs": _pairs(problem),
    }
    return check(ProblemDocument, written, source="the problem")


def plain(document: ProblemDocument) -> dict[str, Any]:
    """The document as plain data, without what stands at its default."""
    return {"schema_version": document.schema_version} | document.model_dump(mode="json", exclude_defaults=True)


def entity_names(problem: Problem) -> list[str]:
    """A name of its own for each entity: two that are called the same are told apart by their parents."""
    entities, names = problem.entities, list(problem.entities.name)
    often = Counter(names)
    for row, name in enumerate(names):
        if often[name] > 1 and len(entities.parent) and entities.parent[row] >= 0:
            names[row] = f"{names[entities.parent[row]]}/{name}"
    return names


def uses_of(columns: Columns, pool_ids: tuple[str, ...]) -> list[dict[str, float]]:
    """Accelerators of each pool that each column uses."""
    uses: list[dict[str, float]] = [{} for _ in range(len(columns))]
    for column, pool, count in zip(columns.use_column, columns.use_pool, columns.use_count, strict=True):
        mine = uses[column]
        mine[pool_ids[pool]] = mine.get(pool_ids[pool], 0.0) + float(count)
    return uses


def _pools(problem: Problem) -> dict[str, dict[str, Any]]:
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
    """0 where nothing is said of any pool."""
    return float(values[row]) if len(values) else 0.0


def _jobs(problem: Problem) -> Iterator[dict[str, Any]]:
    jobs, names = problem.jobs, entity_names(problem)
    configurations = _configurations(problem)
    for row in range(len(jobs)):
        smallest = min((sum(entry["uses"].values()) for entry in configurations[row]), default=1.0)
        yield {
            "id": int(jobs.job_id[row]),
            "configurations": [_configuration(entry) for entry in configurations[row]],
            "weight": float(jobs.weight[row]),
            "gang": float(jobs.gang[row]) if jobs.gang[row] != smallest else None,
            "remaining_steps": _known(jobs.remaining_steps[row]),
            "submitted_at": float(jobs.submitted_at[row]),
            "attained_s": float(jobs.attained_s[row]),
            "deadline_at": _known(jobs.deadline_at[row]),
            "value_usd_per_h": _known(jobs.value_usd_per_h[row]),
            "priority_class": int(jobs.priority_class[row]),
            "project": names[jobs.entity[row]] if names else None,
            "kind": _kind(int(problem.pairs.kind[row])) if problem.pairs is not None else None,
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
    """A single pool is named as people name it."""
    uses = entry["uses"]
    if len(uses) > 1:
        return entry
    [(pool, count)] = uses.items()
    return {"pool": pool, "accelerators": count} | {key: value for key, value in entry.items() if key != "uses"}


def _entities(problem: Problem) -> dict[str, dict[str, Any]]:
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


def _pairs(problem: Problem) -> list[dict[str, Any]] | None:
    pairs = problem.pairs
    if pairs is None:
        return None
    return [
        {
            "first": _kind(int(pairs.first[row])),
            "second": _kind(int(pairs.second[row])),
            "pool": problem.pools.pool_id[pairs.pool[row]],
            "first_factor": float(pairs.first_factor[row]),
            "second_factor": float(pairs.second_factor[row]),
        }
        for row in range(len(pairs))
    ]


def _kind(kind: int) -> str | None:
    return None if kind < 0 else f"kind-{kind}"


def _known(value: float) -> float | None:
    """None for what is unknown or unbounded."""
    return float(value) if np.isfinite(value) else None
