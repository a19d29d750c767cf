"""Compares what a job was planned to do (`plan` of its spec) with what its ranks report: speed and bandwidth.

The server shows it as the condition `off_plan`, the commands in one line of a job.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from walras.contract import BANDWIDTH_VALUE

#: The part of the plan by which a measurement may differ before another plan is worth making (after Srifty).
OFF_PLAN = 0.15
#: The number of windows of steps after which an attempt's median speed counts as warmed up.
WARM_REPORTS = 10


@dataclass(frozen=True, slots=True)
class PlannedSpeed:
    """A plan and its measurements so far; None: nothing was measured."""

    machines: int
    accelerator: str
    accelerators: int
    pool: str
    planned_steps_per_s: float
    low: float
    high: float
    planned_bytes_per_s: float | None = None
    steps_per_s: float | None = None
    bytes_per_s: float | None = None

    @property
    def off(self) -> float | None:
        """Measured speed against the planned one: -0.18 is 18 % slower. None: nothing was measured."""
        return None if self.steps_per_s is None else self.steps_per_s / self.planned_steps_per_s - 1.0

    @property
    def network_off(self) -> float | None:
        """Measured bandwidth between machines relative to the planned one; None: nothing was measured."""
        if self.bytes_per_s is None or self.planned_bytes_per_s is None:
            return None
        return self.bytes_per_s / self.planned_bytes_per_s - 1.0

    @property
    def differs(self) -> bool:
        """Whether another plan is worth making: a speed off by more than `OFF_PLAN`, or so much bandwidth missing."""
        is_slower_network = self.network_off is not None and self.network_off < -OFF_PLAN
        return is_slower_network or (self.off is not None and abs(self.off) > OFF_PLAN)

    @property
    def text(self) -> str:
        """Plan and measurement in one line."""
        where = f"{self.accelerators} x {self.accelerator} of {self.pool}"
        words = f"planned {self.planned_steps_per_s:.3g} steps/s on {where} ({self.low:.3g} to {self.high:.3g})"
        if self.steps_per_s is not None and self.off is not None:
            words += f", measured {self.steps_per_s:.3g} ({100 * self.off:+.0f} %)"
        if self.bytes_per_s is not None and self.network_off is not None:
            words += f"; {8e-9 * self.bytes_per_s:.3g} Gbit/s between machines ({100 * self.network_off:+.0f} %)"
        return words


def planned_speed(
    spec: Mapping[str, Any], steps_per_s: float | None, values: Mapping[str, float] | None = None
) -> PlannedSpeed | None:
    """Returns the plan in a job's spec and what was measured, or None for a job without a plan.

    Args:
        spec: the job's spec as JSON.
        steps_per_s: of the whole gang on the planned machines; None: not measured yet.
        values: what the ranks reported by name.
    """
    plan = spec.get("plan")
    if not isinstance(plan, Mapping):
        return None
    return PlannedSpeed(
        machines=int(plan["machines"]),
        accelerator=str(plan["accelerator"]),
        accelerators=int(plan["accelerators"]),
        pool=str(plan["pool"]),
        planned_steps_per_s=float(plan["steps_per_s"]),
        low=float(plan["low"]),
        high=float(plan["high"]),
        planned_bytes_per_s=plan.get("network_bytes_per_s"),
        steps_per_s=steps_per_s or None,
        bytes_per_s=(values or {}).get(BANDWIDTH_VALUE) or None,
    )
