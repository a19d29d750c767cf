"""What `walras queue` shows: the jobs that are next come first, below a line that says how full the fleet is.

The order and the figures come from the server's overview. A server of an older release has none: then the jobs stand
newest first, without a headline.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from walras.cli.job_choice import JobChoice, choose_jobs
from walras.errors import NotFound
from walras.states import JobState

if TYPE_CHECKING:
    from walras.api import JobView
    from walras.client import Client
    from walras.overview import Overview

_WAITING = (JobState.PENDING, JobState.HELD)


@dataclass(frozen=True, slots=True)
class QueueLook:
    """The jobs of one look at the queue, and the line above them (empty: the server does not tell)."""

    jobs: "list[JobView]"
    headline: str


async def look_at_queue(client: "Client", wanted: JobChoice) -> QueueLook:
    """Returns the jobs that were asked for; one more than `limit` if there are more."""
    try:
        overview = await client.overview()
    except NotFound:
        return QueueLook(await choose_jobs(client, wanted), "")
    return QueueLook(in_turn(await choose_jobs(client, wanted), overview), headline(overview))


def in_turn(jobs: "list[JobView]", overview: "Overview") -> "list[JobView]":
    """Returns the jobs that wait in the order of the queue, those behind it by number, then all that hold places. A
    line that stands for a sweep has the place of the sweep's first job that is next.
    """
    places = {job.id: place for place, job in enumerate(overview.queue)}
    of_sweeps: dict[int, int] = {}
    for place, job in enumerate(overview.queue):
        if job.sweep is not None:
            of_sweeps.setdefault(job.sweep, place)

    def turn(job: "JobView") -> tuple[bool, int, int]:
        place = places.get(job.id, len(places))
        if job.sweep is not None and job.sweep_states:
            place = min(place, of_sweeps.get(job.sweep, place))
        return job.state not in _WAITING, place, job.id

    return sorted(jobs, key=turn)


def headline(overview: "Overview") -> str:
    """Returns such as "12 running, 3 waiting; free: 0 of 8 h100, 2 of 4 a100 (16:40)", in the reader's time."""
    at_work = sum(count for state, count in overview.counts.items() if state not in _WAITING)
    types = ", ".join(f"{each.free} of {each.capacity} {each.accelerator}" for each in overview.types)
    now = time.strftime("%H:%M")
    return f"{at_work} running, {overview.waiting} waiting; free: {types or 'no machine is here'} ({now})"
