"""The defaults that a submitted job gets for what it does not state, and the caps on what it states.

Defaults come from the job's project, else from Walras, and never exceed a cap of the owner; a stated value beyond a cap
is refused. Every answer about the job names the defaults that it got (`DefaultView`).
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from scheduler.core.explain.pending_reasons import PendingReason
from scheduler.live.auth.access_control import UserCaller, UserRole
from scheduler.live.auth.people import People
from scheduler.live.services.job_submission import JobDraft
from walras.people import DefaultView
from walras.spec.job_spec import JobSpec

#: How answers name a default of Walras itself.
BUILT_IN = "default"
#: The option in suggestions of `explain` that asks for a priority, and that priority's number.
_HIGH, _HIGH_PRIORITY = "--priority high", 80
_OR = "; or "


def with_standing(draft: JobDraft, caller: UserCaller, people: People) -> JobDraft:
    """Returns the draft with its defaults. Raises Forbidden naming the field, the cap, and who may raise it."""
    spec, project = draft.spec, draft.project
    stated = {name: getattr(spec, name) for name in ("priority", "weight", "value_usd_per_h", "preemptible")}
    people.check(caller, project, {name: value for name, value in stated.items() if name in spec.model_fields_set})
    taken: list[DefaultView] = []
    if spec.project is None:
        taken.append(DefaultView(field="project", value=project, by="your token"))
    caps, defaults = people.caps(caller, project), people.settings_of(project).defaults
    changes: dict[str, Any] = {}
    if "priority" not in spec.model_fields_set:
        by = BUILT_IN if defaults.priority is None else f"project {project}"
        value = spec.priority if defaults.priority is None else defaults.priority
        if caps.max_priority is not None and value > caps.max_priority:
            value, by = caps.max_priority, "your cap"
        changes["priority"] = value
        taken.append(DefaultView(field="priority", value=value, by=by))
    if "weight" not in spec.model_fields_set and caps.max_weight is not None and spec.weight > caps.max_weight:
        changes["weight"] = caps.max_weight
        taken.append(DefaultView(field="weight", value=caps.max_weight, by="your cap"))
    if spec.value_usd_per_h is None and defaults.value_usd_per_h is not None:
        value_cap = caps.max_value_usd_per_h
        capped = value_cap is not None and value_cap < defaults.value_usd_per_h
        changes["value_usd_per_h"] = value_cap if capped else defaults.value_usd_per_h
        by = "your cap" if capped else f"project {project}"
        taken.append(DefaultView(field="value_usd_per_h", value=changes["value_usd_per_h"], by=by))
    filled: JobSpec = spec.model_copy(update=changes)
    return replace(draft, spec=filled, written=spec, defaults=tuple(taken))


def parse_defaults(text: str) -> list[DefaultView]:
    """Returns the defaults in a job's row."""
    return [DefaultView(field=name, value=value, by=by) for name, (value, by) in json.loads(text).items()]


def followable(reason: PendingReason, caller: UserCaller, people: People, project: str) -> str:
    """Returns the fix with each option that exceeds the caller's caps replaced by the role to ask for it."""
    if _HIGH not in reason.fix or people.may_user(caller, project, "priority", _HIGH_PRIORITY):
        return reason.fix
    others = [each for each in reason.fix.split(_OR) if _HIGH not in each]
    able = [role for role in (UserRole.OPERATOR, UserRole.ADMIN) if _role_may(people, role, project)]
    return _OR.join([*others, f"ask an {able[0].word} of {project} for a high priority: it is above your cap"])


def _role_may(people: People, role: UserRole, project: str) -> bool:
    return people.may_user(UserCaller("", role, (project,)), project, "priority", _HIGH_PRIORITY)


def value_owner(said_by: str, defaults: Iterable[DefaultView]) -> str:
    """Returns who states what an hour of the job is worth: the project, where the job got that value by default."""
    return "project" if said_by == "job" and any(each.field == "value_usd_per_h" for each in defaults) else said_by
