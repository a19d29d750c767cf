"""First in, first out: jobs start in the order of submission and run to their end."""

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from optimizer.policy import OrderFacts


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Fifo:
    """Ranks jobs by submission. Never preempts."""

    #: True: a job tries its fastest configuration first. False: pools in their order, blind to speed.
    aware: bool = True
    #: True: the first job that does not fit holds up everybody behind it. False: the next one that fits may go.
    strict: bool = True

    @property
    def preemptive(self) -> bool:
        """A started job keeps its place."""
        return False

    def key(self, job: OrderFacts) -> tuple[float, ...]:
        """Instant of submission, then the number."""
        return (job.submitted_at, job.job_id)
