"""A problem as a market: equal jobs become classes, and what is decided for a class goes back to its jobs.

Decides which columns take part (those that the caller keeps) and how they are numbered; which numbers make two jobs
equal is the caller's to say.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.arrays.owners import sum_by
from optimizer.arrays.spans import begins, offsets_of, ranges
from optimizer.market.aggregate import Classes, aggregate
from optimizer.market.market import Market
from optimizer.problem import BoolArray, FloatArray, Problem


@dataclass(frozen=True, slots=True, eq=False)
class ClassMarket:
    """The market of a problem's classes, with the way there and back. n jobs, c columns; k classes, C class columns."""

    classes: Classes
    market: Market

    def per_column(self, values: FloatArray) -> FloatArray:
        """What holds of columns, told of class columns: (c,) -> (C,)."""
        return values[self.classes.column]

    def per_class(self, values: FloatArray) -> FloatArray:
        """What holds of jobs, told of classes: (n,) -> (k,)."""
        return values[self.classes.representative]

    def to_columns(self, values: FloatArray) -> FloatArray:
        """The value of its class column for every column, 0 for those that were not kept: (C,) -> (c,)."""
        return self.classes.expand_columns(values)

    def to_jobs(self, values: FloatArray) -> FloatArray:
        """The value of its class for every job, 0 for jobs without kept columns: (k,) -> (n,)."""
        return self.classes.expand_jobs(values)


def market_of(
    problem: Problem, keep: BoolArray, column_keys: Sequence[FloatArray], job_keys: Sequence[FloatArray]
) -> ClassMarket:
    """The market of the jobs that have kept columns. Its rows are the problem's pools.

    Args:
        problem: n jobs, c columns, p pools.
        keep: columns that take part; each fits the pools that it uses (c,).
        column_keys: what tells two columns apart besides the pools and counts they use: worth, value; each (c,).
        job_keys: what tells two jobs apart besides their columns: weight, target, floor; at least one, each (n,).
    """
    columns = problem.columns
    classes = aggregate(columns, keep, column_keys, job_keys)
    use_first = offsets_of(columns.use_column, len(columns))
    begin, end = use_first[classes.column], use_first[classes.column + 1]
    uses, in_class = ranges(begin, end), classes.member >= 0
    market = Market(
        size=sum_by(classes.member[in_class], problem.jobs.counts[in_class], len(classes)),
        first=offsets_of(classes.column_class, len(classes)),
        use_first=begins(end - begin),
        use_row=columns.use_pool[uses].astype(np.int32),
        use_count=columns.use_count[uses],
        capacity=problem.pools.capacity,
    )
    return ClassMarket(classes, market)
