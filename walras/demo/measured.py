"""From what the run showed to the input of a simulation of it: speeds, start and checkpoint costs, work of each job.

The file's fields are those of `simulator.measured`; it is also there for `walras simulate`.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any

from walras.api import AttemptView, JobDetail
from walras.demo.recording import AttemptMarks, Recording, ran
from walras.states import JobState

#: Where no start, or no stop, of any job was seen.
DEFAULT_START_S = 4.0
DEFAULT_CHECKPOINT_S = 0.5


def measured(recording: Recording, job_ids: Sequence[int]) -> dict[str, Any]:
    """`job_ids`: in the order of the workload file."""
    starts = {job.kind: list[float]() for job in recording.jobs.values()}
    stops: list[float] = []
    for job in recording.jobs.values():
        for attempt in ran(job):
            marks = recording.marks.get((job.id, attempt.attempt))
            if marks is not None:
                starts[job.kind] += start_seen(recording, job, attempt, marks)
                stops += stop_seen(recording, attempt, marks)
    all_starts = [start_s for seen in starts.values() for start_s in seen]
    usual_start_s = median(all_starts) if all_starts else DEFAULT_START_S
    checkpoint_s = median(stops) if stops else DEFAULT_CHECKPOINT_S
    start_s = {kind: median(seen) if seen else usual_start_s for kind, seen in starts.items()}
    kinds = [{"kind": kind, "start_s": s, "checkpoint_s": checkpoint_s} for kind, s in sorted(start_s.items())]
    rows = [row_of(recording, row, job_id, start_s) for row, job_id in enumerate(job_ids) if job_id in recording.jobs]
    speeds = [
        {"kind": kind, "accelerator": accelerator, "steps_per_s": recording.pace(kind, accelerator)}
        for kind, accelerator in sorted(recording.paces)
    ]
    return {
        "speeds": speeds,
        "kinds": kinds,
        "jobs": [row for row in rows if row["steps"] > 0],
        "start_s": usual_start_s,
        "checkpoint_s": checkpoint_s,
    }


def start_seen(recording: Recording, job: JobDetail, attempt: AttemptView, marks: AttemptMarks) -> list[float]:
    """Grant of the accelerators to the first step, worked back from the first steps that were seen; empty if unseen."""
    pace = recording.pace(job.kind, attempt.accelerator)
    if marks.stepping_s is None or pace is None:
        return []
    stepping_s = (marks.stepping_steps - marks.first_steps) / pace
    return [max(0.0, marks.stepping_s - recording.seconds(attempt.leased_at) - stepping_s)]


def stop_seen(recording: Recording, attempt: AttemptView, marks: AttemptMarks) -> list[float]:
    """Request to stop until nothing was left; empty if unseen."""
    if marks.stopping_s is None or attempt.ended_at is None:
        return []
    return [max(0.0, recording.seconds(attempt.ended_at) - marks.stopping_s)]


def row_of(recording: Recording, row: int, job_id: int, start_s: dict[str, float]) -> dict[str, Any]:
    """The work of one job: its steps, or the seconds it ran where it reported none."""
    job = recording.jobs[job_id]
    steps = job.steps_total if job.steps_total and job.state is JobState.SUCCEEDED else job.steps
    if not steps:
        spans = [(attempt.started_at, attempt.ended_at) for attempt in ran(job)]
        held = [recording.seconds(end) - recording.seconds(start) for start, end in spans if start and end]
        steps = max(1.0, sum(held) - start_s[job.kind] * len(held))
    exit_codes = [attempt.exit_code for attempt in ran(job) if attempt.exit_code]
    failed = job.state is JobState.FAILED
    return {"row": row, "steps": steps, "exit_code": (exit_codes or [1])[-1] if failed else 0}
