"""Who the users are, what their projects and roles allow, and whether a job stays within these caps.

The rows are in the table `people`; this copy in memory is read at every request. A token belongs to a user: it opens
what both the token and its user may do, and nothing once the user is removed. A token whose user has no row (a database
of an earlier release before `adopt_token_owners` ran) opens what the token itself states.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from scheduler.core.events import EntityShare, ShareLimit
from scheduler.live.auth.access_control import RECOVERED, UserCaller, UserRole, caller_of_token
from scheduler.live.store.table_rows import PeopleRow, TokenRow
from walras.errors import Forbidden
from walras.resources.people import (
    ALL_PROJECTS,
    CAPPED_FIELDS,
    FIRST_ROLES,
    Caps,
    ProjectSettings,
    ProjectShare,
    RoleSettings,
    UserSettings,
    common_projects,
)

USER, PROJECT, ROLE = "user", "project", "role"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a user may not ask for a value of a job's field."""

    field: str
    detail: str
    fix: str


@dataclass(slots=True)
class People:
    """Users, projects and roles. Only transactions change it, with rows that they write."""

    rows: dict[tuple[str, str], PeopleRow] = field(default_factory=dict)
    users: dict[str, UserSettings] = field(default_factory=dict)
    projects: dict[str, ProjectSettings] = field(default_factory=dict)
    roles: dict[str, RoleSettings] = field(default_factory=lambda: dict(FIRST_ROLES))

    @classmethod
    def of(cls, rows: Iterable[PeopleRow]) -> "People":
        """Returns the people in these rows of the table."""
        people = cls()
        for row in rows:
            people.put(row)
        return people

    def put(self, row: PeopleRow) -> None:
        """Replace the row of this kind and name."""
        self.rows[row.kind, row.name] = row
        body = json.loads(row.body)
        if row.kind == USER:
            self.users[row.name] = UserSettings.model_validate(body)
        elif row.kind == ROLE:
            self.roles[row.name] = RoleSettings.model_validate(body)
        elif row.removed:
            self.projects.pop(row.name, None)
        else:
            self.projects[row.name] = ProjectSettings.model_validate(body)

    # ---------------------------------------------------------------- callers

    def is_removed(self, user: str) -> bool:
        row = self.rows.get((USER, user))
        return row is not None and row.removed

    def caller(self, token: TokenRow, unix_s: float) -> UserCaller | None:
        """Returns the token's user with what both may do at this Unix time; None where the token opens nothing."""
        caller, user = caller_of_token(token, unix_s), self.users.get(token.user)
        if caller is None or user is None:
            return caller
        projects = common_projects(caller.projects, tuple(user.projects))
        if self.is_removed(token.user) or not projects:
            return None
        return replace(caller, role=min(caller.role, UserRole[user.role.upper()]), projects=projects)

    def settings_of(self, project: str) -> ProjectSettings:
        """Returns the settings of a project; the defaults where nobody has set any."""
        return self.projects.get(project) or ProjectSettings()

    def known_projects(self) -> set[str]:
        """Returns the projects that have settings or users."""
        members = (set(user.projects) for name, user in self.users.items() if not self.is_removed(name))
        return set(self.projects).union(*members) - {ALL_PROJECTS}

    def shares(self) -> tuple[EntityShare, ...]:
        """Returns the weights, guarantees and limits of projects and their users that differ from the defaults."""
        found = []
        for project, settings in sorted(self.projects.items()):
            named = {project: settings.share, **{f"{project}/{user}": each for user, each in settings.users.items()}}
            for name, share in named.items():
                limits = tuple(ShareLimit(scope, most) for scope, most in sorted(share.limits.items()))
                owned = share.owned if isinstance(share, ProjectShare) else {}
                own = tuple(ShareLimit(scope, count) for scope, count in sorted(owned.items()))
                if share.model_dump(exclude_defaults=True):
                    found.append(EntityShare(name, share.weight, share.guaranteed, limits, own))
        return tuple(found)

    def is_operator(self, user: str) -> bool:
        """Returns whether the user is an operator or above, and so may be notified about machines."""
        known = None if self.is_removed(user) else self.users.get(user)
        return known is not None and UserRole[known.role.upper()] >= UserRole.OPERATOR

    # ---------------------------------------------------------------- caps

    def caps(self, caller: UserCaller, project: str) -> Caps:
        """Returns the caps on what the caller may ask for in the project: the lower of the role's and the project's."""
        if caller.role is UserRole.ADMIN:
            return Caps()
        return Caps.lowest(self._role_caps(caller.role), self.settings_of(project).caps)

    def refusal(self, caller: UserCaller, project: str, asked: str, value: Any) -> Refusal | None:
        """Returns why the caller may not ask for this value of a field in the project; None if the caller may.

        `asked`: priority, preemptible, weight or value_usd_per_h, as a job spec has them.
        """
        cap = getattr(self.caps(caller, project), CAPPED_FIELDS[asked])
        if asked == "preemptible":
            if value is not False or cap is not False:
                return None
            told = "`preemptible: false` is not allowed"
        elif cap is None or value is None or value <= cap:
            return None
        else:
            told = f"{asked} {value:g} is above the cap of {cap:g}"
        by_role = getattr(self._role_caps(caller.role), CAPPED_FIELDS[asked]) == cap
        whose = f"the role {caller.role.word}" if by_role else f"project {project}"
        changed = f"role {caller.role.word}" if by_role else f"project {project}"
        raised = f"{CAPPED_FIELDS[asked]}={'true' if asked == 'preemptible' else 'N'}"
        return Refusal(
            asked,
            f"{told} for {whose}",
            f"{'leave it out' if asked == 'preemptible' else f'ask for at most {cap:g}'}, or have an administrator "
            f"raise it: walras admin set {changed} {raised}",
        )

    def may_user(self, caller: UserCaller, project: str, asked: str, value: Any) -> bool:
        """Returns whether the caller may submit with this value; suggestions name only what their reader may do."""
        if caller.role < UserRole.USER or not caller.sees(project):
            return False
        return self.refusal(caller, project, asked, value) is None

    def check(self, caller: UserCaller, project: str, asked: Mapping[str, Any]) -> None:
        """Raise Forbidden for the first of these fields that is beyond a cap."""
        for name, value in asked.items():
            refused = self.refusal(caller, project, name, value)
            if refused is not None:
                raise Forbidden(refused.detail, field=refused.field, fix=refused.fix)

    def _role_caps(self, role: UserRole) -> Caps:
        settings = self.roles.get(role.word)
        return Caps() if settings is None else settings.caps

    # ---------------------------------------------------------------- grants

    def check_caps_grant(self, granter: UserCaller, before: Caps, after: Caps) -> None:
        """Raise Forbidden where a changed cap reaches or exceeds the granter's own."""
        own = self._role_caps(granter.role)
        if granter.role is UserRole.ADMIN:
            return
        for name in Caps.model_fields:
            cap, value = getattr(own, name), getattr(after, name)
            if value == getattr(before, name) or (cap is None and value is not None):
                continue
            if value is None or (value >= cap if name != "may_pin" else value and not cap):
                raise Forbidden(
                    f"{name}: your own cap is {'none' if cap is None else cap}; you grant less than that, not more",
                    field=f"caps.{name}",
                    fix="ask an administrator",
                )


def adopt_token_owners(people: People, tokens: Iterable[TokenRow], unix_s: float) -> list[PeopleRow]:
    """Returns rows to write at the start, so that every valid token belongs to a user who may do as much.

    They are of users of an earlier release, who keep what their tokens opened, and of those for whom a token was made
    beside the server (`walras admin recover-token`). Where there were users before there were roles, the roles are
    stored without caps, so that nobody loses a right.
    """
    rows: dict[tuple[str, str], PeopleRow] = {}
    first = not people.rows
    for token in tokens:
        key = (USER, token.user)
        row = people.rows.get(key)
        recovered = row is not None and token.created_by == RECOVERED and token.created_at > row.changed_at
        opened = caller_of_token(token, unix_s)
        if opened is None or (row is not None and key not in rows and not recovered):
            continue
        role, projects = opened.role, list(opened.projects)
        known = None if people.is_removed(token.user) else people.users.get(token.user)
        if known is not None:
            role = max(role, UserRole[known.role.upper()])
            projects = list(dict.fromkeys([*known.projects, *projects]))
        body = UserSettings(role=role.word, projects=projects).model_dump_json()
        rows[key] = PeopleRow(USER, token.user, body, unix_s, token.created_by)
        people.put(rows[key])
    for role_word in FIRST_ROLES if first and rows else ():
        uncapped = PeopleRow(ROLE, role_word, RoleSettings().model_dump_json(), unix_s, "an earlier release")
        rows[ROLE, role_word] = uncapped
        people.put(uncapped)
    return list(rows.values())
