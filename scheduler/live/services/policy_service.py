"""The policy in force and its history: tried, validated, versioned, changed without a restart.

A policy that is not part of Walras is tried on a copy of the live state before it is put in force (`policy_trial.py`).
If one fails later (`ActivePolicy.fault`), the last good one of the history is put back, as a version of its own that
says why; the default policy of Walras is the last resort. A policy never ends the server, nor keeps it from starting:
no code of another package runs in the server, which knows of the policy what its trial told (`PolicyTraits`).
"""

import json
import logging
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from optimizer.policy import PolicySpec, PolicyTraits
from optimizer.registry import FILE_PREFIX, is_built_in, make_own
from scheduler.core.budget_limits import users_with_budgets
from scheduler.core.events import PolicyChanged
from scheduler.core.rules import (
    ROUND_TIMES,
    RoundRules,
    dump_policy,
    parse_policy,
    refuse_listed_pairs,
    with_organisation_of,
)
from scheduler.core.state.policy_faults import PolicyFault, fault_of
from scheduler.live.loop import billing
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.event_loop import ServerLoop
from scheduler.live.loop.transaction import Transaction, TransactionEffects
from scheduler.live.services.policy_trial import PolicyTrial, trial_on_live_state, try_policy
from scheduler.live.store.table_rows import PolicyRow
from walras.errors import ConfigError, Conflict
from walras.spec.shipped_files import with_shipped_rules

log = logging.getLogger(__name__)

#: In force until an administrator chooses another. Plans follow events, and another may follow after a second.
DEFAULT_POLICY: Mapping[str, Any] = {"policy": {"name": "walras"}, "rules": {"resolve_min_s": 1.0}}
#: Key in the body of a version that replaced a failed one: which version failed, and how.
_PUT_BACK = "put_back"
#: Key in the body of a version: the reason that the administrator stated.
_REASON = "reason"
#: Copies what a policy is to be tried on; returns None if it needs no trial.
MakeTrial = Callable[[PolicySpec], PolicyTrial | None]


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    row: PolicyRow
    spec: PolicySpec
    rules: RoundRules
    #: Which version failed, and how, if this one was put back for that.
    put_back: str = ""
    #: The reason that its administrator stated.
    reason: str = ""
    #: What a policy of another package has said of itself at its trial in this process; None before it.
    traits: PolicyTraits | None = None

    @property
    def may_decide(self) -> bool:
        """Returns whether it is part of Walras, or has passed a trial in this process."""
        return self.traits is not None or is_built_in(self.spec.name)

    def changed(self, at: float) -> PolicyChanged:
        """Returns the event that puts it in force."""
        return PolicyChanged(at, self.spec, self.rules, self.put_back, self.traits)

    def is_same_as(self, spec: PolicySpec, rules: RoundRules) -> bool:
        """Returns whether that policy would decide as this one does."""
        return (self.spec, self.rules) == (spec, rules)


#: Called with the policy before (None if there was none) and the one that is in force now.
NotePolicy = Callable[[Transaction, PolicyInForce | None, PolicyInForce], None]


def _refuse_code(data: Any) -> None:
    """Raise ConfigError for a policy in a Python file, by which a caller could run any code in the server."""
    policy = data.get("policy") if isinstance(data, Mapping) else None
    name = policy.get("name") if isinstance(policy, Mapping) else policy
    if isinstance(name, str) and name.startswith(FILE_PREFIX):
        raise ConfigError(
            "a server runs no policy out of a file",
            field="policy.name",
            fix="install it beside the server, as a package with the entry point walras.policies",
        )


def parse_policy_row(row: PolicyRow) -> PolicyInForce:
    """Returns a version of the history. Raises ConfigError where this release cannot read it."""
    body = json.loads(row.body)
    put_back, reason = str(body.pop(_PUT_BACK, "")), str(body.pop(_REASON, ""))
    spec, rules = parse_policy(body, bounded=False, check=make_own)
    return PolicyInForce(row, spec, rules, put_back, reason)


@dataclass(frozen=True, slots=True)
class PolicyWish:
    """Who wants another policy, why, and in the place of which version; None: of whichever is in force."""

    by: str
    reason: str = ""
    instead_of: int | None = None


class PolicyService:
    """Changes the policy. `history` is the stored one, newest first."""

    def __init__(self, loop: ServerLoop, history: Sequence[PolicyRow]) -> None:
        self._loop = loop
        self._in_force: PolicyInForce | None = None
        #: The versions that this release can read, newest first.
        self._history: list[PolicyInForce] = []
        #: The newest version's number, readable or not; 0: there is none.
        self._last_version = history[0].version if history else 0
        self._failed: list[tuple[PolicySpec, RoundRules]] = []
        self._reported: PolicyFault | None = None
        #: Why the newest stored version cannot be read, if so.
        self._unreadable: PolicyFault | None = None
        for row in history:
            try:
                self._history.append(parse_policy_row(row))
            except Exception as error:  # a later or earlier release wrote it
                fault = fault_of("make", error)
                log.error("version %d of the policy: %s\n%s", row.version, fault, fault.trace)
                if row is history[0]:
                    self._unreadable = fault

    @property
    def has_policy(self) -> bool:
        return self._in_force is not None

    @property
    def in_force(self) -> PolicyInForce:
        assert self._in_force is not None, "a server has a policy before it answers"
        return self._in_force

    # ---------------------------------------------------------------- at the start

    async def choose(self, given: Mapping[str, Any] | None, trial_of: MakeTrial) -> PolicyInForce:
        """Returns the policy to begin with: the file's, else the newest stored one that works, else the default.

        `trial_of` copies what is stored of the jobs. Raises ConfigError where the file is invalid; a valid policy that
        fails its trial is passed over like any other.
        """
        fault, failed = self._unreadable, self._last_version
        if given is not None:
            spec, rules = self.check(given)
            newest = self._history[0] if self._history else None
            if newest is not None and newest.row.version == self._last_version and newest.is_same_as(spec, rules):
                given = None
            else:
                found = await self._tried(trial_of(spec))
                if not isinstance(found, PolicyFault):
                    return self._chosen(replace(self._version(spec, rules, PolicyWish("policy file")), traits=found))
                fault, failed = found, self._last_version + 1
                self._failed.append((spec, rules))
        for row, known in enumerate(self._history):
            if (known.spec, known.rules) in self._failed:
                continue
            found = await self._tried(trial_of(known.spec))
            if not isinstance(found, PolicyFault):
                known = self._history[row] = replace(known, traits=found)
                return self._chosen(known if fault is None else self._version_put_back(known, failed, fault))
            self._failed.append((known.spec, known.rules))
            if fault is None:
                fault, failed = found, known.row.version
        spec, rules = self.check(DEFAULT_POLICY)
        if fault is None:
            return self._chosen(self._version(spec, rules, PolicyWish("default")))
        default = PolicyInForce(PolicyRow(0, "", 0.0, "default"), spec, rules)
        return self._chosen(self._version_put_back(default, failed, fault))

    def _chosen(self, chosen: PolicyInForce) -> PolicyInForce:
        self._in_force = chosen
        self._pace(chosen.rules)
        return chosen

    def store_if_new(self, transaction: Transaction) -> None:
        """Store the version that was chosen at the start, unless it is the newest stored one."""
        chosen = self.in_force
        if chosen.row.version > self._last_version:
            self._remember(transaction, chosen)

    # ---------------------------------------------------------------- at people's wish

    def check(self, data: Any) -> tuple[PolicySpec, RoundRules]:
        """Returns the policy and rules in the data. Raises ConfigError naming the field.

        A policy without rules is the shipped file of its name. Budgets, groups, values and round times that the data
        do not state stay as they are.
        """
        _refuse_code(data)
        spec, rules = parse_policy(with_shipped_rules(data), check=make_own)
        refuse_listed_pairs(spec)
        stated = data.get("rules") or {}
        rules = self._with_organisation(rules, stated)
        # As a reader of the journal will see it.
        return PolicySpec(spec.name, json.loads(json.dumps(dict(spec.parameters)))), rules

    def _with_organisation(self, rules: RoundRules, stated: Container[str] = ()) -> RoundRules:
        """Returns the rules with the budgets, groups, values and round times in force, but for those stated."""
        before = self._in_force or (self._history[0] if self._history else None)
        if before is None:
            return rules
        _, shipped = parse_policy(with_shipped_rules({"policy": {"name": before.spec.name}}), check=make_own)
        return with_organisation_of(rules, stated, before.rules, shipped)

    async def try_out(self, data: Any) -> tuple[PolicySpec, RoundRules, PolicyTraits | None]:
        """As `check`, and tried on a copy of the live state. Raises ConfigError naming the method and the line."""
        spec, rules = self.check(data)
        trial = await self._loop.perform(
            lambda transaction: trial_on_live_state(transaction.core, spec, rules.delay_usd_per_h)
        )
        found = await self._tried(trial)
        if isinstance(found, PolicyFault):
            in_force = f"version {self.in_force.row.version} stays in force" if self.has_policy else "nothing changed"
            raise ConfigError(
                f"policy '{spec.name}': {found}; tried on a copy of the live state; {in_force}",
                field="policy.name",
                fix="the trace is in the server's log",
            )
        return spec, rules, found

    async def change(self, data: Any, wish: PolicyWish, note: NotePolicy | None = None) -> PolicyInForce:
        """Try a policy and put it in force; returns its version. `note` is called in the same transaction.

        Raises ConfigError, and Conflict where another version is in force than `wish` states; then nothing changes.
        """
        if not self._is_next(wish):
            self._check_version(wish)
        spec, rules, traits = await self.try_out(data)

        def step(transaction: Transaction) -> PolicyInForce:
            if self._is_next(wish) and self.in_force.is_same_as(spec, rules):
                return self.in_force  # the answer to this change was lost
            self._check_version(wish)
            before = self._in_force
            version = self._version(spec, rules, wish, transaction.at)
            changed = replace(version, traits=traits)
            self._put_in_force(transaction, changed)
            if note is not None:
                note(transaction, before, changed)
            return changed

        changed = await self._loop.perform(step)
        self._pace(rules)
        return changed

    def _is_next(self, wish: PolicyWish) -> bool:
        """Returns whether the policy in force came by the same person in the place of the version that is wished."""
        row = None if self._in_force is None else self._in_force.row
        return row is not None and (row.version - 1, row.changed_by) == (wish.instead_of, wish.by)

    def _check_version(self, wish: PolicyWish) -> None:
        if wish.instead_of is None or self._in_force is None or wish.instead_of == self._in_force.row.version:
            return
        row = self._in_force.row
        raise Conflict(
            f"version {row.version} by {row.changed_by} is in force, not {wish.instead_of}",
            field="if_version",
            fix=f"look at it (walras policy diff {wish.instead_of} {row.version}), then try again",
        )

    # ---------------------------------------------------------------- when it fails

    def deliver(self, effects: TransactionEffects) -> None:
        """After every commit: if the policy in force has failed, put the last good one back."""
        fault = self._loop.core.ledger.policy.fault
        if fault is None or fault is self._reported or self._in_force is None:
            return
        self._reported = fault
        name, version = self._in_force.spec.name, self._in_force.row.version
        log.error("policy '%s', version %d: %s\n%s", name, version, fault, fault.trace)
        self._loop.perform_soon(lambda transaction: self._put_back(transaction, fault))

    def _put_back(self, transaction: Transaction, fault: PolicyFault) -> None:
        failed = self.in_force
        if transaction.core.ledger.policy.fault is not fault:
            return  # another policy was put in force meanwhile
        self._failed.append((failed.spec, failed.rules))
        usable = (known for known in self._history if known.may_decide)
        good = next((known for known in usable if (known.spec, known.rules) not in self._failed), None)
        if good is None:
            spec, rules = self.check(DEFAULT_POLICY)
            good = PolicyInForce(PolicyRow(0, "", 0.0, "default"), spec, rules)
            if failed.is_same_as(spec, rules):
                log.error("no other policy is known: it stays in force")
                return
        changed = self._version_put_back(good, failed.row.version, fault, transaction.at)
        self._put_in_force(transaction, changed)
        self._pace(changed.rules)
        log.error("version %d is in force: %s", changed.row.version, changed.put_back)

    # ---------------------------------------------------------------- versions

    async def _tried(self, trial: PolicyTrial | None) -> PolicyFault | PolicyTraits | None:
        if trial is None:
            return None
        found = await try_policy(trial)
        if isinstance(found, PolicyFault):
            log.error("policy '%s', tried: %s\n%s", trial.spec.name, found, found.trace)
        return found

    def _version(
        self, spec: PolicySpec, rules: RoundRules, wish: PolicyWish, at: float | None = None, put_back: str = ""
    ) -> PolicyInForce:
        said = {name: text for name, text in ((_PUT_BACK, put_back), (_REASON, wish.reason)) if text}
        body = dump_policy(spec, rules) | said
        at = self._loop.clock.now() if at is None else at
        row = PolicyRow(self._last_version + 1, json.dumps(body), at, wish.by)
        return PolicyInForce(row, spec, rules, put_back, wish.reason)

    def _version_put_back(
        self, good: PolicyInForce, failed: int, fault: PolicyFault, at: float | None = None
    ) -> PolicyInForce:
        rules = self._with_organisation(good.rules, ROUND_TIMES)
        version = self._version(good.spec, rules, PolicyWish("walras"), at, f"version {failed} failed: {fault}")
        return replace(version, traits=good.traits)

    def _put_in_force(self, transaction: Transaction, changed: PolicyInForce) -> None:
        emit(transaction, changed.changed(transaction.at))
        if transaction.state.budgets.put_in_force(changed.rules):  # the core has no sums for new limits
            transaction.state.users_with_budgets = users_with_budgets(changed.rules.budgets)
            emit(transaction, billing.restate_spending(transaction))
        self._remember(transaction, changed)
        self._in_force = changed

    def _remember(self, transaction: Transaction, changed: PolicyInForce) -> None:
        transaction.batch.put(changed.row)
        self._history.insert(0, changed)
        self._last_version = changed.row.version

    def _pace(self, rules: RoundRules) -> None:
        """Set the interval of progress reports to the core: a round, or a profiling lease if that is shorter."""
        lengths = [length for length in (rules.round_s, rules.profiling_s) if length > 0]
        self._loop.progress_interval_s = min(lengths, default=1.0)
