"""`walras demo`: a whole cluster on this machine, real PyTorch jobs on emulated accelerators, and a checklist.

    prepare -> start server and agents -> submit, watch, revoke -> stop everything -> report -> simulate -> checklist

The simulation runs the same workload with the costs that the live run showed and puts both completion times side by
side. The exit code is 0 only if every promise on the checklist was kept.

With `--page MINUTES` the jobs are submitted again and again until the time is over, to watch the web page; then
everything ends, and nothing is checked or compared.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import mean

import psutil
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scheduler.live.store.event_journal import read_run
from simulator.measured_costs import measure_costs
from simulator.reports.recorded_runs import ResimulatedJob, resimulate
from simulator.shipped_configs import load_named_policy
from walras.client import Client
from walras.demo.local_cluster import (
    ChildProcesses,
    DemoSetup,
    adopt_orphans,
    prepare_demo,
    remove_run_state,
    running_cluster,
)
from walras.demo.run_report import (
    PromiseCheck,
    SpecialJobs,
    check_ended_processes,
    check_promises,
    check_simulated_ends,
    checks_table,
    draw_timeline,
    find_losses,
    print_changes,
    print_demo_report,
    print_failure,
    print_titled_table,
)
from walras.demo.workload_run import DemoRecording, LiveView, WorkloadRun
from walras.errors import ClusterError
from walras.spec.job_spec import JobSpec


def simulate_demo_again(stage: DemoSetup) -> list[ResimulatedJob]:
    """Simulates every job of the run with the costs measured in it, which it also writes for `walras simulate`."""
    recorded = list(read_run(stage.server))
    stage.measured_path.write_text(measure_costs(recorded).model_dump_json(indent=1))
    return resimulate(recorded, stage.workload, stage.cluster, load_named_policy(str(stage.policy_path)))


def comparison_table(recording: DemoRecording, compared: Sequence[ResimulatedJob]) -> Table:
    table = Table(title="completion times, run and simulated", title_justify="left")
    table.add_column("job", justify="right")
    table.add_column("name")
    for name in ("run s", "simulated s", "least", "most", "error"):
        table.add_column(name, justify="right")
    for job in compared:
        seconds = [f"{length_s:.1f}" for length_s in (job.run_s, job.simulated_s, job.least_s, job.most_s)]
        name = recording.jobs[job.job_id].name if job.job_id in recording.jobs else ""
        table.add_row(str(job.job_id), escape(name), *seconds, f"{job.error:.0%}")
    return table


#: Idle cores that the demo needs: five paced ranks and the server need most of two.
IDLE_CORES_WANTED = 1.5


#: Columns of the output where it is no terminal: the table of jobs needs them.
PLAIN_WIDTH = 160


@dataclass(slots=True)
class FinishedRun:
    """The facts of a finished run that the report needs."""

    recording: DemoRecording
    job_ids: list[int]
    in_time: bool
    logs: dict[int, str] = field(default_factory=dict)


def run_demo(*, data: Path | None, keep: bool, live: bool) -> int:
    """Runs the demo. Returns the exit code: 0 if all promises were kept, 1 if not, 130 if interrupted. It leaves no
    process behind.

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
    stage = prepare_demo(data)
    console.print(f"everything of this run is in {stage.folder}", highlight=False, soft_wrap=True)
    print_processor_headroom(console)
    adopt_orphans()
    processes = ChildProcesses(stage.logs)
    try:
        story = asyncio.run(run_on_cluster(stage, processes, LiveView(console, live=live), console))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted: stopping everything")
        return 130
    except (ClusterError, TimeoutError) as error:
        console.print(f"the cluster did not hold: {error or 'it did not come up in time'}", style="red", markup=False)
        return 1
    finally:
        stubborn = processes.stop()
    checks = [*report_and_check(console, stage, story, began), check_ended_processes(stubborn)]
    print_titled_table(console, checks_table(checks))
    kept = all(check.kept for check in checks)
    if kept and not keep:
        remove_run_state(stage)
    return 0 if kept else 1


async def run_on_cluster(stage: DemoSetup, processes: ChildProcesses, view: LiveView, console: Console) -> FinishedRun:
    """Starts the cluster, runs the workload on it, and returns what the report needs."""
    async with running_cluster(stage, processes, console.print) as cluster:
        with view:
            run = WorkloadRun(stage, cluster, view)
            in_time = await run.play()
        story = FinishedRun(run.recording, run.job_ids, in_time)
        for job_id in story.recording.jobs:
            story.logs[job_id] = await cluster.log_of(job_id)
        return story


def print_processor_headroom(console: Console) -> None:
    """Prints how much of the processors is idle: emulated speeds are kept only if there is headroom."""
    cores = psutil.cpu_count() or 1
    idle = cores * (1.0 - psutil.cpu_percent(interval=0.5) / 100.0)
    console.print(f"processor headroom before: {idle:.1f} of {cores} cores idle", highlight=False)
    if idle < IDLE_CORES_WANTED:
        console.print(f"less than {IDLE_CORES_WANTED} idle cores: paces and times will suffer", style="yellow")


def report_and_check(console: Console, stage: DemoSetup, story: FinishedRun, began: float) -> list[PromiseCheck]:
    """Prints the report, draws the picture, runs the simulation; returns the checked promises."""
    recording = story.recording
    losses = find_losses(recording, story.logs)
    print_demo_report(console, recording, losses, stage.cluster.speeds)
    cast = special_jobs_of(stage, story.job_ids)
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
    compared_jobs = simulate_demo_again(stage)
    print_titled_table(console, comparison_table(recording, compared_jobs))
    checks = check_promises(recording, cast, losses, time.monotonic() - began)
    all_compared = len(compared_jobs) == len(story.job_ids)
    return [
        PromiseCheck("the run ended by itself", story.in_time, "in time" if story.in_time else "given up"),
        *checks,
        PromiseCheck("the simulator ran the same jobs", all_compared, f"{len(compared_jobs)} compared"),
        check_simulated_ends(compared_jobs),
    ]


def special_jobs_of(stage: DemoSetup, job_ids: list[int]) -> SpecialJobs:
    """Finds the jobs with special roles in the workload by the scripts they run."""

    def first(script: str) -> int:
        commands = (arrival.job.run for arrival in stage.workload.jobs)
        found = [number for command, number in zip(commands, job_ids, strict=True) if script in str(command)]
        return found[0] if found else 0

    incidents = stage.workload.incidents
    pool = str(incidents[0].revoke) if incidents else ""
    return SpecialJobs(
        failing=first("failing.py"), plain=first("plain_script.py"), gang=first("ddp_mlp.py"), revoked_pool=pool
    )


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
    async with running_cluster(stage, processes, console.print) as cluster:
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
