"""Cells of Walras' own traces: how each column that may be left out is read.

What they mean together, and how they are written, is `simulator.workloads.own`.
"""

import re
from collections.abc import Callable
from sys import intern
from typing import Any

from simulator.workloads.job import TraceFailure
from simulator.workloads.shockwave import BATCH_RULES
from simulator.workloads.source import MAX_GANG, Row

_FAILURE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{0,30})?(?:e-[0-9]{1,3})?)=([0-9]{1,3})(?:\*([1-9][0-9]{0,5}))?")


def _items(text: str) -> list[str]:
    """What `as_cell` joined."""
    return [re.sub(r"\\(.)", r"\1", item).strip() for item in re.findall(r"(?:[^|\\]|\\.)+", text)]


def _above_zero(row: Row, column: str) -> float:
    return row.number(column, above=0.0)


def _not_negative(row: Row, column: str) -> float:
    return row.number(column, least=0.0)


def _batch_rule(row: Row, column: str) -> str:
    rule = row.text(column)
    if rule not in BATCH_RULES:
        raise row.error(column, f"is {rule[:40]!r}", f"write one of {', '.join(BATCH_RULES)}")
    return intern(rule)


def _one_of(*words: str) -> Callable[[Row, str], str]:
    def read(row: Row, column: str) -> str:
        word = row.text(column)
        if word not in words:
            raise row.error(column, f"is {word[:40]!r}", f"write one of {', '.join(words)}")
        return word

    return read


def _wholes(most: int) -> Callable[[Row, str], tuple[int, ...]]:
    """Different whole numbers, ascending."""

    def read(row: Row, column: str) -> tuple[int, ...]:
        texts = row.text(column).split("|")
        if not all(text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= most for text in texts):
            raise row.error(column, f"is {row.text(column)[:60]!r}", f"write whole numbers up to {most}: `1|2|4`")
        return tuple(sorted({int(text) for text in texts}))

    return read


def _names(row: Row, column: str) -> tuple[str, ...]:
    names = tuple(_items(row.text(column)))
    if not names or len(set(names)) < len(names):
        raise row.error(column, f"is {row.text(column)[:60]!r}", "name jobs above it, each once: `first|second`")
    return names


def _failures(row: Row, column: str) -> tuple[TraceFailure, ...]:
    found = []
    for item in _items(row.text(column)):
        match = _FAILURE.fullmatch(item)
        if match is None or not float(match[1]) < 1 or not 1 <= int(match[2]) <= 255:
            raise row.error(
                column,
                f"is {item[:60]!r}",
                "write part of its work, `=`, exit code, maybe `*` and how often: `0.5=3*2`",
            )
        found.append(TraceFailure(float(match[1]), int(match[2]), int(match[3]) if match[3] else None))
    return tuple(found)


def _speeds(row: Row, column: str) -> tuple[tuple[str, float], ...]:
    text = row.text(column)
    speeds: dict[str, float] = {}
    for part in text.split("|"):
        name, _, number = part.partition("=")
        accelerator = row.accelerator(name, column)
        try:
            speed = float(number)
        except ValueError:
            speed = -1.0
        if not 0 <= speed <= 1e9 or accelerator in speeds:
            raise row.error(column, f"is {text[:60]!r}", "write such as `a100=12.5|v100=6`, each type once")
        speeds[accelerator] = speed
    return tuple(sorted(speeds.items()))


#: How a cell that is not empty is read, by column.
OPTIONAL: dict[str, Callable[[Row, str], Any]] = {
    "types": Row.types,
    "steps": _above_zero,
    "duration_s": _above_zero,
    "duration_on": lambda row, column: row.accelerator(row.text(column), column),
    "estimate_s": _above_zero,
    "estimate_factor": _not_negative,
    "speeds": _speeds,
    "sizes": _wholes(MAX_GANG),
    "fork_max": lambda row, column: row.whole(column, most=1024),
    "mixed": lambda row, column: _one_of("yes", "no")(row, column) == "yes",
    "scaling": lambda row, column: row.number(column, above=0.0, most=1.0),
    "nodes": lambda row, column: row.whole(column, most=MAX_GANG),
    "weight": _above_zero,
    "priority": lambda row, column: row.whole(column, least=0, most=100),
    "user": Row.name,
    "project": Row.name,
    "deadline_at": lambda row, column: row.number(column),
    "slo": _above_zero,
    "value_usd_per_h": _not_negative,
    "budget_usd": _above_zero,
    "cpus": _not_negative,
    "memory_bytes": lambda row, column: row.whole(column, least=0),
    "depends_on": _names,
    "condition": lambda row, column: _one_of("finished", "succeeded")(row, column).removeprefix("succeeded"),
    "not_before_at": _not_negative,
    "cancel_at": _not_negative,
    "preemptible": lambda row, column: _one_of("yes", "no")(row, column) == "yes",
    "max_restarts": lambda row, column: row.whole(column, least=0, most=1000),
    "restart_codes": _wholes(255),
    "max_runtime_s": _above_zero,
    "max_queue_s": _above_zero,
    "grace_s": _above_zero,
    "failures": _failures,
    "batch": lambda row, column: row.whole(column),
    "batch_rule": _batch_rule,
    "batch_max": lambda row, column: row.whole(column),
}
