"""The policy in force and its history: validated, versioned, changed without a restart."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from optimizer.policy import PolicySpec
from scheduler.core.events import PolicyChanged
from scheduler.core.rules import RoundRules, dump_policy, parse_policy
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.event_loop import ServerLoop
from scheduler.live.loop.transaction import Transaction
from scheduler.live.store.table_rows import PolicyRow

#: Used until an administrator says otherwise. Plans are for events: another may follow after a second.
DEFAULT_POLICY: Mapping[str, Any] = {"policy": {"name": "walras"}, "rules": {"resolve_min_s": 1.0}}


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    row: PolicyRow
    spec: PolicySpec
    rules: RoundRules


#: Told of a change: the policy before, if there was one, and the one that is in force now.
NotePolicy = Callable[[Transaction, PolicyInForce | None, PolicyInForce], None]


def parse_policy_row(row: PolicyRow) -> PolicyInForce:
    spec, rules = parse_policy(json.loads(row.body), bounded=False)
    return PolicyInForce(row, spec, rules)


class PolicyService:
    """Changes the policy."""

    def __init__(self, loop: ServerLoop, in_force: PolicyInForce | None) -> None:
        self._loop = loop
        self._in_force = in_force
        if in_force is not None:
            self._pace(in_force.rules)

    @property
    def has_policy(self) -> bool:
        return self._in_force is not None

    @property
    def in_force(self) -> PolicyInForce:
        assert self._in_force is not None, "a server has a policy before it answers"
        return self._in_force

    def check(self, data: Any) -> tuple[PolicySpec, RoundRules]:
        """What the data means. Raises ConfigError naming the field."""
        spec, rules = parse_policy(data)
        # As a reader of the journal will see it.
        return PolicySpec(spec.name, json.loads(json.dumps(dict(spec.parameters)))), rules

    def is_in_force(self, data: Any) -> bool:
        spec, rules = self.check(data)
        return self._in_force is not None and (self._in_force.spec, self._in_force.rules) == (spec, rules)

    async def change(self, data: Any, by: str, note: NotePolicy | None = None) -> PolicyInForce:
        """Put a policy in force. Raises ConfigError; then nothing changes. `note` is called in the same transaction."""
        spec, rules = self.check(data)

        def step(transaction: Transaction) -> PolicyInForce:
            version = 1 if self._in_force is None else self._in_force.row.version + 1
            body = json.dumps(dump_policy(spec, rules))
            changed = PolicyInForce(PolicyRow(version, body, transaction.at, by), spec, rules)
            emit(transaction, PolicyChanged(transaction.at, spec, rules))
            transaction.batch.policies.append(changed.row)
            if note is not None:
                note(transaction, self._in_force, changed)
            self._in_force = changed
            return changed

        changed = await self._loop.perform(step)
        self._pace(rules)
        return changed

    def _pace(self, rules: RoundRules) -> None:
        """Progress is news once a round, or sooner where a profiling lease is shorter than a round."""
        lengths = [length for length in (rules.round_s, rules.profiling_s) if length > 0]
        self._loop.progress_interval_s = min(lengths, default=1.0)
