"""JSON as the commands print it: indented, in ASCII, and written while it is made, so that no list need fit in memory.

The text is that of `json.dumps(data, indent=2)`, with two differences: an iterator is written as an array, item by
item, and a number that is not finite becomes null, because JSON has none. It takes a third of the time: the standard
library indents in Python, one piece of text per value.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from math import isfinite
from typing import Any, TextIO

_INDENT = "  "


def stream_json(data: Any, file: TextIO) -> None:
    """Write the data and a line break. Iterators in it, also below the keys of a mapping, are exhausted."""
    file.writelines(json_pieces(data))
    file.write("\n")


def json_pieces(data: Any, depth: int = 0) -> Iterator[str]:
    """The JSON text in pieces: one for each item of an iterator, one for everything else.

    `depth`: levels of indentation around the data. Raises TypeError for a type that JSON does not know.
    """
    inner, outer = "\n" + _INDENT * (depth + 1), "\n" + _INDENT * depth
    if isinstance(data, Iterator):
        before = "["
        for item in data:
            yield f"{before}{inner}{_text(item, depth + 1)}"
            before = ","
        yield "[]" if before == "[" else f"{outer}]"
    elif isinstance(data, Mapping) and any(isinstance(value, Iterator) for value in data.values()):
        before = "{"
        for key, value in data.items():
            yield f"{before}{inner}{_key(key)}"
            yield from json_pieces(value, depth + 1)
            before = ","
        yield f"{outer}}}"
    else:
        yield _text(data, depth)


def _text(value: Any, depth: int) -> str:
    write = _WRITERS[type(value)]
    if write is not None:
        return write(value)
    inner, outer = "\n" + _INDENT * (depth + 1), "\n" + _INDENT * depth
    if isinstance(value, Mapping):
        # A call less for each scalar: most of the time of a long list goes here.
        parts = [
            _key(key) + (write(item) if (write := _WRITERS[type(item)]) is not None else _text(item, depth + 1))
            for key, item in value.items()
        ]
        return f"{{{inner}{f',{inner}'.join(parts)}{outer}}}" if parts else "{}"
    if isinstance(value, list | tuple):
        parts = [_text(item, depth + 1) for item in value]
        return f"[{inner}{f',{inner}'.join(parts)}{outer}]" if parts else "[]"
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


class _ScalarWriters(dict[type, Callable[[Any], str] | None]):
    """The writer for each type of scalar; None for types of containers. Enumerations are written as their values."""

    def __missing__(self, kind: type) -> Callable[[Any], str] | None:
        writers: dict[type, Callable[[Any], str]] = {
            bool: {True: "true", False: "false"}.__getitem__,
            str: encode_basestring_ascii,
            int: int.__repr__,
            float: _number,
            type(None): lambda value: "null",
        }
        self[kind] = next((write for base, write in writers.items() if issubclass(kind, base)), None)
        return self[kind]


def _number(value: float) -> str:
    return float.__repr__(value) if isfinite(value) else "null"


@lru_cache(maxsize=4096, typed=True)
def _key(key: Any) -> str:
    """Returns a key with its colon; numbers become text, as in the standard library."""
    return f"{encode_basestring_ascii(key if isinstance(key, str) else _text(key, 0))}: "


_WRITERS = _ScalarWriters()
