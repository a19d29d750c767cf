"""The one place that maps names to policies, and what a registered policy says about itself.

Importing this module, or making a policy, imports no solver. Policies of other packages register through the
entry-point group `walras.policies`: name -> class. A policy class is a pydantic dataclass (its fields are the
parameters) that implements `SharePolicy`, `OrderPolicy` or `PlanPolicy`.

`walras policy show` reads the description of a policy from where it is written:

    class docstring, first line        what it does, in a sentence
    class or module docstring          `Source: ...`, to the end of the sentence
    Annotated[T, Field(description=)]  each parameter; the allowed values follow from its type

A policy may also stand in a file of one's own: `my_policies.py`, or `my_policies.py:Name` where it has several. Its
registered name is `file:` with the absolute path and the class, so that a run in another process, or later, finds the
same class. The file is run as any Python file is, with all that its author may do: only commands that a person gives on
his own machine load one, and a server refuses such names.
"""

import difflib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from optimizer.decision import Plan, Shares
from optimizer.policy import OrderPolicy, PlanPolicy, Policy, PolicySpec, SharePolicy
from optimizer.problem import Columns, Entities, Jobs, Pools, Problem
from walras.errors import ConfigError, UnknownPolicyError

#: Begins the registered name of a policy in a file.
FILE_PREFIX = "file:"
_METHODS = ("key", "decide")


def is_policy_file(text: str) -> bool:
    """Returns whether this is `PATH.py` or `PATH.py:NAME`."""
    path, _, name = text.rpartition(":")
    return text.endswith(".py") or (path.endswith(".py") and name.isidentifier())


def name_in_file(text: str) -> str:
    """Returns the registered name of the policy that `PATH.py[:NAME]` says. Raises ConfigError as `class_in_file`."""
    path, name = _parts(text)
    kind = _choose(path, name)
    return f"{FILE_PREFIX}{path}:{kind.__name__}"


def class_in_file(registered: str) -> type[Any]:
    """Returns the class of a registered name that begins with `file:`.

    Raises ConfigError where the file cannot be read or run, naming its line, or has no such policy.
    """
    path, name = _parts(registered.removeprefix(FILE_PREFIX))
    return _choose(path, name)


def _parts(text: str) -> tuple[Path, str]:
    path, _, name = (text, "", "") if text.endswith(".py") else text.rpartition(":")
    return Path(path).absolute(), name


def _choose(path: Path, name: str) -> type[Any]:
    found = {
        each.__name__: each
        for each in vars(_module(path)).values()
        if inspect.isclass(each) and not inspect.isabstract(each) and any(hasattr(each, method) for method in _METHODS)
        if each.__module__ == _module_name(path)
    }
    if name and name in found:
        return found[name]
    if not name and len(found) == 1:
        return next(iter(found.values()))
    names = ", ".join(found)
    if not found:
        raise ConfigError(
            f"{path.name} has no policy",
            field="policy",
            fix="write a class that inherits Order, Shares or Plan of walras.lab, with its method",
        )
    told = f"{path.name} has no policy {name!r}" if name else f"{path.name} has {len(found)} policies"
    raise ConfigError(told, field="policy", fix=f"name one: {path.name}:{next(iter(found))} (it has {names})")


def _module(path: Path) -> ModuleType:
    """The file as a module, run once in a process."""
    name = _module_name(path)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"no file {path}", field="policy", fix="name a Python file that is there")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # code of others: it may raise anything
        del sys.modules[name]
        raise ConfigError(f"{_line(path, error)}: {type(error).__name__}: {error}", field="policy") from error
    return module


def _module_name(path: Path) -> str:
    return f"walras_policy_file_{path.as_posix().encode().hex()}"


def _line(path: Path, error: Exception) -> str:
    """File and line of the user's that an error came from."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"{path.name}:{error.lineno}"
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path.name}:{own[-1].lineno}" if own else path.name


ENTRY_POINTS = "walras.policies"

_BUILT_IN: Mapping[str, str] = {
    "allox": "optimizer.policies.allox:Allox",
    "cost_with_slos": "optimizer.policies.throughput:CostWithSlos",
    "edf": "optimizer.policies.queue_orders:Edf",
    "elasticflow": "optimizer.policies.elasticflow:ElasticFlow",
    "fifo": "optimizer.policies.queue_orders:Fifo",
    "finish_time_fairness": "optimizer.policies.finish_times:FinishTimeFairness",
    "hadar": "optimizer.policies.hadar:Hadar",
    "hierarchical": "optimizer.policies.hierarchical:Hierarchical",
    "isolated": "optimizer.policies.fairness:Isolated",
    "las": "optimizer.policies.queue_orders:Las",
    "makespan": "optimizer.policies.finish_times:Makespan",
    "max_min_fairness": "optimizer.policies.fairness:MaxMinFairness",
    "optimus": "optimizer.policies.optimus:Optimus",
    "pollux": "optimizer.policies.goodput:Pollux",
    "priority": "optimizer.policies.queue_orders:Priority",
    "proportional_fairness": "optimizer.policies.fairness:ProportionalFairness",
    "shockwave": "optimizer.policies.shockwave:Shockwave",
    "sia": "optimizer.policies.goodput:Sia",
    "srsf": "optimizer.policies.queue_orders:Srsf",
    "srtf": "optimizer.policies.queue_orders:Srtf",
    "throughput": "optimizer.policies.throughput:Throughput",
    "throughput_per_dollar": "optimizer.policies.throughput:ThroughputPerDollar",
    "tiresias": "optimizer.policies.queue_orders:Tiresias",
    "walras": "optimizer.policies.walras:Walras",
    "water_filling": "optimizer.policies.fairness:WaterFilling",
}


#: Classes whose policies were seen to implement one of the protocols: looking that up takes as long as small decisions.
_ANSWERING: set[type] = set()


def is_built_in(name: str) -> bool:
    """Whether the policy of this name is part of Walras, and not of another package."""
    return name in _BUILT_IN


def names() -> tuple[str, ...]:
    """Every registered policy, in alphabetical order."""
    return tuple(sorted({*_BUILT_IN, *(entry.name for entry in entry_points(group=ENTRY_POINTS))}))


def make(spec: PolicySpec) -> Policy:
    """The policy that a spec describes.

    Raises:
        UnknownPolicyError: no policy has that name; the message lists those that exist.
        ConfigError: a parameter is unknown or has an impossible value; `field` names it.
    """
    kind = policy_class(spec.name)
    parameters = {field.name for field in fields(kind)}
    for name in spec.parameters:
        if name not in parameters:
            raise _unknown_parameter(spec.name, str(name), parameters)
    try:
        policy = kind(**spec.parameters)
    except ValidationError as error:
        raise _bad_parameter(spec.name, error) from None
    except (TypeError, ValueError) as error:  # a policy of others that checks its parameters itself
        raise ConfigError(f"policy '{spec.name}': {error}", field="policy.parameters") from error
    if kind not in _ANSWERING:
        if not isinstance(policy, SharePolicy | OrderPolicy | PlanPolicy):
            raise ConfigError(
                f"policy '{spec.name}' ({kind.__qualname__}) answers neither SharePolicy nor OrderPolicy nor PlanPolicy"
            )
        _ANSWERING.add(kind)
    made: Policy = policy
    return made


def make_own(spec: PolicySpec) -> None:
    """Makes a policy that is part of Walras; of one of another package looks up the name, and runs no code.

    Raises UnknownPolicyError and ConfigError, as `make` does.
    """
    if is_built_in(spec.name):
        make(spec)
    elif _from_outside(spec.name) is None:
        raise _unknown_policy(spec.name)


def policy_class(name: str) -> type[Any]:
    """The class of a registered policy.

    Raises:
        UnknownPolicyError: no policy has that name; the message lists those that exist.
        ConfigError: the class cannot be loaded, or is no dataclass.
    """
    if name.startswith(FILE_PREFIX):
        return class_in_file(name)
    target = _BUILT_IN.get(name)
    entry = EntryPoint(name, target, ENTRY_POINTS) if target else _from_outside(name)
    if entry is None:
        raise _unknown_policy(name)
    try:
        module = import_module(entry.module)
        kind = getattr(module, entry.attr)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"policy '{name}' cannot be loaded from {entry.value}: {error}", field="policy.name"
        ) from error
    if not (isinstance(kind, type) and is_dataclass(kind)):
        raise ConfigError(f"policy '{name}': {entry.value} is no dataclass", field="policy.name")
    return kind


def _from_outside(name: str) -> EntryPoint | None:
    return next(iter(entry_points(group=ENTRY_POINTS, name=name)), None)


def _unknown_policy(name: str) -> UnknownPolicyError:
    known = names()
    return UnknownPolicyError(
        f"no policy is called '{name}'; known: {', '.join(known)}",
        field="policy.name",
        fix=_did_you_mean(name, set(known)),
    )


def _unknown_parameter(policy: str, name: str, known: set[str]) -> ConfigError:
    listed = f"it takes: {', '.join(sorted(known))}" if known else "it takes none"
    return ConfigError(
        f"policy '{policy}' has no parameter '{name}'; {listed}",
        field=f"policy.parameters.{name}",
        fix=_did_you_mean(name, known),
    )


def _bad_parameter(policy: str, error: ValidationError) -> ConfigError:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    if not where:  # parameters that do not go together
        return ConfigError(f"policy '{policy}': {first['msg']}", field="policy.parameters")
    return ConfigError(
        f"policy '{policy}', parameter {where}: {first['msg']} (got {first['input']!r})",
        field=f"policy.parameters.{where}",
    )


def _did_you_mean(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"did you mean '{close[0]}'?" if close else ""


_SOURCE = re.compile(r"\bSource:\s(.+?)\.(?=\s+[A-Z]|\s*\Z|\n\s*\n)", re.DOTALL)
#: Endings of names, as everywhere in Walras, and the units that they stand for.
_UNITS = {"_usd_per_h": "USD/h", "_steps_per_s": "steps/s", "_s": "s", "_bytes": "bytes", "_at": "s since the epoch"}
_LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


@dataclass(frozen=True, slots=True)
class ParameterDescription:
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
    """The description of a policy for people: family, formula, source, unit of its prices, and parameters."""

    name: str
    #: `order`, `shares` or `plan`.
    family: str
    summary: str
    source: str
    #: Everything that its class and, if that holds no other policy, its module say, formula included.
    about: str
    #: Unit in which it quotes prices with its parameters at their defaults, or `NO_PRICES`; empty for an order.
    price_unit: str
    #: `maximise` or `minimise`, of what its certificate speaks of; empty for an order.
    seeks: str
    parameters: tuple[ParameterDescription, ...]


def describe(name: str) -> PolicyDescription:
    """Returns the description of a registered policy.

    Raises:
        UnknownPolicyError: no policy has that name.
    """
    policy = make(PolicySpec(name))
    kind = type(policy)
    own = inspect.cleandoc(kind.__doc__ or "")
    about = own if _shares_its_module(kind) else inspect.cleandoc(inspect.getmodule(kind).__doc__ or "")
    order = isinstance(policy, OrderPolicy)
    unit, seeks = ("", "") if order else _unit_and_sense(policy)
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


def _shares_its_module(kind: type[Any]) -> bool:
    """Returns whether its module defines several registered policies, so that its class alone describes it."""
    return sum(target.startswith(f"{kind.__module__}:") for target in _BUILT_IN.values()) > 1


def _source(text: str) -> str:
    found = _SOURCE.search(text)
    return " ".join(found[1].split()) if found else ""


def _unit_and_sense(policy: Any) -> tuple[str, str]:
    """Returns the unit of the policy's prices (`NO_PRICES` without) and the sense of its objective."""
    decision, _ = policy.decide(_empty_problem(), None)
    if isinstance(decision, Plan):
        return decision.quote.unit, "maximise"
    if not isinstance(decision, Shares):
        return "", ""
    return decision.quote.unit, "maximise" if decision.certificate.maximise else "minimise"


def _empty_problem() -> Problem:
    """Returns a problem without jobs, pools and entities."""
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
        field_schema = _inlined(written, definitions)
        yield ParameterDescription(
            name=name,
            type=_type_of(field_schema, definitions),
            default=field_schema.get("default"),
            unit=next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), ""),
            allowed=_allowed(field_schema, definitions),
            description=field_schema.get("description", ""),
        )


def _inlined(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema with its reference resolved."""
    reference = schema.get("$ref", "").removeprefix("#/$defs/")
    return {**definitions.get(reference, {}), **{key: value for key, value in schema.items() if key != "$ref"}}


def _branches(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [_inlined(branch, definitions) for branch in schema.get("anyOf", [schema])]


def _type_of(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    names: list[str] = []
    for branch in _branches(schema, definitions):
        if branch.get("type") == "array":
            items: Mapping[str, Any] = branch.get("items") or next(iter(branch.get("prefixItems", [{}])), {})
            names.append(f"list of {_type_of(_inlined(items, definitions), definitions)}")
        else:
            names.append(str(branch.get("type", "any")))
    return " or ".join(names)


def _allowed(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    parts: list[str] = []
    for branch in _branches(schema, definitions):
        of = branch.get("items", {}) if branch.get("type") == "array" else branch
        parts += [str(value) for value in of.get("enum", [of["const"]] if "const" in of else [])]
        limits = [f"{sign} {of[key]:g}" for key, sign in _LIMITS.items() if key in of]
        parts += [" and ".join(limits)] if limits else []
    return ", ".join(parts)
