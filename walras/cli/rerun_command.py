"""`walras rerun`: jobs submitted again as they were, all that are named or none."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.arguments import MOST_CHOSEN, JobChoice, NameOption, SinceOption, choose_jobs, parse_length_option
from walras.cli.session import (
    FAILED_STATES,
    failed_part,
    find_named_jobs,
    newest_job_here,
    spec_of_sweep_again,
    with_client,
)
from walras.cli.terminal_output import show_line, warn
from walras.contract import HIDDEN
from walras.errors import JobSpecError, NotFound, UserError, WalrasError
from walras.states import JobState

if TYPE_CHECKING:
    from walras.client import Client
    from walras.resources.jobs import JobView


def rerun_command(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOB...]", help="Job numbers, ranges (12-20), or `last`; or use --failed."),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only jobs that failed or timed out; alone: yours.")] = False,
    name: NameOption = None,
    since: SinceOption = None,
) -> None:
    """Submit jobs again, as they were: same command, code and needs, a new number. A sweep becomes one again.

    All are submitted, or none. Those that depend on each other depend on the new ones.
    """
    if not jobs and not failed:
        raise UserError("say which jobs: their numbers, or --failed", field="JOB", fix="walras rerun last")
    since_s = parse_length_option(since, "--since")
    wanted = JobChoice(mine=True, states=FAILED_STATES, name=name, since_s=since_s, limit=MOST_CHOSEN)

    async def rerun(client: "Client") -> bool:
        again = await _chosen(client, jobs or [], wanted, failed=failed)
        await _check_all(client, again)
        await _submit_all(client, again)
        return bool(again)

    if not with_client(rerun):
        show_line("no job is so")


@dataclass(frozen=True, slots=True)
class _Again:
    """A job, or jobs of one sweep, to be submitted again."""

    #: The job's number, or that of its sweep.
    number: int
    name: str
    spec: dict[str, Any]
    #: Jobs of the sweep, by their index; empty for a single job.
    members: tuple[int, ...] = field(default=())

    @property
    def title(self) -> str:
        return f"sweep {self.number}" if self.members else f"job {self.number}"


async def _chosen(client: "Client", words: list[str], wanted: JobChoice, *, failed: bool) -> list[_Again]:
    """Returns what to submit, by number: jobs depend on earlier ones, so that these come first."""
    sweeps: dict[int, tuple[JobView, ...]] = {}
    singles: dict[int, None] = {}
    for job in await choose_jobs(client, wanted) if not words else ():
        if job.sweep is None:
            singles[job.id] = None
        else:
            sweeps[job.sweep] = (*sweeps.get(job.sweep, ()), job)
    for named in await find_named_jobs(client, words, newest_job_here):
        if named.sweep:
            sweeps[named.ids[-1]] = failed_part(named.sweep) if failed else named.sweep
        else:
            singles[named.ids[0]] = None
    again = []
    for number, members in sweeps.items():
        if members:
            job = await client.job(members[0].id)
            in_order = sorted(members, key=lambda each: each.sweep_index or 0)
            spec = spec_of_sweep_again(job.spec, members)
            again.append(_Again(number, job.name, spec, tuple(each.id for each in in_order)))
    for number in singles:
        job = await client.job(number)
        if not failed or job.state in FAILED_STATES:
            again.append(_Again(number, job.name, job.spec))
    return [_described(each) for each in sorted(again, key=lambda each: each.number)]


def _described(again: _Again) -> _Again:
    """Returns it with a spec that can be submitted: no quote, and each secret from the variable of its name."""
    from walras.resources.what_if import without_quote

    spec = without_quote(again.spec)
    if secrets := spec.get("secrets"):
        spec["secrets"] = {name: source or {"env": name} for name, source in secrets.items()}
    return _Again(again.number, again.name, spec, again.members)


async def _check_all(client: "Client", again: list[_Again]) -> None:
    """Raise JobSpecError that names everything that cannot run again, before anything is submitted."""
    wrong: list[tuple[str, UserError]] = []
    for position, each in enumerate(again):
        try:
            await _check(client, each, again[:position], is_alone=len(again) == 1)
        except UserError as error:
            wrong.append((each.title, error))
    if wrong:
        raise JobSpecError(
            "nothing was submitted: " + "; ".join(f"{title}: {error}" for title, error in wrong),
            field=wrong[0][1].field,
            fix="; ".join(dict.fromkeys(error.fix for _, error in wrong if error.fix)),
        )


async def _check(client: "Client", each: _Again, earlier: list[_Again], *, is_alone: bool) -> None:
    """Raise UserError unless the job could be submitted now. `is_alone`: its submission itself will tell the rest."""
    from walras.spec.job_groups import with_secret_values

    missing: list[UserError] = []
    for name, source in each.spec.get("secrets", {}).items():
        try:
            with_secret_values({"secrets": {name: source}}, os.environ)
        except UserError as error:
            missing.append(error)
    if missing:
        raise UserError("; ".join(map(str, missing)), field="secrets", fix="; ".join(error.fix for error in missing))
    if hidden := [name for name, value in each.spec.get("envs", {}).items() if value == HIDDEN]:
        raise UserError(
            f"you may not see the values of {', '.join(hidden)}", field="envs", fix="have its owner run it again"
        )
    for needed in each.spec.get("depends_on", ()):
        if _made_again(needed, earlier) is None and isinstance(needed, int):
            await _check_dependency(client, each, needed)
    if not is_alone:
        await client.dry_run({name: value for name, value in each.spec.items() if name != "depends_on"})


async def _check_dependency(client: "Client", each: _Again, needed: int) -> None:
    try:
        state = (await client.job(needed)).state
    except NotFound:
        raise UserError(f"no job {needed} to depend on", field="depends_on", fix="submit it from its file") from None
    must_succeed = each.spec.get("condition", "succeeded") == "succeeded"
    if must_succeed and state.is_final and state is not JobState.SUCCEEDED:
        raise UserError(
            f"job {needed}, which it depends on, has ended {state}",
            field="depends_on",
            fix=f"walras rerun {needed} {each.number}",
        )


def _made_again(needed: int | str, earlier: Iterable[_Again]) -> _Again | None:
    """Returns the one of those made again that a dependency means; of equal names, the last."""
    found = [each for each in earlier if needed in (each.number, each.name, *each.members)]
    return found[-1] if found else None


async def _submit_all(client: "Client", again: list[_Again]) -> None:
    """Submit in order, and take back what was submitted if one is refused after all."""
    new: dict[int, int] = {}
    submitted_ids, told = list[int](), list[str]()
    try:
        for position, each in enumerate(again):
            submitted = await client.submit(_with_new_numbers(each, again[:position], new))
            assert submitted.id is not None
            new |= {member: submitted.id + place for place, member in enumerate(each.members)}
            new[each.number] = submitted.id
            submitted_ids += [submitted.id + place for place in range(len(each.members) or 1)]
            if each.members:
                told.append(f"{each.title}: {submitted.jobs} jobs run again as sweep {submitted.id}")
            else:
                told.append(f"{each.title} runs again as job {submitted.id}")
    except WalrasError:
        await _take_back(client, submitted_ids)
        raise
    for line in told:
        show_line(line)


def _with_new_numbers(each: _Again, earlier: list[_Again], new: dict[int, int]) -> dict[str, Any]:
    """Returns the spec with those made again before it in the place of those that it depended on."""
    needs = []
    for needed in each.spec.get("depends_on", ()):
        found = _made_again(needed, earlier)
        number = found.number if found is not None and isinstance(needed, str) else needed
        needs.append(new.get(number, number) if found is not None else needed)
    return each.spec | ({"depends_on": needs} if needs else {})


async def _take_back(client: "Client", submitted: list[int]) -> None:
    left = []
    for job_id in reversed(submitted):
        try:
            await client.cancel(job_id)
        except WalrasError:
            left.append(job_id)
    if submitted:
        warn(f"taken back, as not all could be submitted: {_numbers(set(submitted) - set(left))}")
    if left:
        warn(f"these could not be taken back: {_numbers(left)}")


def _numbers(jobs: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(jobs))) or "none"
