"""`walras demo`: a whole cluster on this machine, real PyTorch jobs on emulated accelerators, and a checklist.

    prepare -> start server and agents -> submit, watch, revoke -> stop everything -> report -> simulate -> checklist

The simulation runs the same workload with the costs that the live run showed and puts both completion times side by
side. The exit code is 0 only if every promise on the checklist was kept.

With `--page MINUTES` the jobs are submitted again and again until the time is over, to watch the web page; then
everything ends, and nothing is checked or compared.

The report has tables of jobs, fairness, prices and speeds, the changes of placement, the timeline picture, and the
promises, checked one by one against what was observed. Fairness is what each user received over what an equal split
among those who waited or ran would have given them, summed over time (accelerator-seconds).
"""

import asyncio
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from statistics import mean, median

import psutil
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scheduler.live.store.event_journal import read_run
from simulator.measured_costs import measure_costs
from simulator.reports.baselines import jain_index
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
from walras.demo.workload_run import DemoRecording, LiveView, WorkloadRun, attempt_taken, started_attempts
from walras.errors import ClusterError
from walras.resources.jobs import AttemptView, JobDetail
from walras.spec.job_spec import JobSpec
from walras.states import AttemptState, JobState

MOST_RANK_STARTS = 24
LONGEST_S = 240.0
#: The largest part of its first loss that the last loss of a trained job may be.
LOSS_FALL = 0.7
#: The largest median error of simulated completion times, over the run's.
SIMULATION_ERROR = 0.10


@dataclass(frozen=True, slots=True)
class SpecialJobs:
    """The jobs with special roles in the demo."""

    failing: int
    plain: int
    gang: int
    #: The pool whose machine is revoked, or "" if the workload has no such incident.
    revoked_pool: str


@dataclass(frozen=True, slots=True)
class PromiseCheck:
    promise: str
    kept: bool
    detail: str


def check_promises(
    recording: DemoRecording, cast: SpecialJobs, losses: dict[int, tuple[float, float]], took_s: float
) -> list[PromiseCheck]:
    """Checks every promise. `losses`: first and last loss by job id."""
    jobs = list(recording.jobs.values())
    return [
        check_job_ends(jobs, cast),
        check_losses(jobs, cast, losses),
        check_failing_job(recording.jobs.get(cast.failing)),
        check_plain_script(recording.jobs.get(cast.plain)),
        check_gang(recording.jobs.get(cast.gang)),
        check_preemptions(jobs),
        check_moves(recording),
        check_revocation(recording, cast.revoked_pool),
        PromiseCheck(
            "prices were given", bool(recording.prices), f"{len(recording.prices)} different sets of prices seen"
        ),
        check_limit("rank starts", recording.rank_starts(), MOST_RANK_STARTS),
        check_limit("seconds from start to end", round(took_s), LONGEST_S),
    ]


def check_simulated_ends(compared: Sequence[ResimulatedJob]) -> PromiseCheck:
    """Checks that the simulated jobs ended when they did in the run, but for what order alone changes.

    Says also by how much the simulated times, medians over orders, missed those of the run, and whether that is more
    than it should be.
    """
    promise = "simulated jobs ended when they did in the run"
    if not compared:
        return PromiseCheck(promise, False, "none was compared")
    error = median(job.error for job in compared)
    unexplained = median(job.unexplained for job in compared)
    inside = sum(job.unexplained == 0 for job in compared)
    over = "" if error <= SIMULATION_ERROR else "over "
    return PromiseCheck(
        promise,
        unexplained <= SIMULATION_ERROR,
        f"median error {error:.1%} ({over}goal {SIMULATION_ERROR:.0%}), {unexplained:.1%} more than order changes, "
        f"{inside} of {len(compared)} jobs 0",
    )


def check_limit(what: str, found: float, most: float) -> PromiseCheck:
    return PromiseCheck(f"at most {most:g} {what}", found <= most, f"{found:g}")


def check_ended_processes(stubborn: Sequence[str]) -> PromiseCheck:
    """`stubborn`: the command lines that had to be killed."""
    return PromiseCheck("every process ended when asked", not stubborn, "; ".join(stubborn) or "none is left")


def check_job_ends(jobs: Sequence[JobDetail], cast: SpecialJobs) -> PromiseCheck:
    wrong = [
        f"job {job.id} {job.name} is {job.state}"
        for job in jobs
        if job.state != (JobState.FAILED if job.id == cast.failing else JobState.SUCCEEDED)
    ]
    count = len(jobs) - 1
    return PromiseCheck(
        "every job ended as it should", not wrong, "; ".join(wrong) or f"{count} succeeded, 1 failed on purpose"
    )


def check_losses(jobs: Sequence[JobDetail], cast: SpecialJobs, losses: dict[int, tuple[float, float]]) -> PromiseCheck:
    wrong = []
    for job in jobs:
        if job.id == cast.failing:
            continue
        first, last = losses.get(job.id, (0.0, 0.0))
        if not 0 < last < LOSS_FALL * first:
            wrong.append(f"job {job.id} {job.name}: {first:.3g} to {last:.3g}" if first else f"job {job.id}: none seen")
    return PromiseCheck(f"every loss fell below {LOSS_FALL} of the first", not wrong, "; ".join(wrong) or "all")


def check_failing_job(job: JobDetail | None) -> PromiseCheck:
    kept = job is not None and job.state is JobState.FAILED and job.reason is not None
    return PromiseCheck(
        "the failing job is FAILED with a reason", kept, f"{job.reason}: {job.detail}" if job else "not seen"
    )


def check_plain_script(job: JobDetail | None) -> PromiseCheck:
    kept = job is not None and job.state is JobState.SUCCEEDED
    attempts = len(started_attempts(job)) if job else 0
    return PromiseCheck("the plain script ran to its end", kept, f"in {attempts} attempt(s)")


def check_gang(job: JobDetail | None) -> PromiseCheck:
    sizes = sorted({attempt.accelerators for attempt in started_attempts(job)}) if job else []
    return PromiseCheck("the gang ran with two ranks", sizes == [2], f"ranks per attempt: {sizes or 'none'}")


def check_preemptions(jobs: Sequence[JobDetail]) -> PromiseCheck:
    found = [
        f"{job.id}.{attempt.attempt}"
        for job in jobs
        for attempt in started_attempts(job)
        if attempt.state is AttemptState.PREEMPTED
    ]
    return PromiseCheck("jobs were preempted", bool(found), ", ".join(found) or "none")


def check_moves(recording: DemoRecording) -> PromiseCheck:
    paths = [
        f"{job_id} {' > '.join(summary.types)}"
        for job_id in recording.jobs
        if len((summary := recording.summary(job_id)).types) > 1
    ]
    return PromiseCheck("jobs moved between accelerator types", bool(paths), ", ".join(paths) or "none")


def check_revocation(recording: DemoRecording, pool: str) -> PromiseCheck:
    """Checks that a machine of the pool left with notice, and a job of it resumed elsewhere from its checkpoint."""
    promise = "the spot machine was revoked and its job went on elsewhere"
    left = [name for name, span in recording.nodes.items() if span.node.pool == pool and span.left]
    if not left:
        return PromiseCheck(promise, False, "no machine was seen leaving")
    for job in recording.jobs.values():
        taken = attempt_taken(job, left)
        later = [each for each in started_attempts(job) if taken is not None and each.attempt > taken.attempt]
        if taken is not None and later:
            at_step = f"from step {taken.checkpoint_step:.0f}" if taken.checkpoint_step else "from its own save"
            return PromiseCheck(promise, True, f"job {job.id}, {at_step}, on {' '.join(later[0].placement)}")
    return PromiseCheck(promise, False, f"{', '.join(left)} left, but no job was resumed from there")


@dataclass(frozen=True, slots=True)
class AcceleratorSpan:
    """Accelerators from `from_s` until `to_s`: those that a job wanted, those that a user held, or a machine's."""

    user: str
    accelerators: int
    from_s: float
    to_s: float


def equal_split_by_user(wanted: Mapping[str, float], capacity: float) -> dict[str, float]:
    """Divides capacity equally among users; what one does not want goes to the others (water filling)."""
    shares = dict.fromkeys(wanted, 0.0)
    open_users = {user for user, amount in wanted.items() if amount > 0}
    while open_users and capacity > 1e-9:
        each = capacity / len(open_users)
        for user in sorted(open_users):
            given = min(each, wanted[user] - shares[user])
            shares[user] += given
            capacity -= given
        open_users = {user for user in open_users if wanted[user] - shares[user] > 1e-9}
    return shares


def entitled_by_user(wishes: Sequence[AcceleratorSpan], machines: Sequence[AcceleratorSpan]) -> dict[str, float]:
    """Returns the accelerator-seconds of each user under an equal split among those who wanted some at each instant.

    `machines` are the spans in which accelerators existed (the user name is ignored).
    """
    instants = sorted({instant for span in (*wishes, *machines) for instant in (span.from_s, span.to_s)})
    users = sorted({wish.user for wish in wishes})
    total = dict.fromkeys(users, 0.0)
    for start_s, end_s in pairwise(instants):
        wanted = dict.fromkeys(users, 0.0)
        for wish in wishes:
            if wish.from_s <= start_s and end_s <= wish.to_s:
                wanted[wish.user] += wish.accelerators
        capacity = sum(span.accelerators for span in machines if span.from_s <= start_s and end_s <= span.to_s)
        for user, share in equal_split_by_user(wanted, capacity).items():
            total[user] += share * (end_s - start_s)
    return total


def received_by_user(held: Sequence[AcceleratorSpan]) -> dict[str, float]:
    """Returns the accelerator-seconds that each user held."""
    total: dict[str, float] = {}
    for span in held:
        total[span.user] = total.get(span.user, 0.0) + span.accelerators * (span.to_s - span.from_s)
    return total


_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")


def draw_timeline(recording: DemoRecording, path: Path) -> None:
    """Writes a PNG: one lane per accelerator above, prices of pools below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    lanes = lane_names(recording)
    kinds = sorted({job.kind for job in recording.jobs.values()})
    colour = {kind: _COLOURS[index % len(_COLOURS)] for index, kind in enumerate(kinds)}
    figure, (above, below) = pyplot.subplots(
        2, 1, sharex=True, figsize=(12, 2.5 + 0.45 * len(lanes)), gridspec_kw={"height_ratios": [len(lanes) + 1, 3]}
    )
    for job in recording.jobs.values():
        for attempt in started_attempts(job):
            from_s, to_s = attempt_span(recording, attempt)
            for lane in attempt_lanes(attempt):
                above.barh(
                    lanes.index(lane), to_s - from_s, left=from_s, height=0.8, color=colour[job.kind], edgecolor="white"
                )
                above.text(from_s + 0.5, lanes.index(lane), f"{job.id}.{attempt.attempt}", fontsize=7, va="center")
    above.set_yticks(range(len(lanes)), lanes, fontsize=8)
    above.invert_yaxis()
    above.set_title("who ran where (job.attempt); accelerators are emulated")
    handles = [Patch(color=colour[kind]) for kind in kinds]
    above.legend(handles=handles, labels=kinds, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for pool, points in price_lines(recording).items():
        below.step([at for at, _ in points], [price for _, price in points], where="post", label=pool)
    below.set_xlabel("seconds since the first submission")
    below.set_ylabel(price_unit(recording), fontsize=7)
    below.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def attempt_span(recording: DemoRecording, attempt: AttemptView) -> tuple[float, float]:
    """Returns the seconds from the grant of the accelerators to their return."""
    from_s = recording.seconds(attempt.leased_at)
    return from_s, recording.seconds(attempt.ended_at) if attempt.ended_at else from_s


def attempt_lanes(attempt: AttemptView) -> list[str]:
    """Returns the accelerators of an attempt: `node:0,1` gives `node:0` and `node:1`."""
    lanes = []
    for part in attempt.placement:
        node, _, devices = part.rpartition(":")
        lanes += [f"{node}:{device}" for device in devices.split(",")]
    return lanes


def lane_names(recording: DemoRecording) -> list[str]:
    """Returns all accelerators that existed or were used, in a fixed order."""
    there = {f"{name}:{index}" for name, span in recording.nodes.items() for index in range(span.node.accelerators)}
    used = {
        lane for job in recording.jobs.values() for attempt in started_attempts(job) for lane in attempt_lanes(attempt)
    }
    return sorted(there | used)


def price_lines(recording: DemoRecording) -> dict[str, list[tuple[float, float]]]:
    """Returns the points (seconds, price) of each pool."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for sample in recording.prices:
        for price in sample.prices:
            lines.setdefault(price.pool, []).append((sample.at_s, price.price))
    return lines


def price_unit(recording: DemoRecording) -> str:
    units = [price.unit for sample in recording.prices for price in sample.prices if price.unit]
    return units[-1] if units else "price"


#: Samples of prices shown; the picture has all of them.
PRICE_ROWS = 8


def find_losses(recording: DemoRecording, logs: Mapping[int, str]) -> dict[int, tuple[float, float]]:
    """Returns first and last loss by job: as reported, or read from the log of a script that reports none."""
    losses: dict[int, tuple[float, float]] = {}
    for job_id, job in recording.jobs.items():
        if "loss" in job.first_values and "loss" in job.last_values:
            losses[job_id] = (job.first_values["loss"], job.last_values["loss"])
        elif printed := re.findall(r"\bloss:? ([0-9]+(?:\.[0-9]+)?)", logs.get(job_id, "")):
            losses[job_id] = (float(printed[0]), float(printed[-1]))
    return losses


def jobs_table(recording: DemoRecording, losses: Mapping[int, tuple[float, float]]) -> Table:
    table = Table(title="jobs (all accelerators are emulated)", title_justify="left")
    for name in ("job", "name", "user", "kind", "state", "ran on"):
        table.add_column(name, no_wrap=name != "ran on")
    for name in ("att.", "steps", "loss first", "last", "JCT s", "accelerator-s", "USD"):
        table.add_column(name, justify="right")
    for job_id in sorted(recording.jobs):
        summary = recording.summary(job_id)
        job = summary.job
        first, last = losses.get(job_id, (None, None))
        seconds = " ".join(f"{name} {amount:.0f}" for name, amount in sorted(job.accelerator_s.items()))
        table.add_row(
            str(job_id),
            escape(job.name),
            escape(job.user),
            escape(job.kind),
            job.state,
            " > ".join(summary.types),
            str(len(started_attempts(job))),
            f"{job.steps:.0f}" if job.steps else "-",
            "-" if first is None else f"{first:.3f}",
            "-" if last is None else f"{last:.3f}",
            f"{summary.jct_s:.1f}",
            seconds,
            f"{job.usd:.4f}",
        )
    return table


def fairness_table(recording: DemoRecording) -> Table:
    """Returns the table of accelerator-seconds that each user received and was entitled to by an equal split."""
    wishes, held = [], []
    for job in recording.jobs.values():
        end = recording.seconds(job.ended_at) if job.ended_at else recording.seconds(job.submitted_at)
        wishes.append(AcceleratorSpan(job.user, job.accelerators, recording.seconds(job.submitted_at), end))
        for attempt in job.attempt_list:
            held.append(AcceleratorSpan(job.user, attempt.accelerators, *attempt_span(recording, attempt)))
    machines = [
        AcceleratorSpan("", span.node.accelerators, span.from_s, span.to_s) for span in recording.nodes.values()
    ]
    entitled = entitled_by_user(wishes, machines)
    got = received_by_user(held)
    ratios = {user: got.get(user, 0.0) / amount for user, amount in entitled.items() if amount > 0}
    table = Table(title=f"fairness: Jain's index {jain_index(ratios.values()):.3f} of 1", title_justify="left")
    table.add_column("user")
    for name in ("received accelerator-s", "entitled", "received / entitled"):
        table.add_column(name, justify="right")
    for user, ratio in sorted(ratios.items()):
        table.add_row(escape(user), f"{got.get(user, 0.0):.0f}", f"{entitled[user]:.0f}", f"{ratio:.2f}")
    return table


def prices_table(recording: DemoRecording) -> Table:
    """Returns the table of prices over time: at most `PRICE_ROWS` samples, evenly spaced."""
    samples = recording.prices
    stride = max(1, -(-len(samples) // PRICE_ROWS))
    pools = sorted({price.pool for sample in samples for price in sample.prices})
    table = Table(title=f"prices of pools over time ({price_unit(recording)})", title_justify="left")
    table.add_column("at s", justify="right")
    for pool in pools:
        table.add_column(escape(pool), justify="right")
    for sample in samples[::stride]:
        price_of = {price.pool: price.price for price in sample.prices}
        table.add_row(f"{sample.at_s:.0f}", *(f"{price_of[pool]:.3g}" if pool in price_of else "-" for pool in pools))
    return table


def paces_table(recording: DemoRecording, nominal: Mapping[str, Mapping[str, float]]) -> Table:
    types = sorted({accelerator for speeds in nominal.values() for accelerator in speeds})
    pairs = [(kind, name) for kind, speeds in nominal.items() for name in speeds]
    found = sum(recording.pace(*pair) is not None for pair in pairs)
    leases = sum(attempt.profiling for job in recording.jobs.values() for attempt in started_attempts(job))
    title = f"pace reached / asked, steps per second: {found} of {len(pairs)} measured, {leases} starts to profile"
    table = Table(title=title, title_justify="left")
    table.add_column("kind")
    for name in types:
        table.add_column(name, justify="right")
    for kind, speeds in nominal.items():
        cells = []
        for name in types:
            reached = recording.pace(kind, name)
            cells.append(f"{'-' if reached is None else format(reached, '.1f')} / {speeds.get(name, 0):g}")
        table.add_row(escape(kind), *cells)
    return table


def checks_table(checks: Sequence[PromiseCheck]) -> Table:
    table = Table(title="promises", title_justify="left", show_header=False)
    for check in checks:
        mark = "[green]ok[/green]" if check.kept else "[bold red]FAIL[/bold red]"
        table.add_row(mark, check.promise, escape(check.detail))
    return table


def print_titled_table(console: Console, table: Table) -> None:
    """Prints a table below its title. (A table would fold its title to its own width.)"""
    console.print()
    console.print(table.title, markup=False, highlight=False, soft_wrap=True, style="italic")
    table.title = None
    console.print(table)


def print_changes(console: Console, recording: DemoRecording) -> None:
    """Prints the preemptions, moves and resumptions: each attempt that did not end its job, in order of time."""
    lines = []
    console.print("\npreempted, moved, resumed", style="bold")
    for job_id, job in sorted(recording.jobs.items()):
        attempts = started_attempts(job)
        for attempt, later in pairwise(attempts):
            at_s = recording.seconds(attempt.ended_at) if attempt.ended_at else 0.0
            saved = "" if attempt.checkpoint_step is None else f" at step {attempt.checkpoint_step:.0f}"
            verb = "resumed on" if later.accelerator == attempt.accelerator else "moved to"
            left = f"job {job_id} {job.name}: left {attempt.accelerator}{saved} ({attempt.reason})"
            lines.append((at_s, f"{left}, {verb} {later.accelerator}"))
    for at_s, line in sorted(lines):
        console.print(f"  {at_s:5.0f} s  {line}", markup=False, highlight=False, soft_wrap=True)


def print_failure(console: Console, recording: DemoRecording, job_id: int, log: str, lines: int = 6) -> None:
    job = recording.jobs.get(job_id)
    if job is None:
        return
    console.print(f"\njob {job_id} {job.name} is {job.state}: {job.reason} {job.detail}", markup=False, style="bold")
    for line in log.rstrip().splitlines()[-lines:]:
        console.print(f"  | {line}", markup=False, highlight=False, soft_wrap=True)


def print_demo_report(
    console: Console,
    recording: DemoRecording,
    losses: Mapping[int, tuple[float, float]],
    nominal: Mapping[str, Mapping[str, float]],
) -> None:
    for table in (
        jobs_table(recording, losses),
        fairness_table(recording),
        prices_table(recording),
        paces_table(recording, nominal),
    ):
        print_titled_table(console, table)


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
