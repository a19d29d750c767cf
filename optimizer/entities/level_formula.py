"""Who rises how in one level over a tree, written out over entities and jobs: for a definition to be read and compared.

The same as `optimizer.entities.hierarchy` says of classes between two points at which somebody stops rising; no floors,
no caps. Importing this module imports scipy.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from optimizer.entities.holdings import Holdings
from optimizer.problem import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """K entities, then n jobs, as items (arrays (K + n,))."""

    #: Entity that an item belongs to; K for the top.
    parent: IntArray
    #: Against its siblings; of who is served in order, 1.
    weight: FloatArray
    #: A job that rises, or an entity with something that rises inside.
    rising: BoolArray
    #: Adds up what the items of each entity have (K, K + n).
    sums: Any


def items(held: Holdings, weight: FloatArray, rises: BoolArray) -> Items:
    """The tree of a level.

    Args:
        held: where jobs hang, and the complete entities.
        weight: of each job against its siblings (n,).
        rises: jobs that have not settled yet (n,).
    """
    entities, k, n = held.entities, len(held.entities), len(weight)
    in_order = np.concatenate((entities.fifo, [False]))[held.place]
    rises = rises & (in_order | (weight > 0))
    for entity in np.flatnonzero(entities.fifo):
        waiting = np.flatnonzero(rises & (held.place == entity))
        rises[waiting] = held.rank[waiting] == held.rank[waiting].min(initial=np.inf)
    above = np.concatenate((entities.parent, held.place))
    parent = np.where(above >= 0, above, k)
    rising = np.concatenate((np.zeros(k, dtype=bool), rises))
    for row in reversed(range(k)):  # parents come first
        rising[row] = entities.weight[row] > 0 and rising[parent == row].any()
    inside = np.flatnonzero(above >= 0)
    return Items(
        parent=parent,
        weight=np.concatenate((entities.weight, np.where(in_order, 1.0, weight))),
        rising=rising,
        sums=sparse.csr_array((np.ones(len(inside)), (above[inside], inside)), shape=(k, k + n)),
    )
