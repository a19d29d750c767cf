"""How much of what the shares promise has really run: gangs are whole, and restarts take time.

A solve's gap says how close the shares are to the best shares. Shares are fluid; machines are not. So beside the gap
stands what was delivered over the last rounds: the accelerator time that the active jobs received on the pools where
they had a share, each at most what it was promised, as a part of all that was promised; times objective / bound.
"""

import numpy as np

from scheduler.core.ledger.ledger import Ledger


def realised(ledger: Ledger) -> float | None:
    """What ran, as a part of the bound (0..1); None before anything was promised, and under policies that only rank."""
    standing, columns = ledger.standing, ledger.columns
    if standing is None or standing.proposal is None:
        return None
    rows = np.flatnonzero(columns.active)
    passed = np.maximum(ledger.now - columns.settled_at[rows], 0.0)
    promised = columns.promised[rows] + columns.entitled[rows] * passed[:, None]
    delivered = columns.delivered[rows].copy()
    held, pool, received = columns.received(rows, passed)
    delivered[held, pool] += np.where(columns.entitled[rows[held], pool] > 0, received, 0.0)
    total = float(promised.sum())
    if total <= 0:
        return None
    return float(np.minimum(delivered, promised).sum()) / total * max(0.0, 1.0 - standing.proposal.gap)
