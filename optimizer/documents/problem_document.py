"""The problem document: its fields, the checks that its parts fit together, and its arrays.

People write one by hand for an example, programs for a fleet. Either way it is input from outside: every number is
finite and bounded, every list is bounded, nothing is coerced, and an unknown field is an error that names it.

Reading puts pools and jobs in ascending order of their ids. Writing gives a document that reads back to the same
problem; fields at their defaults are left out.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from optimizer.problem import Columns, Entities, FloatArray, IntArray, Jobs, Pairs, Pools, Problem
from walras.spec.field_types import Number, ShownName, WholeNumber
from walras.spec.file_model import FieldMistake, FileModel, check_model, nearest_or_all

MAX_JOBS = 1_000_000
MAX_CONFIGURATIONS = 1024
MAX_POOLS = 10_000
MAX_ENTITIES = 100_000
MAX_PAIRS = 1_000_000
MAX_STAGES = 10_000
_LARGEST = 1e15


def _reject_text(value: object) -> object:
    if isinstance(value, str):
        raise ValueError("is text where a number is expected; write it without quotes")
    return value


#: Any finite number within the bounds of arithmetic.
Plain = Annotated[Number, Field(ge=-_LARGEST, le=_LARGEST), BeforeValidator(_reject_text)]
#: A computed number: finite, of any size.
Result = Annotated[Number, BeforeValidator(_reject_text)]
#: A computed number that is not negative.
Amount = Annotated[Number, Field(ge=0, le=_LARGEST), BeforeValidator(_reject_text)]
#: The number of accelerators that one job holds.
Count = Annotated[Number, Field(gt=0, le=1e9), BeforeValidator(_reject_text)]
#: A fraction of a whole.
Part = Annotated[Number, Field(ge=0, le=1), BeforeValidator(_reject_text)]
#: The number (id) of a job.
JobNumber = Annotated[WholeNumber, Field(ge=0, le=2**53), BeforeValidator(_reject_text)]
#: Index in a list of the other document, from 0.
Place = Annotated[WholeNumber, Field(ge=0, le=MAX_CONFIGURATIONS - 1), BeforeValidator(_reject_text)]
Name = ShownName
Prose = Annotated[str, Field(max_length=2000)]

#: The most levels of entities above a job.
MAX_ENTITY_DEPTH = 16


class PoolDocument(FileModel):
    """Accelerators of one kind in one place, under one price."""

    capacity: Annotated[Amount, Field(description="Accelerators there now.")]
    accelerator: Annotated[Name | None, Field(description="Type; null: the same as the pool's id.")] = None
    machine_size: Annotated[Amount, Field(description="Accelerators on one machine.")] = 1.0
    usd_per_h: Annotated[Amount, Field(description="Market price of one accelerator for an hour, USD.")] = 0.0
    rentable: Annotated[
        Amount, Field(description="Accelerators that may be rented in all, those rented now included.")
    ] = 0.0
    rented: Annotated[Amount, Field(description="Of the capacity: rented now, and may be given back.")] = 0.0
    coming: Annotated[Amount, Field(description="Asked for and still on its way, no part of the capacity.")] = 0.0
    boot_s: Annotated[Amount, Field(description="Seconds from the request for a machine until it takes jobs.")] = 0.0
    minimum_billing_s: Annotated[Amount, Field(description="Seconds that a rented machine is billed for at least.")] = (
        0.0
    )

    other_words: ClassVar[dict[str, str]] = {
        "accelerators": "capacity", "count": "capacity", "gpus": "capacity", "type": "accelerator",
        "gpu": "accelerator", "price": "usd_per_h", "quota": "rentable",
    }  # fmt: skip

    @model_validator(mode="after")
    def _rented_is_there(self) -> "PoolDocument":
        if self.rented > self.capacity:
            raise FieldMistake("rented", "is more than the capacity, of which it is a part; raise the capacity")
        return self


class ConfigurationDocument(FileModel):
    """One way to run a job: on accelerators of one pool (`pool`, `accelerators`) or of several (`uses`)."""

    pool: Annotated[Name | None, Field(description="Id of the only pool that it uses.")] = None
    accelerators: Annotated[Count | None, Field(description="How many of that pool's accelerators; null: 1.")] = None
    uses: Annotated[
        dict[Name, Count] | None,
        Field(min_length=1, max_length=64, description="Accelerators of each pool, instead of `pool`: a mixed gang."),
    ] = None
    steps_per_s: Annotated[Amount, Field(description="Speed of the whole gang; 0: it cannot run there.")]
    running: Annotated[bool, Field(strict=True, description="The job runs in this configuration now.")] = False

    other_words: ClassVar[dict[str, str]] = {
        "count": "accelerators", "gpus": "accelerators", "gang": "accelerators", "pools": "uses",
        "throughput": "steps_per_s", "speed": "steps_per_s", "rate": "steps_per_s",
    }  # fmt: skip

    @model_validator(mode="after")
    def _says_where_once(self) -> "ConfigurationDocument":
        if self.pool is None and self.uses is None:
            raise FieldMistake("pool", "is missing; name the pool, or several in `uses: {pool: accelerators}`")
        if self.uses is not None and (self.pool is not None or self.accelerators is not None):
            extra = "pool" if self.pool is not None else "accelerators"
            raise FieldMistake(extra, "stands beside `uses`, which says it all; remove one of them")
        return self

    def held(self) -> dict[str, float]:
        """Returns the accelerators of each pool, by pool id."""
        if self.uses is not None:
            return dict(self.uses)
        assert self.pool is not None, "checked above"
        return {self.pool: 1.0 if self.accelerators is None else self.accelerators}


class JobDocument(FileModel):
    """A job, and every way to run it."""

    id: Annotated[
        JobNumber | None, Field(description="Its number; null: its place in the list, from 1 (then for all jobs).")
    ] = None
    name: Annotated[Name | None, Field(description="What people call it.")] = None
    configurations: Annotated[
        tuple[ConfigurationDocument, ...],
        Field(max_length=MAX_CONFIGURATIONS, description="Empty: it cannot run anywhere."),
    ]
    weight: Annotated[Amount, Field(description="Its part against the other jobs of its project.")] = 1.0
    gang: Annotated[
        Count | None, Field(description="Accelerators that it counts for; null: of its smallest configuration.")
    ] = None
    remaining_steps: Annotated[Amount | None, Field(description="Work left; null: unknown.")] = None
    submitted_at: Annotated[Plain, Field(description="Instant of submission, s.")] = 0.0
    attained_s: Annotated[Amount, Field(description="Accelerator-seconds received so far.")] = 0.0
    deadline_at: Annotated[Plain | None, Field(description="Instant by which it should end, s; null: none.")] = None
    value_usd_per_h: Annotated[
        Amount | None, Field(description="What an hour at its best speed is worth, USD; null: nobody said.")
    ] = None
    priority_class: Annotated[WholeNumber, Field(ge=-(2**31), le=2**31 - 1, description="Higher goes first.")] = 1
    project: Annotated[Name | None, Field(description="Entity that it belongs to.")] = None
    user: Annotated[Name | None, Field(description="Entity `project/user`: who, inside the project.")] = None
    kind: Annotated[Name | None, Field(description="Kind of job, as `pairs` calls it; null: never shares.")] = None
    mixes: Annotated[
        bool,
        Field(
            strict=True,
            description="Its gang may sit in several pools, paced by the slowest; such configurations are made for it.",
        ),
    ] = False
    fork_max: Annotated[
        WholeNumber,
        Field(
            ge=1,
            le=1024,
            description="Parts that it may be forked into, each a gang in one pool with steps of its own: such "
            "configurations are made for it by policies that fork.",
        ),
    ] = 1

    other_words: ClassVar[dict[str, str]] = {
        "columns": "configurations", "deadline": "deadline_at", "steps": "remaining_steps", "entity": "project",
        "value": "value_usd_per_h", "priority": "priority_class", "arrived_at": "submitted_at",
    }  # fmt: skip

    @model_validator(mode="after")
    def _user_of_a_project(self) -> "JobDocument":
        if self.user is not None and self.project is None:
            raise FieldMistake("user", "stands without a project; name the project, or use the user as one")
        return self

    def entity(self) -> str | None:
        """Returns the name of the entity to which the job belongs."""
        return self.project if self.user is None else f"{self.project}/{self.user}"


class EntityDocument(FileModel):
    """Somebody who shares the fleet: a project, or a user inside one (named `project/user`)."""

    parent: Annotated[Name | None, Field(description="Entity that it is a part of; null: at the top.")] = None
    weight: Annotated[Amount, Field(description="Its part against its siblings that have work.")] = 1.0
    guaranteed: Annotated[Part, Field(description="Part of the fleet before anybody gets more than theirs.")] = 0.0
    limit: Annotated[Part, Field(description="Part of the fleet that it never exceeds.")] = 1.0
    borrows: Annotated[bool, Field(strict=True, description="It may take what others leave unused.")] = True
    inside: Annotated[
        Literal["fairness", "fifo"], Field(description="How its own jobs are served: by weight, or in order.")
    ] = "fairness"


class PairDocument(FileModel):
    """Two kinds of job that may run on the same accelerators of a pool, and what each then keeps of its speed."""

    first: Annotated[Name, Field(description="Kind of one job.")]
    second: Annotated[Name, Field(description="Kind of the other; may be the same.")]
    pool: Annotated[Name, Field(description="Id of the pool.")]
    first_factor: Annotated[Part, Field(description="Part of its own speed there that the first keeps.")]
    second_factor: Annotated[Part, Field(description="Part of its own speed there that the second keeps.")]

    @model_validator(mode="after")
    def _alike_keep_alike(self) -> "PairDocument":
        if self.first == self.second and self.first_factor != self.second_factor:
            raise FieldMistake("second_factor", "differs from first_factor though the kinds are one; make them equal")
        return self


class ProblemDocument(FileModel):
    """A fleet and its jobs at one instant: what is to be shared, and among whom."""

    schema_version: Annotated[Literal[1], Field(description="Version of this format.")] = 1
    about: Annotated[Prose | None, Field(description="What this problem shows, for people.")] = None
    at: Annotated[Plain, Field(description="The instant, s since the cluster's epoch.")] = 0.0
    pools: Annotated[dict[Name, PoolDocument], Field(max_length=MAX_POOLS, description="Pools by id.")]
    jobs: Annotated[tuple[JobDocument, ...], Field(max_length=MAX_JOBS)]
    entities: Annotated[
        dict[Name, EntityDocument],
        Field(max_length=MAX_ENTITIES, description="Who shares the fleet, by name. Empty: the projects of the jobs."),
    ] = Field(default_factory=dict)
    pairs: Annotated[
        tuple[PairDocument, ...] | None,
        Field(max_length=MAX_PAIRS, description="Kinds that may share accelerators; null: none ever do."),
    ] = None

    @model_validator(mode="after")
    def _fits_together(self) -> "ProblemDocument":
        _check_ids(self.jobs)
        _check_pools(self.jobs, self.pools)
        _check_tree(self.entities)
        _check_members(self.jobs, self.entities)
        _check_pairs(self.pairs or (), self.pools)
        return self


def _check_ids(jobs: tuple[JobDocument, ...]) -> None:
    seen: dict[int, int] = {}
    for place, job in enumerate(jobs):
        if (job.id is None) != (jobs[0].id is None):
            raise FieldMistake(f"jobs[{place}].id", "some jobs have an id and some have none; number all or none")
        if job.id is not None and seen.setdefault(job.id, place) != place:
            raise FieldMistake(f"jobs[{place}].id", f"{job.id} is also the id of jobs[{seen[job.id]}]; change one")


def _check_pools(jobs: tuple[JobDocument, ...], pools: dict[str, PoolDocument]) -> None:
    for place, job in enumerate(jobs):
        for number, configuration in enumerate(job.configurations):
            for pool in configuration.held():
                if pool not in pools:
                    field = "pool" if configuration.pool is not None else "uses"
                    _unknown(f"jobs[{place}].configurations[{number}].{field}", "pool", pool, pools)


def _check_tree(entities: dict[str, EntityDocument]) -> None:
    for name, entity in entities.items():
        above, depth = entity.parent, 0
        while above is not None:
            if above not in entities:
                _unknown(f"entities.{name}.parent", "entity", above, entities)
            depth += 1
            if depth > MAX_ENTITY_DEPTH:
                text = f"leads back to itself, or more than {MAX_ENTITY_DEPTH} levels up; put one of them at the top"
                raise FieldMistake(f"entities.{name}.parent", text)
            above = entities[above].parent


def _check_members(jobs: tuple[JobDocument, ...], entities: dict[str, EntityDocument]) -> None:
    known = entities or implied_entities(jobs)
    parents = {entity.parent for entity in known.values()}
    for place, job in enumerate(jobs):
        name = job.entity()
        if name is None and known:
            raise FieldMistake(f"jobs[{place}].project", "is missing, and others share by project; name its project")
        if name is not None and name not in known:
            _unknown(f"jobs[{place}].{'project' if job.user is None else 'user'}", "entity", name, known)
        if name in parents and name is not None:
            raise FieldMistake(f"jobs[{place}].project", f"{name!r} has members; hang the job on one of them")


def implied_entities(jobs: tuple[JobDocument, ...]) -> dict[str, EntityDocument]:
    """Returns the projects and users that jobs name, with equal weights, in order of first occurrence."""
    entities: dict[str, EntityDocument] = {}
    for job in jobs:
        if job.project is not None:
            entities.setdefault(job.project, EntityDocument())
        if job.user is not None:
            entities.setdefault(f"{job.project}/{job.user}", EntityDocument(parent=job.project))
    return entities


def _check_pairs(pairs: tuple[PairDocument, ...], pools: dict[str, PoolDocument]) -> None:
    seen: dict[tuple[str, ...], int] = {}
    for place, pair in enumerate(pairs):
        if pair.pool not in pools:
            _unknown(f"pairs[{place}].pool", "pool", pair.pool, pools)
        key = (pair.pool, *sorted((pair.first, pair.second)))
        if seen.setdefault(key, place) != place:
            raise FieldMistake(f"pairs[{place}]", f"says again what pairs[{seen[key]}] said; keep one of them")


def _unknown(field: str, what: str, name: str, known: dict[str, PoolDocument] | dict[str, EntityDocument]) -> None:
    raise FieldMistake(field, f"no {what} {name!r}; {nearest_or_all(name, known, most=8)}")


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


#: Fields that documents and arrays have under one name. Arrays of the last two are empty where all have the default.
_JOB_FIELDS = (
    "weight", "remaining_steps", "submitted_at", "attained_s", "deadline_at", "value_usd_per_h", "priority_class",
    "mixes", "fork_max",
)  # fmt: skip
#: The same of pools (the last four) and of entities (all but the weight).
_POOL_FIELDS = (
    "capacity", "rentable", "machine_size", "usd_per_h", "rented", "coming", "boot_s", "minimum_billing_s",
)  # fmt: skip
_ENTITY_FIELDS = ("weight", "guaranteed", "limit", "borrows")
#: What stands in an array for null in the document.
_UNKNOWN = {"remaining_steps": np.inf, "deadline_at": np.inf, "value_usd_per_h": np.nan}


def _arrays(listed: Sequence[FileModel], names: Sequence[str], may_be_empty: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the arrays of these fields, over the documents; those that may be empty, where all have the default."""
    arrays = {}
    for name in names:
        values = [getattr(each, name) for each in listed]
        kind = {"priority_class": np.int64, "borrows": np.bool_, "mixes": np.bool_}.get(name, np.float64)
        array: Any = np.array([_UNKNOWN[name] if value is None else value for value in values], dtype=kind)
        known = name not in may_be_empty or any(value != type(listed[0]).model_fields[name].default for value in values)
        arrays[name] = array if known else array[:0]
    return arrays


def _written(arrays: Any, names: Sequence[str], row: int) -> dict[str, Any]:
    """Returns one row of these arrays, null for what is unknown or unbounded, without those that are empty."""
    told = {name: getattr(arrays, name)[row].item() for name in names if len(getattr(arrays, name))}
    return {name: value if isfinite(value) else None for name, value in told.items()}


def _read_jobs(numbered: list[tuple[int, JobDocument]], row_of: dict[str, int]) -> Jobs:
    jobs = [job for _, job in numbered]
    return Jobs(
        job_id=_integers([job_id for job_id, _ in numbered]),
        gang=_floats([_gang(job) for job in jobs]),
        entity=_integers([row_of.get(job.entity() or "", 0) for job in jobs]),
        **_arrays(jobs, _JOB_FIELDS, _JOB_FIELDS[-2:]),
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
        **_arrays(pools, _POOL_FIELDS, _POOL_FIELDS[-4:]),
    )


def _read_entities(entities: dict[str, EntityDocument]) -> Entities:
    """Returns the entities as arrays; an array in which all values are the default stays empty."""
    row_of = {name: row for row, name in enumerate(entities)}
    listed = list(entities.values())
    parent = _integers([-1 if entity.parent is None else row_of[entity.parent] for entity in listed])
    fifo = np.array([entity.inside == "fifo" for entity in listed], dtype=np.bool_)
    return Entities(
        name=tuple(entities),
        parent=parent if np.any(parent >= 0) else _integers([]),
        fifo=fifo if fifo.any() else fifo[:0],
        **_arrays(listed, _ENTITY_FIELDS, _ENTITY_FIELDS[1:]),
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


def _floats(values: list[float]) -> FloatArray:
    return np.array(values, dtype=np.float64)


def _integers(values: list[int]) -> IntArray:
    return np.array(values, dtype=np.int64)


def problem_document_of(problem: Problem) -> ProblemDocument:
    """Returns the document of a valid problem. Kinds of `pairs` are named by their numbers.

    Raises:
        ConfigError: a document cannot state something, such as a number beyond its bounds.
    """
    written = {
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
            "accelerator": pools.accelerator[row] if pools.accelerator[row] != pool_id else None,
            **_written(pools, _POOL_FIELDS, row),
        }
        for row, pool_id in enumerate(pools.pool_id)
    }


def _written_jobs(problem: Problem) -> Iterator[dict[str, Any]]:
    jobs, names = problem.jobs, entity_names(problem)
    configurations = _configurations(problem)
    for row in range(len(jobs)):
        smallest = min((sum(entry["uses"].values()) for entry in configurations[row]), default=1.0)
        yield {
            "id": int(jobs.job_id[row]),
            "configurations": [_configuration(entry) for entry in configurations[row]],
            "gang": float(jobs.gang[row]) if jobs.gang[row] != smallest else None,
            "project": names[jobs.entity[row]] if names else None,
            "kind": _kind_name(int(problem.pairs.kind[row])) if problem.pairs is not None else None,
            **_written(jobs, _JOB_FIELDS, row),
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
        inside = "fifo" if len(entities.fifo) and entities.fifo[row] else "fairness"
        of_arrays = _written(entities, _ENTITY_FIELDS, row)
        return {"parent": names[parent] if parent >= 0 else None, "inside": inside, **of_arrays}

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
