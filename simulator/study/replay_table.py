"""A replay for people and for programs."""

from dataclasses import asdict
from statistics import mean
from typing import Any

from rich.table import Table
from rich.text import Text

from simulator.report import finite
from simulator.study.recording import Recording
from simulator.study.replay import Replayed


def replay_table(replayed: Replayed) -> Table:
    """Every job's completion time, recorded and simulated, and the means."""
    runs = len(replayed.results)
    table = Table(title=f"completion times, recorded and simulated ({runs} {'seed' if runs == 1 else 'seeds'})")
    for title in ("job", "kind", "recorded s", "simulated s", "least", "most", "change"):
        table.add_column(title, justify="left" if title == "kind" else "right")
    for job in replayed.jobs:
        times = (job.recorded_s, job.simulated_s, job.least_s, job.most_s)
        table.add_row(
            str(job.job_id),
            Text(job.kind),
            *(f"{each:,.1f}" for each in times),
            _change(job.simulated_s, job.recorded_s),
        )
    if replayed.jobs:
        recorded, simulated = (
            mean(getattr(job, name) for job in replayed.jobs) for name in ("recorded_s", "simulated_s")
        )
        table.add_section()
        table.add_row("mean", "", f"{recorded:,.1f}", f"{simulated:,.1f}", "", "", _change(simulated, recorded))
    return table


def _change(after: float, before: float) -> str:
    return f"{after / before - 1.0:+.1%}" if before > 0 else "-"


def replay_json(replayed: Replayed, recording: Recording) -> dict[str, Any]:
    """The same as data."""
    body = {
        "seeds": len(replayed.results),
        "median_error": replayed.median_error,
        "left_out": list(recording.header.left_out),
        "jobs": [asdict(job) for job in replayed.jobs],
    }
    data: dict[str, Any] = finite(body)
    return data
