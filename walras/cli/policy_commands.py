"""`walras policy`: the policies there are, the one in force and those before it, and another one in its place."""

import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.arguments import NoHeaderOption, OutputOption, example_or_path, local_time, refuse_options
from walras.cli.session import with_client
from walras.cli.terminal_output import (
    OutputFormat,
    dash,
    exit_with,
    show_as_json,
    show_columns,
    show_items,
    show_json,
    show_line,
)
from walras.errors import NotFound, UnknownPolicyError, UserError

if TYPE_CHECKING:
    from optimizer.registry import PolicyDescription
    from simulator.reports.recorded_runs import Recording
    from walras.client import Client
    from walras.resources.overview import PolicyView

policy_commands = typer.Typer(help="List, describe and change scheduling policies.", no_args_is_help=True)


@policy_commands.command("show")
def policy_show_command(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The policy to describe; default: the policy in force.")
    ] = None,
    version: Annotated[
        int | None, typer.Option("--version", metavar="N", help="Print this version of the history as a policy file.")
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="List the versions that were in force, the newest first.")
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
    no_header: NoHeaderOption = False,
) -> None:
    """Describe a policy: formula, source, parameters. Without a name, print the policy in force as a policy file,
    without the rules that are at their defaults."""
    if history:
        _show_history(output, header=not no_header)
        return
    refuse_options({"--no-header": no_header}, "is of the list of versions", "add --history")
    if version is not None:
        show_policy(_version_of(with_client(lambda client: client.policy_versions()), version), output)
        return
    if name is None:
        show_policy(with_client(lambda client: client.policy()), output)
        return
    from optimizer.registry import describe

    described = describe(name)
    if output is OutputFormat.JSON:
        show_json(asdict(described))
    else:
        _show_policy_description(described)


_POLICY_EXAMPLE = example_or_path("policies")
_KNOWN_HELP = "A name, a policy file, example:NAME, a version's number, or `current`."
_WANTED = typer.Argument(
    metavar="NAME|FILE", help="A policy by its name, a policy file (YAML), or example:NAME.", callback=_POLICY_EXAMPLE
)
_ReasonOption = Annotated[str, typer.Option("--reason", help="Why, for the history.")]
_IfVersionOption = Annotated[
    int | None, typer.Option("--if-version", metavar="N", help="Only if this version is in force.")
]


@policy_commands.command("apply")
def policy_apply_command(
    wanted: Annotated[str | None, _WANTED] = None,
    rollback: Annotated[
        bool,
        typer.Option("--rollback", help="Put version NAME of the history in force again; default: the one before."),
    ] = False,
    reason: _ReasonOption = "",
    if_version: _IfVersionOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Validate and try it; change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask where budgets or values would vanish.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Put a policy in force without a restart (administrators only).

    Budgets, groups, values and round times that the file does not state stay as they are.
    """
    if rollback:
        refuse_options({"--dry-run": dry_run, "--if-version": if_version}, "is no part of --rollback", "leave it out")
        if wanted is not None and not re.fullmatch(r"[0-9]{1,9}", wanted, re.ASCII):
            raise UserError(f"{wanted[:40]!r} is no version", field="N", fix="walras policy show --history lists them")
        _roll_back(None if wanted is None else int(wanted), reason, output)
        return
    if wanted is None:
        raise UserError("no policy is named", field="NAME|FILE", fix="walras policy list")
    written = policy_mapping(wanted)

    async def look(client: "Client") -> "tuple[PolicyView, PolicyView]":
        before = await client.policy()
        return before, await client.set_policy(written, dry_run=True, reason=reason, if_version=if_version)

    before, tried = with_client(look)
    vanishing = _vanishing(before.rules, tried.rules)
    if output is OutputFormat.TABLE:
        for name, was, now in _differences(before, tried):
            show_line(f"# {name}: {was} -> {now}")
    if dry_run:
        _show_applied(tried, output, dry_run=True)
        return
    if vanishing and not yes:
        _confirm(f"this removes {', '.join(vanishing)}")
    shown = before.version if if_version is None else if_version
    view = with_client(lambda client: client.set_policy(written, reason=reason, if_version=shown))
    _show_applied(view, output)


def _differences(before: "PolicyView", after: "PolicyView") -> list[tuple[str, Any, Any]]:
    """Returns what differs between two policies: field, before, after."""
    was, now = (
        {"policy": each.name, "parameters": each.parameters, **{f"rules.{k}": v for k, v in each.rules.items()}}
        for each in (before, after)
    )
    return [
        (name, was.get(name), now.get(name))
        for name in sorted(was.keys() | now.keys())
        if was.get(name) != now.get(name)
    ]


def _vanishing(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Returns in words which budgets, groups and values of the rules before are not in those after."""
    lost = []
    for name, one in (("budgets", "budget"), ("groups", "group"), ("values", "value")):
        gone = [each for each in before.get(name, ()) if each not in after.get(name, ())]
        if gone:
            lost.append(f"{len(gone)} {one}{'s' if len(gone) > 1 else ''}")
    if before.get("delay_usd_per_h") and not after.get("delay_usd_per_h"):
        lost.append("the value of an hour of jobs that state none")
    return lost


def _confirm(what: str) -> None:
    """Asks a person; raises UserError where nobody can answer, or the answer is no."""
    if not (sys.stdin.isatty() and typer.confirm(f"{what}. Go on?")):
        raise UserError(f"{what}; nothing was changed", field="--yes", fix="say --yes, or name them in the file")


def _roll_back(version: int | None, reason: str, output: OutputFormat) -> None:
    """Put a former version in force again, as a new one; budgets, groups and values stay as they are."""

    async def go_back(client: "Client") -> "PolicyView":
        versions = await client.policy_versions()
        chosen = _version_of(versions, version)
        from scheduler.core.rules import ORGANISATION

        rules = {name: value for name, value in chosen.rules.items() if name not in ORGANISATION}
        written = _as_file(chosen, rules)
        why = reason or f"back to version {chosen.version}"
        return await client.set_policy(written, reason=why, if_version=versions[0].version)

    _show_applied(with_client(go_back), output)


def _version_of(versions: "Sequence[PolicyView]", version: int | None) -> "PolicyView":
    """Returns the version of this number; None: the newest that is another policy than the one in force."""
    now = versions[0]
    for each in versions[1:] if version is None else versions:
        is_other = (each.name, each.parameters, each.rules) != (now.name, now.parameters, now.rules)
        if each.version == version or (version is None and is_other):
            return each
    kept = f"{versions[-1].version} to {now.version}"
    what = "no other policy was in force before" if version is None else f"no version {version} is kept"
    raise NotFound(what, field="N", fix=f"the versions {kept} are: walras policy show --history")


def _show_history(output: OutputFormat, *, header: bool) -> None:
    versions = with_client(lambda client: client.policy_versions())

    def row(each: "PolicyView") -> list[str]:
        why = dash(each.put_back or each.reason)
        return [str(each.version), each.name, local_time(each.changed_at), dash(each.changed_by), why]

    show_items("VERSION> | POLICY | SINCE | BY~ | WHY?9/", versions, row, output, header=header)


@policy_commands.command("diff")
def policy_diff_command(
    one: Annotated[str, typer.Argument(metavar="A", help=_KNOWN_HELP, callback=_POLICY_EXAMPLE)],
    other: Annotated[str, typer.Argument(metavar="B", help="The same.", callback=_POLICY_EXAMPLE)] = "current",
    output: OutputOption = OutputFormat.TABLE,
    no_header: NoHeaderOption = False,
) -> None:
    """Show in what two policies differ. Needs a server for versions alone."""
    before, after = _fields_of(one), _fields_of(other)
    about = _parameters_in_words(before["policy.name"], after["policy.name"])
    differs = [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
    rows = [[name, _value(before, name), _value(after, name), about.get(name, "")] for name in differs]
    data = [{"field": name, "a": before.get(name), "b": after.get(name)} for name in differs]
    if not differs and output is OutputFormat.TABLE:
        show_line("they are the same")
        return
    show_columns("FIELD | A~ | B~ | UNIT?1", rows, data, output, header=not no_header)


def _fields_of(named: str) -> dict[str, Any]:
    """Returns the fields of a policy with every default filled in: `policy.name`, `policy.parameters.x`, `rules.y`."""
    from optimizer.registry import describe
    from scheduler.core.rules import dump_policy, parse_policy
    from walras.spec.shipped_files import with_shipped_rules

    if known := _known_version(named):
        name, parameters, rules = known.name, known.parameters, known.rules
    else:
        written = dump_policy(*parse_policy(with_shipped_rules(policy_mapping(named))))
        name, parameters, rules = written["policy"]["name"], written["policy"]["parameters"], written["rules"]
    try:
        defaults = {each.name: each.default for each in describe(name).parameters}
    except UnknownPolicyError:  # The version's package is not installed here.
        defaults = {}
    stated = {f"policy.parameters.{each}": value for each, value in (defaults | dict(parameters)).items()}
    return {"policy.name": name, **stated, **{f"rules.{each}": value for each, value in rules.items()}}


def _known_version(named: str) -> "PolicyView | None":
    """Returns the version that `current` or a number names; None for another word."""
    if named != "current" and not named.isdecimal():
        return None
    versions = with_client(lambda client: client.policy_versions())
    return versions[0] if named == "current" else _version_of(versions, int(named))


def _parameters_in_words(*names: str) -> dict[str, str]:
    from optimizer.registry import describe

    found: dict[str, str] = {}
    for name in names:
        with suppress(UnknownPolicyError):
            found |= {f"policy.parameters.{each.name}": each.unit for each in describe(name).parameters}
    return found


def _value(fields: dict[str, Any], name: str) -> str:
    return _default_text(fields[name]) if name in fields else "-"


@policy_commands.command("try")
def policy_try_command(
    wanted: Annotated[str, _WANTED],
    workload: Annotated[
        str | None, typer.Option("--workload", help="A workload file, a trace, or the name of a shipped workload.")
    ] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", help="A cluster file or a shipped name.")] = None,
    run: Annotated[
        Path | None, typer.Option("--run", help="Instead: a server's data folder, or a recording of a run.")
    ] = None,
    against: Annotated[str, typer.Option("--against", help=_KNOWN_HELP, callback=_POLICY_EXAMPLE)] = "current",
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds: a range (0-4) or a list (1,3,5).")] = "0-4",
    out: Annotated[
        Path | None, typer.Option("--out", help="With --workload: a folder for the page of the comparison.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Simulate a policy beside the one in force: on a workload, or on a run that was recorded."""
    if (run is None) == (workload is None) or (workload is not None and cluster is None):
        raise UserError(
            "it is tried on a workload and a cluster, or on a run", field="--workload", fix="give both, or --run DIR"
        )
    if run is not None and out is not None:
        raise UserError("a run that was recorded has no page", field="--out", fix="give --workload and --cluster")
    with TemporaryDirectory(prefix="walras-policy-") as folder:
        policies = [_policy_file(Path(folder), name, mapping) for name, mapping in _two_policies(against, wanted)]
        exit_with(
            _try_on_run(run, policies, seeds, output)
            if run
            else _try_on(workload, cluster, policies, seeds, output, out)
        )


def _two_policies(against: str, wanted: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns the name and content of the one that it is compared with, and of the one that is wanted."""
    if known := _known_version(against):
        before = _as_file(known, known.rules)
        named = "current" if against == "current" else f"version-{against}"
    else:
        before, named = policy_mapping(against), f"{Path(against).stem}-now"
    return [(named, before), (Path(wanted).stem, policy_mapping(wanted))]


def _policy_file(folder: Path, name: str, mapping: dict[str, Any]) -> str:
    from walras.spec.text_formats import dump_yaml

    path = folder / f"{name}.yaml"
    path.write_text(dump_yaml(mapping))
    return str(path)


def _try_on(
    workload: str | None, cluster: str | None, policies: list[str], seeds: str, output: OutputFormat, out: Path | None
) -> int:
    from simulator.reports.baselines import BoundsChoice
    from simulator.reports.repeated_runs import ParallelWorkers
    from simulator.reports.run_spec import RunSpec, WorkloadSource
    from simulator.simulate_actions import simulate_compare

    assert workload is not None
    assert cluster is not None
    template = RunSpec(WorkloadSource(workload), cluster, policies[0], 0, BoundsChoice.CHEAP)
    return simulate_compare(template, policies, seeds, ParallelWorkers(1), output.value, out)


def _try_on_run(run: Path, policies: list[str], seeds: str, output: OutputFormat) -> int:
    """Simulates both policies on what was recorded, so that differences are those of the policies and not of the
    simulation. Returns the exit code.
    """
    from simulator.simulate_actions import simulate_replay

    recording = recording_of(run)
    for policy in policies:
        if output is OutputFormat.TABLE:
            show_line(f"Under {Path(policy).stem}:")
        simulate_replay(recording, policy=policy, from_s=0.0, seeds=seeds, output=output.value)
    return 0


def recording_of(run: Path) -> "Recording":
    """Returns the recording of a run, from a server's data folder or from a file written by `replay --export`."""
    from simulator.reports.recorded_runs import make_recording, read_recording

    if not run.is_dir():
        return read_recording(run)
    from scheduler.live.store.event_journal import read_run

    return make_recording(list(read_run(run)))


def policy_mapping(wanted: str) -> dict[str, Any]:
    """Returns the content of a policy file, or that of a file which only names the policy."""
    from optimizer.registry import is_policy_file
    from walras.spec.file_model import load_mapping

    is_file = Path(wanted).suffix in (".yaml", ".yml", ".json") or (
        Path(wanted).is_file() and not is_policy_file(wanted)
    )
    return load_mapping(Path(wanted)) if is_file else {"policy": {"name": wanted}}


def _show_applied(view: "PolicyView", output: OutputFormat, *, dry_run: bool = False) -> None:
    show_policy(view, output, dry_run=dry_run)
    if output is OutputFormat.TABLE:
        show_line("# valid; nothing was changed" if dry_run else f"# version {view.version} is in force")


@policy_commands.command("list")
def policy_list_command(output: OutputOption = OutputFormat.TABLE, no_header: NoHeaderOption = False) -> None:
    """List the installed policies. Needs no server."""
    from optimizer.registry import describe, names

    described = [describe(name) for name in sorted(names())]
    rows = [[each.name, each.family, each.summary, dash(each.source)] for each in described]
    data = [{name: getattr(each, name) for name in ("name", "family", "summary", "source")} for each in described]
    show_columns("POLICY | FAMILY | IN A SENTENCE~ | SOURCE~", rows, data, output, header=not no_header)


def _as_file(view: "PolicyView", rules: dict[str, Any]) -> dict[str, Any]:
    """Returns a policy and these rules as a policy file has them."""
    return {"policy": {"name": view.name, "parameters": view.parameters}, "rules": rules}


def show_policy(view: "PolicyView", output: OutputFormat, *, dry_run: bool = False) -> None:
    """Prints a policy as a policy file, with notes about it as comments; rules at their defaults are left out."""
    if show_as_json(view, output):
        return
    from walras.spec.text_formats import dump_yaml

    by = f" by {view.changed_by}" if view.changed_by else ""
    show_line(
        f"# version {view.version}" + (", if set" if dry_run else f", in force since {local_time(view.changed_at)}{by}")
    )
    if view.reason:
        show_line(f"# {view.reason}")
    if view.put_back:
        show_line(f"# ATTENTION: {view.put_back}")
        show_line("# so this one, the last that worked, is in force; the trace is in the server's log")
    rules = view.rules
    if view.changed_rules is not None:
        rules = {name: view.rules[name] for name in view.changed_rules}
        show_line(f"# {len(view.rules) - len(rules)} rules are at their defaults; -o json has all")
    for line in dump_yaml(_as_file(view, rules)).splitlines():
        show_line(line)


def _show_policy_description(described: "PolicyDescription") -> None:
    from optimizer.decision import NO_PRICES

    unit = described.price_unit
    prices = f"; {'' if unit == NO_PRICES else 'prices in '}{unit}" if unit else ""
    show_line(f"{described.name} ({described.family}{prices})")
    show_line("")
    for line in described.about.splitlines():
        show_line(line)
    show_line("")
    if not described.parameters:
        show_line("It takes no parameters.")
    for parameter in described.parameters:
        unit = f" {parameter.unit}" if parameter.unit else ""
        allowed = f" ({parameter.allowed})" if parameter.allowed else ""
        show_line(f"{parameter.name}: {parameter.type}{allowed}, default {_default_text(parameter.default)}{unit}")
        show_line(f"    {dash(parameter.description)}")


def _default_text(value: Any) -> str:
    from walras.spec.text_formats import dump_yaml

    return dump_yaml([value])[2:].strip().replace("\n", " ") if not isinstance(value, list) else str(value)
