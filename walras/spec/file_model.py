"""Files that people write: the base of their models, how a file is loaded, and errors that name field and fix.

What a file may say stands in its own model; this module turns a failed check into one readable error.
"""

import difflib
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from walras.errors import ConfigError, system_refusals
from walras.spec.text_formats import parse_yaml

ModelT = TypeVar("ModelT", bound=BaseModel)
_MAX_ERRORS = 5
_LONGEST_QUOTE = 60
#: How like a word must be to one of another group, and the most groups that are told.
_VERY_NEAR, _MOST_MEANT = 0.8, 3


class FileModel(BaseModel):
    """Base of everything a person writes: frozen, and an unknown field is a mistake, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    #: Fields of other schedulers -> their names here; used in the fix of an error.
    other_words: typing.ClassVar[Mapping[str, str]] = {}
    #: Planned fields that this version does not support; the error says so.
    not_yet: typing.ClassVar[frozenset[str]] = frozenset()


class FieldMistake(ValueError):
    """Raised by a check over several fields; `field` is the one to change."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def check_model(model: type[ModelT], data: object, *, source: str, error: type[ConfigError] = ConfigError) -> ModelT:
    """Returns the model made of `data`. Raises `error`, whose `field` is a path such as `pools[2].memory`."""
    if not isinstance(data, Mapping):
        raise error(
            f"{source}: {_kind_of_data(data)} where fields are expected",
            fix="write `field: value` lines, such as `run: python train.py`",
        )
    try:
        return model.model_validate(data)
    except ValidationError as failure:
        raise _error_of(model, failure, source, error) from None
    except RecursionError:
        raise error(f"{source}: nested too deeply", fix="write it flatter") from None


def nearest_word(word: str, known: Iterable[str]) -> str | None:
    """Returns the known word closest to `word`; None if none is close."""
    found = difflib.get_close_matches(word.lower(), sorted(known), n=1, cutoff=0.6)
    return found[0] if found else None


def nearest_or_all(word: str, known: Iterable[str], before: str = "known: ", most: int | None = None) -> str:
    """Returns how to mend a word that is none of the known ones: the nearest, or the first `most` of them all."""
    words = list(known)
    meant = nearest_word(word, words)
    return f"did you mean {meant!r}?" if meant else before + (", ".join(words[:most]) or "none")


def _error_of(model: type[BaseModel], failure: ValidationError, source: str, error: type[ConfigError]) -> ConfigError:
    details = _root_causes(model, failure)
    lines = [_field_text_fix(model, detail) for detail in details[:_MAX_ERRORS]]
    field, text, fix = lines[0]
    message = f"{source}: {field}: {text}" if field else f"{source}: {text}"
    for other_field, other_text, other_fix in lines[1:]:
        message += f"\n  also {other_field}: {other_text}" + (f" ({other_fix})" if other_fix else "")
    if len(details) > _MAX_ERRORS:
        message += f"\n  and {len(details) - _MAX_ERRORS} more"
    return error(message, field=field, fix=fix)


def _root_causes(model: type[BaseModel], failure: ValidationError) -> list[ErrorDetails]:
    """Returns one failure per field, unknown fields first, without failures that only follow from another.

    A misspelt field also makes the right one missing; a list whose items are wrong also counts as too short.
    """
    by_place: dict[str, ErrorDetails] = {}
    for detail in failure.errors(include_url=False):
        by_place.setdefault(field_path(detail["loc"]), detail)
    unknown = [detail["loc"] for detail in by_place.values() if detail["type"] == "extra_forbidden"]
    meant = {path for location in unknown[:_MAX_ERRORS] for path in _intended_fields(model, location)}
    follows = {
        place
        for place, detail in by_place.items()
        if (detail["type"] == "missing" and place in meant)
        or (detail["type"] == "too_short" and any(other.startswith(f"{place}[") for other in by_place))
    }
    causes = [detail for place, detail in by_place.items() if place not in follows]
    return sorted(causes, key=lambda detail: detail["type"] != "extra_forbidden")


def field_path(location: Sequence[str | int]) -> str:
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


def _field_text_fix(model: type[BaseModel], detail: ErrorDetails) -> tuple[str, str, str]:
    """Returns (field path, what is wrong, how to mend it)."""
    location, kind = detail["loc"], detail["type"]
    field, context = field_path(location), detail.get("ctx", {})
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
    return field, text, _FIXES.get(kind, "see the documentation of this field").format(**context)


def _split_fix(field: str, text: str) -> tuple[str, str, str]:
    """Our own validators write `what is wrong; how to mend it`."""
    wrong, _, fix = text.partition("; ")
    return field, wrong, fix


#: How to mend a value, by the kind of pydantic's error; its context fills the places.
_FIXES = {
    "greater_than": "give a number above {gt:g}",
    "greater_than_equal": "give {ge:g} or more",
    "less_than_equal": "give {le:g} or less",
    "literal_error": "choose {expected}",
    "finite_number": "give a finite number",
    "string_type": "write text; quote it if it looks like a number",
    "dict_type": "write lines `NAME: value` below it",
    **dict.fromkeys(("string_too_long", "too_long"), "at most {max_length}"),
    **dict.fromkeys(("string_too_short", "too_short"), "it must not be empty"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "write true or false"),
}


def _fix_for_unknown(model: type[BaseModel], location: Sequence[str | int]) -> str:
    owner = _model_at(model, location[:-1])
    if owner is None:
        return "remove it"
    if location[-1] in _words_of(owner).not_yet:
        return "this version does not carry it out; remove it"
    meant = _intended_fields(model, location)
    if not meant:
        return f"remove it; known fields: {', '.join(owner.model_fields)}"
    told = " or ".join(f"`{each}`" for each in meant)
    return f"here it is called {told}" if location[-1] in _words_of(owner).other_words else f"did you mean {told}?"


def _words_of(model: type[BaseModel]) -> type[FileModel]:
    """Returns the model whose `other_words` and `not_yet` count for this one."""
    return model if issubclass(model, FileModel) else FileModel


def _intended_fields(model: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """Returns the paths of fields that an unknown one probably means: of this group, or else of others in the file."""
    before, word = location[:-1], str(location[-1])
    owner = _model_at(model, before)
    if owner is None or word in _words_of(owner).not_yet:
        return []
    own = {name: [name] for name in owner.model_fields}
    own |= {name: [ours] for name, ours in _words_of(owner).other_words.items()}
    if word in own:
        return [field_path((*before, *own[word]))]
    elsewhere = _paths_by_name(model)
    if word in elsewhere:
        return elsewhere[word][:_MOST_MEANT]
    here, there = nearest_word(word, owner.model_fields), _very_near(word, own | elsewhere)
    if there is None or here == there or (here is not None and _likeness(word, here) >= _likeness(word, there)):
        return [field_path((*before, here))] if here else []
    return [field_path((*before, *own[there]))] if there in own else elsewhere[there][:_MOST_MEANT]


def _very_near(word: str, known: Iterable[str]) -> str | None:
    found = difflib.get_close_matches(word.lower(), sorted(known), n=1, cutoff=_VERY_NEAR)
    return found[0] if found else None


def _likeness(word: str, known: str) -> float:
    return difflib.SequenceMatcher(None, known, word.lower()).ratio()


def _paths_by_name(model: type[BaseModel]) -> dict[str, list[str]]:
    """Returns the paths of all fields of a file by their last name, those of the fewest groups first."""
    found: dict[str, list[str]] = {}
    level, seen = [("", model)], {model}
    while level:
        below = list[tuple[str, type[BaseModel]]]()
        for before, owner in level:
            for name, field in owner.model_fields.items():
                found.setdefault(name, []).append(before + name)
                inner = model_in(field.annotation)
                if inner is not None and inner not in seen:
                    seen.add(inner)
                    below.append((f"{before}{name}.", inner))
        level = below
    return found


def _model_at(model: type[BaseModel], location: Sequence[str | int]) -> type[BaseModel] | None:
    """Returns the model whose fields lie at `location`; None if there is no model."""
    here: type[BaseModel] | None = model
    for part in location:
        if here is None:
            return None
        if isinstance(part, str) and part in here.model_fields:
            here = model_in(here.model_fields[part].annotation)
    return here


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Returns the model of the fields below a field of this type; None if there are none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in typing.get_args(annotation) if (found := model_in(part))), None)


def _shortened(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "…"


def _kind_of_data(data: object) -> str:
    if data is None:
        return "nothing (an empty file)"
    return "a list" if isinstance(data, list | tuple) else f"the single value {_shortened(data)}"


#: The most bytes of a file: large enough for a workload of tens of thousands of jobs.
MAX_FILE_BYTES = 64 * 1024 * 1024


def load_mapping(path: str | Path) -> dict[str, Any]:
    """Returns the unchecked fields of a YAML file (a policy file). Raises ConfigError: the file, line and fix."""
    data = parse_yaml(file_bytes(Path(path)), source=str(path), max_bytes=MAX_FILE_BYTES)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: fields are expected", fix="write `field: value` lines")
    return data


def load_yaml(path: str | Path, model: type[ModelT]) -> ModelT:
    """Returns the checked model in a YAML file. Raises ConfigError: the file, the field's path and the fix."""
    data = parse_yaml(file_bytes(Path(path)), source=str(path), max_bytes=MAX_FILE_BYTES)
    return check_model(model, data, source=str(path))


def file_bytes(path: Path) -> bytes:
    """Returns a file's content, or enough of it to see that it is too large. Raises ConfigError that names the path."""
    with system_refusals(path, fix="check the path and its permissions"), path.open("rb") as file:
        # A device or a huge file is not read to its end.
        return file.read(MAX_FILE_BYTES + 1)
