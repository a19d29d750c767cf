"""The job as the scheduler sees it: the part of a job spec that decisions depend on, frozen.

A server makes a `JobRequest` from the spec that a person submitted; a simulation makes one from a row of a trace. The
scheduler never sees commands, code or environment variables.
"""

from dataclasses import dataclass
from math import inf
from typing import NewType

#: A submission. Increases from 1 in order of admission; never reused.
JobId = NewType("JobId", int)
#: Jobs of one kind share one row of the throughput table.
Kind = NewType("Kind", str)

# An attempt is named by (job id, attempt number). The number increases by one with every start of the job and is the
# fence: whatever an attempt writes counts only while its number is the job's current one.

#: Stands for "any accelerator type" in a `Demand`.
ANY_ACCELERATOR = "*"
#: Part of its speed that a gang over several pools is taken to lose by talking between them, and a fork by averaging.
MIXING_LOSS = 0.0
AVERAGING_LOSS = 0.05


@dataclass(frozen=True, slots=True)
class Demand:
    """One acceptable way to run the whole gang: `count` accelerators of one type."""

    accelerator: str
    count: int


@dataclass(frozen=True, slots=True)
class RetryRule:
    """When a failed attempt is tried again. Infrastructure loss and preemption never consume `max_restarts`."""

    max_restarts: int = 0
    #: Exit codes that may be retried; empty means any non-zero code.
    on_exit_codes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job as the scheduler sees it."""

    job_id: JobId
    kind: Kind
    #: Acceptable demands. The scheduler chooses among them; equal counts need not be given twice.
    demands: tuple[Demand, ...]
    #: Elastic: the gang sizes that a policy may choose among on every acceptable type, ascending, the counts of all
    #: demands among them. Those say what it runs with where nobody chooses. Empty: rigid.
    sizes: tuple[int, ...] = ()
    #: Its gang may sit in several pools, at the pace of the slowest of them.
    mixed: bool = False
    #: Parts that it may be forked into: whole gangs with steps of their own, averaged now and then. 1: never forked.
    fork_max: int = 1
    project: str = "default"
    user: str = ""
    #: 0-100; see `priority_class`.
    priority: int = 50
    #: Share against other jobs of the same class. A weight of 2 is entitled to twice the normalised throughput.
    weight: float = 1.0
    #: Machines the gang must be spread over evenly; 1 means "as few as possible".
    nodes: int = 1
    cpus_per_accelerator: float = 0.0
    memory_bytes_per_accelerator: int = 0
    #: Total work in steps; None when unknown.
    steps: float | None = None
    #: The submitter's guess of the run time on the best accelerator, seconds; None when unknown.
    duration_s: float | None = None
    #: False: once started it runs to its end.
    preemptible: bool = True
    retry: RetryRule = RetryRule()
    depends_on: tuple[JobId, ...] = ()
    #: True: a dependency only has to end; False: it has to succeed.
    depends_on_any_end: bool = False
    not_before_at: float = -inf
    deadline_at: float = inf
    max_runtime_s: float = inf
    max_queue_s: float = inf
    #: What may be spent on it, USD.
    budget_usd: float = inf
    grace_s: float = 30.0
    held: bool = False
    value_usd_per_h: float | None = None
    #: Declared speeds (accelerator type, steps per second of the whole gang): believed until measured.
    declared: tuple[tuple[str, float], ...] = ()

    @property
    def spreads(self) -> bool:
        """Whether it may run as something else than one gang in one pool."""
        return self.mixed or self.fork_max > 1

    @property
    def priority_class(self) -> int:
        """0 low, 1 normal, 2 high. A higher class preempts a lower one; inside a class, shares decide."""
        return (self.priority > 33) + (self.priority > 66)
