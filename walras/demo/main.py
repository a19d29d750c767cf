"""`walras demo`: a whole cluster on this machine, real PyTorch jobs on emulated accelerators, and a checklist.

    prepare -> start server and agents -> submit, watch, revoke -> stop everything -> report -> simulate -> checklist

The exit code is 0 only if every promise on the checklist was kept.
"""

import asyncio
import os
import signal
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

import psutil
from rich.console import Console

from walras.demo.checks import Cast, Check, check_all
from walras.demo.cluster import Cluster
from walras.demo.compare import comparison_table, simulated_again
from walras.demo.processes import Processes, adopt_orphans
from walras.demo.recording import Recording
from walras.demo.report import checks_table, find_losses, print_changes, print_failure, print_report, show
from walras.demo.run import Run
from walras.demo.stage import Stage, prepare_stage, tidy_up
from walras.demo.timeline import draw_timeline
from walras.demo.view import View
from walras.errors import ClusterError

#: Cores that should be idle before the demo starts: five paced ranks and the server need most of two.
WANTED_CORES = 1.5


#: Columns where standard output is no terminal: the table of jobs needs them.
PLAIN_WIDTH = 160


@dataclass(slots=True)
class Story:
    """What is left of a run when its processes are gone."""

    recording: Recording
    job_ids: list[int]
    in_time: bool
    logs: dict[int, str] = field(default_factory=dict)


def run_demo(*, data: Path | None, keep: bool, live: bool) -> int:
    """Run it. Answers the exit code: 0 as promised, 1 not, 130 interrupted. Leaves no process behind.

    Args:
        data: folder of this run, new or empty; None: one below `demo-run` in the current folder.
        keep: leave the database, the checkpoints and the agents' folders behind; otherwise a run in which every promise
            was kept leaves its picture, its figures and its logs only.
        live: draw a live picture where standard output is a terminal.
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    began = time.monotonic()
    stage = prepare_stage(data)
    console.print(f"everything of this run is in {stage.folder}", highlight=False, soft_wrap=True)
    say_headroom(console)
    adopt_orphans()
    processes = Processes(stage.logs)
    try:
        story = asyncio.run(play(stage, processes, View(console, live=live), console))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted: stopping everything")
        return 130
    except (ClusterError, TimeoutError) as error:
        console.print(f"the cluster did not hold: {error or 'it did not come up in time'}", style="red", markup=False)
        return 1
    finally:
        stubborn = processes.stop()
    checks = tell(console, stage, story, began)
    checks.append(Check("every process ended when asked", not stubborn, "; ".join(stubborn) or "none is left"))
    show(console, checks_table(checks))
    kept = all(check.kept for check in checks)
    if kept and not keep:
        tidy_up(stage)
    return 0 if kept else 1


async def play(stage: Stage, processes: Processes, view: View, console: Console) -> Story:
    """Start the cluster, run the workload on it, and bring away what the report needs."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with AsyncExitStack() as clients:
        cluster = Cluster(stage, processes, clients, os.environ)
        console.print("starting a server and the owned machines' agents ...")
        await cluster.start()
        with view:
            run = Run(stage, cluster, view)
            in_time = await run.play()
        story = Story(run.recording, run.job_ids, in_time)
        for job_id in story.recording.jobs:
            story.logs[job_id] = await cluster.log_of(job_id)
        return story


def say_headroom(console: Console) -> None:
    """Say how much of the processors is free: paces are kept only where there is room for them."""
    cores = psutil.cpu_count() or 1
    idle = cores * (1.0 - psutil.cpu_percent(interval=0.5) / 100.0)
    console.print(f"processor headroom before: {idle:.1f} of {cores} cores idle", highlight=False)
    if idle < WANTED_CORES:
        console.print(f"less than {WANTED_CORES} idle cores: paces and times will suffer", style="yellow")


def tell(console: Console, stage: Stage, story: Story, began: float) -> list[Check]:
    """Print the report, draw the picture, run the simulation; answer the checklist."""
    recording = story.recording
    losses = find_losses(recording, story.logs)
    print_report(console, recording, losses, stage.cluster.speeds)
    cast = cast_of(stage, story.job_ids)
    print_failure(console, recording, cast.failing, story.logs.get(cast.failing, ""))
    print_changes(console, recording)
    cores = psutil.cpu_count() or 1
    if recording.busy:
        least = cores * (1.0 - max(recording.busy))
        usual = cores * (1.0 - mean(recording.busy))
        console.print(
            f"\nprocessor headroom during: {usual:.1f} of {cores} cores idle on average, {least:.1f} at least"
        )
    draw_timeline(recording, stage.picture)
    console.print(f"timeline: {stage.picture}", highlight=False, soft_wrap=True)
    compared_jobs = simulated_again(stage)
    show(console, comparison_table(recording, compared_jobs))
    checks = check_all(recording, cast, losses, time.monotonic() - began)
    all_compared = len(compared_jobs) == len(story.job_ids)
    compared = Check("the simulator ran the same jobs", all_compared, f"{len(compared_jobs)} compared")
    return [
        Check("the run ended by itself", story.in_time, "in time" if story.in_time else "given up"),
        *checks,
        compared,
    ]


def cast_of(stage: Stage, job_ids: list[int]) -> Cast:
    """Find the jobs of the workload that play special parts, by what they run."""

    def first(script: str) -> int:
        commands = (arrival.job.run for arrival in stage.workload.jobs)
        found = [number for command, number in zip(commands, job_ids, strict=True) if script in str(command)]
        return found[0] if found else 0

    incidents = stage.workload.incidents
    pool = str(incidents[0].revoke) if incidents else ""
    return Cast(
        failing=first("failing.py"), plain=first("plain_script.py"), gang=first("ddp_mlp.py"), revoked_pool=pool
    )
