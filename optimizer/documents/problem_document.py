"""The problem document: its fields, the checks that its parts fit together, and its arrays.

People write one by hand for an example, programs for a fleet. Either way it is input from outside: every number is
finite and bounded, every list is bounded, nothing is coerced, and an unknown field is an error that names it.

Reading puts pools and jobs in ascending order of their ids. Writing gives a document that reads back to the same
problem; fields at their defaults are left out.
"""

from collections import Counter
from collections.abc import Iterator
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
