"""Fields given outside the job file: `--set a.b=c` on the command line, `#WALRAS a.b=c` in a shell script.

Both make the same change to the mapping before it is checked, so that one set of rules and messages holds.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from walras.errors import ConfigError, JobSpecError
from walras.yaml_text import parse_yaml

_DIRECTIVE = re.compile(r"#\s?WALRAS\s+(?P<setting>.*?)\s*")
_FIELD = re.compile(r"[A-Za-z_][\w-]*(?:\.[A-Za-z_0-9][\w -]*)*", re.ASCII)
_MAX_VALUE_BYTES = 128 * 1024


def with_settings(mapping: Mapping[str, Any], settings: Iterable[str], *, source: str) -> dict[str, Any]:
    """A copy of the mapping with each `field.path=value` applied in turn; the value is read as YAML.

    An empty value (`envs.SEED=`) is the empty text. Raises JobSpecError for text of another form, or for a path that
    leads through something that has no fields.
    """
    changed = dict(mapping)
    for setting in settings:
        path, equals, text = setting.partition("=")
        path = path.strip()
        if not equals or not _FIELD.fullmatch(path):
            raise JobSpecError(f"{source}: {setting[:80]!r} is not FIELD=VALUE", fix="write such as priority=80")
        _put(changed, path.split("."), _value_of(text, f"{source}: {path}"), source)
    return changed


def _value_of(text: str, source: str) -> Any:
    if not text.strip():
        return text
    try:
        return parse_yaml(text, source=source, max_bytes=_MAX_VALUE_BYTES)
    except ConfigError as error:
        # `run=echo "a": b` is no YAML, yet plain text on a command line.
        if text.lstrip()[0] in "[{":
            raise JobSpecError(str(error), fix="close what is opened, or quote the text") from None
        return text


def _put(mapping: dict[str, Any], path: list[str], value: Any, source: str) -> None:
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


def script_mapping(text: str, *, name: str) -> dict[str, Any]:
    """The job that a shell script describes: its text runs under bash, its `#WALRAS field=value` lines set fields.

    Directives count up to the first command, as with other schedulers. The text travels with the job: a script that is
    edited later does not change a job that waits. Raises JobSpecError for another interpreter.
    """
    lines = text.splitlines()
    first = lines[0] if lines else ""
    if first.startswith("#!") and not re.search(r"\b(?:bash|sh|dash)\b", first):
        raise JobSpecError(
            f"{name}: {first[:60]!r} is not a shell script", fix="write a job file with `run:` that starts it"
        )
    settings = []
    for line in lines:
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if found := _DIRECTIVE.fullmatch(line.strip()):
            settings.append(found["setting"])
    base: dict[str, Any] = {"run": ["bash", "-c", text, name]}
    return with_settings(base, settings, source=f"{name}: #WALRAS")
