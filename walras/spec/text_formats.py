"""Untrusted text becomes plain data: YAML, JSON, `--set a.b=c` overrides.

Every reader is bounded and names the line in its error. YAML follows version 1.2 for plain scalars, so that `no`, `on`,
`12:30` and dates stay the text they look like. Aliases are refused: job files gain little from them, and they let a
short file stand for an enormous one. Overrides change the mapping before it is checked, so that one set of rules and
messages holds for files, options and directives.
"""

import json
import re
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import yaml

from walras.errors import ConfigError, JobSpecError

MAX_DEPTH = 32

# The C parser where PyYAML has it: ten times faster on large files, the same events.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_YAML_SCALARS = (
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
)
_CORE_RESOLVERS: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
for _tag, _pattern, _first in _YAML_SCALARS:
    for _character in _first:
        _CORE_RESOLVERS.setdefault(_character, []).append((_tag, re.compile(rf"(?:{_pattern})\Z", re.ASCII)))


class _PlainLoader(_Loader):  # type: ignore[misc, valid-type]
    """SafeLoader with YAML 1.2 scalars that refuses a key given twice."""

    yaml_implicit_resolvers = _CORE_RESOLVERS

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge" or not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "only plain keys are accepted", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is given twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep=True)  # type: ignore[no-any-return]


class _WrittenInt(int):
    """A whole number written unusually (`007`, `0x1f`); fields of text take it as it was written."""

    written: str


class _WrittenFloat(float):
    """The same as `_WrittenInt`, for `1e3`, `0.10`."""

    written: str


def written_text(number: int | float) -> str:
    """Returns the number as the file has it."""
    return number.written if isinstance(number, _WrittenInt | _WrittenFloat) else str(number)


def _written_int(loader: _PlainLoader, node: yaml.ScalarNode) -> int:
    text = node.value
    if len(text) > 30:
        raise yaml.constructor.ConstructorError(None, None, "the number is too long", node.start_mark)
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    number = _WrittenInt(text[2:] if base != 10 else text, base)
    number.written = text
    return int(number) if str(int(number)) == text else number


def _written_float(loader: _PlainLoader, node: yaml.ScalarNode) -> float:
    text = node.value
    number = _WrittenFloat(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    number.written = text
    return float(number) if str(float(number)) == text else number


_PlainLoader.add_constructor("tag:yaml.org,2002:int", _written_int)
_PlainLoader.add_constructor("tag:yaml.org,2002:float", _written_float)


class _PlainDumper(yaml.SafeDumper):
    """Quotes exactly what `_PlainLoader` would not read back as text."""

    yaml_implicit_resolvers = _CORE_RESOLVERS

    def ignore_aliases(self, data: object) -> bool:
        return True


#: Line breaks that YAML 1.1 parsers fold or drop outside double quotes.
_ODD_BREAKS = re.compile("[\r\x85\u2028\u2029]")


def _text_node(dumper: _PlainDumper, text: str) -> yaml.ScalarNode:
    """Returns a node that writes several lines as a block; the emitter falls back to quotes where a block would not
    read back exactly.
    """
    style = '"' if _ODD_BREAKS.search(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_PlainDumper.add_representer(str, _text_node)


def parse_yaml(content: str | bytes, *, source: str, max_bytes: int) -> Any:
    """Returns the data in a YAML (or JSON) text: dict, list, str, int, float, bool, None.

    `source` names the file in complaints. Raises ConfigError: too long, not UTF-8, malformed (with the line), aliases,
    tags, duplicate keys, nesting deeper than `MAX_DEPTH`.
    """
    text = _decoded(content, source, max_bytes)
    try:
        _check_yaml_events(text, source)
        return yaml.load(text, Loader=_PlainLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(
            f"{source}:{where} {problem}",
            field=f"line {mark.line + 1}" if mark else "",
            fix="correct the YAML there, or in the line before",
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: {str(error).splitlines()[0]}", fix="remove that character") from None


def _decoded(content: str | bytes, source: str, max_bytes: int) -> str:
    size = len(content) if isinstance(content, bytes) else len(content.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        raise ConfigError(
            f"{source}: {size:,} bytes; at most {max_bytes:,} are accepted",
            fix="keep data and code in files of their own and name them in `run`",
        )
    if isinstance(content, str):
        return content
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{source}: line {line}: not UTF-8 (byte 0x{content[error.start]:02x} at offset {error.start})",
            field=f"line {line}",
            fix="save the file as UTF-8",
        ) from None


def _check_yaml_events(text: str, source: str) -> None:
    """Refuses aliases, tags, deep nesting and several documents before any data is built."""
    depth, documents = 0, 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        documents += isinstance(event, yaml.DocumentStartEvent)
        refusal = _yaml_refusal(event, depth, documents)
        if refusal is not None:
            line = event.start_mark.line + 1 if event.start_mark else 1
            raise ConfigError(f"{source}: line {line}: {refusal[0]}", field=f"line {line}", fix=refusal[1])


def _yaml_refusal(event: yaml.Event, depth: int, documents: int) -> tuple[str, str] | None:
    if isinstance(event, yaml.AliasEvent):
        return f"aliases (*{event.anchor}) are not accepted", "write the value out"
    if documents > 1:
        return "a second document begins", "one document per file"
    if depth > MAX_DEPTH:
        return f"nested deeper than {MAX_DEPTH}", "write it flatter"
    if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag not in (None, "!"):
        return f"the tag {event.tag!r} is not accepted", "remove the tag"
    return None


def check_extent(
    given: Mapping[str, Any], most_characters: int, most_values: int, *, source: str, error: type[ConfigError]
) -> None:
    """Raises `error` for parsed data (a JSON body) larger than a file may be. Iterates, because nesting may be deep."""
    pending: list[tuple[Any, int]] = [(given, 1)]
    values, size = 0, 0
    while pending:
        value, depth = pending.pop()
        values += 1
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, Mapping):
            pending += [(item, depth + 1) for pair in value.items() for item in pair]
        elif isinstance(value, list | tuple):
            pending += [(item, depth + 1) for item in value]
        if size > most_characters or values + len(pending) > most_values or depth > 32:
            raise error(
                f"{source}: larger than {most_characters:,} characters, {most_values:,} values or 32 levels",
                fix="keep data and code in files of their own and name them in `run`",
            )


def dump_yaml(data: Any) -> str:
    """Returns plain data as YAML that `parse_yaml` reads back to the same data, keys in their order."""
    return yaml.dump(data, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=100)


_LONGEST_NUMBER = 40


class _JsonRefused(ValueError):
    """Raised by a hook of the parser, which does not know the line."""


def parse_strict_json(content: bytes, *, source: str, max_bytes: int) -> Any:
    """Returns the data in a JSON text.

    `source` names the file in complaints. Raises ConfigError: too long, not UTF-8, malformed (with the line), a key
    given twice, NaN or infinity, a number of absurd length, nested too deeply.
    """
    if len(content) > max_bytes:
        raise ConfigError(f"{source}: more than {max_bytes:,} bytes", fix="split it, or leave out what is not needed")
    try:
        return json.loads(
            content.decode("utf-8-sig"),
            object_pairs_hook=object_of_unique_keys,
            parse_constant=_refuse_constant,
            parse_int=bounded_int,
        )
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{source}: line {line}: not UTF-8", field=f"line {line}", fix="save it as UTF-8") from None
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{source}: line {error.lineno}, column {error.colno}: {error.msg[0].lower()}{error.msg[1:]}",
            field=f"line {error.lineno}",
            fix="correct the JSON there, or just before",
        ) from None
    except _JsonRefused as error:
        problem, _, fix = str(error).partition("; ")
        raise ConfigError(f"{source}: {problem}", fix=fix) from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply", fix="write it flatter") from None


def object_of_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`: returns an object. Raises ValueError for a key given twice."""
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _JsonRefused(f"the key {twice[:60]!a} is given twice; keep one of them")
    return made


def _refuse_constant(text: str) -> float:
    raise _JsonRefused(f"{text} is no number; write null where a value is unknown")


def bounded_int(text: str) -> int:
    """For `json.loads`: returns a whole number. Raises ValueError for one of absurd length."""
    if len(text) > _LONGEST_NUMBER:
        raise _JsonRefused(f"a number of {len(text)} digits; write a number that means something")
    return int(text)


_FIELD_PATH = re.compile(r"[A-Za-z_][\w-]*(?:\.[A-Za-z_0-9][\w -]*)*", re.ASCII)
_MAX_VALUE_BYTES = 128 * 1024


def apply_overrides(mapping: Mapping[str, Any], settings: Iterable[str], *, source: str) -> dict[str, Any]:
    """Returns a copy of the mapping with each `field.path=value` applied in turn; values are read as YAML.

    An empty value (`envs.SEED=`) is the empty text. Raises JobSpecError for text of another form, or for a path that
    leads through something that has no fields.
    """
    changed = dict(mapping)
    for setting in settings:
        path, equals, text = setting.partition("=")
        path = path.strip()
        if not equals or not _FIELD_PATH.fullmatch(path):
            raise JobSpecError(f"{source}: {setting[:80]!r} is not FIELD=VALUE", fix="write such as priority=80")
        _set_field(changed, path.split("."), _override_value(text, f"{source}: {path}"), source)
    return changed


def _override_value(text: str, source: str) -> Any:
    if not text.strip():
        return text
    try:
        return parse_yaml(text, source=source, max_bytes=_MAX_VALUE_BYTES)
    except ConfigError as error:
        # `run=echo "a": b` is no YAML, yet plain text on a command line.
        if text.lstrip()[0] in "[{":
            raise JobSpecError(str(error), fix="close what is opened, or quote the text") from None
        return text


def _set_field(mapping: dict[str, Any], path: list[str], value: Any, source: str) -> None:
    here = mapping
    for position, part in enumerate(path[:-1]):
        inner = here.get(part)
        if inner is None:
            inner = {}
        elif not isinstance(inner, Mapping):
            field = ".".join(path[: position + 1])
            raise JobSpecError(f"{source}: {field} has no fields", field=field, fix=f"set {field} itself")
        here[part] = dict(inner)
        here = here[part]
    here[path[-1]] = value
