"""What a field of a job file means, as its declaration in the spec says: `walras submit --explain FIELD`.

The comment above a field (`#:`) ends with an example, unless the field is set by a command or the server.
"""

import difflib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel

from walras.errors import UserError
from walras.spec.file_model import FileModel, model_in
from walras.spec.job_spec import JobSpec
from walras.units import format_length

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
