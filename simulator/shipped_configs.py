"""Clusters, policies, workloads and conditions by name: those shipped with Walras, or the user's files.

A name with an ending (`.yaml`, `.csv`, ...) or a path separator is a file; others are looked up below `configs/`, as
`example:NAME` always is.
"""

from pathlib import Path

from optimizer.policy import PolicySpec
from optimizer.registry import is_policy_file, name_in_file
from optimizer.registry import names as registered_policies
from scheduler.core.rules import RoundRules, parse_policy, refuse_listed_pairs
from walras.errors import ConfigError
from walras.spec.file_model import load_mapping, nearest_or_all
from walras.spec.shipped_files import find_example, is_example, shipped_files

_POLICY_ENDINGS = (".yaml", ".yml")


def is_path(name: str) -> bool:
    """Returns whether the name is a path rather than the name of a shipped file."""
    return "/" in name or "\\" in name or bool(Path(name).suffix)


def find_cluster(name: str) -> Path:
    """Returns the cluster file of that name. Raises ConfigError that names the nearest."""
    return _resolve_name("cluster", name, "clusters")


def find_workload(name: str) -> Path:
    """Returns the workload or trace of that name. Raises ConfigError that names the nearest."""
    return _resolve_name("workload", name, "workloads")


def find_conditions(name: str) -> Path:
    """Returns the file of conditions of that name. Raises ConfigError that names the nearest."""
    return _resolve_name("conditions", name, "conditions")


def _resolve_name(what: str, name: str, folder: str) -> Path:
    if is_example(name):
        return find_example(name, folder)
    known = shipped_files(folder)
    if name in known and not Path(name).is_file():
        return known[name]
    if is_path(name) or Path(name).is_file():
        return Path(name)  # the reader reports whether it can be read
    fix = nearest_or_all(name, known, "name a file, or one of ")
    raise ConfigError(f"no {what} {name!r} comes with Walras", field=what, fix=fix)


def load_named_policy(policy: str) -> tuple[PolicySpec, RoundRules]:
    """Loads a policy from a policy file, from Python (`my.py[:Name]`), by a shipped file's name, or by its own name.

    Parameters and rules that are not stated have their defaults. Raises ConfigError for what a cluster cannot do.
    """
    spec, rules = _load_policy(policy)
    refuse_listed_pairs(spec)
    return spec, rules


def _load_policy(policy: str) -> tuple[PolicySpec, RoundRules]:
    if is_example(policy):
        return parse_policy(load_mapping(find_example(policy, "policies")))
    if is_policy_file(policy):
        return parse_policy({"policy": {"name": name_in_file(policy)}})
    if Path(policy).suffix in _POLICY_ENDINGS:
        return parse_policy(load_mapping(policy))
    known = shipped_files("policies")
    if policy in known:
        return parse_policy(load_mapping(known[policy]))
    if policy not in registered_policies():
        fix = nearest_or_all(policy, sorted({*known, *registered_policies()}), "name a file, or one of ")
        raise ConfigError(f"no policy is called {policy!r}", field="policy", fix=fix)
    return parse_policy({"policy": {"name": policy}})
