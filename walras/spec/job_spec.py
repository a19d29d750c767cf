"""The job spec: a job file, checked. `spec_request.py` converts it to the scheduler's view of the job.

A refusal names the field and the fix. Whether the fleet can run a job is checked by the server, which knows the fleet.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from walras.errors import ConfigError, JobSpecError
from walras.spec.field_types import (
    MAX_NODES,
    DeclaredThroughput,
    Dependencies,
    EnvName,
    EnvValue,
    InstantText,
    JobNotifications,
    LabelText,
    Number,
    PositiveLength,
    Preemptible,
    Priority,
    ShownName,
    WholeNumber,
    WorkingFolder,
    checked_text,
    parse_nproc,
    parse_run,
    shown_accelerator,
)
from walras.spec.file_model import FieldMistake, FileModel, check_model
from walras.spec.job_groups import (
    BatchSpec,
    CheckpointSpec,
    CodeSpec,
    ElasticSpec,
    FactsSpec,
    ForkSpec,
    LimitsSpec,
    OutputPaths,
    PlanSpec,
    QuotedSpec,
    ResourcesSpec,
    RetrySpec,
    TargetSpec,
    check_multi_pool,
    check_shared,
    gang_sizes,
    global_batch_of,
)
from walras.spec.job_secrets import JobSecrets
from walras.spec.job_travel import GitSpec, ImageName, InputName, InputSpec, PythonSpec, plain_workdir
from walras.spec.plan_menus import PlanMenu, check_plan_is_no_menu, check_plans
from walras.spec.sweeps import (
    ArrayText,
    Matrix,
    check_array_index,
)
from walras.spec.text_formats import check_extent, dump_yaml, parse_yaml

#: A spec in its textual form, whatever the format.
MAX_SPEC_BYTES = 256 * 1024
_MAX_SPEC_VALUES = 20_000
_MAX_ENVS = 1000


class JobSpec(FileModel):
    """A job as its submitter describes it. Only `run` is required."""

    schema_version: Literal[1] = 1
    #: For people; need not be unique. The job's number is its identity.
    name: ShownName = "job"
    #: Text runs as `bash -euo pipefail -c TEXT`; a list is the program and its arguments, without a shell.
    run: Annotated[str | tuple[str, ...], BeforeValidator(parse_run)]
    #: Folder the ranks start in, as the machines see it. None: a fresh folder for each attempt.
    workdir: WorkingFolder | None = None
    #: A snapshot of that folder, which travels with the job. None: the machines have the folder, or need none.
    code: CodeSpec | None = None
    #: Files and folders below the working folder that are kept as the job's results (`walras fetch`).
    outputs: OutputPaths = ()
    #: A commit that the fresh working folder holds at first; written as `workdir: {git: URL, commit: …}`.
    git: GitSpec | None = None
    #: Data that the ranks find as `$WALRAS_INPUTS/NAME`: a URL, or how to get them.
    inputs: Annotated[dict[InputName, InputSpec], Field(max_length=64)] = Field(default_factory=dict)
    #: The Python environment of the ranks. None: the machine's.
    python: PythonSpec | None = None
    #: Image that the ranks run in: a name in a registry, or the path of a file. None: the machine itself.
    image: ImageName | None = None
    #: Text that runs as `bash -euo pipefail -c TEXT` once on each machine, before the first rank there.
    setup: Annotated[str, AfterValidator(checked_text)] | None = None
    #: Environment of the ranks. A variable without a value must be given a value when submitting.
    envs: Annotated[dict[EnvName, EnvValue | None], Field(max_length=_MAX_ENVS)] = Field(default_factory=dict)
    #: Variables whose values only the running job sees: `{env: NAME}` or `{file: PATH}` of the submitter.
    secrets: JobSecrets = Field(default_factory=dict)
    #: The project whose share of the fleet it uses. None: the first project of the submitter's token.
    project: ShownName | None = None
    #: 0-100, or low (20), normal (50), high (80). A higher class (0-33, 34-66, 67-100) preempts a lower one.
    priority: Priority = 50
    #: False: once started it runs to its end. True: it may be stopped for others once it has shown that it saves its
    #: work; always: even if its work is lost.
    preemptible: Preemptible = True
    #: Machines the gang is spread over evenly; 1: as few as possible.
    num_nodes: WholeNumber = Field(default=1, ge=1, le=MAX_NODES)
    #: Ranks on each machine; auto: one for each accelerator; 1: one process, or one launcher, for all of them.
    nproc_per_node: Annotated[Literal["auto"] | int, BeforeValidator(parse_nproc)] = "auto"
    resources: ResourcesSpec = ResourcesSpec()
    #: The gang may have fewer or more accelerators than `resources` says, and change while it runs. None: it may not.
    elastic: ElasticSpec | None = None
    #: It may be trained in several pools at once, each part with steps of its own. None: it is one gang.
    fork: ForkSpec | None = None
    #: The gang may sit in several pools, at the pace of the slowest of its accelerators.
    mixed: bool = False
    #: Ways to run it, over one type or several, each with its speed: instead of `resources.accelerators`. Empty: none.
    plans: PlanMenu = ()
    #: Samples of one step over the whole gang, however many ranks it has. None: as the script does it.
    batch: BatchSpec | None = None
    #: Work to do, in steps as the training script counts them.
    steps: Annotated[Number, Field(gt=0, le=1e15)] | None = None
    #: A value that the script reports, and what it is to fall to: the server forecasts when.
    target: TargetSpec | None = None
    #: The submitter's guess of the run time on the best acceptable accelerator.
    estimated_duration: PositiveLength | None = None
    #: Jobs with the same profile share their measured speeds. None: derived from command, folder and size.
    profile: ShownName | None = None
    #: What is known of the model, for predictors of speed; in a job file also the name of a profile's file.
    facts: FactsSpec | None = None
    #: Declared speeds in steps per second of the whole gang, by accelerator type; believed until measured.
    throughput: Annotated[DeclaredThroughput, Field(max_length=64)] = Field(default_factory=dict)
    #: What `walras submit --recommend` expected of it where it chose the machines; decides nothing. None: no plan.
    plan: PlanSpec | None = None
    #: What `walras submit --take` was told of the way it took; decides nothing beside `deadline`. None: none was taken.
    quoted: QuotedSpec | None = None
    retry: RetrySpec = RetrySpec()
    limits: LimitsSpec = LimitsSpec()
    #: Time to checkpoint and stop before the processes are killed.
    grace_period: Annotated[PositiveLength, Field(le=86_400)] = 30.0
    #: Wanted finished by then: an RFC 3339 instant, or a length after submission (`+12h`).
    deadline: InstantText | None = None
    #: Not started before: written as `deadline`.
    not_before: InstantText | None = None
    #: Jobs, by number or name, that have to end first.
    depends_on: Dependencies = ()
    #: How those jobs have to end: with success, or in any way.
    condition: Literal["succeeded", "finished"] = "succeeded"
    checkpoint: CheckpointSpec = CheckpointSpec()
    #: Free text by key, for people and for filters.
    labels: Annotated[dict[LabelText, LabelText], Field(max_length=64)] = Field(default_factory=dict)
    #: What its submitter's addresses are told of it (`walras notify`), nothing if empty. None: as each address says.
    notify: JobNotifications | None = None
    #: Value of an hour at full speed, USD; bounds the price of machines rented for it. None: the project's value.
    value_usd_per_h: Annotated[Number, Field(ge=0, le=1e9)] | None = None
    #: Share against other jobs of the same class: 2 is entitled to twice the normalised throughput.
    weight: Annotated[Number, Field(gt=0, le=1e6)] = 1.0
    #: Submitted but not to be started until released.
    hold: bool = False
    #: One job for each index, such as `1-100%8`: of those at most 8 run at once.
    array: ArrayText | None = None
    #: One job for each combination of these values, which replace `{name}` in `run`, `envs` and `name`.
    matrix: Matrix = Field(default_factory=dict)
    #: Which job of its sweep this one is. None: all of them.
    array_index: WholeNumber | None = None

    other_words: ClassVar[Mapping[str, str]] = {
        "command": "run", "cmd": "run", "commands": "run", "script": "run", "entrypoint": "run", "args": "run",
        "env": "envs", "environment": "envs", "working_dir": "workdir", "cwd": "workdir", "chdir": "workdir",
        "nodes": "num_nodes", "num_gpus": "resources.accelerators", "gpus": "resources.accelerators",
        "gpu": "resources.accelerators", "accelerators": "resources.accelerators", "cpus": "resources.cpus",
        "memory": "resources.memory", "time": "limits.max_runtime", "timeout": "limits.max_runtime",
        "max_runtime": "limits.max_runtime", "max_queue_time": "limits.max_queue_time",
        "max_restarts": "retry.max_restarts", "retries": "retry.max_restarts", "begin": "not_before",
        "tags": "labels", "metadata": "labels", "duration": "estimated_duration", "model": "profile",
        "kind": "profile", "account": "project", "team": "project", "max_steps": "steps", "total_steps": "steps",
        "dependencies": "depends_on", "batch_size": "batch.global", "held": "hold", "checkpoint_dir": "checkpoint.dir",
        "data": "inputs", "datasets": "inputs", "pip": "python.packages", "requirements": "python.requirements",
        "results": "outputs", "artifacts": "outputs", "output": "outputs", "packable": "resources.shared",
    }  # fmt: skip
    not_yet: ClassVar[frozenset[str]] = frozenset(
        {"files", "file_mounts", "mounts", "volumes", "image_id", "ports", "gang"}
        | {"schedule", "slo", "queue"}
        | {"utilization", "pool", "infra", "use_spot"}
    )

    @model_validator(mode="before")
    @classmethod
    def _one_way_to_write(cls, given: object) -> object:
        check_plan_is_no_menu(given)
        return plain_workdir(given)

    @model_validator(mode="after")
    def _gang_fits_machines(self) -> "JobSpec":
        for name in self.secrets.keys() & self.envs.keys():
            raise FieldMistake(f"secrets.{name}", "is a variable of `envs` too; keep one of the two")
        for demand in self.resources.accelerators:
            each, rest = divmod(demand.count, self.num_nodes)
            counted = f"{demand.count} of {shown_accelerator(demand.accelerator)!r} for the whole gang"
            if rest or not each:
                raise FieldMistake(
                    "num_nodes",
                    f"{self.num_nodes} machines cannot share {counted} evenly; "
                    "accelerators are counted over the whole gang: make that a multiple of num_nodes",
                )
            if self.nproc_per_node not in ("auto", 1, each):
                raise FieldMistake(
                    "nproc_per_node",
                    f"{self.nproc_per_node} ranks on a machine with {each} of the gang's accelerators "
                    f"({counted}, num_nodes {self.num_nodes}); write auto: one rank for each accelerator, "
                    "or 1: one process or launcher (torchrun) for all of them",
                )
        if sum(each is not None for each in (self.code, self.workdir, self.git)) > 1:
            raise FieldMistake("workdir", "the job brings its own folder (`code`, `git`); leave the others out")
        if self.image is not None and self.python is not None:
            raise FieldMistake("python", "stands beside an image, which brings its own Python; install it there")
        gang_sizes_of(self)
        check_array_index(self)
        if self.facts is not None:
            self.facts.facts(global_batch_of(self.batch))
        fork, elastic = self.fork is not None, self.elastic is not None
        demands = self.resources.accelerators
        check_shared(self.resources, is_fixed=not (fork or elastic or self.mixed), deadline=self.deadline)
        check_multi_pool(fork=fork, mixed=self.mixed, elastic=elastic, nodes=self.num_nodes, demands=demands)
        beside = {"elastic": elastic, "fork": fork, "mixed": self.mixed, "num_nodes": self.num_nodes > 1}
        beside |= {"throughput": bool(self.throughput), "plan": self.plan is not None}
        check_plans(self.plans, self.resources, beside, self.nproc_per_node, self.batch)
        return self


# ------------------------------------------------------------------------------------------------- in and out


def parse_spec(given: str | bytes | Mapping[str, Any], *, source: str = "job") -> JobSpec:
    """Returns the checked spec in a YAML text or in parsed data (a JSON body).

    Raises JobSpecError with `field` (a path such as `resources.accelerators`) and `fix`.
    """
    if isinstance(given, Mapping):
        check_extent(given, MAX_SPEC_BYTES, _MAX_SPEC_VALUES, source=source, error=JobSpecError)
        return _check_runnable(check_model(JobSpec, given, source=source, error=JobSpecError), source)
    try:
        data = parse_yaml(given, source=source, max_bytes=MAX_SPEC_BYTES)
    except ConfigError as error:
        raise JobSpecError(str(error), field=error.field, fix=error.fix) from None
    return _check_runnable(check_model(JobSpec, data, source=source, error=JobSpecError), source)


def _check_runnable(spec: JobSpec, source: str) -> JobSpec:
    """Refuses fields that only simulations support (jobs of a workload file do not pass here)."""
    if spec.batch is not None and spec.batch.is_chosen:
        if spec.batch.max is None:
            raise JobSpecError(
                f"{source}: batch.max: a job that chooses its batch states the largest that it may choose",
                field="batch.max",
                fix="write `max`: what learns well and fits its memory; a simulation alone knows that from its law",
            )
        if spec.fork is not None or spec.mixed:
            raise JobSpecError(
                f"{source}: batch.adaptive: parts of a fork, and unlike accelerators, keep the batch that they share",
                field="batch.adaptive",
                fix="remove it, or `fork` and `mixed`",
            )
    if spec.fork is not None and any(demand.count > 1 for demand in spec.resources.accelerators):
        raise JobSpecError(
            f"{source}: fork: a part that runs is one process on one accelerator; simulations fork whole gangs too",
            field="fork",
            fix="ask for one accelerator, and let `fork.max` say how many parts there may be",
        )
    return spec


def spec_mapping(spec: JobSpec) -> dict[str, Any]:
    """Returns the spec as JSON data without fields at their defaults; `parse_spec` reads it back to an equal spec.

    A priority that was stated is in it whatever it is, because a project's default may be another.
    """
    data = spec.model_dump(mode="json", exclude_defaults=True)
    return data | {"priority": spec.priority} if "priority" in spec.model_fields_set else data


def dump_spec(spec: JobSpec) -> str:
    """Returns the spec as a job file; `parse_spec` reads it back to an equal spec."""
    return dump_yaml(spec_mapping(spec))


def json_schema() -> dict[str, Any]:
    """JSON Schema of a job file, for editors and for `/openapi.json`."""
    return JobSpec.model_json_schema()


def gang_sizes_of(spec: JobSpec) -> tuple[int, ...]:
    """Returns the sizes that the gang may have, ascending; empty if its size is fixed."""
    if spec.elastic is None:
        return ()
    only = None if spec.nproc_per_node in ("auto", 1) else spec.num_nodes * int(spec.nproc_per_node)
    # A batch that the job chooses itself is cut to its gang.
    batch = None if spec.batch is not None and spec.batch.is_chosen else global_batch_of(spec.batch)
    return gang_sizes(spec.elastic, spec.resources.accelerators, spec.num_nodes, only, batch)
