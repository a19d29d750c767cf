"""A policy file: which policy, with which parameters, under which round rules. The server and the simulator read the
same file.

    policy: {name: max_min_fairness, parameters: {aware: true}}
    rules: {round_s: 360, resolve_min_s: 60}
"""

from collections.abc import Mapping
from dataclasses import asdict, fields
from difflib import get_close_matches
from typing import Any

from pydantic import TypeAdapter, ValidationError

from optimizer.policy import PolicySpec
from optimizer.registry import make
from scheduler.core.cycle.round import MECHANISMS
from scheduler.core.rules import Budget, RoundRules
from walras.errors import ConfigError

_RULES = TypeAdapter(RoundRules)
_NON_NEGATIVE = tuple(field.name for field in fields(RoundRules) if field.type in (int, float))


def parse_policy(data: Any) -> tuple[PolicySpec, RoundRules]:
    """Check a policy file's content. Raises ConfigError (or UnknownPolicyError) naming the field and the fix."""
    if not isinstance(data, Mapping):
        raise ConfigError("a policy file is a mapping with `policy` and `rules`", field="policy")
    _refuse_unknown(data, ("policy", "rules"), "")
    policy = data.get("policy")
    if isinstance(policy, str):
        policy = {"name": policy}
    if not isinstance(policy, Mapping) or not isinstance(policy.get("name"), str):
        raise ConfigError("policy: needs a name, such as `policy: {name: max_min_fairness}`", field="policy.name")
    _refuse_unknown(policy, ("name", "parameters"), "policy.")
    parameters = policy.get("parameters") or {}
    if not isinstance(parameters, Mapping):
        raise ConfigError("policy.parameters: must be a mapping", field="policy.parameters")
    spec = PolicySpec(policy["name"], dict(parameters))
    make(spec)  # refuses unknown names and parameters
    return spec, parse_rules(data.get("rules") or {})


def parse_rules(data: Any) -> RoundRules:
    """Check the `rules` part. Raises ConfigError."""
    if not isinstance(data, Mapping):
        raise ConfigError("rules: must be a mapping", field="rules")
    _refuse_unknown(data, tuple(field.name for field in fields(RoundRules)), "rules.")
    try:
        rules = _RULES.validate_python(dict(data))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(["rules", *map(str, first["loc"])])
        raise ConfigError(f"{name}: {first['msg']}", field=name) from None
    if rules.mechanism not in MECHANISMS:
        known = ", ".join(MECHANISMS)
        raise ConfigError(
            f"rules.mechanism: {rules.mechanism!r} is not known here; known: {known}", field="rules.mechanism"
        )
    _check_budgets(data.get("budgets", ()), rules)
    for name in _NON_NEGATIVE:
        value = getattr(rules, name)
        if not value >= 0 or value == float("inf"):
            raise ConfigError(f"rules.{name}: must be a finite number >= 0, not {value}", field=f"rules.{name}")
    return rules


def _check_budgets(data: Any, rules: RoundRules) -> None:
    """Each says what it is about, once, and has a limit. Raises ConfigError."""
    seen: set[str] = set()
    for place, (raw, budget) in enumerate(zip(data, rules.budgets, strict=True)):
        name = f"rules.budgets.{place}"
        if isinstance(raw, Mapping):
            _refuse_unknown(raw, tuple(field.name for field in fields(Budget)), f"{name}.")
        limits = [limit for limit in (budget.usd, budget.month_usd) if limit is not None]
        if not limits:
            raise ConfigError(f"{name}: needs `usd` or `month_usd`", field=name)
        if any(not 0 <= limit < float("inf") for limit in limits):
            raise ConfigError(f"{name}: a limit must be a finite number >= 0, in USD", field=name)
        if not 0 < budget.warn_at <= 1:
            raise ConfigError(f"{name}.warn_at: must be above 0 and at most 1", field=f"{name}.warn_at")
        if budget.project in seen:
            whose = f"project {budget.project!r}" if budget.project else "the whole cluster"
            raise ConfigError(f"{name}: a second budget of {whose}", field=name, fix="write both limits in one")
        seen.add(budget.project)


def dump_policy(spec: PolicySpec, rules: RoundRules) -> dict[str, Any]:
    """The file's content, as plain values."""
    return {
        "policy": {"name": spec.name, "parameters": dict(spec.parameters)},
        "rules": {name: (value.value if name == "backfill" else value) for name, value in asdict(rules).items()},
    }


def _refuse_unknown(data: Mapping[Any, Any], known: tuple[str, ...], prefix: str) -> None:
    for key in data:
        if key not in known:
            near = get_close_matches(str(key), known, 1)
            hint = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"{prefix}{key}: unknown field", field=f"{prefix}{key}", fix=hint)
