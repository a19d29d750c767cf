"""Water filling without entities: everybody rises in proportion to its weight."""

from dataclasses import dataclass

import numpy as np

from optimizer.market.targets import Capped
from optimizer.problem import BoolArray, FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class ByWeight:
    """min(w z, cap); afterwards, among those of weight 0, min(z, cap)."""

    weight: FloatArray

    @property
    def tiers(self) -> int:
        """Two where somebody has no weight."""
        return 1 if self.weight.all() else 2

    def targets(self, tier: int, kept: FloatArray, cap: FloatArray, settled: BoolArray) -> Capped:
        """Those of the tier rise, everybody else keeps what it has."""
        weight = self.weight if tier == 0 else (self.weight == 0).astype(np.float64)
        return Capped(np.where(settled, 0.0, weight), cap, kept)
