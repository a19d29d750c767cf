"""Linear and integer programs over the configurations of contested jobs, as HiGHS solves them.

maximise  v.y    s.t.  one column a job,  use.y <= capacity,  0 <= y <= 1  (and whole, in `solve_integer`)

Importing this module imports highspy.
"""

from dataclasses import dataclass

import highspy
import numpy as np

from optimizer.problem import FloatArray, IntArray

#: Branch and bound ends after so many nodes, with the gap that is then left.
_NODES = 50_000
_WHOLE = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class KnapsackProgram:
    """Columns of the jobs that compete: owner 0..m-1 (c,), value (c,); uses as parallel arrays; capacity (p,)."""

    owner: IntArray
    value: FloatArray
    use_column: IntArray
    use_pool: IntArray
    use_count: FloatArray
    capacity: FloatArray

    @property
    def scale(self) -> float:
        """The largest value: the objective is stated in parts of it."""
        return float(self.value.max())

    def model(self) -> highspy.HighsLp:
        """Rows of jobs, then of pools."""
        jobs, columns = int(self.owner.max()) + 1, len(self.owner)
        column = np.concatenate([np.arange(columns), self.use_column])
        order = np.argsort(column, kind="stable")
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = columns, jobs + len(self.capacity)
        lp.col_cost_ = -self.value / self.scale
        lp.col_lower_, lp.col_upper_ = np.zeros(columns), np.ones(columns)
        lp.row_lower_ = np.full(lp.num_row_, -highspy.kHighsInf)
        lp.row_upper_ = np.concatenate([np.ones(jobs), self.capacity])
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_ = np.searchsorted(column[order], np.arange(columns + 1)).astype(np.int32)
        lp.a_matrix_.index_ = np.concatenate([self.owner, jobs + self.use_pool])[order].astype(np.int32)
        lp.a_matrix_.value_ = np.concatenate([np.ones(columns), self.use_count])[order]
        return lp


@dataclass(frozen=True, slots=True, eq=False)
class KnapsackRelaxation:
    """The fluid optimum: prices of the pools (p,) and the part of each column (c,)."""

    prices: FloatArray
    part: FloatArray


def solve_relaxation(program: KnapsackProgram) -> KnapsackRelaxation | None:
    """The fluid optimum; None where no solver answered."""
    highs = _highs()
    highs.passModel(program.model())
    highs.run()
    solution = highs.getSolution()
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal or not solution.dual_valid:
        return None
    duals = np.array(solution.row_dual)[-len(program.capacity) :]
    return KnapsackRelaxation(np.maximum(-duals, 0.0) * program.scale, np.array(solution.col_value))


def solve_integer(program: KnapsackProgram, tolerance: float) -> tuple[IntArray | None, float]:
    """(columns chosen, a bound on the best choice): the best whole choice within the tolerance, None without one."""
    highs, model = _highs(), program.model()
    model.integrality_ = [highspy.HighsVarType.kInteger] * len(program.owner)
    highs.setOptionValue("mip_rel_gap", tolerance)
    highs.setOptionValue("mip_max_nodes", _NODES)
    highs.passModel(model)
    highs.run()
    info, solution = highs.getInfo(), highs.getSolution()
    bound = -float(info.mip_dual_bound) * program.scale if np.isfinite(info.mip_dual_bound) else np.inf
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None, bound
    return np.flatnonzero(np.array(solution.col_value) > _WHOLE), bound


def _highs() -> highspy.Highs:
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    return highs
