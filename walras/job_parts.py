"""The types of a job spec's fields, and its groups: resources, retry, limits, checkpoint.

Each validator's complaint reads `what is wrong; how to mend it`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from walras.checking import FieldMistake, FileModel
from walras.instants import parse_instant
from walras.names import AcceleratorName, ShownName, canonical_accelerator, shown_name
from walras.request import ANY_ACCELERATOR, Demand
from walras.units import parse_length, parse_minimum_count, parse_minimum_size
from walras.yaml_text import written_text

#: Linux passes at most 128 KiB per argument or variable, its closing zero byte included.
MAX_ARGUMENT_BYTES = 131_071
MAX_ACCELERATORS = 4096
MAX_NODES = 1024
#: Below this a "memory" is certainly a number whose unit was forgotten.
_LEAST_MEMORY_BYTES = 2**20
_PRIORITY_CLASSES = {"low": 20, "normal": 50, "high": 80}


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("is true or false where a number is expected; write a number")
    return value


def checked_text(text: str) -> str:
    """Text that can be an argument or a variable of a process."""
    if "\0" in text:
        raise ValueError("contains a zero byte; remove it")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError("contains half of a surrogate pair, which no encoding can write; remove it") from None
    if size > MAX_ARGUMENT_BYTES:
        raise ValueError(f"is {size:,} bytes; at most {MAX_ARGUMENT_BYTES:,} fit, put it into a file")
    return text


def _text_of_scalar(value: object) -> object:
    """Numbers in `envs` and `labels` are meant as text; true and false are not taken for text by guessing."""
    if isinstance(value, bool):
        raise ValueError(f'is {str(value).lower()}, which a process reads as text; quote it: "{str(value).lower()}"')
    return written_text(value) if isinstance(value, int | float) else value


def _env_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,199}", name, re.ASCII):
        raise ValueError("is no name of a variable; use letters, digits and _, a letter first")
    if name.startswith("WALRAS_"):
        raise ValueError("begins with WALRAS_, which the scheduler sets; choose another name")
    return name


def _priority(value: object) -> object:
    if isinstance(value, str):
        word = value.strip().lower()
        if word in _PRIORITY_CLASSES:
            return _PRIORITY_CLASSES[word]
        if not word.lstrip("-").isascii() or not word.lstrip("-").isdigit():
            raise ValueError(f"{value[:40]!r} is no priority; write low, normal, high or a number from 0 to 100")
    return _no_bool(value)


def inner_path(text: str) -> str:
    """A relative path that stays below its folder."""
    checked_text(text)
    if text.startswith(("/", "~")) or "\\" in text:
        raise ValueError(f"{text[:60]!r} leaves the job's folder; write a relative path such as 'resnet'")
    if any(part == ".." for part in text.split("/")):
        raise ValueError(f"{text[:60]!r} leaves the job's folder through '..'; write a path below it")
    return text


def _working_folder(text: str) -> str:
    checked_text(text)
    if text.startswith("~"):
        raise ValueError("'~' means another folder on every machine; write the path out")
    if any(part == ".." for part in text.split("/")):
        raise ValueError(f"{text[:60]!r} contains '..'; write the path without it")
    return text


def _instant_text(text: str) -> str:
    parse_instant(text, now=0.0)
    return text


def _exit_codes(value: object) -> object:
    return (value,) if isinstance(value, int) else value


def _memory(value: object) -> int:
    size = parse_minimum_size(value)
    if 0 < size < _LEAST_MEMORY_BYTES:
        raise ValueError(f"{value!r} is less than 1 MiB; write the unit, such as '{value}GB'")
    return size


def parse_demands(value: object) -> tuple[Demand, ...]:
    """`A100:2`, `{a100: 1, v100: 2}`, `[a100:1, v100:2]` or `any:2` as the acceptable ways to run the whole gang."""
    if isinstance(value, str):
        pairs = [_pair_of_text(value)]
    elif isinstance(value, Mapping):
        pairs = [(name, count) for name, count in value.items()]
    elif isinstance(value, Sequence):
        pairs = [(item.accelerator, item.count) if isinstance(item, Demand) else _pair_of_text(item) for item in value]
    else:
        raise ValueError("is no list of accelerators; write 'a100:1' or {a100: 1, v100: 2}")
    if not 1 <= len(pairs) <= 64:
        raise ValueError(f"names {len(pairs)} types; name 1 to 64, or write 'any:1'")
    demands = tuple(Demand(_accelerator_or_any(name), _gang_size(name, count)) for name, count in pairs)
    names = [demand.accelerator for demand in demands]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"names {twice!r} twice; give one count for each type")
    if ANY_ACCELERATOR in names and len(names) > 1:
        raise ValueError("names 'any' beside other types; write 'any' alone, or only the types that are acceptable")
    return demands


def _pair_of_text(value: object) -> tuple[str, object]:
    if not isinstance(value, str):
        raise ValueError("has an item that is no text; write items such as 'a100:1'")
    name, colon, count = value.rpartition(":")
    return (name, count) if colon else (value, 1)


def _accelerator_or_any(name: object) -> str:
    if isinstance(name, str) and name.strip().lower() in ("any", ANY_ACCELERATOR):
        return ANY_ACCELERATOR
    return canonical_accelerator(name)


def _gang_size(name: object, count: object) -> int:
    text = str(count).strip()
    if isinstance(count, bool) or not re.fullmatch(r"-?[0-9]{1,20}", text, re.ASCII):
        raise ValueError(f"the count {text[:40]!r} is no whole number; write such as 'a100:2'")
    if not 1 <= int(text) <= MAX_ACCELERATORS:
        raise ValueError(f"the count {text} of {str(name)[:40]!r} must be 1 to {MAX_ACCELERATORS}; change the count")
    return int(text)


def shown_accelerator(name: str) -> str:
    """The word for a demand's type in job files and messages."""
    return "any" if name == ANY_ACCELERATOR else name


def demands_as_mapping(demands: tuple[Demand, ...]) -> dict[str, int]:
    """The form in which a spec is stored and shown."""
    return {shown_accelerator(demand.accelerator): demand.count for demand in demands}


def _dependency(value: object) -> object:
    """A job by its number or by its name."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("is neither a job number nor a job name; write such as `depends_on: [12, prepare]`")
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value, re.ASCII):
        value = int(value)
    if isinstance(value, int) and not 1 <= value < 2**63:
        raise ValueError(f"{value} is no job number; job numbers begin at 1")
    if isinstance(value, str) and not 1 <= len(shown_name(value)) <= 200:
        raise ValueError("is no job name; write a name of 1 to 200 characters, or a job number")
    return value


def _some_list(value: object) -> object:
    return (value,) if isinstance(value, str | int) else value


_LENGTH_SCHEMA = {"type": ["number", "string"], "description": "seconds, or text such as '10m', '1h30m'"}
_DEMANDS_SCHEMA = {
    "anyOf": [
        {"type": "string", "examples": ["a100:1", "any:2"]},
        {"type": "array", "items": {"type": "string"}},
        {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}},
    ]
}
Number = Annotated[float, BeforeValidator(_no_bool)]
WholeNumber = Annotated[int, BeforeValidator(_no_bool)]
#: A length of time in seconds; read from `90`, `"10m"`, `"1h30m"`.
Length = Annotated[float, BeforeValidator(parse_length), WithJsonSchema(_LENGTH_SCHEMA)]
PositiveLength = Annotated[float, Field(gt=0), BeforeValidator(parse_length), WithJsonSchema(_LENGTH_SCHEMA)]
Argument = Annotated[str, AfterValidator(checked_text)]
WorkingFolder = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_working_folder)]
Priority = Annotated[
    int,
    Field(ge=0, le=100),
    BeforeValidator(_priority),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0, "maximum": 100}, {"enum": list(_PRIORITY_CLASSES)}]}),
]
InstantText = Annotated[str, Field(max_length=40), AfterValidator(_instant_text)]
EnvName = Annotated[str, AfterValidator(_env_name)]
EnvValue = Annotated[str, BeforeValidator(_text_of_scalar), AfterValidator(checked_text)]
LabelText = Annotated[str, BeforeValidator(_text_of_scalar), Field(max_length=200), AfterValidator(checked_text)]
Dependencies = Annotated[
    tuple[Annotated[int | str, BeforeValidator(_dependency)], ...],
    Field(max_length=1000),
    BeforeValidator(_some_list),
]
Demands = Annotated[
    tuple[Demand, ...],
    BeforeValidator(parse_demands),
    PlainSerializer(demands_as_mapping),
    WithJsonSchema(_DEMANDS_SCHEMA),
]
Memory = Annotated[int, BeforeValidator(_memory), WithJsonSchema({"type": ["integer", "string"]})]
Cpus = Annotated[
    float, Field(le=4096), BeforeValidator(parse_minimum_count), WithJsonSchema({"type": ["number", "string"]})
]


class Resources(FileModel):
    """What the gang needs. Accelerators are counted over the whole gang; CPU and memory for each accelerator."""

    #: Acceptable types, each with how many the whole gang takes of it; the scheduler chooses one of them.
    accelerators: Demands = (Demand(ANY_ACCELERATOR, 1),)
    #: Cores for each accelerator; 0 asks for none in particular.
    cpus: Cpus = 0.0
    #: Bytes of main memory for each accelerator; 0 asks for none in particular.
    memory: Memory = 0

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


class Retry(FileModel):
    """When a failed attempt is tried again. Lost machines and preemption never use up `max_restarts`."""

    max_restarts: WholeNumber = Field(default=0, ge=0, le=1000)
    #: Exit codes worth another try; empty: every non-zero code.
    on_exit_codes: Annotated[
        tuple[Annotated[WholeNumber, Field(ge=1, le=255)], ...],
        Field(max_length=64),
        BeforeValidator(_exit_codes),
    ] = ()

    other_words: ClassVar[Mapping[str, str]] = {
        "restarts": "max_restarts",
        "max_retries": "max_restarts",
        "exit_codes": "on_exit_codes",
    }
    not_yet: ClassVar[frozenset[str]] = frozenset({"on", "on_events"})


class Target(FileModel):
    """What the job is to reach: a value that its script reports with `loop.report(NAME=...)`, and a number for it."""

    #: The name under which it is reported.
    value: Annotated[ShownName, Field(max_length=64)]
    #: It shall fall to this. Curves of losses fall to 0 at best.
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


class Limits(FileModel):
    """How long the job may run over all its attempts, how long it may wait before its first, and what it may cost."""

    max_runtime: PositiveLength | None = None
    max_queue_time: PositiveLength | None = None
    #: USD; at this sum it checkpoints and is held.
    budget_usd: Annotated[Number, Field(gt=0, le=1e9)] | None = None

    other_words: ClassVar[Mapping[str, str]] = {
        "time": "max_runtime",
        "timeout": "max_runtime",
        "max_duration": "max_runtime",
        "budget": "budget_usd",
        "max_cost": "budget_usd",
    }
    not_yet: ClassVar[frozenset[str]] = frozenset({"max_price_per_hour"})


class Checkpoint(FileModel):
    """Where and how often the job saves its state."""

    #: A folder below the project's checkpoint folder; None: one of the job's own.
    dir: Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(inner_path)] | None = None
    #: Complete checkpoints that are kept.
    keep: WholeNumber = Field(default=3, ge=1, le=1000)
    #: Time between checkpoints; None: when asked to stop, and when the script decides.
    interval: PositiveLength | None = None

    other_words: ClassVar[Mapping[str, str]] = {"path": "dir", "directory": "dir", "every": "interval"}
    not_yet: ClassVar[frozenset[str]] = frozenset({"resume_arg"})


#: Steps per second of the whole gang, by accelerator type.
DeclaredThroughput = dict[AcceleratorName, Annotated[Number, Field(gt=0, le=1e9)]]
