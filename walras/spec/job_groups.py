"""The groups of fields in a job spec: resources, retry, target, limits, checkpoint, elastic, fork, batch, facts.

It also computes which gang sizes an elastic job may have, and refuses combinations such as `fork` beside `elastic`.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from walras.job_needs import OUTPUTS_MOST, PATH_MOST
from walras.job_request import ANY_ACCELERATOR, Demand, DeviceShare, GangRequest
from walras.model_facts import MOST_BYTES, MOST_FLOPS, MOST_LAYERS, MOST_SAMPLES, ModelFacts, Precision
from walras.protocol import CONTENT_PATTERN, FILES_MOST
from walras.spec.field_types import (
    MAX_ACCELERATORS,
    AcceleratorName,
    Cpus,
    DeclaredThroughput,
    Demands,
    Memory,
    Number,
    PositiveLength,
    ShownName,
    WholeNumber,
    inner_path,
)
from walras.spec.file_model import FieldMistake, FileModel


def _exit_code_tuple(value: object) -> object:
    return (value,) if isinstance(value, int) else value


#: A pool by its id, such as `a100x8/spot/eu-1a`.
PoolName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*){2}$", max_length=302)
]


def _pool_names(value: object) -> object:
    return (value,) if isinstance(value, str) else value


PoolIds = Annotated[tuple[PoolName, ...], Field(max_length=64), BeforeValidator(_pool_names)]
_PlannedSpeed = Annotated[Number, Field(gt=0, le=1e9)]


class SharedSpec(FileModel):
    """What a job takes of its one accelerator, on which another job that agreed may run beside it."""

    #: The most of the device's memory that it ever has; both jobs' together have to fit.
    memory: Memory = Field(gt=0)
    #: Part of the time in which it keeps the device busy when it has it alone (0..1]. Unset: it is put beside jobs with
    #: which its kind was measured before, and no others.
    busy: Annotated[Number, Field(gt=0, le=1)] | None = None

    other_words: ClassVar[Mapping[str, str]] = {"gpu_memory": "memory", "mem": "memory", "utilization": "busy"}


class ResourcesSpec(FileModel):
    """What the gang needs. Accelerators are counted over the whole gang; CPU and memory for each accelerator."""

    #: Acceptable types, each with how many the whole gang takes of it; the scheduler chooses one of them.
    accelerators: Demands = (Demand(ANY_ACCELERATOR, 1),)
    #: Cores for each accelerator; 0 asks for none in particular.
    cpus: Cpus = 0.0
    #: Bytes of main memory for each accelerator; 0 asks for none in particular.
    memory: Memory = 0
    #: Pools whose machines may hold the gang, by id; empty: every pool.
    pools: PoolIds = ()
    #: The job may run beside another one that agreed too, on one accelerator, where both together are done sooner.
    shared: SharedSpec | None = None

    other_words: ClassVar[Mapping[str, str]] = {
        "gpus": "accelerators",
        "gpu": "accelerators",
        "mem": "memory",
        "cpu": "cpus",
        "ram": "memory",
    }
    not_yet: ClassVar[frozenset[str]] = frozenset(
        {"gpu_memory", "disk", "spot", "use_spot", "infra", "node_selector", "exclude_nodes", "any_of", "ordered"}
    )

    def gang_request(self, nodes: int, sizes: tuple[int, ...]) -> GangRequest:
        """Returns the gang as the scheduler sees it, over so many machines and with these sizes to choose among."""
        return GangRequest(
            demands=self.accelerators,
            sizes=sizes,
            nodes=nodes,
            cpus_per_accelerator=self.cpus,
            memory_bytes_per_accelerator=self.memory,
            pools=self.pools,
        )

    @property
    def device_share(self) -> DeviceShare | None:
        """The job's share of an accelerator that it agreed to share; None if it agreed to none."""
        return None if self.shared is None else DeviceShare(self.shared.memory, self.shared.busy)


class PlanSpec(FileModel):
    """What `walras submit --recommend` expected of the job on the machines it chose; it decides nothing."""

    #: Machines of this pool.
    pool: PoolName
    machines: WholeNumber = Field(ge=1, le=MAX_ACCELERATORS)
    accelerator: AcceleratorName
    #: Accelerators of the whole gang.
    accelerators: WholeNumber = Field(ge=1, le=MAX_ACCELERATORS)
    #: Expected speed of the whole gang, and the interval that holds four cases out of five.
    steps_per_s: _PlannedSpeed
    low: _PlannedSpeed
    high: _PlannedSpeed
    #: Expected time from the request for the machines to the job's end, and their cost until then.
    hours: Annotated[Number, Field(gt=0, le=1e9)]
    usd: Annotated[Number, Field(ge=0, le=1e12)]
    #: Bandwidth between machines that the plan counts on, bytes per second each way; None: one machine, or unknown.
    network_bytes_per_s: Annotated[Number, Field(gt=0, le=1e15)] | None = None
    #: The goal for which it was chosen, such as `deadline=6h`.
    goal: ShownName
    made_at: ShownName
    #: What the job file asked for and declared before the plan; the next plan starts from it.
    asked: Demands = (Demand(ANY_ACCELERATOR, 1),)
    declared: Annotated[DeclaredThroughput, Field(max_length=64)] = Field(default_factory=dict)


class QuotedSpec(FileModel):
    """The way of `walras submit --quote` that the submitter took, as it was told. The job has its end as `deadline`."""

    #: Its accelerators, such as `4 x a100`.
    way: ShownName
    #: Unix seconds; of ten futures nine start by then and cost no more, of twenty nineteen end by then.
    start_by: Annotated[Number, Field(ge=0, le=1e11)]
    end_by: Annotated[Number, Field(ge=0, le=1e11)]
    usd_most: Annotated[Number, Field(ge=0, le=1e12)]
    quoted_at: Annotated[Number, Field(ge=0, le=1e11)]


class CodeSpec(FileModel):
    """A snapshot of the folder that the ranks start in. `walras submit` makes it from a relative `workdir`."""

    #: Name of the tree in the server's content store (`walras.content`).
    tree: str = Field(pattern=CONTENT_PATTERN)
    #: Last part of the path of the folder, for people and for the job's kind, which an edit does not change.
    folder: ShownName = "code"
    files: WholeNumber = Field(default=0, ge=0, le=FILES_MOST)
    size: WholeNumber = Field(default=0, ge=0, le=2**50)


def _paths_tuple(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _plain_path(text: str) -> str:
    """Returns a path in its shortest form; raises ValueError for one that leaves its folder, or is the folder."""
    parts = [part for part in inner_path(text).split("/") if part not in ("", ".")]
    if not parts:
        raise ValueError(f"{text[:60]!r} is the whole working folder; name what is to be kept, such as 'out/'")
    return "/".join(parts)


def _apart(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the paths without those that lie below another of them."""
    return tuple(
        path
        for path in dict.fromkeys(paths)
        if not any(path != other and path.startswith(f"{other}/") for other in paths)
    )


_OutputPath = Annotated[str, Field(min_length=1, max_length=PATH_MOST), AfterValidator(_plain_path)]
#: Files and folders below the working folder.
OutputPaths = Annotated[
    tuple[_OutputPath, ...],
    Field(max_length=OUTPUTS_MOST),
    BeforeValidator(_paths_tuple),
    AfterValidator(_apart),
]


class RetrySpec(FileModel):
    """When a failed attempt is tried again. Lost machines and preemption never use up `max_restarts`."""

    max_restarts: WholeNumber = Field(default=0, ge=0, le=1000)
    #: Exit codes worth another try; empty: every non-zero code.
    on_exit_codes: Annotated[
        tuple[Annotated[WholeNumber, Field(ge=1, le=255)], ...],
        Field(max_length=64),
        BeforeValidator(_exit_code_tuple),
    ] = ()

    other_words: ClassVar[Mapping[str, str]] = {
        "restarts": "max_restarts",
        "max_retries": "max_restarts",
        "exit_codes": "on_exit_codes",
    }
    not_yet: ClassVar[frozenset[str]] = frozenset({"on", "on_events"})


class TargetSpec(FileModel):
    """What the job is to reach: a value that its script reports with `loop.report(NAME=...)`, and a number for it."""

    #: The name under which the script reports the value.
    value: Annotated[ShownName, Field(max_length=64)]
    #: The target: the value is to fall to this. Loss curves fall to 0 at best.
    at_most: Annotated[Number, Field(gt=0, le=1e15)]

    other_words: ClassVar[Mapping[str, str]] = {
        "metric": "value",
        "name": "value",
        "below": "at_most",
        "max": "at_most",
        "until": "at_most",
    }

    @model_validator(mode="before")
    @classmethod
    def _falls(cls, given: object) -> object:
        if isinstance(given, Mapping) and "at_least" in given:
            raise FieldMistake(
                "at_least",
                "the value has to be one that falls; report what it lacks, such as `1 - accuracy`, and give `at_most`",
            )
        return given


class LimitsSpec(FileModel):
    """How long the job may run over all its attempts, how long it may wait before its first, and what it may cost."""

    max_runtime: PositiveLength | None = None
    max_queue_time: PositiveLength | None = None
    #: USD; at this cost the job checkpoints and is held.
    budget_usd: Annotated[Number, Field(gt=0, le=1e9)] | None = None

    other_words: ClassVar[Mapping[str, str]] = {
        "time": "max_runtime",
        "timeout": "max_runtime",
        "max_duration": "max_runtime",
        "budget": "budget_usd",
        "max_cost": "budget_usd",
    }
    not_yet: ClassVar[frozenset[str]] = frozenset({"max_price_per_hour"})


class CheckpointSpec(FileModel):
    """Where and how often the job saves its state."""

    #: A folder below the project's checkpoint folder; None: a folder of the job's own.
    dir: Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(inner_path)] | None = None
    #: Complete checkpoints that are kept.
    keep: WholeNumber = Field(default=3, ge=1, le=1000)
    #: Time between checkpoints of a script that states none itself; None: as the scheduler plans.
    interval: PositiveLength | None = None

    other_words: ClassVar[Mapping[str, str]] = {"path": "dir", "directory": "dir", "every": "interval"}
    not_yet: ClassVar[frozenset[str]] = frozenset({"resume_arg"})


#: If more sizes are possible, only doublings of the smallest, the size in `resources` and the largest are considered.
_MAX_SIZES = 16
_Size = Annotated[WholeNumber, Field(ge=1, le=MAX_ACCELERATORS)]


class ElasticSpec(FileModel):
    """Smallest and largest number of accelerators of the whole gang."""

    min: _Size
    max: _Size


class ForkSpec(FileModel):
    """The job may be trained in several places at once, each with steps of its own, averaged now and then."""

    #: Largest number of parts, each as large as `resources` says.
    max: Annotated[WholeNumber, Field(ge=2, le=1024)]


class BatchSpec(FileModel):
    """The batch of one step. `global` is a keyword of Python, so read that field with `global_batch_of`."""

    #: Samples of one step over the whole gang.
    __annotations__ = {"global": Annotated[WholeNumber, Field(ge=1, le=2**31)]}
    #: The job chooses its batch itself while it trains, from `global` up to `max`. In a simulation `max` may be left to
    #: the law. Steps are counted at `global`: an update with a larger batch is worth more than one.
    adaptive: bool = False
    max: Annotated[WholeNumber, Field(ge=1, le=2**31)] | None = None
    #: The most samples of an update for which one rank's accelerator has memory; None: as many as `max` gives it.
    max_per_rank: Annotated[WholeNumber, Field(ge=1, le=2**31)] | None = None

    @model_validator(mode="after")
    def _ascending(self) -> "BatchSpec":
        if self.max is not None and self.max < getattr(self, "global"):
            raise FieldMistake("max", f"{self.max} is below global; write the largest batch that the job may choose")
        if self.max_per_rank is not None and not self.is_chosen:
            raise FieldMistake("max_per_rank", "the batch is fixed; write adaptive: true, or remove it")
        return self

    @property
    def is_chosen(self) -> bool:
        """Whether the job chooses its batch itself."""
        return self.adaptive or self.max is not None


def global_batch_of(batch: BatchSpec | None) -> int | None:
    """Samples of one step over the whole gang; None if the spec does not say."""
    return None if batch is None else int(getattr(batch, "global"))


def batch_variables(batch: BatchSpec | None, keeps_batch: bool) -> dict[str, str]:
    """Returns the batch as the ranks read it. `keeps_batch`: the job chooses none itself, whatever its file says."""
    if batch is None:
        return {}
    numbers = {"WALRAS_BATCH": global_batch_of(batch)}
    if batch.is_chosen and not keeps_batch:
        numbers |= {"WALRAS_BATCH_MAX": batch.max, "WALRAS_BATCH_PER_RANK": batch.max_per_rank}
    return {name: str(number) for name, number in numbers.items() if number is not None}


def gang_sizes(
    elastic: ElasticSpec, demands: tuple[Demand, ...], nodes: int, only: int | None, batch: int | None
) -> tuple[int, ...]:
    """Returns the sizes that the gang may have, ascending: even over its machines, and dividing the batch evenly.

    `only`: the one size that the number of ranks allows, if that is given. Raises FieldMistake if the size in
    `resources` is not among them.
    """
    if elastic.min > elastic.max:
        raise FieldMistake("elastic", f"min {elastic.min} is above max {elastic.max}; write the smaller one as min")

    def is_possible(size: int) -> bool:
        return size % nodes == 0 and only in (None, size) and (batch is None or batch % size == 0)

    sizes = {size for size in range(elastic.min, elastic.max + 1) if is_possible(size)}
    requested = {demand.count for demand in demands}
    if not requested <= sizes:
        wrong = min(requested - sizes)
        if not is_possible(wrong):
            raise FieldMistake(
                "elastic",
                f"{wrong} accelerators cannot share the global batch of {batch} evenly; ask for a size that can",
            )
        raise FieldMistake(
            "elastic",
            f"{wrong} accelerators are asked for, and not within min {elastic.min} and max {elastic.max}; "
            "ask for a size in that range: it is what the job has where no policy chooses",
        )
    if len(sizes) > _MAX_SIZES:
        least = min(sizes)
        doublings = {least * 2**power for power in range(MAX_ACCELERATORS.bit_length())}
        sizes = {size for size in sizes if size in doublings or size in requested or size == max(sizes)}
    return tuple(sorted(sizes))


def check_multi_pool(*, fork: bool, mixed: bool, elastic: bool, nodes: int, demands: tuple[Demand, ...]) -> None:
    """Raises FieldMistake if `fork` or `mixed` contradicts another field."""
    field = "fork" if fork else "mixed"
    for other, stands in (("mixed", fork and mixed), ("elastic", elastic)):
        if (fork or mixed) and stands:
            raise FieldMistake(field, f"stands beside {other}; give one of them: each is a way of its own to grow")
    if (fork or mixed) and nodes > 1:
        raise FieldMistake(field, f"stands beside num_nodes {nodes}; leave that out, its parts find their machines")
    if mixed and len({demand.count for demand in demands}) > 1:
        raise FieldMistake(
            "mixed", "the gang is of another size on another type; give all types the same number of accelerators"
        )


_Flops = Annotated[Number, Field(gt=0, le=MOST_FLOPS)]
_Bytes = Annotated[Number, Field(ge=0, le=MOST_BYTES)]
_SamplesPerStep = Annotated[Number, Field(gt=0, le=MOST_SAMPLES)]


class FactsSpec(FileModel):
    """`facts:` of a job file. A fact that is left out is unknown."""

    flops_per_sample: _Flops | None = None
    memory_bytes_per_sample: _Bytes | None = None
    gradient_bytes: _Bytes | None = None
    layers: Annotated[WholeNumber, Field(ge=1, le=MOST_LAYERS)] | None = None
    resident_bytes: _Bytes | None = None
    activation_bytes: _Bytes | None = None
    input_bytes: _Bytes | None = None
    precision: Precision | None = None
    #: Samples of one step on each accelerator; a job that states `batch` does not need it.
    batch_per_accelerator: _SamplesPerStep | None = None

    def facts(self, batch: float | None) -> ModelFacts:
        """Returns the facts; `batch`: samples of a step over the whole gang, None: those stated per accelerator.

        Raises FieldMistake if neither is known.
        """
        if self.flops_per_sample is not None and batch is None and self.batch_per_accelerator is None:
            raise FieldMistake(
                "facts.batch_per_accelerator",
                "the samples of a step are unknown, so FLOPs of a sample say nothing of a step; "
                "write `batch_per_accelerator: 64`, or `batch: {global: 256}` of the job",
            )
        own = {name: getattr(self, name) for name in type(self).model_fields if name != "batch_per_accelerator"}
        return ModelFacts(**own, batch=batch, batch_per_accelerator=None if batch else self.batch_per_accelerator)


def check_shared(resources: ResourcesSpec, *, is_fixed: bool, deadline: str | None) -> None:
    """Refuses to share what cannot be shared. `is_fixed`: the job is one gang of one size in one pool."""
    if resources.shared is None:
        return
    if not is_fixed or any(demand.count != 1 for demand in resources.accelerators):
        raise FieldMistake(
            "resources.shared",
            "is for jobs on one accelerator; take one, without elastic, fork and mixed, or remove it",
        )
    if deadline is not None:
        raise FieldMistake(
            "resources.shared", "stands beside a deadline, and who shares may be slower; give one of them"
        )
