"""A trace and its jobs as the trace states them, before any cluster is known.

What a job means on a given cluster (which types it accepts, how fast it runs) is `simulator.workloads.trace_binding`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from walras.job_request import JobIdentity, JobLimits


@dataclass(frozen=True, slots=True)
class TraceFailure:
    """A rank of the job exits when this part of its work is done."""

    #: From 0 to below 1.
    part: float
    exit_code: int = 1
    #: How often; None: every time.
    times: int | None = None


@dataclass(frozen=True, slots=True)
class TraceJob(JobIdentity, JobLimits):
    """One row of a trace. Instants count from when the trace began."""

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
    #: The user's estimate of the run time. None: the scheduler knows the true length times `estimate_factor`.
    estimate_s: float | None = None
    #: The length that the scheduler knows, divided by the true one; 0: it knows none.
    estimate_factor: float = 1.0
    #: Steps per second of the gang, by type, ascending by name.
    speeds: tuple[tuple[str, float], ...] = ()
    #: Elastic: gang sizes that a policy may choose among, ascending, `gang` one of them. Empty: the gang is fixed.
    sizes: tuple[int, ...] = ()
    #: Parts that it may be forked into, each a whole gang; and whether its gang may sit in several pools.
    fork_max: int = 1
    mixed: bool = False
    #: Of an elastic job whose speed no table and no law says: n times the accelerators are n ** scaling as fast.
    scaling: float = 1.0
    #: Machines that the gang is spread over evenly; 1: as few as possible.
    nodes: int = 1
    #: A deadline too, as a multiple of the run time on `duration_on`, from submission on.
    slo: float | None = None
    #: Per accelerator.
    cpus: float = 0.0
    memory_bytes: int = 0
    #: Names of jobs above it that have to end first, and how: "" with success, "finished" in any way.
    depends_on: tuple[str, ...] = ()
    condition: str = ""
    #: When its user cancels it.
    cancel_at: float = inf
    max_restarts: int = 0
    #: Exit codes worth another try; empty: all.
    restart_codes: tuple[int, ...] = ()
    failures: tuple[TraceFailure, ...] = ()
    #: Global batch size, and the rule that changes it: "" none; static, accordion, gns as in Shockwave.
    batch: int | None = None
    batch_rule: str = ""
    #: Of a job whose kind follows a law of goodput: it chooses its batch itself, up to this one. None: it may not.
    batch_max: int | None = None
    #: Line of the file; not part of what the job is.
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class SkippedRows:
    """Rows that could not be read and were left out, as `ReadOptions.skip_bad_rows` requests."""

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
    skipped: SkippedRows = SkippedRows()
