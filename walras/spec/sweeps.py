"""Sweeps: one submission that becomes many jobs, which differ in an index and in the values of a matrix.

    array: 1-100%8                        a hundred jobs, at most eight of which run at once
    matrix: {lr: [0.1, 0.01], seed: 0-4}  ten jobs, one for each combination; the last name varies fastest
    array: "3,7%2"                        beside a matrix: only these of its combinations, counted from 0

A text of the job may hold `{lr}`, `{seed}` or `{index}`, which is replaced in each of them. `${lr}` is the shell's and
stays. Values are text as it is written in the job file.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated, Protocol

from pydantic import BeforeValidator, Field

from walras.spec.field_types import checked_text
from walras.spec.file_model import FieldMistake
from walras.spec.text_formats import written_text

#: The most jobs of one sweep, the most combinations of a matrix from which they are chosen, and the largest index.
JOBS_MOST = 1000
_COMBINATIONS_MOST = 1_000_000
_INDEX_MOST = 10_000_000
_NAMES_MOST, _VALUE_MOST, _NAME_MOST = 16, 1000, 200

_RANGE = re.compile(r"(\d{1,8})(?:-(\d{1,8})(?::(\d{1,8}))?)?", re.ASCII)
_ARRAY_FIX = "write such as '1-100', '0-15:4' or '1,3,7', and '%8' behind it for at most 8 at once"


def _numbers_of(text: str) -> list[int]:
    """Returns the numbers of `1-5`, `0-8:2` and lists of these. Raises ValueError, saying what is wrong."""
    found: list[int] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"holds {part[:40]!r}, which is no range; {_ARRAY_FIX}")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or step < 1 or last > _INDEX_MOST:
            raise ValueError(f"holds {part!r}: a range ascends, by 1 or more, up to {_INDEX_MOST:,}")
        if len(found) + (last - first) // step >= JOBS_MOST:
            raise ValueError(f"names more than {JOBS_MOST} jobs; submit the rest as another sweep")
        found += range(first, last + 1, step)
    if len(set(found)) < len(found):
        raise ValueError("names an index twice")
    return found


@dataclass(frozen=True)
class ArrayChoice:
    """The indices of a sweep's jobs, and how many of them may run at once."""

    #: The indices; empty: one for each combination of the matrix.
    indices: tuple[int, ...]
    #: The most jobs at once; 0: all of them.
    at_most: int


def parse_array(text: str) -> ArrayChoice:
    """Returns what an `array` text says. Raises ValueError, saying what is wrong with it."""
    ranges, percent, limit = text.partition("%")
    if percent and not re.fullmatch(r"[1-9][0-9]{0,6}", limit.strip(), re.ASCII):
        raise ValueError(f"has the limit {limit[:40]!r}; {_ARRAY_FIX}")
    if not ranges.strip() and not percent:
        raise ValueError(f"is empty; {_ARRAY_FIX}")
    return ArrayChoice(tuple(_numbers_of(ranges)), int(limit) if percent else 0)


def _checked_array(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        raise ValueError(f"is one number; write '0-{max(value - 1, 0)}' for {value} jobs, or '{value}-{value}' for one")
    if isinstance(value, list | tuple):
        value = ",".join(str(each) for each in value)
    if not isinstance(value, str):
        raise ValueError(f"is no text; {_ARRAY_FIX}")
    parse_array(value)
    return value.strip()


def _checked_values(value: object) -> object:
    if isinstance(value, str) and _RANGE.fullmatch(value.strip()):
        return tuple(str(number) for number in _numbers_of(value))
    if not isinstance(value, list | tuple) or not value:
        raise ValueError("is neither a list of values nor a range; write such as [0.1, 0.01] or 0-4")
    if any(isinstance(each, list | dict | tuple) or each is None for each in value):
        raise ValueError("holds something that is neither text nor a number")
    texts = tuple(_written(each) for each in value)
    if any(len(text) > _VALUE_MOST for text in texts):
        raise ValueError(f"holds a value of more than {_VALUE_MOST} characters")
    if len(set(texts)) < len(texts):
        raise ValueError("holds a value twice")
    return texts


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return checked_text(written_text(value) if isinstance(value, int | float) else str(value))


ArrayText = Annotated[str, Field(max_length=10_000), BeforeValidator(_checked_array)]
MatrixName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
Matrix = Annotated[
    dict[MatrixName, Annotated[tuple[str, ...], BeforeValidator(_checked_values)]], Field(max_length=_NAMES_MOST)
]


class SweepFields(Protocol):
    """The fields of a job that make it a sweep, or one job of a sweep (`walras.spec.job_spec.JobSpec`)."""

    @property
    def name(self) -> str: ...
    @property
    def array(self) -> str | None: ...
    @property
    def matrix(self) -> Mapping[str, Sequence[str]]: ...
    @property
    def array_index(self) -> int | None: ...


def array_indices(spec: SweepFields) -> tuple[int, ...]:
    """Returns the indices of the jobs of a sweep; empty for a single job.

    Raises FieldMistake for too many jobs, or for one that the matrix does not have.
    """
    indices = () if spec.array is None else parse_array(spec.array).indices
    if not spec.matrix:
        if spec.array is not None and not indices:
            raise FieldMistake("array", f"names no job; {_ARRAY_FIX}")
        return indices
    combinations = prod(len(values) for values in spec.matrix.values())
    if "index" in spec.matrix:
        raise FieldMistake("matrix", "`index` is the number of each job; choose another name")
    if (not indices and combinations > JOBS_MOST) or combinations > _COMBINATIONS_MOST:
        raise FieldMistake(
            "matrix", f"has {combinations:,} combinations, more than {JOBS_MOST:,}; choose among them with `array`"
        )
    beyond = [index for index in indices if index >= combinations]
    if beyond:
        raise FieldMistake("array", f"names {beyond[0]}; the matrix has {combinations} combinations, 0 the first")
    return indices or tuple(range(combinations))


def check_array_index(spec: SweepFields) -> None:
    """Raises FieldMistake for a sweep that cannot be, and for a job that is none of its sweep."""
    indices = array_indices(spec)
    if spec.array_index is not None and spec.array_index not in indices:
        raise FieldMistake("array_index", f"{spec.array_index} is no index of `array` and `matrix`")


def is_sweep(spec: SweepFields) -> bool:
    """Returns whether the spec stands for many jobs, each of which has its own `array_index`."""
    return spec.array_index is None and bool(array_indices(spec))


def sweep_note(spec: SweepFields) -> str:
    """Returns what a forecast of a sweep is of; empty for a single job."""
    return f"stands for the first of its {len(array_indices(spec))} jobs, without the others" if is_sweep(spec) else ""


def matrix_values(spec: SweepFields) -> dict[str, str]:
    """Returns what replaces `{name}` in the texts of this job: its values and its index; empty for one of no sweep."""
    if spec.array_index is None:
        return {}
    values, left = {"index": str(spec.array_index)}, spec.array_index
    for name in reversed(list(spec.matrix)):
        left, at = divmod(left, len(spec.matrix[name]))
        values[name] = spec.matrix[name][at]
    return values


def substituted(text: str, values: Mapping[str, str]) -> str:
    """Returns the text with `{name}` replaced by the value of that name; other braces, and `${name}`, stay."""
    if not values:
        return text
    names = "|".join(map(re.escape, values))
    return re.sub(rf"(?<!\$)\{{({names})\}}", lambda match: values[match[1]], text)


def shown_name_of(spec: SweepFields) -> str:
    """Returns the name of the job, of one in a sweep with its values."""
    return substituted(spec.name, matrix_values(spec))[:_NAME_MOST]


def array_variables(spec: SweepFields) -> dict[str, str]:
    """Returns the variables of a job in a sweep: its index, those of the others, and its values; else none."""
    values = matrix_values(spec)
    if not values:
        return {}
    indices = array_indices(spec)
    own = {f"WALRAS_MATRIX_{name.upper()}": value for name, value in values.items() if name != "index"}
    return own | {
        "WALRAS_ARRAY_INDEX": values["index"],
        "WALRAS_ARRAY_COUNT": str(len(indices)),
        "WALRAS_ARRAY_MIN": str(min(indices)),
        "WALRAS_ARRAY_MAX": str(max(indices)),
    }


def indices_text(indices: Iterable[int]) -> str:
    """Returns indices as an `array` text, runs of them as ranges: 1, 2, 3 and 7 are `1-3,7`."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
