"""Whether the machines that were obtained are so badly connected that the job is to be planned anew (Srifty).

Two sets of machines of one type differ in the network between them. What a plan took it to be is compared with what was
measured after launch; predictions go on from the measured figure in any case.
"""

from dataclasses import dataclass, replace

from optimizer.performance.predicting.observation import AcceleratorFacts

#: This part below what was planned, and another set of machines, or of counts, may be worth its move.
TOLERATED = 0.15


@dataclass(frozen=True, slots=True)
class Obtained:
    """What was planned and what was measured, bytes per second of one direction."""

    planned_bytes_per_s: float
    measured_bytes_per_s: float

    def __post_init__(self) -> None:
        if not (0.0 < self.planned_bytes_per_s < float("inf") and 0.0 < self.measured_bytes_per_s < float("inf")):
            raise ValueError(f"bandwidths are finite and above 0: {self}")

    @property
    def below(self) -> float:
        """Part that is missing of what was planned; negative where there is more."""
        return 1.0 - self.measured_bytes_per_s / self.planned_bytes_per_s

    @property
    def replan(self) -> bool:
        """Whether so much is missing that the plan does not hold."""
        return self.below > TOLERATED * (1.0 + 1e-9)

    @property
    def why(self) -> str:
        """The verdict with its numbers."""
        figures = f"{_gbit(self.measured_bytes_per_s)} of {_gbit(self.planned_bytes_per_s)} between machines"
        if self.replan:
            return f"{figures}: {self.below:.0%} below plan, more than {TOLERATED:.0%}, so it is planned anew"
        return f"{figures}: the plan stands"

    def facts(self, accelerator: AcceleratorFacts) -> AcceleratorFacts:
        """The accelerator as it is on these machines: what predictions go on from."""
        return replace(accelerator, network_bytes_per_s=self.measured_bytes_per_s)


def _gbit(bytes_per_s: float) -> str:
    return f"{8e-9 * bytes_per_s:.3g} Gbit/s"
