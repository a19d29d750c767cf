"""The groups of fields in a job spec: resources, retry, target, limits, checkpoint, elastic, fork, batch, facts.

It also computes which gang sizes an elastic job may have, and refuses combinations such as `fork` beside `elastic`.
Fields about what a machine brings or makes before the job's ranks start are checked before anything is sent: names and
paths stay inside, lists are bounded, a URL says how it is read.

`secrets:` are variables whose values the submitter has, the server keeps sealed, and only a running job sees:

    secrets:
      HF_TOKEN: {env: HF_TOKEN}        # of the submitter's own environment
      DB_PASSWORD: {file: db.password} # of a file of the submitter's; a final line break is left out

The client puts the values in when it submits (`with_secret_values`); the server takes them out before anything else
looks at the job and stores the names alone.

`plans:` is a menu of ways to run one job, each over accelerators of one type or several, with its speed. Where a model
is trained over unlike accelerators with a pipeline cut for them, no rule says how fast a mixture is: its owner states
that, from measurements. The policy takes one way of the menu, by the prices of the types. What the rest of the job says
must leave the choice of accelerators to the menu.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from walras.contract import CONTENT_PATTERN, FILES_MOST
from walras.errors import JobSpecError
from walras.job_needs import OUTPUTS_MOST, PATH_MOST, GitNeed, InputNeed, JobNeeds, PythonNeed
from walras.job_request import ANY_ACCELERATOR, Demand, DeviceShare, GangPlan, GangRequest
from walras.model_facts import MOST_BYTES, MOST_FLOPS, MOST_LAYERS, MOST_SAMPLES, Family, ModelFacts, Precision
from walras.spec.field_types import (
    MAX_ACCELERATORS,
    ONE_OR_MANY,
    AcceleratorName,
    Cpus,
    DeclaredThroughput,
    Demands,
    EnvName,
    Memory,
    Number,
    PositiveLength,
    ShownName,
    WholeNumber,
    checked_text,
    inner_path,
)
from walras.spec.file_model import FieldMistake, FileModel

#: A pool by its id, such as `a100x8/spot/eu-1a`.
PoolName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*){2}$", max_length=302)
]
PoolIds = Annotated[tuple[PoolName, ...], Field(max_length=64), ONE_OR_MANY]
_PlannedSpeed = Annotated[Number, Field(gt=0, le=1e9)]


class SharedSpec(FileModel):
    """What a job takes of its one accelerator, on which another job that agreed may run beside it."""

    #: The most of the device's memory that it ever has; both jobs' together have to fit. Example: 12GB
    memory: Memory = Field(gt=0)
    #: Part of the time in which it keeps the device busy when it has it alone (0..1]. Unset: it is put beside jobs
    #: with which its kind was measured before, and no others. Example: 0.5
    busy: Annotated[Number, Field(gt=0, le=1)] | None = None

    other_words: ClassVar[Mapping[str, str]] = {"gpu_memory": "memory", "mem": "memory", "utilization": "busy"}


class ResourcesSpec(FileModel):
    """What the gang needs. Accelerators are counted over the whole gang; CPU and memory for each accelerator."""

    #: Acceptable types, each with how many the whole gang takes of it; the scheduler chooses one of them. Example:
    #: {a100: 1, v100: 2}
    accelerators: Demands = (Demand(ANY_ACCELERATOR, 1),)
    #: Cores for each accelerator; 0 asks for none in particular. Example: 4
    cpus: Cpus = 0.0
    #: Main memory for each accelerator, reserved for the job and its limit; 0 asks for none in particular. Example:
    #: 24GB
    memory: Memory = 0
    #: Pools whose machines may hold the gang, by id; empty: every pool. Example: [a100x8/spot/eu-1a]
    pools: PoolIds = ()
    #: The job may run beside another one that agreed too, on one accelerator, where both together are done sooner.
    #: Example: {memory: 12GB, busy: 0.5}
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

    #: Name of the tree in the server's content store (`walras.storage.content`).
    tree: str = Field(pattern=CONTENT_PATTERN)
    #: Last part of the path of the folder, for people and for the job's kind, which an edit does not change.
    folder: ShownName = "code"
    files: WholeNumber = Field(default=0, ge=0, le=FILES_MOST)
    size: WholeNumber = Field(default=0, ge=0, le=2**50)


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
OutputPaths = Annotated[tuple[_OutputPath, ...], Field(max_length=OUTPUTS_MOST), ONE_OR_MANY, AfterValidator(_apart)]


class RetrySpec(FileModel):
    """When a failed attempt is tried again. Lost machines and preemption never use up `max_restarts`."""

    #: Restarts after failures. Example: 2
    max_restarts: WholeNumber = Field(default=0, ge=0, le=1000)
    #: Exit codes worth another try (128 + N of signal N); empty: every code but 0 and 87. Example: [1, 137]
    on_exit_codes: Annotated[
        tuple[Annotated[WholeNumber, Field(ge=1, le=255)], ...], Field(max_length=64), ONE_OR_MANY
    ] = ()

    other_words: ClassVar[Mapping[str, str]] = {
        "restarts": "max_restarts",
        "max_retries": "max_restarts",
        "exit_codes": "on_exit_codes",
    }
    not_yet: ClassVar[frozenset[str]] = frozenset({"on", "on_events"})


class TargetSpec(FileModel):
    """What the job is to reach: a value that its script reports with `loop.report(NAME=...)`, and a number for it."""

    #: The name under which the script reports the value. Example: loss
    value: Annotated[ShownName, Field(max_length=64)]
    #: The target: the value is to fall to this. Loss curves fall to 0 at best. Example: 0.2
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

    #: Running time over all attempts; over it the job ends in state TIMEOUT. Example: 2d
    max_runtime: PositiveLength | None = None
    #: Waiting time before the first attempt; over it the job is CANCELLED. Example: 12h
    max_queue_time: PositiveLength | None = None
    #: USD; at this cost the job checkpoints and is held. Example: 50
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

    #: A folder below the project's checkpoint folder; None: a folder of the job's own. Example: resnet
    dir: Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(inner_path)] | None = None
    #: Complete checkpoints that `walras.training` keeps, where the script states none; None: 2. Example: 5
    keep: Annotated[WholeNumber, Field(ge=1, le=1000)] | None = None
    #: Time between checkpoints of a script that states none itself; None: as the scheduler plans. Example: 10m
    interval: PositiveLength | None = None

    other_words: ClassVar[Mapping[str, str]] = {"path": "dir", "directory": "dir", "every": "interval"}
    not_yet: ClassVar[frozenset[str]] = frozenset({"resume_arg"})


#: If more sizes are possible, only doublings of the smallest, the size in `resources` and the largest are considered.
_MAX_SIZES = 16
_Size = Annotated[WholeNumber, Field(ge=1, le=MAX_ACCELERATORS)]


class ElasticSpec(FileModel):
    """Smallest and largest number of accelerators of the whole gang."""

    #: Fewest accelerators of the whole gang. Example: 1
    min: _Size
    #: Most accelerators of the whole gang. Example: 8
    max: _Size


class ForkSpec(FileModel):
    """The job may be trained in several places at once, each with steps of its own, averaged now and then."""

    #: Largest number of parts, each as large as `resources` says. Example: 3
    max: Annotated[WholeNumber, Field(ge=2, le=1024)]


class BatchSpec(FileModel):
    """The batch of one step. `global` is a keyword of Python, so read that field with `global_batch_of`."""

    #: Samples of one step over the whole gang. Example: 512
    __annotations__ = {"global": Annotated[WholeNumber, Field(ge=1, le=2**31)]}
    #: The job chooses its batch itself while it trains, from `global` up to `max`. In a simulation `max` may be left
    #: to the law. Steps are counted at `global`: an update with a larger batch is worth more than one. Example: true
    adaptive: bool = False
    #: The largest batch that it may choose; implies `adaptive`. Example: 4096
    max: Annotated[WholeNumber, Field(ge=1, le=2**31)] | None = None
    #: The most samples of an update for which one rank's accelerator has memory; None: as many as `max` gives it.
    #: Example: 256
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

    #: Operations of forward and backward pass. Example: 8e9
    flops_per_sample: _Flops | None = None
    #: Bytes that these move to and from the accelerator's memory. Example: 2e8
    memory_bytes_per_sample: _Bytes | None = None
    #: Bytes that workers exchange at each update. Example: 1e8
    gradient_bytes: _Bytes | None = None
    #: Layers with parameters. Example: 50
    layers: Annotated[WholeNumber, Field(ge=1, le=MOST_LAYERS)] | None = None
    #: Bytes on each accelerator whatever the batch: weights, gradients, optimizer. Example: 4e8
    resident_bytes: _Bytes | None = None
    #: Further bytes for each sample of its batch. Example: 5e7
    activation_bytes: _Bytes | None = None
    #: Bytes that the host hands over for one sample. Example: 6e5
    input_bytes: _Bytes | None = None
    #: Arithmetic of most operations; unstated: fp32. Example: bf16
    precision: Precision | None = None
    #: Kind of network, of which the part of the peak that such reach is known. Example: transformer
    family: Family | None = None
    #: Samples of one step on each accelerator; a job that states `batch` does not need it. Example: 64
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


_SCHEME = re.compile(r"^([a-z][a-z0-9+.-]{0,31}):", re.ASCII)
_TEXT_MOST, _URL_MOST = 65_536, 4096

_Text = Annotated[str, Field(min_length=1, max_length=_TEXT_MOST), AfterValidator(checked_text)]
#: A name that is one harmless part of a path.
InputName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$")]


#: A name in a registry, with `docker://` or without, or the path of a file.
ImageName = Annotated[str, Field(max_length=512, pattern=r"^(docker://)?[A-Za-z0-9/][A-Za-z0-9._:/@-]*$")]


def _url(text: str) -> str:
    """Returns a URL that a machine may be able to read; raises ValueError for another."""
    checked_text(text)
    found = _SCHEME.match(text)
    if found is None:
        raise ValueError(f"{text[:60]!r} names no scheme; write such as s3://bucket/data or file:/shared/data")
    if found[1] == "file" and not re.match(r"^file:(//)?/(?!/)", text):
        raise ValueError(f"{text[:60]!r} is no absolute path; write such as file:/shared/data")
    return text


class InputSpec(FileModel):
    """Data that the ranks read: what a URL names, or what a command puts into the folder `$WALRAS_INPUT`."""

    #: What the data are. Example: s3://data/images
    url: Annotated[str, Field(max_length=_URL_MOST), AfterValidator(lambda text: _url(text) if text else text)] = ""
    #: A command that puts the data into the folder `$WALRAS_INPUT`. Example: python fetch.py
    command: Annotated[str, Field(max_length=_TEXT_MOST), AfterValidator(checked_text)] = ""
    #: The hash of the one file that the URL names; empty: it is not verified. Example:
    #: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""

    other_words: ClassVar[Mapping[str, str]] = {"source": "url", "uri": "url", "path": "url", "run": "command"}

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, given: object) -> object:
        return {"url": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _is_one(self) -> "InputSpec":
        if bool(self.url) == bool(self.command):
            raise FieldMistake("url", "give one of url and command")
        if self.sha256 and not self.url:
            raise FieldMistake("sha256", "stands for the file of a url; leave it out beside a command")
        return self


class PythonSpec(FileModel):
    """The Python environment of the ranks, made by uv once for each machine and content, and kept."""

    #: A file of requirements, below the working folder. Example: requirements.txt
    requirements: Annotated[str, AfterValidator(lambda text: inner_path(text) if text else text)] = ""
    #: Requirements, each as pip takes it. Example: [einops>=0.8]
    packages: Annotated[tuple[_Text, ...], Field(max_length=1000), ONE_OR_MANY] = ()
    #: A `uv.lock`, below the working folder, beside its `pyproject.toml`. Example: uv.lock
    lock: Annotated[str, AfterValidator(lambda text: inner_path(text) if text else text)] = ""
    #: A Python version. Empty: the one on which the machine's agent runs. Example: "3.12"
    version: Annotated[str, Field(pattern=r"^(3\.[0-9]{1,2}(\.[0-9]{1,2})?)?$")] = ""
    #: Whether packages of the agent's Python are visible too, such as a torch that is built for the machine. Example:
    #: false
    system_packages: bool = True

    other_words: ClassVar[Mapping[str, str]] = {"pip": "packages", "dependencies": "packages", "python": "version"}

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, given: object) -> object:
        """Returns a file's name alone."""
        if isinstance(given, str):
            return {"lock" if given.endswith("uv.lock") else "requirements": given}
        return given

    @model_validator(mode="after")
    def _has_a_source(self) -> "PythonSpec":
        if self.lock and (self.requirements or self.packages):
            raise FieldMistake("python.lock", "stands beside requirements; give one of them")
        if self.lock and not self.lock.endswith("uv.lock"):
            raise FieldMistake("python.lock", "is no uv.lock; `requirements` takes other files")
        if not (self.lock or self.requirements or self.packages):
            raise FieldMistake("python", "names nothing to install; give requirements, packages or lock")
        return self


class GitSpec(FileModel):
    """A commit of a repository. Its full name is its hash, so it is the same code on every machine."""

    #: The repository. Example: https://git.example/digits.git
    url: Annotated[str, Field(max_length=_URL_MOST, pattern=r"^[^-\s][^\s]*$"), AfterValidator(checked_text)]
    #: Its full hash. Example: 0123456789abcdef0123456789abcdef01234567
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]


def plain_workdir(given: object) -> object:
    """Returns a spec in which `workdir: {git: URL, commit: …}` is the field `git`, and `{path: …}` the path alone."""
    if not isinstance(given, Mapping) or not isinstance(given.get("workdir"), Mapping):
        return given
    spec: dict[str, Any] = dict(given)
    folder = dict(spec.pop("workdir"))
    if set(folder) == {"path"}:
        return {**spec, "workdir": folder["path"]}
    if set(folder) != {"git", "commit"}:
        raise FieldMistake("workdir", "is neither a path, `{path: …}` nor `{git: URL, commit: FULL_HASH}`")
    return {**spec, "git": {"url": folder["git"], "commit": folder["commit"]}}


class NeedfulSpec(Protocol):
    """The fields of a job that its machines are told in one."""

    @property
    def outputs(self) -> tuple[str, ...]: ...
    @property
    def git(self) -> GitSpec | None: ...
    @property
    def inputs(self) -> Mapping[str, InputSpec]: ...
    @property
    def python(self) -> PythonSpec | None: ...
    @property
    def setup(self) -> str | None: ...
    @property
    def image(self) -> str | None: ...


def needs_of(spec: NeedfulSpec) -> JobNeeds:
    """Returns what the job's machines must prepare before they run its command."""
    return JobNeeds(
        outputs=spec.outputs,
        git=None if spec.git is None else GitNeed(**spec.git.model_dump()),
        inputs={name: InputNeed(**each.model_dump()) for name, each in spec.inputs.items()},
        python=None if spec.python is None else PythonNeed(**spec.python.model_dump()),
        setup=spec.setup or "",
        image=spec.image or "",
    )


_MOST_BYTES = 16 * 1024
_MAX_SECRETS = 64


def _secret_text(value: object) -> object:
    """Returns the text; raises ValueError with words that do not repeat it."""
    if not isinstance(value, str):
        raise ValueError("is no text; quote it")
    checked_text(value)
    if len(value.encode()) > _MOST_BYTES:
        raise ValueError(f"is longer than {_MOST_BYTES:,} bytes; let the job read a file")
    return value


def _checked_source(value: object) -> object:
    if not isinstance(value, Mapping | SecretSource):
        raise ValueError("says not where the value comes from; write {env: NAME} or {file: PATH}, not the value itself")
    return value


class SecretSource(FileModel):
    """Where the value of one secret comes from. On its way to the server: the value; kept by the server: nothing."""

    #: The name of a variable of the submitter's environment. Example: HF_TOKEN
    env: EnvName | None = None
    #: The path of a file of the submitter. Example: db.password
    file: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    #: The value, filled in by the client.
    value: Annotated[str, BeforeValidator(_secret_text)] | None = Field(default=None, repr=False)

    @model_validator(mode="after")
    def _is_one(self) -> "SecretSource":
        if sum(each is not None for each in (self.env, self.file, self.value)) > 1:
            raise ValueError("has several sources; write {env: NAME} or {file: PATH}")
        return self


JobSecrets = Annotated[
    dict[EnvName, Annotated[SecretSource, BeforeValidator(_checked_source)]], Field(max_length=_MAX_SECRETS)
]


def with_secret_values(mapping: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns a job (JSON data) with the values of its secrets in the place of their sources.

    Relative files start from the current folder. Raises JobSpecError naming the secret, never its value.
    """
    sources = mapping.get("secrets")
    if not isinstance(sources, Mapping) or not sources:
        return dict(mapping)
    found = {str(name): {"value": _value_of(str(name), source, environ)} for name, source in sources.items()}
    return {**mapping, "secrets": found}


def _value_of(name: str, source: Any, environ: Mapping[str, str]) -> str:
    field = f"secrets.{name}"
    given = source if isinstance(source, Mapping) else {}
    if isinstance(given.get("value"), str):
        return str(given["value"])
    if isinstance(variable := given.get("env"), str):
        if variable not in environ:
            raise JobSpecError(
                f"{field}: you have no variable {variable[:80]}", field=field, fix=f"export {variable[:80]}=..."
            )
        return environ[variable]
    if isinstance(path := given.get("file"), str):
        try:
            with Path(path).expanduser().open("rb") as file:
                text = file.read(_MOST_BYTES + 2).decode()
        except OSError as error:
            raise JobSpecError(f"{field}: {path[:200]}: {error.strerror}", field=field, fix="check the path") from None
        except UnicodeDecodeError:
            raise JobSpecError(f"{field}: {path[:200]} is not UTF-8", field=field, fix="encode it as text") from None
        return text.removesuffix("\n").removesuffix("\r")
    raise JobSpecError(f"{field}: says not where its value comes from", field=field, fix="{env: NAME} or {file: PATH}")


def secret_values(secrets: Mapping[str, SecretSource], environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the values of a job's secrets by name, for a run on this very machine. Raises JobSpecError."""
    return {name: _value_of(name, source.model_dump(exclude_none=True), environ) for name, source in secrets.items()}


#: The most plans of a job, and the most accelerator types of one plan.
PLANS_MOST = 256
_TYPES_MOST = 8


class PlanChoice(FileModel):
    """One way: these accelerators, all at once."""

    #: The number of accelerators of each type; with several types, each is taken from one pool. Example: {a100: 4}
    accelerators: Demands
    #: Steps of the whole job in a second. Example: 0.2
    steps_per_s: Annotated[Number, Field(gt=0, le=1e9)]

    other_words: ClassVar[Mapping[str, str]] = {
        "gpus": "accelerators",
        "uses": "accelerators",
        "rate": "steps_per_s",
        "throughput": "steps_per_s",
        "speed": "steps_per_s",
    }

    @model_validator(mode="after")
    def _names_types(self) -> "PlanChoice":
        if any(use.accelerator == ANY_ACCELERATOR for use in self.accelerators):
            raise FieldMistake("accelerators", "names 'any', and a speed holds for certain types; name them")
        if len(self.accelerators) > _TYPES_MOST:
            raise FieldMistake(
                "accelerators", f"mixes {len(self.accelerators)} types; a plan has 1 to {_TYPES_MOST} of them"
            )
        return self

    @property
    def uses(self) -> tuple[Demand, ...]:
        """Returns the accelerators of each type, ascending by its name."""
        return tuple(sorted(self.accelerators, key=lambda use: use.accelerator))


def _as_list(value: object) -> object:
    if not isinstance(value, list | tuple):
        raise ValueError("is no list; write such as `[{accelerators: {a100: 32, v100: 96}, steps_per_s: 0.19}]`")
    return value


#: The menu; empty: the job has none.
PlanMenu = Annotated[tuple[PlanChoice, ...], Field(max_length=PLANS_MOST), BeforeValidator(_as_list)]


def check_plan_is_no_menu(given: object) -> None:
    """Raises FieldMistake where a job file writes its menu under `plan`, which holds one recommendation."""
    plan = given.get("plan") if isinstance(given, Mapping) else None
    if isinstance(plan, list | tuple):
        raise FieldMistake("plan", "is what `walras submit --recommend` expected of one way; a menu is called `plans`")


def check_plans(
    menu: tuple[PlanChoice, ...],
    resources: ResourcesSpec,
    beside: Mapping[str, bool],
    ranks: Literal["auto"] | int,
    batch: BatchSpec | None,
) -> None:
    """Refuses a menu that contradicts itself or another field of the job.

    Args:
        menu: the plans; nothing is refused of a job without any.
        resources: of the job.
        beside: fields that a menu stands in for, and whether the job states them.
        ranks: on each machine.
        batch: of the job.

    Raises:
        FieldMistake: names the field that contradicts.
    """
    if not menu:
        return
    seen: dict[tuple[Demand, ...], int] = {}
    for place, choice in enumerate(menu):
        if choice.uses in seen:
            raise FieldMistake(
                f"plans[{place}].accelerators", f"is plans[{seen[choice.uses]}] again; give each mix one speed"
            )
        seen[choice.uses] = place
    if all(len(uses) > 1 for uses in seen):
        raise FieldMistake(
            "plans",
            "are all of several types; add one of a single type, as which the job runs where no policy chooses",
        )
    chosen = {
        "resources.accelerators": "accelerators" in resources.model_fields_set,
        "resources.shared": resources.shared is not None,
    }
    for field in (name for name, stands in (chosen | dict(beside)).items() if stands):
        raise FieldMistake(field, "stands beside `plans`, which say what the job takes and how fast it is; remove it")
    if ranks not in ("auto", 1):
        raise FieldMistake("nproc_per_node", "is another on another machine of a plan; write auto, or 1")
    if batch is not None and batch.is_chosen:
        raise FieldMistake("batch", "is chosen while the job trains, and the speeds of `plans` hold for one; fix it")


def gang_of_plans(gang: GangRequest, menu: tuple[PlanChoice, ...]) -> GangRequest:
    """Returns the gang with the menu: as one gang it is the first plan of each single type. Without one, as it is."""
    if not menu:
        return gang
    plans = tuple(GangPlan(choice.uses, choice.steps_per_s) for choice in menu)
    alone = {plan.uses[0].accelerator: plan.uses[0] for plan in reversed(plans) if len(plan.uses) == 1}
    return replace(gang, demands=tuple(alone[name] for name in sorted(alone)), plans=plans)


def speeds_of_plans(gang: GangRequest) -> dict[str, float]:
    """Returns the speed of each single type as which the job may run; of a gang without plans, nothing."""
    found = {use.accelerator: gang.plan_of({use.accelerator: use.count}) for use in gang.demands if gang.plans}
    return {name: plan.steps_per_s for name, plan in found.items() if plan is not None}
