"""The problem document: its fields, and the checks that its parts fit together. `problem_conversion` makes arrays of
it.

People write one by hand for an example, programs for a fleet. Either way it is input from outside: every number is
finite and bounded, every list is bounded, nothing is coerced, and an unknown field is an error that names it.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from walras.spec.field_types import Number, ShownName, WholeNumber
from walras.spec.file_model import FieldMistake, FileModel, nearest_word

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
    meant = nearest_word(name, known)
    listed = ", ".join(list(known)[:8]) or "none"
    raise FieldMistake(field, f"no {what} {name!r}; " + (f"did you mean {meant!r}?" if meant else f"known: {listed}"))
