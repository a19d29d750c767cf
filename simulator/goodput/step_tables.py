"""Step times from measurements, interpolated: between local batches where the placement itself was measured, else
between placements.

The points of the second kind lie on a grid, so how it is cut into simplices depends on their order; it is kept as
given. Nothing is guessed outside of what was measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from simulator.goodput.application import StepTimes
from simulator.goodput.errors import OutsideTable
from simulator.goodput.placement import Placement

#: Machines, accelerators, samples per accelerator.
Point = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Curve:
    """Step times of one placement: parallel tuples, ascending by local batch."""

    local: tuple[int, ...]
    step_s: tuple[float, ...]
    sync_s: tuple[float, ...]


class MeasuredSteps:
    """A `StepLaw` from two tables. More machines than were ever measured count as the most that were."""

    def __init__(
        self, name: str, curves: Mapping[Placement, Curve], scaling: Sequence[tuple[Point, StepTimes]] = ()
    ) -> None:
        """`curves` of placements in ring order (`Placement.in_ring`); `scaling`: further points."""
        self._name = name
        #: What was measured: placements in ring order, and further points.
        self.curves = dict(curves)
        self.scaling = tuple(scaling)
        self._known: dict[tuple[Placement, int], StepTimes] = {}

    def times(self, placement: Placement, local: int) -> StepTimes:
        ring = placement.in_ring()
        found = self._known.get((ring, local))
        if found is None:
            curve = self.curves.get(ring)
            found = self._on_curve(curve, ring, local) if curve is not None else self._between(ring, local)
            self._known[ring, local] = found
        return found

    def _on_curve(self, curve: Curve, ring: Placement, local: int) -> StepTimes:
        if not curve.local[0] <= local <= curve.local[-1]:
            raise self._outside(ring, local, f"from {curve.local[0]} to {curve.local[-1]} were measured there")
        return StepTimes(
            float(np.interp(local, curve.local, curve.step_s)), float(np.interp(local, curve.local, curve.sync_s))
        )

    def _between(self, ring: Placement, local: int) -> StepTimes:
        if self._mesh is None:
            raise self._outside(ring, local, "too few placements were measured to tell others by")
        interpolate, most_machines = self._mesh
        step_s, sync_s = interpolate(min(ring.machines, most_machines), ring.accelerators, local)
        if np.isnan(step_s):
            raise self._outside(ring, local, "no placements around it were measured")
        return StepTimes(float(step_s), float(sync_s))

    @cached_property
    def _mesh(self) -> tuple[Any, int] | None:
        """Interpolation over all points, and the most machines of any; None where they span no volume."""
        from scipy.interpolate import LinearNDInterpolator
        from scipy.spatial import QhullError

        points = [*self._means(), *((point, times.step_s, times.sync_s) for point, times in self.scaling)]
        where = np.array([point for point, _, _ in points], float).reshape(-1, 3)
        values = np.array([(step_s, sync_s) for _, step_s, sync_s in points]).reshape(-1, 2)
        try:
            mesh = LinearNDInterpolator(where, values)
        except (QhullError, ValueError):
            return None

        def interpolate(machines: int, accelerators: int, local: int) -> Any:
            return mesh(machines, accelerators, local)

        return interpolate, int(where[:, 0].max())

    def _means(self) -> list[tuple[Point, float, float]]:
        """Measured placements that differ only in how even they are count as one point: their mean."""
        groups: dict[Point, list[tuple[float, float]]] = {}
        for placement, curve in self.curves.items():
            for local, step_s, sync_s in zip(curve.local, curve.step_s, curve.sync_s, strict=True):
                point = (placement.machines, placement.accelerators, local)
                groups.setdefault(point, []).append((step_s, sync_s))
        means = {point: np.mean(times, axis=0).tolist() for point, times in sorted(groups.items())}
        return [(point, step_s, sync_s) for point, (step_s, sync_s) in means.items()]

    def _outside(self, ring: Placement, local: int, why: str) -> OutsideTable:
        parts = "+".join(map(str, ring.parts))
        return OutsideTable(
            f"nobody measured {self._name} on {parts} accelerators with {local} samples each: {why}",
            field="batch_size",
            fix="choose a batch or a gang that was measured",
        )
