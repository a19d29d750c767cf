"""A job as a trace states it, before any cluster is known, and the trace that it is part of.

What a job means on a given cluster (which types it accepts, how fast it runs) is decided in
`simulator.workloads.placing`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One row of a trace."""

    #: When it is submitted, seconds since the trace began.
    at: float
    #: Unique in its trace.
    name: str
    #: Jobs of one kind and gang run equally fast.
    kind: str
    #: Accelerators that it takes, all at once.
    gang: int
    #: Accelerator types that it accepts; none named: every type it has a speed on.
    types: tuple[str, ...] = ()
    #: Its work.
    steps: float | None = None
    #: How long it runs, once it runs: on `duration_on`.
    duration_s: float | None = None
    #: The type that `duration_s` and `slo` refer to; "": the fastest of those it may run on.
    duration_on: str = ""
    #: What its user said it would take. None: the scheduler is told the truth.
    estimate_s: float | None = None
    #: Steps per second of the gang, by type, ascending by name.
    speeds: tuple[tuple[str, float], ...] = ()
    weight: float = 1.0
    priority: int = 50
    user: str = ""
    project: str = "default"
    deadline_at: float = inf
    #: A deadline too, as a multiple of the run time on `duration_on`, from submission on.
    slo: float | None = None
    value_usd_per_h: float | None = None
    #: Per accelerator.
    cpus: float = 0.0
    memory_bytes: int = 0
    #: Global batch size, and who may change it: "" nobody; static, accordion, gns: as Shockwave has it.
    batch: int | None = None
    batch_rule: str = ""
    #: Line of the file; not part of what the job is.
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Skipped:
    """Rows that could not be read and were left out, because that was asked for."""

    count: int = 0
    #: What was wrong with the first few.
    first: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in order of arrival, and where they came from."""

    #: The file, or the generator's name.
    source: str
    #: Name of the format, or "generated".
    format: str
    jobs: Sequence[TraceJob]
    skipped: Skipped = Skipped()
