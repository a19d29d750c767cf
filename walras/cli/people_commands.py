"""`walras admin user`, `project`, `role`, `token`, and `walras share`: who may do what, and has how much; and `walras
notify`: where you are told of what becomes of your jobs, and of lost machines.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.arguments import NoHeaderOption, OutputOption, parse_length_option
from walras.cli.budget_commands import budget_line
from walras.cli.session import with_client
from walras.cli.terminal_output import Column, Listing, OutputFormat, dash, show_json, show_line, show_listing, warn
from walras.errors import UserError
from walras.units import format_length

if TYPE_CHECKING:
    from walras.people import Caps, DefaultView, ProjectView, ShareTerms, ShareView
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from walras.notifications import ChannelView

user_commands = typer.Typer(help="The users of a cluster: list, add, change and remove them.", no_args_is_help=True)
project_commands = typer.Typer(help="The projects of a cluster: their caps, defaults and shares.", no_args_is_help=True)
role_commands = typer.Typer(help="The roles of a cluster and their caps.", no_args_is_help=True)

UserArgument = Annotated[str, typer.Argument(metavar="USER", help="Name of a user.")]
ProjectArgument = Annotated[str, typer.Argument(metavar="PROJECT", help="Name of a project.")]
RoleOption = Annotated[str | None, typer.Option("--role", help="Role: viewer, user, operator or admin.")]
ProjectsOption = Annotated[
    list[str] | None,
    typer.Option("--project", "-p", help="A project that the user may use, the first being the default; repeatable."),
]
_MOST = "a number, or `none` for no cap"
MaxPriorityOption = Annotated[
    str | None, typer.Option("--max-priority", metavar="N", help=f"Highest priority that jobs may ask for: {_MOST}.")
]
MayPinOption = Annotated[
    bool | None, typer.Option("--may-pin/--may-not-pin", help="Whether jobs may ask for `preemptible: false`.")
]
MaxWeightOption = Annotated[
    str | None, typer.Option("--max-weight", metavar="N", help=f"Largest weight that jobs may ask for: {_MOST}.")
]
MaxValueOption = Annotated[
    str | None, typer.Option("--max-value", metavar="USD", help=f"Largest value of an hour of a job: {_MOST}.")
]
PriorityOption = Annotated[
    str | None,
    typer.Option("--priority", metavar="N", help="Priority of jobs that state none: 0-100, or `none` for Walras's."),
]
ValueOption = Annotated[
    str | None,
    typer.Option("--value", metavar="USD", help="Value of an hour of jobs that state none, or `none`."),
]
WeightOption = Annotated[
    float | None, typer.Option("--weight", help="Part of the fleet against the other projects (or users) with work.")
]
GuaranteedOption = Annotated[
    float | None, typer.Option("--guaranteed", min=0.0, max=1.0, help="Fraction of all accelerators that comes first.")
]
LimitOption = Annotated[
    list[str] | None,
    typer.Option(
        "--limit", metavar="SCOPE=N", help="Accelerators held at most: fleet=16, a100=8, POOL=4; =none; repeatable."
    ),
]
OfUserOption = Annotated[
    str | None, typer.Option("--user", "-u", help="Weight, guarantee and limits are this user's, inside the project.")
]


def defaults_text(defaults: "list[DefaultView]") -> str:
    """Returns on one line what a job did not state, and whose default it got; empty where it stated all of it."""
    return ", ".join(f"{each.field} {each.value} ({each.by})" for each in defaults)


# ------------------------------------------------------------------------------------------ users


@user_commands.command("list")
def user_list_command(output: OutputOption = OutputFormat.TABLE, no_header: NoHeaderOption = False) -> None:
    """List the users of your projects: role, projects, and tokens that open something."""
    users = with_client(lambda client: client.users())
    columns = [Column("USER", shrinks=True), Column("ROLE"), Column("PROJECTS", shrinks=True)]
    columns += [Column("TOKENS", right=True), Column("CHANGED"), Column("BY", shrinks=True)]
    rows = [
        [user.name, user.role, ",".join(user.projects), str(user.tokens), dash(user.changed_at), dash(user.changed_by)]
        for user in users
    ]
    data = [user.model_dump(mode="json") for user in users]
    show_listing(Listing(columns, rows, data), output, header=not no_header)


@user_commands.command("add")
def user_add_command(user: UserArgument, role: RoleOption = None, project: ProjectsOption = None) -> None:
    """Add a user; `walras admin token create` then makes a token of theirs."""
    made = with_client(lambda client: client.add_user(user, _user_changes(role, project)))
    show_line(f"user {made.name} is {made.role} of {', '.join(made.projects)}")


@user_commands.command("set")
def user_set_command(user: UserArgument, role: RoleOption = None, project: ProjectsOption = None) -> None:
    """Give a user another role, or other projects; it holds for all of their tokens at once."""
    changes = _user_changes(role, project)
    _need(changes, "--role / --project")
    now = with_client(lambda client: client.change_user(user, changes))
    show_line(f"user {now.name} is {now.role} of {', '.join(now.projects)}")


@user_commands.command("remove")
def user_remove_command(user: UserArgument) -> None:
    """Remove a user: none of their tokens opens anything from now on; what they submitted goes on."""
    gone = with_client(lambda client: client.remove_user(user))
    show_line(f"user {gone.name} is removed")


def _user_changes(role: str | None, projects: list[str] | None) -> dict[str, Any]:
    return {name: value for name, value in (("role", role), ("projects", projects)) if value}


# ------------------------------------------------------------------------------------------ projects


@project_commands.command("list")
def project_list_command(output: OutputOption = OutputFormat.TABLE, no_header: NoHeaderOption = False) -> None:
    """List your projects: caps, defaults, weight, guarantee and limits, and who may use them."""
    projects = with_client(lambda client: client.projects())
    columns = [Column("PROJECT", shrinks=True), Column("CAPS", shrinks=True), Column("DEFAULTS", shrinks=True)]
    columns += [Column("WEIGHT", right=True), Column("SHARE", shrinks=True), Column("USERS", shrinks=True)]
    data = [project.model_dump(mode="json") for project in projects]
    show_listing(Listing(columns, [_project_row(each) for each in projects], data), output, header=not no_header)


@project_commands.command("add")
def project_add_command(
    project: ProjectArgument,
    max_priority: MaxPriorityOption = None,
    may_pin: MayPinOption = None,
    max_weight: MaxWeightOption = None,
    max_value: MaxValueOption = None,
    priority: PriorityOption = None,
    value: ValueOption = None,
    weight: WeightOption = None,
    guaranteed: GuaranteedOption = None,
    limit: LimitOption = None,
) -> None:
    """Add a project, with the options of `walras admin project set`."""
    settings = {
        "caps": _caps(max_priority, may_pin, max_weight, max_value),
        "defaults": _defaults(priority, value),
        "share": _share(weight, guaranteed, limit),
    }
    made = with_client(lambda client: client.add_project(project, settings))
    show_line(f"project {made.name} is there")


@project_commands.command("set")
def project_set_command(
    project: ProjectArgument,
    max_priority: MaxPriorityOption = None,
    may_pin: MayPinOption = None,
    max_weight: MaxWeightOption = None,
    max_value: MaxValueOption = None,
    priority: PriorityOption = None,
    value: ValueOption = None,
    user: OfUserOption = None,
    weight: WeightOption = None,
    guaranteed: GuaranteedOption = None,
    limit: LimitOption = None,
) -> None:
    """Change what jobs of a project may ask for, what they get unasked, and what it has of the fleet."""
    share = _share(weight, guaranteed, limit)
    parts = {
        "caps": _caps(max_priority, may_pin, max_weight, max_value),
        "defaults": _defaults(priority, value),
        "share": {} if user else share,
        "users": {user: share} if user and share else {},
    }
    changes = {name: part for name, part in parts.items() if part}
    _need(changes, "--max-priority / --priority / --weight / --limit")
    now = with_client(lambda client: client.change_project(project, changes))
    shown = _project_row(now)
    show_line(f"project {now.name}: caps {shown[1]}; defaults {shown[2]}; weight {shown[3]}; {shown[4]}")


@project_commands.command("remove")
def project_remove_command(project: ProjectArgument) -> None:
    """Forget a project's settings; no user may have it, and no job of it may be left."""
    gone = with_client(lambda client: client.remove_project(project))
    show_line(f"project {gone.name} is gone")


def _project_row(project: "ProjectView") -> list[str]:
    defaults = project.defaults
    taken = [f"priority {defaults.priority}" if defaults.priority is not None else ""]
    taken.append(f"{defaults.value_usd_per_h:g} USD/h" if defaults.value_usd_per_h is not None else "")
    return [
        project.name,
        _caps_text(project.caps),
        dash(", ".join(filter(None, taken))),
        f"{project.share.weight:g}",
        dash(_share_text(project.share)),
        dash(",".join(project.members)),
    ]


def _share_text(share: "ShareTerms") -> str:
    told = [f"guaranteed {share.guaranteed:.0%}"] if share.guaranteed else []
    return ", ".join([*told, *(f"{scope} at most {most}" for scope, most in share.limits.items())])


def _share(weight: float | None, guaranteed: float | None, limits: list[str] | None) -> dict[str, Any]:
    share: dict[str, Any] = {}
    if weight is not None:
        share["weight"] = weight
    if guaranteed is not None:
        share["guaranteed"] = guaranteed
    for text in limits or ():
        scope, sign, most = text.rpartition("=")
        if not sign or not scope or not (most == "none" or (most.isascii() and most.isdigit())):
            raise UserError(f"{text[:60]!r} is no limit", field="--limit", fix="write fleet=16, a100=8 or POOL=4")
        share.setdefault("limits", {})[scope] = None if most == "none" else int(most)
    return share


def _defaults(priority: str | None, value: str | None) -> dict[str, Any]:
    given = (("priority", priority, "--priority"), ("value_usd_per_h", value, "--value"))
    return {name: _amount(text, option) for name, text, option in given if text is not None}


# ------------------------------------------------------------------------------------------ roles


@role_commands.command("list")
def role_list_command(output: OutputOption = OutputFormat.TABLE, no_header: NoHeaderOption = False) -> None:
    """List the roles, the least first, with the caps on what their jobs may ask for."""
    roles = with_client(lambda client: client.roles())
    columns = [Column("ROLE"), Column("CAPS", shrinks=True), Column("CHANGED"), Column("BY", shrinks=True)]
    rows = [[role.name, _caps_text(role.caps), dash(role.changed_at), dash(role.changed_by)] for role in roles]
    data = [role.model_dump(mode="json") for role in roles]
    show_listing(Listing(columns, rows, data), output, header=not no_header)


@role_commands.command("set")
def role_set_command(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="user or operator; administrators have no caps.")],
    max_priority: MaxPriorityOption = None,
    may_pin: MayPinOption = None,
    max_weight: MaxWeightOption = None,
    max_value: MaxValueOption = None,
) -> None:
    """Change what the jobs of a role may ask for in any project."""
    caps = _caps(max_priority, may_pin, max_weight, max_value)
    _need(caps, "--max-priority / --may-pin / --max-weight / --max-value")
    now = with_client(lambda client: client.change_role(role, {"caps": caps}))
    show_line(f"role {now.name}: {_caps_text(now.caps)}")


def _caps(priority: str | None, may_pin: bool | None, weight: str | None, value: str | None) -> dict[str, Any]:
    """Caps as a merge patch: None takes one out."""
    given = (
        ("max_priority", priority, "--max-priority"),
        ("max_weight", weight, "--max-weight"),
        ("max_value_usd_per_h", value, "--max-value"),
    )
    caps: dict[str, Any] = {name: _amount(text, option) for name, text, option in given if text is not None}
    return caps if may_pin is None else caps | {"may_pin": may_pin}


def _amount(text: str, option: str) -> float | int | None:
    if text == "none":
        return None
    try:
        number = float(text)
    except ValueError:
        raise UserError(f"{text[:40]!r} is no number", field=option, fix="write a number, or none") from None
    return int(number) if number.is_integer() else number


def _caps_text(caps: "Caps") -> str:
    told = [f"priority {caps.max_priority}" if caps.max_priority is not None else ""]
    told.append("no `preemptible: false`" if caps.may_pin is False else "")
    told.append(f"weight {caps.max_weight:g}" if caps.max_weight is not None else "")
    told.append(f"{caps.max_value_usd_per_h:g} USD/h" if caps.max_value_usd_per_h is not None else "")
    return ", ".join(filter(None, told)) or "none"


def _need(changes: dict[str, Any], options: str) -> None:
    if not changes:
        raise UserError("nothing is to be changed", field=options, fix="give at least one of them")


# ------------------------------------------------------------------------------------------ shares


def share_command(
    project: Annotated[str | None, typer.Option("--project", "-p", help="Only this project and its users.")] = None,
    output: OutputOption = OutputFormat.TABLE,
    no_header: NoHeaderOption = False,
) -> None:
    """Show what projects and users are entitled to, hold now, have used lately, and borrow."""
    shares = with_client(lambda client: client.share(project or ""))
    columns = [
        Column("NAME", shrinks=True),
        Column("WEIGHT", right=True),
        Column("ASKS FOR", right=True),
        Column("ENTITLED", right=True),
        Column("HOLDS", right=True),
        Column("UNITS", right=True),
        Column("USED LATELY", right=True),
        Column("OF ALL", right=True),
        Column("BORROWED", shrinks=True),
        Column("LIMITS", shrinks=True),
    ]
    data = [each.model_dump(mode="json") for each in shares]
    show_listing(Listing(columns, [_share_row(each) for each in shares], data), output, header=not no_header)
    if output is OutputFormat.TABLE and shares and not no_header:
        for each in shares:
            if each.because and "/" not in each.name:
                show_line(each.because)
        show_line(f"used lately: accelerator-hours, halved every {format_length(shares[0].half_life_s)}")
        for budget in with_client(lambda client: client.budgets()):
            if project in (None, budget.project):
                show_line(budget_line(budget))


def _share_row(share: "ShareView") -> list[str]:
    indented = f"  {share.name.partition('/')[2]}" if "/" in share.name else share.name
    limits = [f"{scope} {most}" for scope, most in sorted(share.limits.items())]
    return [
        indented,
        f"{share.weight:g}",
        f"{share.demand:g}",
        f"{share.entitled:.1f}",
        f"{sum(share.held.values()):g}",
        f"{share.held_units:.1f}",
        f"{share.used_h:.1f} h",
        f"{share.used_part:.0%}",
        dash(", ".join(f"{loan.accelerators:.1f} of {loan.name}" for loan in share.borrowed)),
        dash(", ".join(limits)),
    ]


# ------------------------------------------------------------------------------------------ tokens

token_commands = typer.Typer(help="The tokens of users: create, list and revoke them.", no_args_is_help=True)


@token_commands.command("create")
def token_create_command(
    user: Annotated[str, typer.Argument(metavar="USER", help="The user whom the token identifies.")],
    role: Annotated[str, typer.Option("--role", help="Role: viewer, user, operator or admin.")] = "user",
    project: ProjectsOption = None,
    expires: Annotated[
        str | None, typer.Option("--expires", help="Lifetime of the token, such as 12h or 90d; default: unlimited.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Create a user token. It is printed once; the server stores only its hash."""
    expires_in_s = parse_length_option(expires, "--expires")
    made = with_client(
        lambda client: client.create_token(user, role, project or ["default"], expires_in_s=expires_in_s)
    )
    if output is OutputFormat.JSON:
        show_json(made.model_dump(mode="json"))
        return
    # The secret alone on standard output, so that it can go straight into a file.
    show_line(made.token)
    warn(f"a token for {made.user} ({made.role}); keep it in a file that only you can read (chmod 600)")


@token_commands.command("list")
def token_list_command(output: OutputOption = OutputFormat.TABLE, no_header: NoHeaderOption = False) -> None:
    """List the tokens by their first characters, with user, role and projects."""
    tokens = with_client(lambda client: client.tokens())
    columns = [Column("TOKEN"), Column("USER", shrinks=True), Column("ROLE"), Column("PROJECTS", shrinks=True)]
    columns += [Column("MADE BY", shrinks=True), Column("STATE")]
    rows = [
        [each.prefix, each.user, each.role, ",".join(each.projects), each.created_by, _token_state(each)]
        for each in tokens
    ]
    data = [each.model_dump(mode="json") for each in tokens]
    show_listing(Listing(columns, rows, data), output, header=not no_header)


def _token_state(token: Any) -> str:
    return "void" if token.is_expired_or_revoked else "valid"


@token_commands.command("revoke")
def token_revoke_command(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="First characters, as `walras admin token list` has.")],
) -> None:
    """Revoke a token: it opens nothing from now on."""
    gone = with_client(lambda client: client.revoke_token(token))
    show_line(f"token {gone.prefix} of {gone.user} is void")


PEOPLE_COMMANDS = {
    "user": user_commands,
    "project": project_commands,
    "role": role_commands,
    "token": token_commands,
}


notify_commands = typer.Typer(
    help="Notify me by webhook, chat or mail when jobs fail, finish, wait too long or may be late.",
    no_args_is_help=True,
)

ChannelArgument = Annotated[int, typer.Argument(metavar="ID", min=1, help="Number, as `walras notify list` has it.")]
_DEFAULT_KINDS = "failed,finished"
_LONGEST_URL = 2000


@notify_commands.command("add")
def notify_add_command(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="https://... for a webhook, a chat or mail address of Apprise, or - for standard input."
        ),
    ],
    on: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="KINDS",
            help="Of failed,finished,at_risk,budget,stuck,idle and, for operators, machine_lost.",
        ),
    ] = _DEFAULT_KINDS,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Be told of events at an address. The key that a webhook's notifications are signed with is printed once."""
    kinds = _event_kinds(on)
    address = (sys.stdin.read(_LONGEST_URL + 2) if url == "-" else url).strip()
    made = with_client(lambda client: client.add_channel(address, kinds))
    if output is OutputFormat.JSON:
        show_json(made.model_dump(mode="json"))
        return
    if made.key:
        # Only the secret goes to standard output, so that it can go straight into a file.
        show_line(made.key)
    signed = "; the receiver checks `webhook-signature` with the key" if made.key else ""
    warn(f"channel {made.id}: {made.shown} hears of {', '.join(made.kinds)}{signed}", f"walras notify test {made.id}")


def _event_kinds(written: str) -> list[str]:
    from walras.notifications import CHOICES

    kinds = [each.strip().lower().replace("-", "_") for each in written.split(",") if each.strip()]
    unknown = [each for each in kinds if each not in CHOICES]
    if unknown or not kinds:
        told = f"{unknown[0][:40]!r} is nothing to be told of" if unknown else "nothing is to be told"
        raise UserError(told, field="--on", fix=f"choose of {','.join(CHOICES)}")
    return list(dict.fromkeys(kinds))


@notify_commands.command("list")
def notify_list_command(output: OutputOption = OutputFormat.TABLE, no_header: NoHeaderOption = False) -> None:
    """List where you are told of events, and what came of it. Of an address only its host is shown."""
    channels = with_client(lambda client: client.channels())
    columns = [
        Column("ID", right=True),
        Column("TO", shrinks=True),
        Column("ON", shrinks=True),
        Column("WAITING", right=True),
        Column("DELIVERED", right=True),
        Column("FAILED", right=True),
        Column("DROPPED", right=True),
        Column("LAST"),
        Column("PROBLEM", shrinks=True),
    ]
    data = [channel.model_dump(mode="json") for channel in channels]
    show_listing(Listing(columns, [_channel_row(each) for each in channels], data), output, header=not no_header)


def _channel_row(channel: "ChannelView") -> list[str]:
    counts = [channel.waiting, channel.delivered, channel.failed, channel.dropped]
    return [
        str(channel.id),
        channel.shown,
        ",".join(channel.kinds),
        *map(str, counts),
        dash(channel.delivered_at),
        dash(channel.problem),
    ]


@notify_commands.command("remove")
def notify_remove_command(channel: ChannelArgument) -> None:
    """Be told at an address no more."""
    gone = with_client(lambda client: client.remove_channel(channel))
    show_line(f"channel {gone.id} ({gone.shown}) is removed")


@notify_commands.command("test")
def notify_test_command(channel: ChannelArgument) -> None:
    """Send a test to an address, and say what came of it. Exits with 1 if the receiver did not take it."""
    tested = with_client(lambda client: client.test_channel(channel))
    if tested.problem:
        warn(f"walras: channel {tested.id} ({tested.shown}): {tested.problem}")
        raise typer.Exit(1)
    show_line(f"channel {tested.id} ({tested.shown}) took it")
