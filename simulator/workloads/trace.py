"""A trace and its jobs as the trace states them, before any cluster is known.

`simulator.workloads.trace_binding` determines what a job means on a given cluster: the types it accepts, its speed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from walras.job_request import JobIdentity, JobLimits


@dataclass(frozen=True, slots=True)
class TraceFailure:
    """A failure of a rank after this part of the job's work."""

    #: Part of the work, from 0 to below 1.
    part: float
    exit_code: int = 1
    #: Number of failures; None: every attempt fails.
    times: int | None = None


@dataclass(frozen=True, slots=True)
class TraceJob(JobIdentity, JobLimits):
    """One row of a trace. Instants count from the start of the trace."""

    #: Instant of submission, seconds since the start of the trace.
    at: float
    #: Unique in its trace.
    name: str
    #: Jobs of one kind and gang run equally fast.
    kind: str
    #: Accelerators that it holds, all at once.
    gang: int
    #: Accelerator types that it accepts; empty: every type on which it has a speed.
    types: tuple[str, ...] = ()
    #: Its work in steps.
    steps: float | None = None
    #: Its run time on `duration_on`, seconds.
    duration_s: float | None = None
    #: The type that `duration_s` and `slo` refer to; "": the fastest of those it may run on.
    duration_on: str = ""
    #: The user's estimate of the run time. None: the scheduler knows the true length times `estimate_factor`.
    estimate_s: float | None = None
    #: The length that the scheduler knows, divided by the true one; 0: it knows none.
    estimate_factor: float = 1.0
    #: Steps per second of the gang, by type, ascending by name.
    speeds: tuple[tuple[str, float], ...] = ()
    #: Elastic: gang sizes from which a policy may choose, ascending, `gang` among them. Empty: the gang is fixed.
    sizes: tuple[int, ...] = ()
    #: Largest number of parts into which it may be forked, each a whole gang; and whether its gang may span several
    #: pools.
    fork_max: int = 1
    mixed: bool = False
    #: For an elastic job without a table or law of speeds: n times the accelerators are n ** scaling as fast.
    scaling: float = 1.0
    #: Machines over which the gang is distributed evenly; 1: as few as possible.
    nodes: int = 1
    #: A deadline as a multiple of the run time on `duration_on`, counted from submission.
    slo: float | None = None
    #: Per accelerator: processors, and bytes of memory.
    cpus: float = 0.0
    memory_bytes: int = 0
    #: Names of jobs above it that must end first, and how: "" with success, "finished" in any way.
    depends_on: tuple[str, ...] = ()
    condition: str = ""
    #: Instant at which its user cancels it.
    cancel_at: float = inf
    max_restarts: int = 0
    #: Exit codes after which it is retried; empty: all.
    restart_codes: tuple[int, ...] = ()
    failures: tuple[TraceFailure, ...] = ()
    #: Global batch size, and the rule that changes it: "" none; static, accordion, gns as in Shockwave.
    batch: int | None = None
    batch_rule: str = ""
    #: For a job whose kind follows a goodput law: the largest batch that it may choose. None: it chooses none.
    batch_max: int | None = None
    #: Line of the file; not a property of the job.
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class SkippedRows:
    """Rows that could not be read and were left out, as `ReadOptions.skip_bad_rows` requests."""

    count: int = 0
    #: What was wrong with the first few.
    first: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in order of arrival, and their source."""

    #: The file, or the generator's name.
    source: str
    #: Name of the format, or "generated".
    format: str
    jobs: Sequence[TraceJob]
    skipped: SkippedRows = SkippedRows()
