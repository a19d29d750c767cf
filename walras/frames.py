"""Answers of the client as pandas tables: `walras.frame(client.jobs())`.

A listing becomes one row for each of its items, with the columns that the REST API names. Instants become times of
pandas in UTC; what is itself a mapping or a list stays one cell.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from walras.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

#: Fields of RFC 3339 text, and what such a field's name ends in.
_INSTANTS, _INSTANT_END = ("as_of",), "_at"


def frame(answer: BaseModel | Iterable[Any]) -> "pd.DataFrame":
    """Returns jobs, machines, prices, money or any other answer of the client as a table.

    Args:
        answer: an answer that lists items (`client.prices()`, `client.money()`), several answers (`client.jobs()`,
            `client.nodes()`), or a single one, which is one row. Money's sum of all others is a row with the key
            `(N others)`.

    Raises ConfigError if pandas is not installed, TypeError for what is no answer.
    """
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise ConfigError("pandas is not installed", fix="pip install 'walras[pandas]'") from None
    rows = [_row(each) for each in _items(answer)]
    table = pd.DataFrame.from_records(rows)
    for name in table.columns:
        values = [row.get(name) or None for row in rows]
        is_named_so = name in _INSTANTS or name.endswith(_INSTANT_END)
        # Numbers of such a name are none: a loss has a value that it levels off at.
        if is_named_so and all(value is None or isinstance(value, str) for value in values):
            table[name] = pd.to_datetime(values, utc=True, format="ISO8601").as_unit("us")
    return table


def _items(answer: BaseModel | Iterable[Any]) -> Iterable[Any]:
    """Returns the items of an answer that lists some, the answers given, or the answer alone."""
    if not isinstance(answer, BaseModel):
        return answer
    items = getattr(answer, "items", None)
    if not isinstance(items, list):
        return [answer]
    rest = getattr(answer, "rest", None)
    if isinstance(rest, BaseModel):
        return [*items, rest.model_copy(update={"key": f"({getattr(answer, 'rest_of', 0)} others)"})]
    return items


def _row(item: Any) -> Mapping[str, Any]:
    if isinstance(item, BaseModel):
        return item.model_dump(mode="json")
    raise TypeError(f"a {type(item).__name__} is no answer of the client")
