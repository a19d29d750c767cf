"""Endpoints about people: users, projects, roles and tokens are listed, added, changed and removed.

Nobody grants as much as they have themselves: an operator adds and changes users below operator in the operator's own
projects, and sets caps below the operator's own. Only administrators make administrators, or the last one could never
be replaced. Weights, guarantees and limits between projects are set by administrators. A change is a JSON merge patch.

Users add, list, test and remove the addresses to which their notifications are sent, and see no others. An address is a
secret: answers and audit rows show only its host, or the kind of its service. The audit has a row for each change:
administrators see all rows, operators those of their projects.
"""

import json
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel

from scheduler.core.events import SharesDeclared
from scheduler.live.auth.access_control import (
    UserCaller,
    UserRole,
    check_grant,
    new_user_token,
    parse_role,
)
from scheduler.live.auth.people import PROJECT, ROLE, USER, People
from scheduler.live.http.request_bodies import validated
from scheduler.live.http.requests import RequestContext, serves
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.transaction import Transaction
from scheduler.live.services.views import view_of
from scheduler.live.store.store_interface import AuditQuery
from scheduler.live.store.table_rows import ChannelRow, PeopleRow, TokenRow
from walras.contract import pinned_token
from walras.errors import Conflict, Forbidden, NotFound, UserError
from walras.resources.notifications import (
    CHOICES,
    ChannelCreated,
    ChannelView,
    NewChannel,
    NotificationCalls,
    NotificationKind,
)
from walras.resources.people import (
    ALL_PROJECTS,
    TOKENS,
    AuditView,
    NewPerson,
    NewToken,
    PeopleCalls,
    ProjectSettings,
    ProjectView,
    RoleSettings,
    RoleView,
    TokenCreated,
    TokenList,
    TokenView,
    UserSettings,
    UserView,
    merged,
)
from walras.spec.field_types import parse_instant
from walras.units import format_jobs

ViewT = TypeVar("ViewT", bound=BaseModel)
#: The most rows of users, projects and roles that a cluster may have.
_MOST_ROWS = 100_000
_SETTINGS: dict[str, type[BaseModel]] = {USER: UserSettings, PROJECT: ProjectSettings, ROLE: RoleSettings}


def _store(call: RequestContext, transaction: Transaction, row: PeopleRow, before: Any) -> None:
    """Write a row with its audit row; the core is told where shares of projects or users change."""
    people = call.server.secrets.people
    shares = people.shares()
    transaction.batch.put(row)
    people.put(row)
    if people.shares() != shares:
        emit(transaction, SharesDeclared(transaction.at, people.shares()))
    after = None if row.removed else json.loads(row.body)
    project = row.name if row.kind == PROJECT else ""
    call.note_write(transaction, f"{row.kind} {row.name}", before=before, after=after, project=project)


def _row(call: RequestContext, kind: str, name: str, settings: BaseModel, *, removed: bool = False) -> PeopleRow:
    unix_s = call.server.clocks.wall()
    return PeopleRow(kind, name, settings.model_dump_json(), unix_s, call.user.name, removed)


# ------------------------------------------------------------------------------------------ look


@serves(PeopleCalls.users)
async def list_users(call: RequestContext) -> list[UserView]:
    people = call.server.secrets.people
    names = sorted(name for name in people.users if not people.is_removed(name))
    return [_user_view(call, name) for name in names if _shares_project(call.user, people.users[name])]


@serves(PeopleCalls.projects)
async def list_projects(call: RequestContext) -> list[ProjectView]:
    names = sorted(name for name in call.server.secrets.people.known_projects() if call.user.sees(name))
    return [_project_view(call, name) for name in names]


@serves(PeopleCalls.roles)
async def list_roles(call: RequestContext) -> list[RoleView]:
    return [_role_view(call, role.word) for role in UserRole]


def _shares_project(caller: UserCaller, user: UserSettings) -> bool:
    return ALL_PROJECTS in user.projects or any(caller.sees(project) for project in user.projects)


def _changed(call: RequestContext, kind: str, name: str) -> dict[str, Any]:
    row, clock = call.server.secrets.people.rows.get((kind, name)), call.server.loop.clock
    if row is None:
        return {}
    return {"changed_at": clock.shown(row.changed_at - clock.unix(0.0)), "changed_by": row.changed_by}


def _user_view(call: RequestContext, name: str) -> UserView:
    secrets, unix_s = call.server.secrets, call.server.clocks.wall()
    user = secrets.people.users[name]
    mine = [row for row in secrets.users.values() if row.user == name]
    return UserView(
        name=name,
        role=user.role,
        projects=user.projects,
        tokens=sum(secrets.people.caller(row, unix_s) is not None for row in mine),
        removed=secrets.people.is_removed(name),
        **_changed(call, USER, name),
    )


def _project_view(call: RequestContext, name: str) -> ProjectView:
    people = call.server.secrets.people
    users = people.users.items()
    members = sorted(user for user, has in users if name in has.projects and not people.is_removed(user))
    settings: dict[str, Any] = dict(people.settings_of(name))
    return ProjectView(name=name, members=members, **settings, **_changed(call, PROJECT, name))


def _role_view(call: RequestContext, word: str) -> RoleView:
    settings = call.server.secrets.people.roles.get(word, RoleSettings())
    return RoleView(name=word, caps=settings.caps, **_changed(call, ROLE, word))


# ------------------------------------------------------------------------------------------ users


@serves(PeopleCalls.add_user)
async def add_user(call: RequestContext) -> UserView:
    asked = await call.model(NewPerson)
    settings = validated(UserSettings, asked.settings)
    _check_user_grant(call, settings)

    def step(transaction: Transaction) -> None:
        people = call.server.secrets.people
        _check_is_new(people, USER, asked.name, asked.name in people.users and not people.is_removed(asked.name))
        # A name that was removed and is added again must not revive tokens that were made for it before.
        _void_tokens(call, transaction, asked.name)
        _store(call, transaction, _row(call, USER, asked.name, settings), None)

    await call.server.loop.perform(step)
    return _user_view(call, asked.name)


def _check_is_new(people: People, kind: str, name: str, is_there: bool) -> None:
    """Raise Conflict for a name that is taken, and where no more fit into the tables."""
    if is_there:
        raise Conflict(f"there is a {kind} {name!r} already", field="name", fix=f"walras admin set {kind} {name}")
    if len(people.rows) >= _MOST_ROWS:
        raise Conflict(f"there are {len(people.rows)} users and projects already", fix="remove some first")


@serves(PeopleCalls.change_user)
async def change_user(call: RequestContext) -> UserView:
    return await _change_person(call, USER, _user_before, _check_user_change, _user_view)


@serves(PeopleCalls.remove_user)
async def remove_user(call: RequestContext) -> UserView:
    """Removes a user and voids the user's tokens. The user's jobs continue; operators and administrators may change
    them.
    """
    name = call.request.match_info["name"]

    def step(transaction: Transaction) -> None:
        before = _user_before(call.server.secrets.people, name)
        _check_user_grant(call, before)
        _check_not_last_admin(call, name)
        _void_tokens(call, transaction, name)
        _store(call, transaction, _row(call, USER, name, before, removed=True), before.model_dump())

    await call.server.loop.perform(step)
    return _user_view(call, name)


def _user_before(people: People, name: str) -> UserSettings:
    if name not in people.users or people.is_removed(name):
        raise NotFound(f"no user {name[:100]!r}", field="name", fix="check `walras admin list users`")
    return people.users[name]


def _check_user_grant(call: RequestContext, settings: UserSettings) -> None:
    """Raise Forbidden unless the caller stands above a user with these settings, and holds all of its projects."""
    check_grant(call.user, parse_role(settings.role), tuple(settings.projects))


def _check_user_change(call: RequestContext, name: str, before: UserSettings, after: UserSettings) -> None:
    _check_user_grant(call, before)
    _check_user_grant(call, after)
    if after.role != UserRole.ADMIN.word or after.projects != before.projects:
        _check_not_last_admin(call, name)


def _check_not_last_admin(call: RequestContext, name: str) -> None:
    people, admin = call.server.secrets.people, UserRole.ADMIN.word
    admins = {each for each, user in people.users.items() if user.role == admin and not people.is_removed(each)}
    if admins == {name}:
        raise Conflict(
            f"{name!r} is the only administrator", field="name", fix="make another one first: walras admin add user"
        )


def _void_tokens(call: RequestContext, transaction: Transaction, user: str) -> None:
    unix_s = call.server.clocks.wall()
    for row in call.server.secrets.users.values():
        if row.user == user and row.revoked_at is None:
            row.revoked_at = unix_s
            transaction.batch.put(row)
    # Channels go too: neither the removed user nor the next one of that name may be told of events at old addresses.
    notifications = transaction.state.notifications
    notifications.remove_channels(transaction.batch, notifications.channels_of(user))


# ------------------------------------------------------------------------------------------ projects and roles


@serves(PeopleCalls.add_project)
async def add_project(call: RequestContext) -> ProjectView:
    asked = await call.model(NewPerson)
    settings = validated(ProjectSettings, asked.settings)
    _check_project_change(call, asked.name, ProjectSettings(), settings)

    def step(transaction: Transaction) -> None:
        people = call.server.secrets.people
        _check_is_new(people, PROJECT, asked.name, asked.name in people.projects)
        if asked.name == ALL_PROJECTS or "/" in asked.name:
            raise UserError(f"{asked.name!r} cannot name a project", field="name", fix="leave out * and /")
        _store(call, transaction, _row(call, PROJECT, asked.name, settings), None)

    await call.server.loop.perform(step)
    return _project_view(call, asked.name)


@serves(PeopleCalls.change_project)
async def change_project(call: RequestContext) -> ProjectView:
    return await _change_person(call, PROJECT, _project_before, _check_project_change, _project_view)


@serves(PeopleCalls.remove_project)
async def remove_project(call: RequestContext) -> ProjectView:
    """Removes a project's settings. Raises Conflict while users have it, or jobs of it have not ended."""
    name = call.request.match_info["name"]

    def step(transaction: Transaction) -> ProjectView:
        before = _project_before(call.server.secrets.people, name)
        _check_project_change(call, name, before, ProjectSettings())
        view = _project_view(call, name)
        jobs = [job.row.job_id for job in transaction.state.jobs.values() if job.row.project == name]
        if view.members or jobs:
            users = f"user {', '.join(view.members[:10])}" if view.members else ""
            active = format_jobs(jobs, 10) if jobs else ""
            left = " and ".join(filter(None, (users, active)))
            raise Conflict(f"project {name} still has {left}", field="name", fix="take it from them, let them end")
        row = _row(call, PROJECT, name, before, removed=True)
        _store(call, transaction, row, before.model_dump())
        return view

    return await call.server.loop.perform(step)


def _project_before(people: People, name: str) -> ProjectSettings:
    if name not in people.known_projects():
        raise NotFound(f"no project {name[:100]!r}", field="name", fix=f"walras admin add project {name[:100]}")
    return people.settings_of(name)


def _check_project_change(call: RequestContext, name: str, before: ProjectSettings, after: ProjectSettings) -> None:
    """Raise Forbidden unless the caller has the project and may set what changes."""
    user, people = call.user, call.server.secrets.people
    if not user.sees(name):
        raise Forbidden("you cannot change projects that you do not have", field="name", fix="ask an administrator")
    if user.role is UserRole.ADMIN:
        return
    if after.share != before.share:
        fix = "ask an administrator"
        raise Forbidden("what a project has against others is an administrator's to say", field="share", fix=fix)
    people.check_caps_grant(user, before.caps, after.caps)
    stated = {name: value for name, value in after.defaults.model_dump().items() if value is not None}
    people.check(user, name, stated)


@serves(PeopleCalls.change_role)
async def change_role(call: RequestContext) -> RoleView:
    return await _change_person(call, ROLE, _role_before, _check_role_change, _role_view)


def _role_before(people: People, name: str) -> RoleSettings:
    role = parse_role(name)
    if role is UserRole.ADMIN:
        raise UserError("administrators have no caps", field="name", fix="cap a role below")
    return people.roles.get(role.word, RoleSettings())


def _check_role_change(call: RequestContext, name: str, before: RoleSettings, after: RoleSettings) -> None:
    if parse_role(name) >= call.user.role or not call.user.sees(ALL_PROJECTS):
        raise Forbidden(f"the caps of {name} are for somebody above it, of every project, to set", field="name")
    call.server.secrets.people.check_caps_grant(call.user, before.caps, after.caps)


async def _change_person(
    call: RequestContext,
    kind: str,
    look: Callable[[People, str], Any],
    check: Callable[[RequestContext, str, Any, Any], None],
    view: Callable[[RequestContext, str], ViewT],
) -> ViewT:
    """Apply the request's merge patch to the settings of the user, project or role that the path names."""
    name, changes = call.request.match_info["name"], await call.json()
    if not isinstance(changes, dict) or not changes:
        raise UserError("nothing is to be changed", field="body", fix="see /api/v1/openapi.json")

    def step(transaction: Transaction) -> ViewT:
        before = look(call.server.secrets.people, name)
        given = before.model_dump(mode="json")
        after = validated(_SETTINGS[kind], merged(given, changes))
        check(call, name, before, after)
        if after != before:
            _store(call, transaction, _row(call, kind, name, after), given)
        return view(call, name)

    return await call.server.loop.perform(step)


# ------------------------------------------------------------------------------------------ tokens


@serves(PeopleCalls.create_token)
async def create_token(call: RequestContext) -> TokenCreated:
    """Makes a token of a user; an unknown user is added with the token's role and projects."""
    asked = await call.model(NewToken)
    role, projects = parse_role(asked.role), tuple(dict.fromkeys(asked.projects))
    check_grant(call.user, role, projects)
    clocks, chance, people = call.server.clocks, call.server.chance, call.server.secrets.people
    holder = UserCaller(asked.user, role, projects)
    token, row = new_user_token(holder, call.user.name, asked.expires_in_s, clocks, chance)

    def step(transaction: Transaction) -> None:
        known = None if people.is_removed(asked.user) else people.users.get(asked.user)
        if known is None:
            settings = UserSettings(role=role.word, projects=list(projects))
            _void_tokens(call, transaction, asked.user)
            transaction.batch.put(owner := _row(call, USER, asked.user, settings))
            people.put(owner)
        else:
            _check_user_grant(call, known)
            _check_within_user(asked.user, known, role, projects)
        transaction.batch.put(row)
        granted = {"user": row.user, "role": row.role, "projects": projects, "expires_in_s": asked.expires_in_s}
        call.note_write(transaction, f"token {row.prefix}", after=granted)

    await call.server.loop.perform(step)
    call.server.secrets.users[row.sha256] = row
    shown = pinned_token(token, call.server.secrets.pin)
    return TokenCreated(token=shown, prefix=row.prefix, user=row.user, role=row.role)


def _check_within_user(name: str, user: UserSettings, role: UserRole, projects: tuple[str, ...]) -> None:
    """Raise Conflict for a token with a higher role or more projects than its user has."""
    if role > UserRole[user.role.upper()]:
        fix = f"walras admin set user {name} role={role.word}"
        raise Conflict(f"{name} is {user.role}; a token of theirs cannot be {role.word}", field="role", fix=fix)
    beyond = [each for each in projects if each not in user.projects and ALL_PROJECTS not in user.projects]
    if beyond:
        fix = f"walras admin set user {name} projects={','.join((*user.projects, *beyond))}"
        raise Conflict(f"{name} does not have project {', '.join(beyond)}", field="projects", fix=fix)


def _sees_token(caller: UserCaller, row: TokenRow) -> bool:
    """Returns whether the caller sees a token: administrators all, operators what they may grant, others their own."""
    if caller.role is UserRole.ADMIN or row.user == caller.name:
        return True
    below = caller.role >= UserRole.OPERATOR and UserRole[row.role.upper()] < caller.role
    return below and all(caller.sees(project) for project in json.loads(row.projects))


@serves(TOKENS)
async def list_tokens(call: RequestContext) -> TokenList:
    rows = await call.server.read(call.server.store.tokens)
    return TokenList(items=[_token_view(call, row) for row in rows if _sees_token(call.user, row)])


@serves(PeopleCalls.revoke_token)
async def revoke_token(call: RequestContext) -> TokenView:
    prefix = call.request.match_info["prefix"]
    known = call.server.secrets.users.values()
    found = [row for row in known if row.prefix == prefix and _sees_token(call.user, row)]
    if not found:
        raise NotFound("no token with this prefix", field="prefix", fix="check `walras admin list tokens`")

    def step(transaction: Transaction) -> None:
        for row in found:
            standing = {"user": row.user, "role": row.role, "revoked": row.revoked_at is not None}
            call.note_write(transaction, f"token {prefix}", before=standing, after={**standing, "revoked": True})
            row.revoked_at = row.revoked_at or call.server.loop.clock.unix(transaction.at)
            transaction.batch.put(row)

    await call.server.loop.perform(step)
    return _token_view(call, found[0])


def _token_view(call: RequestContext, row: TokenRow) -> TokenView:
    live = call.server.secrets.users.get(row.sha256, row)
    return view_of(
        TokenView,
        row,
        projects=json.loads(row.projects),
        is_expired_or_revoked=call.server.secrets.people.caller(live, call.server.clocks.wall()) is None,
    )


# ------------------------------------------------------------------------------------------ notifications


_DIGITS = 18


@serves(NotificationCalls.channels)
async def list_channels(call: RequestContext) -> list[ChannelView]:
    rows = call.server.state.notifications.channels_of(call.user.name)
    return [_channel_view(call, row) for row in rows]


@serves(NotificationCalls.add_channel)
async def add_channel(call: RequestContext) -> ChannelCreated:
    """Adds a channel. Raises Forbidden for a kind of event that the caller may not be told of."""
    asked, service = await call.model(NewChannel), call.server.notifications
    if NotificationKind.TEST in asked.kinds:
        raise UserError("test is nothing that happens", field="kinds", fix=f"choose of {', '.join(CHOICES)}")
    if NotificationKind.MACHINE_LOST in asked.kinds and call.user.role < UserRole.OPERATOR:
        raise Forbidden("machines are an operator's to hear of", field="kinds", fix="leave machine_lost out")
    address = await service.checked(asked.url)

    def step(transaction: Transaction) -> tuple[ChannelRow, str]:
        row, key = service.add(transaction, call.user.name, address, asked.kinds)
        call.note_write(transaction, f"channel {row.channel_id}", after=_standing(row))
        return row, key

    row, key = await call.server.loop.perform(step)
    return ChannelCreated(**_channel_view(call, row).model_dump(), key=key)


@serves(NotificationCalls.remove_channel)
async def remove_channel(call: RequestContext) -> ChannelView:
    """Removes a channel with the notifications that wait for it."""
    number, service = _number(call), call.server.notifications

    def step(transaction: Transaction) -> ChannelView:
        row = service.channel_of(call.user.name, number)
        view = _channel_view(call, row)
        transaction.state.notifications.remove_channels(transaction.batch, [row])
        call.note_write(transaction, f"channel {number}", before=_standing(row))
        return view

    return await call.server.loop.perform(step)


@serves(NotificationCalls.test_channel)
async def send_test(call: RequestContext) -> ChannelView:
    """Sends a test notification and waits for the outcome: `problem` is empty where the receiver has it."""
    number, service = _number(call), call.server.notifications

    def note(transaction: Transaction, row: ChannelRow) -> None:
        call.note_write(transaction, f"channel {number}", after=_standing(row))

    problem = await service.test(call.user.name, number, note)
    return _channel_view(call, service.channel_of(call.user.name, number), problem=problem)


def _number(call: RequestContext) -> int:
    text = call.request.match_info["channel_id"]
    if len(text) > _DIGITS:
        raise NotFound("no such channel", field="channel_id", fix="check `walras notify`")
    return int(text)


def _standing(row: ChannelRow) -> dict[str, Any]:
    return {"user": row.user, "address": row.shown, "kinds": json.loads(row.kinds)}


def _channel_view(call: RequestContext, row: ChannelRow, **more: str) -> ChannelView:
    clock, waiting = call.server.loop.clock, call.server.state.notifications.by_channel.get(row.channel_id, ())
    return view_of(
        ChannelView,
        row,
        id=row.channel_id,
        kinds=json.loads(row.kinds),
        added_at=clock.shown(row.added_at),
        waiting=len(waiting),
        delivered_at=clock.shown_or_none(row.delivered_at),
        **more,
    )


# ------------------------------------------------------------------------------------------ the audit


_PAGE, _PAGE_MOST = 100, 10_000


@serves(PeopleCalls.audit)
async def list_audit(call: RequestContext) -> list[AuditView]:
    """Lists the audit rows that the caller may see, newest first. Raises UserError where `since` is no instant."""
    clock, written = call.server.loop.clock, call.request.query.get("since", "")
    since_at = 0.0
    if written:
        try:
            since_at = parse_instant(written, now=clock.unix(clock.now())) - clock.unix(0.0)
        except ValueError as error:
            raise UserError(f"since: {error}", field="since", fix="write it as 2026-11-05T18:00:00Z") from None
    query = AuditQuery(
        user=call.request.query.get("user", ""),
        since_at=since_at,
        projects=call.user.visible_projects,
        of_no_project=call.user.role is UserRole.ADMIN,
        limit=call.number("limit", _PAGE, 1, _PAGE_MOST),
    )
    rows = await call.server.read(call.server.store.audit, query)
    return [
        view_of(AuditView, row, at=clock.shown(row.at), before=json.loads(row.before), after=json.loads(row.after))
        for row in rows
    ]
