"""From a failed check of a person's file to one complaint that names the field and the fix.

Decides the wording only. What is allowed stands in the models themselves.
"""

import difflib
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from walras.errors import ConfigError

ModelT = TypeVar("ModelT", bound="FileModel")
_MOST_COMPLAINTS = 5
_LONGEST_QUOTE = 60


class FileModel(BaseModel):
    """Base of everything a person writes: frozen, and an unknown field is a mistake, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    #: What people write from habit (other schedulers' words) -> what it is called here.
    other_words: typing.ClassVar[Mapping[str, str]] = {}
    #: Fields of the design that this version does not carry out: said so, never silently accepted.
    not_yet: typing.ClassVar[frozenset[str]] = frozenset()


class FieldMistake(ValueError):
    """What a check over several fields raises: `field` is the one to change."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def check(model: type[ModelT], data: object, *, source: str, error: type[ConfigError] = ConfigError) -> ModelT:
    """The model made of `data`. Raises `error` whose `field` is a path such as `pools[2].memory`."""
    if not isinstance(data, Mapping):
        raise error(
            f"{source}: {_kind_of_data(data)} where fields are expected",
            fix="write `field: value` lines, such as `run: python train.py`",
        )
    try:
        return model.model_validate(data)
    except ValidationError as failure:
        raise _complaint(model, failure, source, error) from None
    except RecursionError:
        raise error(f"{source}: nested too deeply", fix="write it flatter") from None


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant."""
    found = difflib.get_close_matches(word.lower(), sorted(known), n=1, cutoff=0.6)
    return found[0] if found else None


def _complaint(model: type[FileModel], failure: ValidationError, source: str, error: type[ConfigError]) -> ConfigError:
    details = _telling(model, failure)
    lines = [_line(model, detail) for detail in details[:_MOST_COMPLAINTS]]
    field, text, fix = lines[0]
    message = f"{source}: {field}: {text}" if field else f"{source}: {text}"
    for other_field, other_text, other_fix in lines[1:]:
        message += f"\n  also {other_field}: {other_text}" + (f" ({other_fix})" if other_fix else "")
    if len(details) > _MOST_COMPLAINTS:
        message += f"\n  and {len(details) - _MOST_COMPLAINTS} more"
    return error(message, field=field, fix=fix)


def _telling(model: type[FileModel], failure: ValidationError) -> list[ErrorDetails]:
    """One complaint per place, unknown fields first, and none that only follows from another one.

    A misspelt field also makes the right one missing; a list whose items are wrong also counts as too short.
    """
    by_place: dict[str, ErrorDetails] = {}
    for detail in failure.errors(include_url=False):
        by_place.setdefault(path_of(detail["loc"]), detail)
    unknown = [detail["loc"] for detail in by_place.values() if detail["type"] == "extra_forbidden"]
    meant = {_meant(model, location) for location in unknown}
    follows = {
        place
        for place, detail in by_place.items()
        if (detail["type"] == "missing" and place in meant)
        or (detail["type"] == "too_short" and any(other.startswith(f"{place}[") for other in by_place))
    }
    told = [detail for place, detail in by_place.items() if place not in follows]
    return sorted(told, key=lambda detail: detail["type"] != "extra_forbidden")


def path_of(location: Sequence[str | int]) -> str:
    """`("pools", 2, "memory")` as `pools[2].memory`; names of union branches and of keys are left out."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part == "[key]":  # the key itself is at fault; its name came just before
            continue
        else:
            name = part if len(part) <= _LONGEST_QUOTE else part[:_LONGEST_QUOTE] + "…"
            name = name if name.isprintable() else ascii(name)
            path += f".{name}" if path else name
    return path


def _line(model: type[FileModel], detail: ErrorDetails) -> tuple[str, str, str]:
    """(field path, what is wrong, how to mend it)."""
    location, kind = detail["loc"], detail["type"]
    field, context = path_of(location), detail.get("ctx", {})
    if kind == "extra_forbidden":
        return field, "unknown field", _fix_for_unknown(model, location)
    if kind == "missing":
        return field, "is missing", f"add `{field}:`"
    if kind == "value_error":
        cause = context["error"]
        return _split_fix(".".join(filter(None, (field, getattr(cause, "field", "")))), str(cause))
    text = detail["msg"][0].lower() + detail["msg"][1:]
    given = detail["input"]
    if isinstance(given, str | int | float | bool) or given is None:
        text += f", not {_shortened(given)}"
    if kind == "model_type" and (owner := _model_at(model, location)):
        return field, text, f"write its fields below it: {', '.join(owner.model_fields)}"
    return field, text, _fix_for_kind(kind, context)


def _split_fix(field: str, text: str) -> tuple[str, str, str]:
    """Our own validators write `what is wrong; how to mend it`."""
    wrong, _, fix = text.partition("; ")
    return field, wrong, fix


def _fix_for_kind(kind: str, context: Mapping[str, Any]) -> str:
    match kind:
        case "greater_than":
            return f"give a number above {context['gt']:g}"
        case "greater_than_equal":
            return f"give {context['ge']:g} or more"
        case "less_than_equal":
            return f"give {context['le']:g} or less"
        case "literal_error":
            return f"choose {context['expected']}"
        case "finite_number":
            return "give a finite number"
        case "string_type":
            return "write text; quote it if it looks like a number"
        case "string_too_long" | "too_long":
            return f"at most {context['max_length']}"
        case "string_too_short" | "too_short":
            return "it must not be empty"
        case "bool_parsing" | "bool_type":
            return "write true or false"
        case _:
            return "see the documentation of this field"


def _fix_for_unknown(model: type[FileModel], location: Sequence[str | int]) -> str:
    owner = _model_at(model, location[:-1])
    if owner is None:
        return "remove it"
    if location[-1] in owner.not_yet:
        return "this version does not carry it out; remove it"
    meant = _meant(model, location)
    if meant is None:
        return f"remove it; known fields: {', '.join(owner.model_fields)}"
    return f"here it is called `{meant}`" if location[-1] in owner.other_words else f"did you mean `{meant}`?"


def _meant(model: type[FileModel], location: Sequence[str | int]) -> str | None:
    """The path of the field that was probably meant by an unknown one."""
    owner, word = _model_at(model, location[:-1]), str(location[-1])
    if owner is None or word in owner.not_yet:
        return None
    name = owner.other_words.get(word) or nearest(word, owner.model_fields)
    return path_of((*location[:-1], name)) if name else None


def _model_at(model: type[FileModel], location: Sequence[str | int]) -> type[FileModel] | None:
    """The model that the fields below `location` belong to."""
    here: type[FileModel] | None = model
    for part in location:
        if here is None:
            return None
        if isinstance(part, str) and part in here.model_fields:
            here = _model_in(here.model_fields[part].annotation)
    return here


def _model_in(annotation: Any) -> type[FileModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, FileModel):
        return annotation
    return next((found for part in typing.get_args(annotation) if (found := _model_in(part))), None)


def _shortened(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "…"


def _kind_of_data(data: object) -> str:
    if data is None:
        return "nothing (an empty file)"
    return "a list" if isinstance(data, list | tuple) else f"the single value {_shortened(data)}"
