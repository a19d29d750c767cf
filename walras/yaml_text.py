"""YAML as people write it, read safely: plain data only, bounded, and with the line in every complaint.

YAML 1.2 rules for plain scalars, so that `no`, `on`, `12:30` and dates stay the text they look like. Aliases are
refused: job files gain little from them, and they let a short file stand for an enormous one.
"""

import re
from collections.abc import Hashable
from typing import Any

import yaml

from walras.errors import ConfigError

MAX_DEPTH = 32

# The C parser where PyYAML has it: ten times faster on large files, the same events.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_SCALARS = (
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
for _tag, _pattern, _first in _SCALARS:
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
    """A whole number written unusually (`007`, `0x1f`): where text is wanted, the writing counts."""

    written: str


class _WrittenFloat(float):
    """As `_WrittenInt`, for `1e3`, `0.10`."""

    written: str


def written_text(number: int | float) -> str:
    """The number as the file's author wrote it."""
    return number.written if isinstance(number, _WrittenInt | _WrittenFloat) else str(number)


def _int(loader: _PlainLoader, node: yaml.ScalarNode) -> int:
    text = node.value
    if len(text) > 30:
        raise yaml.constructor.ConstructorError(None, None, "the number is too long", node.start_mark)
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    number = _WrittenInt(text[2:] if base != 10 else text, base)
    number.written = text
    return int(number) if str(int(number)) == text else number


def _float(loader: _PlainLoader, node: yaml.ScalarNode) -> float:
    text = node.value
    number = _WrittenFloat(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    number.written = text
    return float(number) if str(float(number)) == text else number


_PlainLoader.add_constructor("tag:yaml.org,2002:int", _int)
_PlainLoader.add_constructor("tag:yaml.org,2002:float", _float)


class _PlainDumper(yaml.SafeDumper):
    """Quotes exactly what `_PlainLoader` would not read back as text."""

    yaml_implicit_resolvers = _CORE_RESOLVERS

    def ignore_aliases(self, data: object) -> bool:
        return True


#: Line breaks that YAML 1.1 parsers fold or drop outside double quotes.
_ODD_BREAKS = re.compile("[\r\x85\u2028\u2029]")


def _text_node(dumper: _PlainDumper, text: str) -> yaml.ScalarNode:
    """Several lines as a block; the emitter falls back to quotes where a block would not read back exactly."""
    style = '"' if _ODD_BREAKS.search(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_PlainDumper.add_representer(str, _text_node)


def parse_yaml(content: str | bytes, *, source: str, max_bytes: int) -> Any:
    """The data in a YAML (or JSON) text: dict, list, str, int, float, bool, None.

    `source` names the file in complaints. Raises ConfigError: too long, not UTF-8, malformed (with the line), aliases,
    tags, duplicate keys, nesting deeper than `MAX_DEPTH`.
    """
    text = _decoded(content, source, max_bytes)
    try:
        _check_events(text, source)
        return yaml.load(text, Loader=_PlainLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        told = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(
            f"{source}:{where} {told}",
            field=f"line {mark.line + 1}" if mark else "",
            fix="mend the YAML there, or in the line before",
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


def _check_events(text: str, source: str) -> None:
    """Refuse what could grow or recurse before anything is built from it."""
    depth, documents = 0, 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        documents += isinstance(event, yaml.DocumentStartEvent)
        refusal = _refusal(event, depth, documents)
        if refusal is not None:
            line = event.start_mark.line + 1 if event.start_mark else 1
            raise ConfigError(f"{source}: line {line}: {refusal[0]}", field=f"line {line}", fix=refusal[1])


def _refusal(event: yaml.Event, depth: int, documents: int) -> tuple[str, str] | None:
    if isinstance(event, yaml.AliasEvent):
        return f"aliases (*{event.anchor}) are not accepted", "write the value out"
    if documents > 1:
        return "a second document begins", "one document per file"
    if depth > MAX_DEPTH:
        return f"nested deeper than {MAX_DEPTH}", "write it flatter"
    if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag not in (None, "!"):
        return f"the tag {event.tag!r} is not accepted", "remove the tag"
    return None


def dump_yaml(data: Any) -> str:
    """Plain data as YAML that `parse_yaml` reads back to the same data, keys in their order."""
    return yaml.dump(data, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=100)
