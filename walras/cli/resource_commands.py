"""`walras admin list`, `add`, `set` and `remove`: one table of the resources of a cluster.

A resource says what its columns are, which fields it takes and what is asked of the server; the fields are those of a
model, which is imported when one is given. `max_priority=50` stands for `caps.max_priority=50` where only one group has
such a field; `none` takes a setting out. The release before had a command for each resource and an option for each
field: those go on for this one, with a note.
"""

import importlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer
from typer.core import TyperCommand

from walras.cli.arguments import NoHeaderOption, OutputOption, local_time, replace_former
from walras.cli.money_commands import UNITS
from walras.cli.session import with_client
from walras.cli.terminal_output import OutputFormat, dash, joined, show_as_json, show_items, show_line, warn
from walras.errors import UserError
from walras.units import parse_length

if TYPE_CHECKING:
    from pydantic import BaseModel

    from walras.client import Client
    from walras.resources.fleet import ReservationView
    from walras.resources.people import Caps, ProjectShare, ProjectView, TokenCreated

Fields = dict[str, Any]
_PEOPLE = "walras.resources.people"
_FIELDS = "walras.cli.command_fields"


@dataclass(frozen=True)
class Change:
    """What is asked of the server; and what the answer is told with: a line, or what prints it."""

    ask: Callable[..., Awaitable[Any]]
    told: Callable[[Any], object] = str


@dataclass(frozen=True)
class Resource:
    """What is listed of a kind of resource, what it takes, and what is told of a change."""

    #: Titles as `columns_of` reads them, what is listed, and one of it as a row.
    columns: str = ""
    items: "Callable[[Client, Fields], Awaitable[Sequence[Any]]] | None" = None
    row: Callable[[Any], Sequence[str]] = list
    #: The models of the fields that `list`, and `add` and `set` take, as `package.module:Model`.
    choice: str = ""
    fields: str = ""
    #: Asked with the client, the name and the fields; `remove` without fields.
    add: Change | None = None
    change: Change | None = None
    remove: Change | None = None
    #: Options of the release before that were no field of their name.
    former: Mapping[str, str] = field(default_factory=dict)


# ---------------------------------------------------------------------------------------------------- one resource


def _user_line(user: Any) -> str:
    return f"user {user.name} is {user.role} of {', '.join(user.projects)}"


def project_row(project: "ProjectView") -> list[str]:
    """Returns a project's line of the listing: name, caps, defaults, weight, share, users."""
    defaults = project.defaults
    taken = [f"priority {defaults.priority}" if defaults.priority is not None else ""]
    taken.append(f"{defaults.value_usd_per_h:g} USD/h" if defaults.value_usd_per_h is not None else "")
    weight, share = f"{project.share.weight:g}", dash(_share_text(project.share))
    return [
        project.name, caps_text(project.caps), dash(", ".join(filter(None, taken))), weight, share,
        joined(project.members),
    ]  # fmt: skip


def _project_line(project: "ProjectView") -> str:
    name, caps, defaults, weight, share, _ = project_row(project)
    return f"project {name}: caps {caps}; defaults {defaults}; weight {weight}; {share}"


def _share_text(share: "ProjectShare") -> str:
    told = [f"guaranteed {share.guaranteed:.0%}"] if share.guaranteed else []
    told += [f"owns {count} x {scope}" for scope, count in share.owned.items()]
    return ", ".join([*told, *(f"{scope} at most {most}" for scope, most in share.limits.items())])


def caps_text(caps: "Caps") -> str:
    """Returns the caps in words; "none" for none."""
    told = [f"priority {caps.max_priority}" if caps.max_priority is not None else ""]
    told.append("no `preemptible: false`" if caps.may_pin is False else "")
    told.append(f"weight {caps.max_weight:g}" if caps.max_weight is not None else "")
    told.append(f"{caps.max_value_usd_per_h:g} USD/h" if caps.max_value_usd_per_h is not None else "")
    return ", ".join(filter(None, told)) or "none"


async def _add_token(client: "Client", user: str, terms: Fields) -> "TokenCreated":
    expires = parse_length(terms["expires"]) if terms.get("expires") else None
    return await client.create_token(
        user, terms.get("role", "user"), terms.get("projects", ["default"]), expires_in_s=expires
    )


def _show_token(made: "TokenCreated") -> None:
    """Prints the secret alone on standard output, so that it can go straight into a file."""
    show_line(made.token)
    warn(f"a token for {made.user} ({made.role}); keep it in a file that only you can read (chmod 600)")


async def _add_pool(client: "Client", file: str, fields: Fields) -> Any:
    """Adds the pool of a YAML file, which has the fields of one entry of `pools` in a cluster file."""
    from walras.spec.cluster_file import PoolEntry
    from walras.spec.file_model import check_model, load_mapping

    written = load_mapping(Path(file)) | fields
    check_model(PoolEntry, written, source=file)
    return await client.add_pool(written)


def _pool_row(pool: Any) -> list[str]:
    counts = [f"{pool.usd_per_h:g}", *map(str, (pool.quota, pool.machines, pool.coming))]
    return [
        pool.pool_id, f"{pool.accelerators} {pool.accelerator}", *counts, joined(pool.jobs), pool.standing,
        joined(pool.tools or ()),
    ]  # fmt: skip


def _pool_gone(gone: Any) -> None:
    show_line(f"pool {gone.pool_id} is gone")
    if gone.stranded_jobs:
        warn(f"no other pool can run job {', '.join(map(str, gone.stranded_jobs))}")


async def _forget_node(client: "Client", name: str) -> str:
    await client.forget_node(name)
    return f"node {name} is forgotten"


async def _reserve(client: "Client", accelerators: str, fields: Fields) -> "ReservationView":
    from walras.resources.fleet import NewReservation
    from walras.spec.file_model import check_model

    if accelerators:
        kind, colon, count = accelerators.rpartition(":")
        if not colon or not kind or not count.isascii() or not count.isdecimal() or not int(count[:9]):
            raise UserError(f"{accelerators[:60]!r} says no number of a type", field="NAME", fix="such as a100:8")
        fields = fields | {"accelerator": kind, "accelerators": int(count[:9])}
    check_model(NewReservation, fields, source="a reservation")
    return await client.reserve(fields)


def _show_reservation(found: "ReservationView") -> None:
    whom = "maintenance" if found.maintenance else f"project {found.project}"
    what = f"{found.reserved} accelerators on {', '.join(found.nodes)}"
    ended = (
        "is cancelled"
        if found.state == "cancelled"
        else f"from {local_time(found.starts)} until {local_time(found.ends)}"
    )
    show_line(f"reservation {found.id} for {whom}: {what}, {ended}")
    for note in found.notes:
        warn(note)


def _reservation_row(found: "ReservationView") -> list[str]:
    whom = "maintenance" if found.maintenance else found.project
    notes = "; ".join([*([found.reason] if found.reason else []), *found.notes])
    return [
        str(found.id), whom, found.state, local_time(found.starts), local_time(found.ends), str(found.reserved),
        ",".join(found.nodes), dash(notes),
    ]  # fmt: skip


async def _cancel_reservation(client: "Client", number: str) -> "ReservationView":
    if not (number.isascii() and number.isdecimal() and len(number) < 19):
        raise UserError(f"{number[:40]!r} is no number of a reservation", field="NAME", fix="give its ID")
    return await client.cancel_reservation(int(number))


async def _add_credit(client: "Client", _: str, fields: Fields) -> Any:
    from walras.resources.money import NewCredit
    from walras.spec.file_model import check_model

    check_model(NewCredit, fields, source="a credit")
    return await client.add_credit({**fields, "reason": fields.get("reason", "")})


def _credit_amount(credit: Any) -> str:
    return f"{credit.amount:g} {UNITS[credit.unit]}"


async def _audit(client: "Client", choice: Fields) -> "Sequence[Any]":
    since = choice.get("since")
    first = (datetime.now(UTC) - timedelta(seconds=parse_length(since))).isoformat() if since else ""
    return await client.audit(user=choice.get("user", ""), since=first, limit=choice.get("limit", 100))


def _audit_cell(value: Any) -> str:
    if not isinstance(value, dict):
        return dash(value)
    return " ".join(f"{name}={item}" for name, item in value.items() if item not in (None, "", [], {}))


#: Each kind of resource under its name.
RESOURCES = {
    "user": Resource(
        "USER~ | ROLE | PROJECTS~ | TOKENS> | CHANGED | BY~",
        lambda client, _: client.users(),
        lambda user: [
            user.name, user.role, ",".join(user.projects), str(user.tokens), dash(user.changed_at),
            dash(user.changed_by),
        ],
        fields=f"{_PEOPLE}:UserSettings",
        add=Change(lambda client, name, fields: client.add_user(name, fields), _user_line),
        change=Change(lambda client, name, fields: client.change_user(name, fields), _user_line),
        remove=Change(lambda client, name: client.remove_user(name), lambda gone: f"user {gone.name} is removed"),
        former={"--project": "projects={}", "-p": "projects={}"},
    ),
    "project": Resource(
        "PROJECT~ | CAPS~ | DEFAULTS~ | WEIGHT> | SHARE~ | USERS~",
        lambda client, _: client.projects(),
        project_row,
        fields=f"{_PEOPLE}:ProjectSettings",
        add=Change(
            lambda client, name, fields: client.add_project(name, fields),
            lambda made: f"project {made.name} is there",
        ),
        change=Change(lambda client, name, fields: client.change_project(name, fields), _project_line),
        remove=Change(lambda client, name: client.remove_project(name), lambda gone: f"project {gone.name} is gone"),
        former={
            "--may-pin": "may_pin=true", "--may-not-pin": "may_pin=false", "--value": "value_usd_per_h={}",
            "--max-value": "max_value_usd_per_h={}", "--limit": "limits.{}",
        },
    ),
    "role": Resource(
        "ROLE | CAPS~ | CHANGED | BY~",
        lambda client, _: client.roles(),
        lambda role: [role.name, caps_text(role.caps), dash(role.changed_at), dash(role.changed_by)],
        fields=f"{_PEOPLE}:RoleSettings",
        change=Change(
            lambda client, name, fields: client.change_role(name, fields),
            lambda now: f"role {now.name}: {caps_text(now.caps)}",
        ),
        former={
            "--may-pin": "may_pin=true", "--may-not-pin": "may_pin=false", "--max-value": "max_value_usd_per_h={}",
        },
    ),
    "token": Resource(
        "TOKEN | USER~ | ROLE | PROJECTS~ | MADE BY~ | STATE",
        lambda client, _: client.tokens(),
        lambda token: [
            token.prefix, token.user, token.role, ",".join(token.projects), token.created_by,
            "void" if token.is_expired_or_revoked else "valid",
        ],
        fields=f"{_FIELDS}:TokenTerms",
        add=Change(_add_token, _show_token),
        remove=Change(
            lambda client, name: client.revoke_token(name),
            lambda gone: f"token {gone.prefix} of {gone.user} is void",
        ),
        former={"--project": "projects={}", "-p": "projects={}"},
    ),
    "pool": Resource(
        "POOL~ | ACCELERATORS | USD/H> | QUOTA> | MACHINES> | COMING> | JOBS~ | STATE~+ | HAS~?1",
        lambda client, _: client.pools(),
        _pool_row,
        fields=f"{_FIELDS}:PoolTerms",
        add=Change(_add_pool, lambda added: f"pool {added.pool_id} is there"),
        change=Change(
            lambda client, name, fields: client.change_pool(name, **fields),
            lambda now: f"pool {now.pool_id}: quota {now.quota}, {now.usd_per_h:g} USD/h",
        ),
        remove=Change(lambda client, name: client.remove_pool(name), _pool_gone),
        former={"--price": "usd_per_h={}"},
    ),
    "reservation": Resource(
        "ID> | FOR~ | STATE | FROM | UNTIL | ACCELERATORS> | MACHINES~ | NOTES?9/",
        lambda client, choice: client.reservations(everything=choice.get("all", False)),
        _reservation_row,
        choice=f"{_FIELDS}:ReservationChoice", fields="walras.resources.fleet:NewReservation",
        add=Change(_reserve, _show_reservation),
        remove=Change(_cancel_reservation, _show_reservation),
        former={
            "--node": "nodes={}", "--from": "starts={}", "--until": "ends={}", "-p": "project={}",
            "--maintenance": "maintenance=true",
        },
    ),
    "credit": Resource(
        "ID> | AT | WHOSE~ | ADDED> | BY~ | REASON?9/",
        lambda client, _: client.credits(),
        lambda row: [
            str(row.id), row.at, row.whose or "cluster", _credit_amount(row), row.created_by, dash(row.reason),
        ],
        fields="walras.resources.money:NewCredit",
        add=Change(
            _add_credit, lambda made: f"credit {made.id}: {_credit_amount(made)} for {made.whose or 'the cluster'}"
        ),
        former={
            "-p": "project={}", "-u": "user={}", "--accelerator-hours": "accelerator_h={}",
            "--fair-share-hours": "fair_share_h={}",
        },
    ),
    "audit": Resource(
        "WHEN | USER~ | ACTION~ | WHAT~ | BEFORE?8/ | AFTER?9/",
        _audit,
        lambda row: [
            local_time(row.at), row.user, row.action.replace("/api/v1", ""), row.subject, _audit_cell(row.before),
            _audit_cell(row.after),
        ],
        choice=f"{_FIELDS}:AuditChoice",
        former={"-u": "user={}", "-n": "limit={}"},
    ),
    "usage": Resource(
        "WHAT | HOLDER~ | HELD> | SHARE>",
        lambda client, choice: client.holders(),
        lambda use: [use.what, use.holder, f"{use.held:,}", f"{use.share:,}"],
    ),
    "node": Resource(remove=Change(_forget_node)),
}  # fmt: skip


# ---------------------------------------------------------------------------------------------------- fields


def _read_fields(where: str, words: Sequence[str]) -> Fields:
    """Returns what FIELD=VALUE words say, by group; None: the setting is taken out. Raises UserError."""
    if not words:
        return {}
    if not where:
        raise UserError(f"{words[0][:60]!r} says nothing of it", field="FIELD=VALUE", fix="leave it out")
    module, _, name = where.partition(":")
    model: type[BaseModel] = getattr(importlib.import_module(module), name)
    found = Fields()
    for word in words:
        text, equals, value = word.partition("=")
        if not equals or not text:
            fix = f"fields: {', '.join(sorted(_settable(model)))}"
            raise UserError(f"{word[:80]!r} is not FIELD=VALUE", field="FIELD=VALUE", fix=fix)
        *groups, last = path = _path_of(model, text)
        place = found
        for group in groups:
            place = place.setdefault(group, {})
        read = None if value == "none" else _read_value(_type_at(model, path), value, text)
        place[last] = [*place.get(last, ()), *read] if isinstance(read, list) else read
    return found


def _path_of(model: "type[BaseModel]", text: str) -> list[str]:
    """Returns the names of the groups and of the field. Raises UserError for a field that there is not."""
    from walras.spec.file_model import nearest_word

    head, _, rest = text.partition(".")
    fields = model.model_fields
    if head not in fields:
        groups = [name for name, each in fields.items() if head in getattr(each.annotation, "model_fields", ())]
        if len(groups) != 1:
            known = _settable(model)
            meant = nearest_word(head, known)
            fix = f"did you mean `{meant}`?" if meant else f"known fields: {', '.join(sorted(known))}"
            raise UserError(f"{text[:60]}: unknown field", field=text[:60], fix=fix)
        head, rest = groups[0], text
    kind: Any = fields[head].annotation
    if hasattr(kind, "model_fields"):
        if not rest:
            fix = f"known fields: {', '.join(sorted(kind.model_fields))}"
            raise UserError(f"{text[:60]}: unknown field", field=text[:60], fix=fix)
        return [head, *_path_of(kind, rest)]
    if get_origin(kind) is not dict:
        return [head]
    inner_model = get_args(kind)[1]
    for at in (place for place, sign in enumerate(rest) if sign == "."):
        if rest[at + 1 :].partition(".")[0] in getattr(inner_model, "model_fields", ()):
            return [head, rest[:at], *_path_of(inner_model, rest[at + 1 :])]
    return [head, rest]


def _settable(model: "type[BaseModel]") -> set[str]:
    """Returns the fields that take a value; those of a group in place of the group."""
    return {
        name
        for field_name, each in model.model_fields.items()
        for name in getattr(each.annotation, "model_fields", None) or (field_name,)
    }


def _type_at(model: "type[BaseModel]", path: Sequence[str]) -> Any:
    field_ = model.model_fields[path[0]]
    kind: Any = field_.annotation
    if len(path) == 1:
        return Annotated[kind, field_]
    inner, rest = (get_args(kind)[1], path[2:]) if get_origin(kind) is dict else (kind, path[1:])
    return _type_at(inner, rest) if rest else inner


def _read_value(kind: Any, value: str, field_name: str) -> Any:
    """Returns the value of a field; of a list the items between commas. Raises UserError."""
    from pydantic import TypeAdapter, ValidationError

    is_list = get_origin(get_args(kind)[0] if hasattr(kind, "__metadata__") else kind) is list
    try:
        return TypeAdapter(kind).validate_python(value.split(",") if is_list else value)
    except ValidationError as error:
        text = error.errors()[0]["msg"].removeprefix("Value error, ")
        message, _, fix = text.partition("; ")
        raise UserError(f"{field_name}: {message[0].lower()}{message[1:]}", field=field_name, fix=fix) from None


# ---------------------------------------------------------------------------------------------------- commands


class ResourceCommand(TyperCommand):
    """A command whose words begin with a kind; an option of the release before is read as the field that it was."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the command line, former options replaced and noted on standard error."""
        kind = next((RESOURCES.get(word.removesuffix("s")) for word in args if not word.startswith("-")), None)

        def field_of(option: str) -> list[str] | None:
            if kind is None or not (option.startswith("--") or option in kind.former):
                return None
            return [kind.former.get(option) or f"{option.removeprefix('--').replace('-', '_')}={{}}"]

        return super().parse_args(ctx, replace_former(args, self.get_params(ctx), field_of))


def _resource(kind: str, what: str) -> tuple[Resource, Any]:
    """Returns the kind of resource with which `what` may be done, and how. Raises UserError naming those."""
    known = {name: each for name, each in RESOURCES.items() if getattr(each, what) is not None}
    if (found := known.get(kind.removesuffix("s"))) is None:
        word = {"items": "list", "change": "set"}.get(what, what)
        fix = "walras nodes" if kind in ("node", "nodes") else f"choose from {', '.join(known)}"
        raise UserError(f"{kind[:40]!r} is nothing to {word}", field="KIND", fix=fix)
    return found, getattr(found, what)


def _kinds(what: str) -> str:
    return ", ".join(name for name, each in RESOURCES.items() if getattr(each, what) is not None)


def _tell(told: object) -> None:
    if told is not None:
        show_line(str(told))


_FieldsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="FIELD=VALUE...", help="Fields; `none` takes a setting out.")
]


def list_command(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {_kinds('items')}.")],
    fields: Annotated[
        list[str] | None,
        typer.Argument(metavar="FIELD=VALUE...", help="Of reservations all=true; of the audit user, since, limit."),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
    no_header: NoHeaderOption = False,
) -> None:
    """List users, projects, roles, tokens, pools, reservations, credits, who changed what through the API, or who holds
    what of the server.
    """
    resource, items = _resource(kind, "items")
    choice = _read_fields(resource.choice, fields or ())
    found = with_client(lambda client: items(client, choice))
    show_items(resource.columns, found, resource.row, output, header=not no_header)


def add_command(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {_kinds('add')}.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME] FIELD=VALUE...",
            help="Name, of a token its user, of a pool its YAML file, of a reservation TYPE:N; and fields.",
        ),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Add a user, project, token, pool, reservation or credit.

    A token is printed once; the server stores only its hash. Jobs are planned around a reservation.
    """
    resource, add = _resource(kind, "add")
    said = list(words or ())
    name = said.pop(0) if said and "=" not in said[0] else ""
    if not name and kind not in ("credit", "reservation"):
        raise UserError(f"a {kind} has a name", field="NAME", fix=f"walras admin add {kind} NAME FIELD=VALUE...")
    fields = _read_fields(resource.fields, said)
    made = with_client(lambda client: add.ask(client, name, fields))
    if not show_as_json(made, output):
        _tell(add.told(made))


def set_command(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {_kinds('change')}.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.")],
    fields: _FieldsArgument = None,
) -> None:
    """Change a user, project, role or pool: what its jobs may ask for, get unasked, and have of the fleet.

    Of a user `role`, `projects`; of a project or a role `max_priority`, `may_pin`, `max_weight`, `max_value_usd_per_h`;
    of a project also `priority`, `value_usd_per_h`, `owned.SCOPE`, `weight`, `guaranteed`, `limits.SCOPE`, and the last
    three inside it as `users.NAME.weight`; of a pool `quota`, `usd_per_h`.
    """
    resource, change = _resource(kind, "change")
    if not fields:
        raise UserError("nothing is to be changed", field="FIELD=VALUE", fix="give at least one of them")
    changes = _read_fields(resource.fields, fields)
    _tell(change.told(with_client(lambda client: change.ask(client, name, changes))))


def remove_command(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {_kinds('remove')}.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name; of a token, its first characters.")],
) -> None:
    """Remove a user, a project, a pool or a lost machine, revoke a token, or cancel a reservation.

    A removed user's tokens open nothing any more; what the user submitted goes on. No user may have a project that is
    removed, and no job of it be left; a pool must be without machines and jobs; a machine lost, or silent and empty.
    """
    _, remove = _resource(kind, "remove")
    _tell(remove.told(with_client(lambda client: remove.ask(client, name))))
