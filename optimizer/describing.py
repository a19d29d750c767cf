"""What a registered policy says of itself: in a sentence, its source, its parameters. For people; nothing is solved.

A policy class says it where it is written:

    class docstring, first line        what it does, in a sentence
    class or module docstring          `Source: ...`, to the end of the sentence
    Annotated[T, Field(description=)]  each parameter; what it may be follows from its type
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from optimizer.decision import Plan, Shares
from optimizer.policy import OrderPolicy, PlanPolicy, PolicySpec
from optimizer.problem import Columns, Entities, Jobs, Pools, Problem
from optimizer.registry import make

_SOURCE = re.compile(r"\bSource:\s(.+?)\.(?=\s+[A-Z]|\s*\Z|\n\s*\n)", re.DOTALL)
#: Endings of names, as everywhere in Walras, and the units that they stand for.
_UNITS = {"_usd_per_h": "USD/h", "_steps_per_s": "steps/s", "_s": "s", "_bytes": "bytes", "_at": "s since the epoch"}
_LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


@dataclass(frozen=True, slots=True)
class ParameterDescription:
    """One parameter of a policy."""

    name: str
    #: `boolean`, `number`, `string`, ...: as in JSON.
    type: str
    default: Any
    unit: str
    #: What it may be: `sum, nothing`, `> 0`; empty: anything of the type.
    allowed: str
    description: str


@dataclass(frozen=True, slots=True)
class PolicyDescription:
    """A policy in words."""

    name: str
    #: `order`, `shares` or `plan`.
    family: str
    summary: str
    source: str
    #: Everything that its module says, formula included.
    about: str
    #: Unit in which it quotes prices with its parameters at their defaults; empty: nothing has a price.
    price_unit: str
    #: `maximise` or `minimise`, of what its certificate speaks of; empty for an order.
    seeks: str
    parameters: tuple[ParameterDescription, ...]


def describe(name: str) -> PolicyDescription:
    """The description of a registered policy.

    Raises:
        UnknownPolicyError: no policy has that name.
    """
    policy = make(PolicySpec(name))
    kind = type(policy)
    own = inspect.cleandoc(kind.__doc__ or "")
    about = inspect.cleandoc(inspect.getmodule(kind).__doc__ or "")
    order = isinstance(policy, OrderPolicy)
    unit, seeks = ("", "") if order else _of_nothing(policy)
    return PolicyDescription(
        name=name,
        family="order" if order else "plan" if isinstance(policy, PlanPolicy) else "shares",
        summary=own.split("\n\n")[0].replace("\n", " "),
        source=_source(own) or _source(about),
        about=about if own in about else f"{about}\n\n{own}",
        price_unit=unit,
        seeks=seeks,
        parameters=tuple(_parameters(kind)),
    )


def _source(text: str) -> str:
    found = _SOURCE.search(text)
    return " ".join(found[1].split()) if found else ""


def _of_nothing(policy: Any) -> tuple[str, str]:
    """What it says where there is nothing to decide: the unit of its prices, and which way its objective goes."""
    decision, _ = policy.decide(_nothing(), None)
    if isinstance(decision, Plan):
        return decision.quote.unit, "maximise"
    if not isinstance(decision, Shares):
        return "", ""
    return decision.quote.unit, "maximise" if decision.certificate.maximise else "minimise"


def _nothing() -> Problem:
    """A problem without jobs, pools and entities."""
    f, i, b = np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_)
    return Problem(
        at=0.0,
        jobs=Jobs(i, f, f, f, f, f, f, f, i, i),
        columns=Columns(i, f, i, i, f, b),
        pools=Pools((), (), f, f, f, f),
        entities=Entities(),
    )


def _parameters(kind: type[Any]) -> Iterator[ParameterDescription]:
    if not is_dataclass(kind):
        return
    schema = TypeAdapter(kind).json_schema()
    definitions = schema.get("$defs", {})
    for name, written in schema.get("properties", {}).items():
        told = _resolved(written, definitions)
        yield ParameterDescription(
            name=name,
            type=_type_of(told, definitions),
            default=told.get("default"),
            unit=next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), ""),
            allowed=_allowed(told, definitions),
            description=told.get("description", ""),
        )


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """With what it refers to put in place."""
    reference = schema.get("$ref", "").removeprefix("#/$defs/")
    return {**definitions.get(reference, {}), **{key: value for key, value in schema.items() if key != "$ref"}}


def _branches(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [_resolved(branch, definitions) for branch in schema.get("anyOf", [schema])]


def _type_of(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    names: list[str] = []
    for branch in _branches(schema, definitions):
        if branch.get("type") == "array":
            items: Mapping[str, Any] = branch.get("items") or next(iter(branch.get("prefixItems", [{}])), {})
            names.append(f"list of {_type_of(_resolved(items, definitions), definitions)}")
        else:
            names.append(str(branch.get("type", "any")))
    return " or ".join(names)


def _allowed(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    told: list[str] = []
    for branch in _branches(schema, definitions):
        of = branch.get("items", {}) if branch.get("type") == "array" else branch
        told += [str(value) for value in of.get("enum", [of["const"]] if "const" in of else [])]
        limits = [f"{sign} {of[key]:g}" for key, sign in _LIMITS.items() if key in of]
        told += [" and ".join(limits)] if limits else []
    return ", ".join(told)
