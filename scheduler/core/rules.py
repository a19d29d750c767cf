"""The parameters of the round mechanism, and the policy file that sets them, which server and simulator both read.

policy: {name: max_min_fairness, parameters: {aware: true}}
rules: {round_s: 360, resolve_min_s: 60}

Rules are a value: another scheduler's mechanism differs in parameters, never by a flag.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from enum import StrEnum
from math import inf
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from optimizer.policy import PolicySpec
from optimizer.registry import make
from scheduler.core.budget_limits import Budget, UserGroup, check_budgets
from walras.errors import ConfigError
from walras.job_request import JobRequest


class Backfill(StrEnum):
    """Which jobs may use places that the head of the queue cannot use."""

    NONE = "none"
    #: Jobs that end, or can be stopped, before the reservation needs the place.
    EASY = "easy"
    #: Any job; the head of the queue is not protected.
    FREE = "free"


#: Our own mechanism (`cycle/round.py`): the job that is owed most runs.
OWED = "owed"
#: Mechanisms that a policy file may name.
KNOWN_MECHANISMS = (OWED,)


@dataclass(frozen=True, slots=True)
class StatedValue:
    """Value of an hour of running, USD, for jobs that state none themselves."""

    project: str
    usd_per_h: float
    #: User whose jobs it is for; empty: all users of the project.
    user: str = ""


@dataclass(frozen=True, slots=True)
class RoundRules:
    """Parameters of the round mechanism; seconds unless stated otherwise."""

    #: Mechanism that these parameters are for. A server knows "owed"; a simulation may register others.
    mechanism: str = OWED
    #: Checkpoint intervals that a job does not state are planned from the time of writing and machines' lifetimes.
    #: False: scripts use their own interval, or 300 s if they state none.
    plan_checkpoints: bool = True
    #: A move or preemption to a place where a job's inputs are not cached must also pay for downloading them, as long
    #: as such downloads were measured to take.
    count_fetches: bool = True
    #: Lengths and weights that users state are corrected by what their former jobs needed (`statement_records`); False:
    #: they are used as stated.
    use_records: bool = True
    #: Length of a round: running jobs are compared with waiting ones once a round. 0: at every event.
    round_s: float = 360.0
    #: Minimum of seconds between two solve requests.
    resolve_min_s: float = 60.0
    #: An accelerator whose job ended stays idle until the round ends (mechanisms of other schedulers).
    idle_to_round_end: bool = False
    backfill: Backfill = Backfill.EASY
    #: A challenger must be owed this many times the cost of the preemption more than the incumbent. Under an order, the
    #: incumbent must have run this many times that cost.
    hysteresis: float = 2.0
    #: Under shares: fraction of its attained service by which a job may lag behind its share while others keep the
    #: place that it waits for, up to half the limit on owed time. 0: no lag is tolerated, however long the jobs are.
    tolerated_lag: Annotated[float, Field(ge=0.0, le=1.0)] = 0.05
    #: Seconds for which an incumbent is protected from challengers of its class.
    min_runtime_s: float = 60.0
    #: Seconds for which an incumbent is protected from all challengers, those of a higher class included, and is not
    #: moved by a plan. 0: a higher class takes its place at once.
    protected_s: float = 0.0
    #: Maximum of backfill reservations per pool.
    max_reservations: int = 1
    #: A job may use a free place where it has no share if its speed there is at least this fraction of its best.
    opportunistic_rate: float = 0.25
    #: Cost of a restart (checkpoint, start and warm-up) until it is measured for the kind.
    restart_default_s: float = 60.0
    #: Owed time is limited to this many rounds of entitlement, positive or negative.
    owed_limit_rounds: float = 10.0
    #: Length of a profiling lease, and maximum fraction of the fleet that may profile at once.
    profiling_s: float = 60.0
    profiling_share: float = 0.25
    #: A kind is profiled on an unmeasured pool only if its jobs have this many times the cost of a restart left to run.
    profiling_payback: float = 10.0
    #: Where the speed there is predicted with an interval, only what they may save if it is faster counts; False: all
    #: that they have left does.
    weigh_intervals: bool = True
    #: Seconds within which a gang must be prepared on all its machines.
    prepare_timeout_s: float = 60.0
    #: Seconds to wait after a failed attempt; doubled with each failure, up to 32 times this.
    backoff_s: float = 5.0
    #: Number of supervisors lost in a row, without a checkpoint between and on machines that live on, after which a job
    #: is held; 0: never.
    supervisor_losses_held: int = 5
    #: A machine on which this many distinct jobs failed within `quarantine_window_s`, and none succeeded since, takes
    #: no more jobs; at most a quarter of a pool's owned machines are quarantined.
    quarantine_jobs: int = 3
    quarantine_window_s: float = 3600.0
    #: Value of an hour of a job, USD, if neither job nor project states one; 0: no machine is rented for it.
    delay_usd_per_h: float = 0.0
    #: Values of an hour of a project's or user's jobs, for jobs that state none.
    values: tuple[StatedValue, ...] = ()
    #: What an accelerator-hour of a rented machine costs a job without a stated value, USD; never more than the market
    #: price.
    spare_usd_per_h: float = 0.0
    #: Half-life of the recorded use of projects and users; and the factor with which a spot accelerator counts.
    usage_half_life_s: float = 604_800.0
    usage_spot_factor: float = 1.0
    #: Seconds for which a rented machine is kept idle before it is released.
    rent_keep_s: float = 300.0
    #: Seconds to wait after a failed request for machines; doubled with each failure in a row, up to
    #: `rent_backoff_max_s`. A machine that joins resets the wait.
    rent_backoff_s: float = 30.0
    rent_backoff_max_s: float = 1800.0
    #: Budgets of projects, users, groups and the cluster; a job may also have its own.
    budgets: tuple[Budget, ...] = ()
    #: Groups of users who share a budget.
    groups: tuple[UserGroup, ...] = ()

    def value_of(self, request: JobRequest) -> tuple[float, str]:
        """Returns the value of an hour of the job, USD, and its source: job, user, project, policy; (0, "") if none."""
        if request.value_usd_per_h is not None:
            return request.value_usd_per_h, "job"
        stated = {each.user: each.usd_per_h for each in self.values if each.project == request.project}
        if request.user in stated:
            return stated[request.user], "user" if request.user else "project"
        if "" in stated:
            return stated[""], "project"
        return self.delay_usd_per_h, "policy" if self.delay_usd_per_h > 0 else ""

    def most_usd_per_h(self, request: JobRequest, relative_speed: float, accelerators: int) -> float:
        """Returns what an accelerator-hour of a rented machine costs the job at most, USD: what the job gains there.

        It is inf (the market price) for jobs with a deadline, for which machines are rented at any price, and the spare
        rate for jobs without a value.

        Args:
            request: the job.
            relative_speed: its speed where it runs, as a part of its best speed.
            accelerators: how many it holds there.
        """
        if request.deadline_at < inf:
            return inf
        value = self.value_of(request)[0]
        return value * relative_speed / max(accelerators, 1) if value > 0 else self.spare_usd_per_h

    @property
    def least_run_s(self) -> float:
        """Returns the seconds for which a running job keeps its place against jobs of its class and profiling."""
        return max(self.min_runtime_s, self.protected_s)

    @property
    def owed_limit_s(self) -> float:
        """Returns the limit on owed time, positive or negative, in seconds of a gang."""
        return self.owed_limit_rounds * max(self.round_s, 1.0)


#: Rules in which an organisation says what it decided about money and people. They outlive a change of the policy: a
#: policy file that does not name them leaves them as they are.
ORGANISATION = ("delay_usd_per_h", "values", "spare_usd_per_h", "budgets", "groups")
#: How often, and how soon, people's jobs may be stopped: an organisation decided it where it is not what the shipped
#: file of the policy says. Then it outlives a change of the policy too.
ROUND_TIMES = ("round_s", "min_runtime_s", "protected_s")


def with_organisation_of(
    rules: RoundRules, stated: Container[str], before: RoundRules, shipped: RoundRules
) -> RoundRules:
    """Returns the rules with what they do not state about money and people as it was before.

    Args:
        rules: of another policy.
        stated: names of the rules that its file states.
        before: the rules in force.
        shipped: those of the shipped file of the policy in force.
    """
    decided = (name for name in ROUND_TIMES if getattr(before, name) != getattr(shipped, name))
    kept = [name for name in (*ORGANISATION, *decided) if name not in stated]
    return replace(rules, **{name: getattr(before, name) for name in kept})


# ------------------------------------------------------------------------------------------------ the policy file

_RULES = TypeAdapter(RoundRules)
_SHORTEST_S, _DAY_S, _YEAR_S = 0.1, 86_400.0, 365 * 86_400.0
#: Least and largest value of each parameter. Lengths of time may also be 0: "at every event", "at once", "never".
_BOUNDS: Mapping[str, tuple[float, float]] = {
    "round_s": (_SHORTEST_S, 30 * _DAY_S),
    "resolve_min_s": (_SHORTEST_S, 30 * _DAY_S),
    "hysteresis": (0.0, 1e6),
    "tolerated_lag": (0.0, 1.0),
    "min_runtime_s": (_SHORTEST_S, _YEAR_S),
    "protected_s": (_SHORTEST_S, _YEAR_S),
    "max_reservations": (0, 10_000),
    "opportunistic_rate": (0.0, 1e6),
    "restart_default_s": (1e-3, _YEAR_S),
    "owed_limit_rounds": (0.0, 1e6),
    "profiling_s": (_SHORTEST_S, 30 * _DAY_S),
    "profiling_share": (0.0, 1.0),
    "profiling_payback": (0.0, 1e6),
    "prepare_timeout_s": (_SHORTEST_S, _DAY_S),
    "backoff_s": (1e-3, _DAY_S),
    "supervisor_losses_held": (0, 1_000_000),
    "quarantine_jobs": (0, 1_000_000),
    "quarantine_window_s": (_SHORTEST_S, 10 * _YEAR_S),
    "delay_usd_per_h": (0.0, 1e9),
    "spare_usd_per_h": (0.0, 1e9),
    "usage_half_life_s": (60.0, 10 * _YEAR_S),
    "usage_spot_factor": (0.0, 1.0),
    "rent_keep_s": (_SHORTEST_S, _YEAR_S),
    "rent_backoff_s": (_SHORTEST_S, _YEAR_S),
    "rent_backoff_max_s": (_SHORTEST_S, _YEAR_S),
}
#: Upper bound, equal to that of a job's own value.
_MOST_USD_PER_H = 1e9


def parse_policy(
    data: Any, *, bounded: bool = True, check: Callable[[PolicySpec], object] = make
) -> tuple[PolicySpec, RoundRules]:
    """Parses a policy file's content. Raises ConfigError (or UnknownPolicyError) naming the field and the fix.

    `bounded` False accepts values outside the bounds: an earlier version with wider bounds accepted the policy. `check`
    raises for unknown names and parameters.
    """
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
    check(spec)
    return spec, parse_rules(data.get("rules") or {}, bounded=bounded)


def refuse_listed_pairs(spec: PolicySpec) -> None:
    """Raises ConfigError for `packed`, which pairs only kinds that a problem lists: a cluster's problems list none."""
    if spec.parameters.get("packed") is True:
        raise ConfigError(
            f"policy '{spec.name}': packed says nothing to a cluster: it is for problems that list pairs of kinds",
            field="policy.parameters.packed",
            fix="remove it; jobs with `resources.shared` run two on one accelerator under every policy",
        )


def parse_rules(data: Any, *, bounded: bool = True) -> RoundRules:
    """Parses the `rules` part. Raises ConfigError."""
    if not isinstance(data, Mapping):
        raise ConfigError("rules: must be a mapping", field="rules")
    _refuse_unknown(data, tuple(field.name for field in fields(RoundRules)), "rules.")
    try:
        rules = _RULES.validate_python(dict(data))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(["rules", *map(str, first["loc"])])
        raise ConfigError(f"{name}: {first['msg']}", field=name) from None
    if rules.mechanism not in KNOWN_MECHANISMS:
        known = ", ".join(KNOWN_MECHANISMS)
        raise ConfigError(
            f"rules.mechanism: {rules.mechanism!r} is not known here; known: {known}", field="rules.mechanism"
        )
    for name, listed, row_type in (("budgets", rules.budgets, Budget), ("groups", rules.groups, UserGroup)):
        for place, raw in enumerate(data.get(name, ())[: len(listed)]):
            if isinstance(raw, Mapping):
                _refuse_unknown(raw, tuple(field.name for field in fields(row_type)), f"rules.{name}.{place}.")
    if rules.budgets or rules.groups:
        check_budgets(rules.budgets, rules.groups)
    _check_values(data.get("values", ()), rules)
    for name, (least, most) in _BOUNDS.items():
        value = getattr(rules, name)
        if not 0 <= value < float("inf"):
            raise ConfigError(f"rules.{name}: must be a finite number >= 0, not {value}", field=f"rules.{name}")
        if bounded and value and not least <= value <= most:
            told = f"{'0, or ' if least > 0 else ''}from {least:g} to {most:g}"
            raise ConfigError(
                f"rules.{name}: must be {told}, not {value:g}", field=f"rules.{name}", fix=f"choose {told}"
            )
    return rules


def _check_values(data: Any, rules: RoundRules) -> None:
    """Raises ConfigError if a value is stated twice, or is not an amount."""
    seen: set[tuple[str, str]] = set()
    for place, (raw, value) in enumerate(zip(data, rules.values, strict=True)):
        name = f"rules.values.{place}"
        if isinstance(raw, Mapping):
            _refuse_unknown(raw, tuple(field.name for field in fields(StatedValue)), f"{name}.")
        if not 0 <= value.usd_per_h <= _MOST_USD_PER_H:
            raise ConfigError(
                f"{name}.usd_per_h: must be 0 to {_MOST_USD_PER_H:g}, in USD per hour", field=f"{name}.usd_per_h"
            )
        if (value.project, value.user) in seen:
            whose = f"user {value.user!r} of project" if value.user else "project"
            raise ConfigError(f"{name}: a second value of {whose} {value.project!r}", field=name, fix="keep one")
        seen.add((value.project, value.user))


def dump_policy(spec: PolicySpec, rules: RoundRules) -> dict[str, Any]:
    """Returns the file's content as plain values."""
    return {
        "policy": {"name": spec.name, "parameters": dict(spec.parameters)},
        "rules": {name: (value.value if name == "backfill" else value) for name, value in asdict(rules).items()},
    }


def changed_rules(written: Mapping[str, Any]) -> list[str]:
    """Returns the names of the rules of a policy file that are not at their defaults."""
    rules, usual = parse_rules(written, bounded=False), RoundRules()
    return [each.name for each in fields(RoundRules) if getattr(rules, each.name) != getattr(usual, each.name)]


def _refuse_unknown(data: Mapping[Any, Any], known: tuple[str, ...], prefix: str) -> None:
    for key in data:
        if key not in known:
            near = get_close_matches(str(key), known, 1)
            hint = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"{prefix}{key}: unknown field", field=f"{prefix}{key}", fix=hint)
