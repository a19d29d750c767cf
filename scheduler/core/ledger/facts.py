"""What the ledger knows of some jobs now, for an order policy to rank them by. Reads only; nothing is settled."""

import numpy as np

from optimizer.problem import FloatArray, IntArray
from scheduler.core.ledger.ledger import Ledger
from scheduler.core.ledger.remaining import left_on_best_s


class Facts:
    """`OrderFacts` of these slots (a slice of one: of one job). Each fact is worked out when it is asked for.

    `idle`: they hold nothing, so what they have received stands still.
    """

    def __init__(self, ledger: Ledger, rows: IntArray | slice, *, idle: bool = False) -> None:
        self._ledger = ledger
        self._idle = idle
        self._columns = ledger.columns
        self._rows = rows
        self._attained_s: FloatArray | None = None
        self._remaining_s: FloatArray | None = None

    @property
    def submitted_at(self) -> FloatArray:
        return self._columns.submitted_at[self._rows]

    @property
    def priority_class(self) -> IntArray:
        return self._columns.priority_class[self._rows]

    @property
    def gang(self) -> FloatArray:
        return self._columns.gang[self._rows]

    @property
    def deadline_at(self) -> FloatArray:
        return self._columns.deadline_at[self._rows]

    @property
    def attained_s(self) -> FloatArray:
        if self._attained_s is None:
            columns, rows = self._columns, self._rows
            self._attained_s = columns.attained_s[rows]
            if not self._idle:  # `count` is 0 for a job that holds nothing
                since_s = np.maximum(self._ledger.now - columns.settled_at[rows], 0.0)
                self._attained_s = self._attained_s + columns.count[rows] * since_s
        return self._attained_s

    @property
    def served_s(self) -> FloatArray:
        return self.attained_s - self._columns.renewed_at_s[self._rows]

    @property
    def waited_s(self) -> FloatArray:
        columns, rows = self._columns, self._rows
        return np.where(columns.pool[rows] >= 0, 0.0, self._ledger.now - columns.since_at[rows])

    @property
    def remaining_s(self) -> FloatArray:
        """By steps and speed, else by the submitter's guess; inf without either."""
        if self._remaining_s is None:
            self._remaining_s = left_on_best_s(self._ledger, self._rows, self.attained_s)
        return self._remaining_s
