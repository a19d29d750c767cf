"""`walras demo --page MINUTES`: runs the demo's machines and jobs for some time, to watch the web page.

The jobs of the demo are submitted again and again until the time is over; then everything ends. Nothing is checked or
compared: that is what the demo itself does.
"""

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from rich.console import Console

from walras.client import Client
from walras.demo.local_cluster import (
    ChildProcesses,
    DemoHosts,
    DemoSetup,
    adopt_orphans,
    prepare_demo,
    remove_run_state,
    running_cluster,
)
from walras.errors import ClusterError
from walras.spec.job_spec import JobSpec

#: Seconds from the first job of one run of the workload to that of the next: the five accelerators need them for one
#: run.
ROUND_S = 110.0


def run_page_demo(*, data: Path | None, keep: bool, minutes: float) -> int:
    """Runs it. Returns the exit code: 0 once the time is over, 1 if the cluster fails, 130 if interrupted."""
    console = Console()
    stage = prepare_demo(data)
    console.print(f"everything of this run is in {stage.folder}", highlight=False, soft_wrap=True)
    adopt_orphans()
    processes = ChildProcesses(stage.logs)
    try:
        asyncio.run(_keep_busy(stage, processes, console, 60.0 * minutes))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted: stopping everything")
        return 130
    except (ClusterError, TimeoutError) as error:
        console.print(f"the cluster did not hold: {error or 'it did not come up in time'}", style="red", markup=False)
        return 1
    finally:
        processes.stop()
        if not keep:
            remove_run_state(stage)
    return 0


async def _keep_busy(stage: DemoSetup, processes: ChildProcesses, console: Console, length_s: float) -> None:
    async with running_cluster(stage, processes, console.print, DemoHosts()) as cluster:
        token = (stage.server / "admin.token").read_text().strip()
        console.print(f"\nopen {cluster.admin.url}/ and sign in with {token}\n", highlight=False, soft_wrap=True)
        console.print(f"jobs come for {length_s / 60:g} minutes; Ctrl-C ends everything before")
        try:
            async with asyncio.timeout(length_s):
                await _submit_for_ever(cluster.users, stage)
        except TimeoutError:
            console.print("the time is over: stopping everything")


async def _submit_for_ever(users: dict[str, Client], stage: DemoSetup) -> None:
    """Submits each job when it is due, until it is cancelled."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    for at_s, user, spec in arrivals(stage):
        await asyncio.sleep(max(0.0, began_at + at_s - loop.time()))
        await users[user].submit(spec)


def arrivals(stage: DemoSetup) -> Iterator[tuple[float, str, JobSpec]]:
    """Yields when each job comes (seconds from the beginning), whose it is and what it is, for ever."""
    for turn in count():
        for arrival in sorted(stage.workload.jobs, key=lambda arrival: arrival.at):
            spec = stage.spec(arrival)
            named = spec if turn == 0 else spec.model_copy(update={"name": f"{spec.name}-{turn + 1}"})
            yield turn * ROUND_S + arrival.at, arrival.user, named
