"""Types of the fields that people write: numbers, lengths, sizes, instants, names, accelerators, priorities.

Each validator's error reads `what is wrong; how to mend it`. Names end up in terminals, pages, file names and logs, so
control and formatting characters (escape sequences, text that runs backwards) are refused where a name enters. Inside
Walras an instant is seconds since the cluster's epoch; text such as `2026-11-05T18:00:00Z` or `+12h` becomes seconds
since 1970 only here.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    Field,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)

from walras.job_request import ANY_ACCELERATOR, Demand
from walras.spec.accelerator_names import canonical_accelerator
from walras.spec.text_formats import written_text
from walras.units import parse_length, parse_minimum_count, parse_minimum_size


def shown_name(text: str) -> str:
    """Returns the text; raises ValueError if a terminal or a page would not show it as it is."""
    if text != text.strip():
        raise ValueError("begins or ends with white space; remove it")
    for position, character in enumerate(text):
        if unicodedata.category(character)[0] == "C" or unicodedata.category(character) in ("Zl", "Zp"):
            raise ValueError(
                f"has the character {character!a} at position {position}; "
                "control and formatting characters are not allowed"
            )
    return text


#: A name of a person, project, job, profile: one line of visible characters.
ShownName = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(shown_name)]


#: The canonical name of one accelerator type.
AcceleratorName = Annotated[str, BeforeValidator(canonical_accelerator)]

_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)
_INSTANT_EXAMPLES = "'2026-11-05T18:00:00Z', '2026-11-05T18:00:00+01:00', '+12h'"
# pydantic's own parser: modules that share this file with the pure core must not reach for the clock's library.
_instant: TypeAdapter[AwareDatetime] = TypeAdapter(AwareDatetime)


def parse_instant(text: str, *, now: float) -> float:
    """Returns the seconds since 1970 of an RFC 3339 instant, or of a length after `now` written `+12h`.

    Raises ValueError with examples: no time zone, an impossible date, anything else.
    """
    stripped = text.strip()
    if stripped.startswith("+"):
        return now + parse_length(stripped[1:])
    if len(stripped) <= 40 and _RFC_3339.fullmatch(stripped):
        try:
            return _instant.validate_python(stripped.replace(" ", "T")).timestamp()
        except (ValidationError, OverflowError):
            pass
    raise ValueError(f"{text[:40]!r} is not an instant; write {_INSTANT_EXAMPLES}")


#: Linux passes at most 128 KiB per argument or variable, its closing zero byte included.
MAX_ARGUMENT_BYTES = 131_071
MAX_ACCELERATORS = 4096
MAX_NODES = 1024
#: A smaller `memory` is certainly a number without its unit.
_LEAST_MEMORY_BYTES = 2**20
_PRIORITY_CLASSES = {"low": 20, "normal": 50, "high": 80}


def _bool_or(word: str, value: object) -> object:
    """Returns the value as a bool, or this word; raises ValueError for anything else."""
    if isinstance(value, bool) or value == word:
        return value
    if isinstance(value, str) and value.lower() in ("true", "yes", "on", "false", "no", "off"):
        return value.lower() in ("true", "yes", "on")
    raise ValueError(f"is neither true, false nor {word}; write true")


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("is true or false where a number is expected; write a number")
    return value


def checked_text(text: str) -> str:
    """Returns the text if it can be an argument or a variable of a process; raises ValueError otherwise."""
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
    """Returns numbers in `envs` and `labels` as the text that was written; refuses true and false: ambiguous."""
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
    """Returns a relative path that stays below its folder; raises ValueError for any other."""
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


def _memory(value: object) -> int:
    size = parse_minimum_size(value)
    if 0 < size < _LEAST_MEMORY_BYTES:
        raise ValueError(f"{value!r} is less than 1 MiB; write the unit, such as '{value}GB'")
    return size


def parse_demands(value: object) -> tuple[Demand, ...]:
    """`A100:2`, `{a100: 1, v100: 2}`, `[a100:1, v100:2]` or `any:2`: the acceptable ways to run the whole gang."""
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
    """Returns the accelerator type of a demand as job files and messages write it."""
    return "any" if name == ANY_ACCELERATOR else name


def demands_as_mapping(demands: tuple[Demand, ...]) -> dict[str, int]:
    """Returns the demands as a spec stores and shows them."""
    return {shown_accelerator(demand.accelerator): demand.count for demand in demands}


def _dependency(value: object) -> object:
    """Returns the number or the name of a job that has to end first."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("is neither a job number nor a job name; write such as `depends_on: [12, prepare]`")
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value, re.ASCII):
        value = int(value)
    if isinstance(value, int) and not 1 <= value < 2**63:
        raise ValueError(f"{value} is no job number; job numbers begin at 1")
    if isinstance(value, str) and not 1 <= len(shown_name(value)) <= 200:
        raise ValueError("is no job name; write a name of 1 to 200 characters, or a job number")
    return value


#: The kinds of events of which a job's owner may be told.
_NOTIFICATION_WORDS = ("failed", "finished", "at_risk", "budget", "stuck", "idle")


def _notification_words(value: object) -> object:
    """Returns the kinds of a text such as `failed, finished`, or of a list, each once."""
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or len(words) > 100:
        raise ValueError("is no list of what to be told of; write such as `[failed, finished]`")
    found = [each.strip().lower().replace("-", "_") if isinstance(each, str) else "" for each in words]
    unknown = [str(given)[:40] for given, word in zip(words, found, strict=True) if word not in _NOTIFICATION_WORDS]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is nothing to be told of; choose of {', '.join(_NOTIFICATION_WORDS)}")
    return tuple(dict.fromkeys(found))


_NOTIFICATIONS_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"enum": list(_NOTIFICATION_WORDS)}}]}
_LENGTH_SCHEMA = {"type": ["number", "string"], "description": "seconds, or text such as '10m', '1h30m'"}
_DEMANDS_SCHEMA = {
    "anyOf": [
        {"type": "string", "examples": ["a100:1", "any:2"]},
        {"type": "array", "items": {"type": "string"}},
        {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}},
    ]
}
#: Of a list of texts or numbers: one alone stands for a list of one.
ONE_OR_MANY = BeforeValidator(lambda value: (value,) if isinstance(value, str | int) else value)
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
Preemptible = Annotated[bool | Literal["always"], BeforeValidator(partial(_bool_or, "always"))]
Mixed = Annotated[bool | Literal["shares"], BeforeValidator(partial(_bool_or, "shares"))]
InstantText = Annotated[str, Field(max_length=40), AfterValidator(_instant_text)]
EnvName = Annotated[str, AfterValidator(_env_name)]
EnvValue = Annotated[str, BeforeValidator(_text_of_scalar), AfterValidator(checked_text)]
LabelText = Annotated[str, BeforeValidator(_text_of_scalar), Field(max_length=200), AfterValidator(checked_text)]
Dependencies = Annotated[
    tuple[Annotated[int | str, BeforeValidator(_dependency)], ...], Field(max_length=1000), ONE_OR_MANY
]
JobNotifications = Annotated[
    tuple[str, ...], BeforeValidator(_notification_words), WithJsonSchema(_NOTIFICATIONS_SCHEMA)
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


#: Steps per second of the whole gang, by accelerator type.
DeclaredThroughput = dict[AcceleratorName, Annotated[Number, Field(gt=0, le=1e9)]]

#: Part of a pool's name, of folder names and of node names.
PoolWord = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


def parse_run(value: object) -> object:
    """Returns text, or the arguments as a tuple; raises ValueError for anything else."""
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("is empty; write the command, such as `run: python train.py`")
        return checked_text(value)
    if not isinstance(value, list | tuple):
        raise ValueError("is neither text nor a list of arguments; write `run: python train.py`")
    if not 1 <= len(value) <= 1000:
        raise ValueError(f"has {len(value)} arguments; give 1 to 1000")
    for position, argument in enumerate(value):
        if isinstance(argument, bool) or not isinstance(argument, str | int | float):
            raise ValueError(f"argument {position} is no text; quote it")
    arguments = tuple(checked_text(str(argument)) for argument in value)
    if not arguments[0]:
        raise ValueError("names no program; the first argument is the program to run")
    return arguments


def parse_nproc(value: object) -> object:
    """Returns "auto" or a count of ranks; raises ValueError for anything else."""
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1024):
        return value
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,4}", value, re.ASCII) and 1 <= int(value) <= 1024:
        return int(value)
    raise ValueError("is neither 'auto' nor a count from 1 to 1024; write auto")
