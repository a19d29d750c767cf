"""Small random markets of classes."""

import numpy as np

from optimizer.classes.class_problem import ClassProblem
from optimizer.problem import FloatArray


def market_and_worth(seed: int) -> tuple[ClassProblem, FloatArray]:
    """Ties, gangs, gaps, members, and columns of two rows."""
    rng = np.random.default_rng(seed)
    classes, rows = int(rng.integers(1, 10)), int(rng.integers(1, 5))
    tied = rng.random() < 0.5
    first, use_first, use_row, use_count, worth = [0], [0], [], [], []
    for _ in range(classes):
        gang = float(rng.choice([1.0, 1.0, 2.0, 4.0]))
        order = rng.permutation(rows)
        for column in range(int(rng.integers(1, rows + 2))):
            used = [order[column]] if column < rows else rng.choice(rows, min(2, rows), replace=False).tolist()
            worth.append(gang * (float(rng.choice([1.0, 1.5, 2.0])) if tied else rng.lognormal(0, 0.7)))
            use_row += [int(row) for row in used]
            use_count += [gang / len(used)] * len(used)
            use_first.append(len(use_row))
        first.append(len(worth))
    size = rng.integers(1, 4, classes).astype(float)
    capacity = rng.integers(1, 9, rows).astype(float)
    rows_of_uses = np.array(use_row, dtype=np.int32)
    market = ClassProblem(size, np.array(first), np.array(use_first), rows_of_uses, np.array(use_count), capacity)
    return market, np.array(worth)
