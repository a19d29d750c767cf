"""The registry of policies: names to values. (First-come order only; programs join it with their files.)"""

from dataclasses import dataclass

from optimizer.policy import OrderFacts, Policy, PolicySpec
from walras.errors import UnknownPolicyError


@dataclass(frozen=True)
class Fifo:
    """First come, first served."""

    preemptive: bool = False
    strict: bool = False
    aware: bool = True

    def key(self, job: OrderFacts) -> tuple[float, ...]:
        return (job.submitted_at,)


def make(spec: PolicySpec) -> Policy:
    """The policy of that name."""
    if spec.name != "fifo":
        raise UnknownPolicyError(f"policy {spec.name!r} is not known; known: fifo", field="policy.name")
    return Fifo(**spec.parameters)
