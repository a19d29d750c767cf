"""What a step waits for, from differences between runs that each leave one thing out (Stash, ICDCS 2023).

    alone            made-up data, one accelerator                              compute
    together         made-up data, all accelerators of a machine                + exchange inside
    warm             real data that the host has already read                   + preparing it
    cold             real data that nobody has read yet                         + fetching it
    apart            made-up data, as many accelerators on several machines     compute + exchange inside and between

Times are of one step with the same samples per accelerator. A difference below 0 is noise and counts as none.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Runs:
    """Seconds of one step in each run; `apart` None: never run on several machines."""

    alone_s: float
    together_s: float
    warm_s: float
    cold_s: float
    apart_s: float | None = None


@dataclass(frozen=True, slots=True)
class Stalls:
    """Seconds of one step, by what they go to. Without noise and networks they sum to the cold run."""

    compute_s: float
    inside_s: float
    prepare_s: float
    fetch_s: float
    network_s: float

    @property
    def step_s(self) -> float:
        """Of a first epoch: everything together."""
        return self.compute_s + self.inside_s + self.prepare_s + self.fetch_s + self.network_s

    @property
    def shares(self) -> dict[str, float]:
        """Of the whole step, by name; they sum to 1."""
        parts = {
            "compute": self.compute_s,
            "inside": self.inside_s,
            "prepare": self.prepare_s,
            "fetch": self.fetch_s,
            "network": self.network_s,
        }
        return {name: seconds / self.step_s for name, seconds in parts.items()}


def attribute(runs: Runs) -> Stalls:
    """Each difference to its stall."""
    assert runs.alone_s > 0, "a step takes time"
    return Stalls(
        compute_s=runs.alone_s,
        inside_s=max(0.0, runs.together_s - runs.alone_s),
        prepare_s=max(0.0, runs.warm_s - runs.together_s),
        fetch_s=max(0.0, runs.cold_s - runs.warm_s),
        network_s=0.0 if runs.apart_s is None else max(0.0, runs.apart_s - runs.together_s),
    )
