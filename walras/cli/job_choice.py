"""Chooses the jobs of a command other than by their numbers: by user, project, state, name, label and age.

`queue`, `jobs` and `cancel` choose in the same way. The server filters by user, project and state; this module filters
what it lists by name, label and age.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from walras.errors import UserError
from walras.states import JobState

#: The most jobs that one command may choose by its options.
MOST_CHOSEN = 10_000

if TYPE_CHECKING:
    from walras.api import JobView
    from walras.client import Client

MineOption = Annotated[bool, typer.Option("--me", help="Only your own jobs.")]
StateOption = Annotated[
    list[str] | None, typer.Option("--state", help="Only jobs in this state (RUNNING, FAILED, ...); repeatable.")
]
NameOption = Annotated[str | None, typer.Option("--name", help="Only jobs with this name; `*` stands for any text.")]
LabelOption = Annotated[
    list[str] | None, typer.Option("--label", "-l", help="Only jobs with this label, KEY or KEY=VALUE; repeatable.")
]
SinceOption = Annotated[str | None, typer.Option("--since", help="Only jobs submitted within this time, such as 2d.")]


@dataclass(frozen=True)
class JobChoice:
    """The conditions that a job must meet. A field that is empty or None is no condition."""

    user: str | None = None
    mine: bool = False
    project: str | None = None
    states: tuple[JobState, ...] = ()
    #: A name, in which `*` and `?` are wildcards.
    name: str | None = None
    #: A label as KEY, or KEY=VALUE.
    labels: Iterable[str] | None = None
    #: The largest age since submission, in seconds.
    since_s: float | None = None
    #: Whether only jobs that have not ended are chosen.
    active: bool = False
    #: Whether one job of a sweep stands for all of them.
    fold_sweeps: bool = False
    limit: int = 1000

    @property
    def names_somebody(self) -> bool:
        """Whether it asks for anything at all, apart from a limit."""
        return bool(self.user or self.mine or self.project or self.states or self.name or self.labels or self.since_s)

    def accepts(self, job: "JobView", now_unix_s: float) -> bool:
        """Returns whether the job meets the conditions that the server does not check."""
        if self.name is not None and not fnmatchcase(job.name, self.name):
            return False
        if self.since_s is not None and now_unix_s - instant_of(job.submitted_at) > self.since_s:
            return False
        return all(_has_label(job, label) for label in self.labels or ())


def _has_label(job: "JobView", label: str) -> bool:
    key, equals, value = label.partition("=")
    return key in job.labels and (not equals or job.labels[key] == value)


def states_of(words: list[str] | None) -> tuple[JobState, ...]:
    """Returns the states that the words name, commas allowed. Raises UserError naming the nearest one."""
    found = []
    for word in chain.from_iterable(word.split(",") for word in words or ()):
        if word.upper() not in JobState.__members__:
            meant = get_close_matches(word.upper(), JobState.__members__, n=1)
            fix = f"did you mean {meant[0]}?" if meant else f"choose from {', '.join(JobState.__members__)}"
            raise UserError(f"{word!r} is no state", field="--state", fix=fix)
        found.append(JobState(word.upper()))
    return tuple(found)


async def choose_jobs(client: "Client", wanted: JobChoice) -> "list[JobView]":
    """Returns the jobs, newest first; one more than `limit` if there are more, so that the caller can say so."""
    user = (await client.whoami()).user if wanted.mine else wanted.user
    is_narrowed = wanted.name is not None or wanted.since_s is not None or bool(wanted.labels)
    listed = client.jobs(
        states=list(wanted.states),
        user=user,
        project=wanted.project,
        active=wanted.active,
        fold_sweeps=wanted.fold_sweeps,
        limit=1_000_000 if is_narrowed else wanted.limit + 1,
    )
    found, now = [], time.time()
    async for job in listed:
        if wanted.since_s is not None and now - instant_of(job.submitted_at) > wanted.since_s:
            break  # newest first: all that follow are older
        if wanted.accepts(job, now):
            found.append(job)
        if len(found) > wanted.limit:
            break
    return found


def instant_of(text: str) -> float:
    """Returns an instant of the server as Unix seconds; 0 if it is none."""
    from walras.spec.field_types import parse_instant

    try:
        return parse_instant(text, now=0.0)
    except ValueError:
        return 0.0


def local_time(text: str | None) -> str:
    """Returns an instant of the server in the zone of this machine, to the second; empty for None."""
    at = 0.0 if not text else instant_of(text)
    return "" if not at else time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(at))
