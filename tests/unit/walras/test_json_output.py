"""JSON that commands print: the same text as the standard library's, made piece by piece."""

import io
import json
from collections.abc import Iterator
from enum import IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walras.json_output import json_pieces, stream_json

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
DATA = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.booleans(), inner) | st.lists(inner).map(tuple)
    ),
)


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 2


def written(data: Any) -> str:
    file = io.StringIO()
    stream_json(data, file)
    return file.getvalue()


@given(DATA)
def test_it_is_what_the_standard_library_writes(data: Any) -> None:
    """For every kind of plain data, to the last blank."""
    assert written(data) == json.dumps(data, indent=2) + "\n"


@given(st.lists(DATA))
def test_an_iterator_is_an_array(items: list[Any]) -> None:
    """At the top, and below the keys of a mapping."""
    assert written(iter(items)) == json.dumps(items, indent=2) + "\n"
    assert written({"before": 1, "items": iter(items)}) == json.dumps({"before": 1, "items": items}, indent=2) + "\n"


def test_items_are_asked_for_one_by_one() -> None:
    """A long list is never in memory as a whole: each item is written before the next is made."""
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(3):
            made.append(number)
            yield number

    pieces = json_pieces({"items": items()})
    assert next(pieces) == '{\n  "items": '
    assert next(pieces) == "[\n    0"
    assert made == [0]


def test_numbers_that_json_has_not_are_null() -> None:
    """NaN and the infinities, wherever they stand."""
    assert json.loads(written({"nan": float("nan"), "rows": [float("inf"), -float("inf")]})) == {
        "nan": None,
        "rows": [None, None],
    }


def test_enumerations_are_their_values() -> None:
    """As the standard library writes them, as values and as keys."""
    assert json.loads(written({Colour.RED: [Colour.RED, Level.HIGH]})) == {"red": ["red", 2]}


def test_what_is_no_json_is_refused() -> None:
    """Rather than guessed at."""
    with pytest.raises(TypeError, match="set"):
        written({"names": {1, 2}})
