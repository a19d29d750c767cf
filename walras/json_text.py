"""JSON from outside, read strictly: bounded, no key twice, no NaN, and the line in every complaint."""

import json
from typing import Any

from walras.errors import ConfigError

_LONGEST_NUMBER = 40


class _Refused(ValueError):
    """What a hook of the parser found; it does not know the line."""


def parse_json(content: bytes, *, source: str, max_bytes: int) -> Any:
    """The data in a JSON text.

    `source` names the file in complaints. Raises ConfigError: too long, not UTF-8, malformed (with the line), a key
    given twice, NaN or infinity, a number of absurd length, nested too deeply.
    """
    if len(content) > max_bytes:
        raise ConfigError(f"{source}: more than {max_bytes:,} bytes", fix="split it, or leave out what is not needed")
    try:
        return json.loads(
            content.decode("utf-8-sig"), object_pairs_hook=_object, parse_constant=_constant, parse_int=_whole
        )
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{source}: line {line}: not UTF-8", field=f"line {line}", fix="save it as UTF-8") from None
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{source}: line {error.lineno}, column {error.colno}: {error.msg[0].lower()}{error.msg[1:]}",
            field=f"line {error.lineno}",
            fix="mend the JSON there, or just before",
        ) from None
    except _Refused as error:
        told, _, fix = str(error).partition("; ")
        raise ConfigError(f"{source}: {told}", fix=fix) from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply", fix="write it flatter") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _Refused(f"the key {twice[:60]!a} is given twice; keep one of them")
    return made


def _constant(text: str) -> float:
    raise _Refused(f"{text} is no number; write null where a value is unknown")


def _whole(text: str) -> int:
    if len(text) > _LONGEST_NUMBER:
        raise _Refused(f"a number of {len(text)} digits; write a number that means something")
    return int(text)
