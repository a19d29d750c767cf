"""The job spec: a job file, checked. `spec_request.py` converts it to the scheduler's view of the job.

A refusal names the field and the fix. Whether the fleet can run a job is checked by the server, which knows the fleet.

`field_note` says what a field means, as its declaration does (`walras submit --explain FIELD`). The comment above a
field (`#:`) ends with an example, unless the field is set by a command or the server.
"""

import difflib
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from walras.errors import ConfigError, JobSpecError, UserError
from walras.spec.field_types import (
    MAX_NODES,
    DeclaredThroughput,
    Dependencies,
    EnvName,
    EnvValue,
    InstantText,
    JobNotifications,
    LabelText,
    Mixed,
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
from walras.spec.file_model import FieldMistake, FileModel, check_model, model_in
from walras.spec.job_groups import (
    BatchSpec,
    CheckpointSpec,
    CodeSpec,
    ElasticSpec,
    FactsSpec,
    ForkSpec,
    GitSpec,
    ImageName,
    InputName,
    InputSpec,
    JobSecrets,
    LimitsSpec,
    OutputPaths,
    PlanMenu,
    PlanSpec,
    PythonSpec,
    QuotedSpec,
    ResourcesSpec,
    RetrySpec,
    TargetSpec,
    check_multi_pool,
    check_plan_is_no_menu,
    check_plans,
    check_shared,
    gang_sizes,
    global_batch_of,
    plain_workdir,
)
from walras.spec.roles import Roles, check_roles, with_roles_command
from walras.spec.sweeps import (
    ArrayText,
    Matrix,
    check_array_index,
)
from walras.spec.text_formats import check_extent, parse_yaml
from walras.units import format_length

#: A spec in its textual form, whatever the format.
MAX_SPEC_BYTES = 256 * 1024
_MAX_SPEC_VALUES = 20_000
_MAX_ENVS = 1000


class JobSpec(FileModel):
    """A job as its submitter describes it. Only `run` is required."""

    #: Version of this format. Example: 1
    schema_version: Literal[1] = 1
    #: For people; need not be unique. The job's number is its identity. Example: digits
    name: ShownName = "job"
    #: Text runs as `bash -euo pipefail -c TEXT` on every rank; a list is the program and its arguments, without a
    #: shell. Example: python train.py
    run: Annotated[str | tuple[str, ...], BeforeValidator(parse_run)]
    #: Folder the ranks start in. A relative one travels with the job; an absolute one is on the machines. None: a
    #: fresh folder for each attempt. Example: .
    workdir: WorkingFolder | None = None
    #: Set by `walras submit`: the snapshot of a relative `workdir`.
    code: CodeSpec | None = None
    #: Files and folders below the working folder that are kept as the job's results (`walras fetch`). Example:
    #: [model/]
    outputs: OutputPaths = ()
    #: A commit that the fresh working folder holds at first; written as `workdir: {git: URL, commit: …}`. Example:
    #: {url: https://git.example/digits.git, commit: 0123456789abcdef0123456789abcdef01234567}
    git: GitSpec | None = None
    #: Data that the ranks find as `$WALRAS_INPUTS/NAME`: a URL, or how to get them. Example: {images:
    #: s3://data/images}
    inputs: Annotated[dict[InputName, InputSpec], Field(max_length=64)] = Field(default_factory=dict)
    #: The Python environment of the ranks. None: the machine's. Example: requirements.txt
    python: PythonSpec | None = None
    #: Image that the ranks run in: a name in a registry, or the path of a file. None: the machine itself. Example:
    #: pytorch/pytorch:2.4.0
    image: ImageName | None = None
    #: Text that runs as `bash -euo pipefail -c TEXT` once on each machine, before the first rank there. Example: pip
    #: install -e .
    setup: Annotated[str, AfterValidator(checked_text)] | None = None
    #: Environment of the ranks. A variable without a value must be given one when submitting; `WALRAS_*` is reserved.
    #: Example: {OMP_NUM_THREADS: 4}
    envs: Annotated[dict[EnvName, EnvValue | None], Field(max_length=_MAX_ENVS)] = Field(default_factory=dict)
    #: Variables whose values only the running job sees: `{env: NAME}` or `{file: PATH}` of the submitter. Example:
    #: {HF_TOKEN: {env: HF_TOKEN}}
    secrets: JobSecrets = Field(default_factory=dict)
    #: The project whose share of the fleet it uses. None: the first project of the submitter's token. Example: vision
    project: ShownName | None = None
    #: 0-100, or low (20), normal (50), high (80). A higher class (0-33, 34-66, 67-100) preempts a lower one; inside a
    #: class shares decide. Example: high
    priority: Priority = 50
    #: False: once started it runs to its end. True: it may be stopped for others once it has shown that it saves its
    #: work; always: even if its work is lost. Example: false
    preemptible: Preemptible = True
    #: Machines the gang is spread over evenly; 1: as few as possible. Example: 2
    num_nodes: WholeNumber = Field(default=1, ge=1, le=MAX_NODES)
    #: Ranks on each machine; auto: one for each accelerator; 1: one process, or one launcher, for all of them.
    #: Example: 1
    nproc_per_node: Annotated[Literal["auto"] | int, BeforeValidator(parse_nproc)] = "auto"
    #: What the gang needs. Example: {accelerators: any:1}
    resources: ResourcesSpec = ResourcesSpec()
    #: The gang may have fewer or more accelerators than `resources` says, and change while it runs. None: it may not.
    #: Example: {min: 1, max: 8}
    elastic: ElasticSpec | None = None
    #: It may be trained in several pools at once, each part with steps of its own. None: it is one gang. Example:
    #: {max: 3}
    fork: ForkSpec | None = None
    #: The gang may sit in several pools: at the pace of its slowest accelerator, or, with shares, at the sum of their
    #: speeds, because the script shares each batch. Example: shares
    mixed: Mixed = False
    #: Ways to run it, over one type or several, each with its speed: instead of `resources.accelerators`. Empty: none.
    #: Example: [{accelerators: {a100: 4}, steps_per_s: 0.2}, {accelerators: {a100: 2, v100: 4}, steps_per_s: 0.19}]
    plans: PlanMenu = ()
    #: Processes with different commands and accelerators, placed, started and stopped together: instead of `run` and
    #: `resources.accelerators`. The first role leads: its steps are the job's. Empty: none. Example: {trainer: {run:
    #: python train.py, accelerators: "a100:1"}, rollout: {run: python rollout.py, accelerators: "v100:1", count: 2}}
    roles: Roles = Field(default_factory=dict)
    #: Samples of one step over the whole gang, however many ranks it has. None: as the script does it. Example:
    #: {global: 512}
    batch: BatchSpec | None = None
    #: Work to do, in steps as the training script counts them. None: unknown. Example: 90000
    steps: Annotated[Number, Field(gt=0, le=1e15)] | None = None
    #: A value that the script reports, and what it is to fall to: the server forecasts when. Example: {value: loss,
    #: at_most: 0.2}
    target: TargetSpec | None = None
    #: The submitter's guess of the run time on the best acceptable accelerator; believed until steps are counted.
    #: Example: 6h
    estimated_duration: PositiveLength | None = None
    #: Jobs with the same profile share their measured speeds. None: derived from command, folder, size and `*BATCH*`
    #: variables. Example: resnet50
    profile: ShownName | None = None
    #: What is known of the model, for predictors of speed; in a job file also the name of a profile's file. Example:
    #: {flops_per_sample: 8e9, batch_per_accelerator: 64}
    facts: FactsSpec | None = None
    #: Declared speeds in steps per second of the whole gang, by accelerator type; believed until measured. Example:
    #: {a100: 12.0}
    throughput: Annotated[DeclaredThroughput, Field(max_length=64)] = Field(default_factory=dict)
    #: Set by `walras submit --recommend`: what it expected where it chose the machines; decides nothing. None: no
    #: plan.
    plan: PlanSpec | None = None
    #: Set by `walras submit --take`: what was told of the way that was taken; decides nothing beside `deadline`.
    quoted: QuotedSpec | None = None
    #: When a failed attempt is tried again. Example: {max_restarts: 2}
    retry: RetrySpec = RetrySpec()
    #: How long it may run and wait, and what it may cost. Example: {max_runtime: 2d}
    limits: LimitsSpec = LimitsSpec()
    #: Time to checkpoint and stop before the processes are killed. Example: 2m
    grace_period: Annotated[PositiveLength, Field(le=86_400)] = 30.0
    #: Wanted finished by then: an RFC 3339 instant, or a length after submission. Example: +12h
    deadline: InstantText | None = None
    #: Not started before: written as `deadline`. Example: 2027-01-05T18:00:00Z
    not_before: InstantText | None = None
    #: Jobs, by number or name, that have to end first. Example: [12, prepare]
    depends_on: Dependencies = ()
    #: How those jobs have to end: with success, or in any way. Example: finished
    condition: Literal["succeeded", "finished"] = "succeeded"
    #: Where and how often state is saved. Example: {interval: 10m}
    checkpoint: CheckpointSpec = CheckpointSpec()
    #: Free text by key, for people and for filters. Example: {paper: table-2}
    labels: Annotated[dict[LabelText, LabelText], Field(max_length=64)] = Field(default_factory=dict)
    #: What its submitter's addresses are told of it (`walras notify`), nothing if empty. None: as each address says.
    #: Example: [failed, finished]
    notify: JobNotifications | None = None
    #: Value of an hour at full speed, USD; bounds the price of machines rented for it. None: the project's value.
    #: Example: 4.5
    value_usd_per_h: Annotated[Number, Field(ge=0, le=1e9)] | None = None
    #: Share against other jobs of the same class: 2 is entitled to twice the normalised throughput. Under `walras`:
    #: against jobs of the same user. Example: 2
    weight: Annotated[Number, Field(gt=0, le=1e6)] = 1.0
    #: Submitted but not to be started until `walras hold --off`. Example: true
    hold: bool = False
    #: One job for each index, such as `1-100%8`: of those at most 8 run at once. Example: 1-100%8
    array: ArrayText | None = None
    #: One job for each combination of these values, which replace `{name}` in `run`, `envs` and `name`. Example: {lr:
    #: [0.1, 0.01], seed: 0-4}
    matrix: Matrix = Field(default_factory=dict)
    #: Set by the server: which job of its sweep this one is; by hand it makes one job of a sweep. None: all of them.
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
        return with_roles_command(plain_workdir(given))

    @model_validator(mode="after")
    def _gang_fits_machines(self) -> "JobSpec":
        self._check_roles()
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
        mixed = self.mixed is not False
        check_shared(self.resources, is_fixed=not (fork or elastic or mixed), deadline=self.deadline)
        check_multi_pool(fork=fork, mixed=mixed, elastic=elastic, nodes=self.num_nodes, demands=demands)
        beside = {"elastic": elastic, "fork": fork, "mixed": mixed, "num_nodes": self.num_nodes > 1}
        beside |= {"throughput": bool(self.throughput), "plan": self.plan is not None}
        check_plans(self.plans, self.resources, beside, self.nproc_per_node, self.batch)
        return self

    def _check_roles(self) -> None:
        """Raises FieldMistake for roles that contradict themselves, or a field that they stand in for."""
        fields = ("num_nodes", "elastic", "fork", "mixed", "plans", "throughput", "plan")
        beside = {
            name: getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True)
            for name in fields
        }
        beside["resources.accelerators"] = "accelerators" in self.resources.model_fields_set
        beside["resources.shared"] = self.resources.shared is not None
        beside["batch.adaptive"] = self.batch is not None and self.batch.is_chosen
        check_roles(self.roles, beside)


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


_NOTE = re.compile(r'((?:^    #: .*\n)+)^    (?:(\w+): |__annotations__ = \{"(\w+)")', re.MULTILINE)
_EXAMPLE = "Example: "
_TYPES = {"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false"}
_BOUNDS = (("above", "exclusiveMinimum", "gt"), ("from", "minimum", "ge"), ("up to", "maximum", "le"))
_SHOWN = {"memory": lambda _: "none in particular", "cpus": lambda _: "none in particular"}
_SHOWN |= {"grace_period": format_length, "accelerators": lambda _: "any:1", "name": lambda _: "the file's name"}


@dataclass(frozen=True, slots=True)
class FieldNote:
    """One field: what it means, what it takes, what it is where it is not stated, and how it is written."""

    path: str
    meaning: str
    kind: str
    #: Empty: the field has to be stated.
    default: str
    #: As YAML; empty where nobody writes the field.
    example: str
    #: The fields below it, by path.
    below: tuple[str, ...]


def field_note(path: str) -> FieldNote:
    """Returns the note of a field such as `priority` or `resources.memory`. Raises UserError naming the nearest."""
    words = re.sub(r"\[\w*\]", "", path.strip()).split(".")
    owner: type[BaseModel] = JobSpec
    model: type[BaseModel] | None = JobSpec
    for number, word in enumerate(words):
        if model is None or word not in model.model_fields:
            raise _unknown(path, model, words[: number + 1])
        owner, model = model, _below(model, word)
    schema = owner.model_json_schema()
    place, known = schema["properties"][words[-1]], schema.get("$defs", {})
    meaning, _, example = _notes(owner)[words[-1]].partition(_EXAMPLE)
    info = owner.model_fields[words[-1]]
    shown = "" if info.is_required() else _default_text(words[-1], info.get_default(call_default_factory=True))
    below = tuple(f"{'.'.join(words)}.{name}" for name in (model.model_fields if model else ()))
    return FieldNote(".".join(words), meaning.strip(), _kind_text(place, known), shown, example.strip(), below)


def field_paths(model: type[BaseModel] = JobSpec, before: str = "") -> Iterator[str]:
    """Yields the path of every field of a job file that people write, and of those that are set for them."""
    for name in model.model_fields:
        yield before + name
        if inner := _below(model, name):
            yield from field_paths(inner, f"{before}{name}.")


def _below(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    """Returns the model of the fields below a field; None where there are none, or nobody writes them."""
    return model_in(model.model_fields[name].annotation) if _EXAMPLE in _notes(model)[name] else None


def _unknown(path: str, model: type[BaseModel] | None, words: list[str]) -> UserError:
    """Returns the refusal of a name that is no field; its fix names those that are probably meant."""
    owner = model if model is not None and issubclass(model, FileModel) else FileModel
    before, word = "".join(f"{each}." for each in words[:-1]), words[-1]
    if word in owner.not_yet:
        return UserError(f"{path[:60]!r} is carried out by no version so far", field=path[:60], fix="leave it out")
    paths = list(field_paths())
    others = {**JobSpec.other_words, **{name: before + ours for name, ours in owner.other_words.items()}}
    meant = [others[word]] if word in others else []
    near = difflib.get_close_matches(word.lower(), {each.split(".")[-1] for each in paths}, 2, 0.7)
    meant = meant or [each for each in paths if each.split(".")[-1] in ([word] if word in near else near)]
    meant = meant or difflib.get_close_matches(path.lower(), paths, 2, 0.7)
    told = f"did you mean {', '.join(dict.fromkeys(meant))}?" if meant else f"one of {', '.join(JobSpec.model_fields)}"
    return UserError(f"a job file has no field {path[:60]!r}", field=path[:60], fix=told)


@cache
def _notes(model: type[BaseModel]) -> dict[str, str]:
    """Returns the comment above each field of a model, on one line."""
    found = _NOTE.findall(inspect.getsource(model))
    return {name or other: " ".join(note.replace("#:", "").split()) for note, name, other in found}


def _default_text(name: str, default: Any) -> str:
    if isinstance(default, BaseModel):
        return "as its fields say"
    if default is None or default in ((), {}):
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    return _SHOWN.get(name, str)(default)


def _kind_text(schema: dict[str, Any], known: dict[str, Any]) -> str:
    """Returns what may be written, from the JSON Schema of the field."""
    if "anyOf" in schema:
        kinds = [_kind_text(each, known) for each in schema["anyOf"] if each.get("type") != "null"]
        return ", or ".join(dict.fromkeys(kinds))
    if "$ref" in schema or "properties" in schema:
        inner = known[schema["$ref"].split("/")[-1]] if "$ref" in schema else schema
        return "fields" if "properties" in inner else _kind_text(inner, known)
    if choices := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return " or ".join(str(each) for each in choices)
    if "description" in schema:
        return str(schema["description"])
    kind = schema.get("type", "text")
    if isinstance(kind, list):
        return ", or ".join(_TYPES[each] for each in kind)
    if kind == "array":
        return f"a list of {_kind_text(schema.get('items', {}), known)}"
    if kind == "object":
        values = [schema.get("additionalProperties"), *schema.get("patternProperties", {}).values()]
        return f"by name, {next(_kind_text(each, known) for each in values if isinstance(each, dict))}"
    bounds = [(word, schema.get(name)) for word, *names in _BOUNDS for name in names]
    return " ".join(
        [_TYPES[kind], *(f"{word} {bound:,}" for word, bound in bounds if bound is not None and bound < 1e8)]
    )
