"""The one place that maps names to policies. Importing it, or making a policy, imports no solver.

Policies of other packages register through the entry-point group `walras.policies`: name -> class. A policy class is a
pydantic dataclass (its fields are the parameters) that answers `SharePolicy`, `OrderPolicy`
or `PlanPolicy`.
"""

import difflib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import ValidationError

from optimizer.policy import OrderPolicy, PlanPolicy, Policy, PolicySpec, SharePolicy
from walras.errors import ConfigError, UnknownPolicyError

ENTRY_POINTS = "walras.policies"

_BUILT_IN: Mapping[str, str] = {
    "allox": "optimizer.policies.allox:Allox",
    "cost_with_slos": "optimizer.policies.cost_with_slos:CostWithSlos",
    "edf": "optimizer.policies.edf:Edf",
    "elasticflow": "optimizer.policies.elasticflow:ElasticFlow",
    "fifo": "optimizer.policies.fifo:Fifo",
    "finish_time_fairness": "optimizer.policies.finish_time_fairness:FinishTimeFairness",
    "hadar": "optimizer.policies.hadar:Hadar",
    "hierarchical": "optimizer.policies.hierarchical:Hierarchical",
    "isolated": "optimizer.policies.isolated:Isolated",
    "las": "optimizer.policies.las:Las",
    "makespan": "optimizer.policies.makespan:Makespan",
    "max_min_fairness": "optimizer.policies.max_min_fairness:MaxMinFairness",
    "optimus": "optimizer.policies.optimus:Optimus",
    "pollux": "optimizer.policies.pollux:Pollux",
    "priority": "optimizer.policies.priority:Priority",
    "proportional_fairness": "optimizer.policies.proportional_fairness:ProportionalFairness",
    "shockwave": "optimizer.policies.shockwave:Shockwave",
    "sia": "optimizer.policies.sia:Sia",
    "srsf": "optimizer.policies.srsf:Srsf",
    "srtf": "optimizer.policies.srtf:Srtf",
    "throughput": "optimizer.policies.throughput:Throughput",
    "throughput_per_dollar": "optimizer.policies.throughput_per_dollar:ThroughputPerDollar",
    "tiresias": "optimizer.policies.tiresias:Tiresias",
    "walras": "optimizer.policies.walras:Walras",
    "water_filling": "optimizer.policies.water_filling:WaterFilling",
}


def names() -> tuple[str, ...]:
    """Every registered policy, in alphabetical order."""
    return tuple(sorted({*_BUILT_IN, *(entry.name for entry in entry_points(group=ENTRY_POINTS))}))


def make(spec: PolicySpec) -> Policy:
    """The policy that a spec describes.

    Raises:
        UnknownPolicyError: no policy has that name; the message lists those that exist.
        ConfigError: a parameter is unknown or has an impossible value; `field` names it.
    """
    kind = _class_of(spec.name)
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
    if not isinstance(policy, SharePolicy | OrderPolicy | PlanPolicy):
        raise ConfigError(
            f"policy '{spec.name}' ({kind.__qualname__}) answers neither SharePolicy nor OrderPolicy nor PlanPolicy"
        )
    return policy


def _class_of(name: str) -> type[Any]:
    target = _BUILT_IN.get(name)
    entry = EntryPoint(name, target, ENTRY_POINTS) if target else _from_outside(name)
    if entry is None:
        known = names()
        raise UnknownPolicyError(
            f"no policy is called '{name}'; known: {', '.join(known)}",
            field="policy.name",
            fix=_did_you_mean(name, set(known)),
        )
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
