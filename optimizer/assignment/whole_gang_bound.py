"""Upper bounds for whole gangs on small fleets, where fractional shares promise more than any schedule can keep.

At one instant a job runs as a whole gang or not at all, so what jobs get over time is a mixture of *packings*: whole
gangs within the pools' capacity. Any weights y >= 0 on the jobs' utilities bound such mixtures by the best single
packing under these weights (weak duality); the weights that the prices of a solve imply are used, so one integer
program per question suffices. With n[c] = 1 where a packing runs column c:

    level   sum y target(z) <= max over packings of sum y worth n                  solved for z
    sum     max over packings of sum (value + y worth) n - sum y floor
    log     sum w log u + W log(max over packings of sum (w / u) worth n / W), W = sum w, u the fractional utilities

(the last from sum w log u' <= sum w log(w / y) + W log(y . u' / W) for all u', by Jensen's inequality). Limits that
some jobs share hold on average, not at every instant: in a packing they are paid for at their price. What is maximised
comes from the policy's measure (`optimizer.check`), so this file holds for every policy.

A plan is a packing itself: there the integer program is that of its assignments, limits of entities among the rows.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from optimizer.assignment.assignment_problem import AssignmentProblem
from optimizer.check.certificate import jobwise_problem, policy_check_of
from optimizer.check.dual_bounds import CheckedLevel, CheckedLog, CheckedObjective, CheckedSum, DualProof
from optimizer.check.jobwise_problem import JobwiseProblem, cheapest_mixture, cheapest_mixture_at_least
from optimizer.check.policy_measures import CheckRequest
from optimizer.check.stage_proofs import CheckedShares, recompute_stages
from optimizer.classes.aggregation import aggregate_problem
from optimizer.classes.class_problem import ClassProblem, bisected
from optimizer.decision import Decision, Memory, Plan, Shares
from optimizer.policy import PolicySpec
from optimizer.problem import FloatArray, Problem

#: Fleets up to this many accelerators are bounded so: in larger ones whole gangs lose little, and the program is large.
LARGEST_FLEET = 64
#: Branch-and-bound nodes; the bound proved by then is valid whether or not the search has ended.
_NODES = 2_000
#: The part by which a target is lowered to see what its last piece costs.
_PIECE = 1e-6


def integral_bound(problem: Problem, policy: PolicySpec, decision: Decision, memory: Memory = None) -> float | None:
    """Returns the best value of the certificate's objective that mixtures of whole gangs over time can reach, as a
    bound at least as tight as the certificate's.

    Args:
        problem: as it was asked.
        policy: the policy that answered.
        decision: the answer; its prices choose the weights, which makes the bound tight, and any prices leave it valid.
        memory: the memory with which the policy was asked.

    Returns:
        the bound, in the certificate's unit. None where there is none: for orders, for fleets of more than
        `LARGEST_FLEET` accelerators, where jobs run two by two, and for policies that maximise nothing by prices.
    """
    if isinstance(decision, Plan):
        return _bound_of_plan(decision) if problem.pools.capacity.sum() <= LARGEST_FLEET else None
    if not isinstance(decision, Shares) or not decision.stages:
        return None
    check = policy_check_of(policy)
    if check is None or check.measure is None:
        return None
    facts = jobwise_problem(problem, policy, decision.rent, check)
    if facts.capacity.sum() > LARGEST_FLEET or facts.pair_rows:
        return None
    if len(decision.stages[0].prices) != len(facts.row_capacity):
        return None  # The answer does not come from this policy.
    measure = check.measure(CheckRequest(facts, policy.parameters, memory, decision))
    recomputed = recompute_stages(
        CheckedShares(facts, measure, replace(decision, stages=decision.stages[:1]))
    ).recomputed
    if not recomputed:
        return None
    first = recomputed[0]
    fluid = _FractionalOptimum(facts, first.proof, decision, first.bound)
    return measure.certified(decision, first.value, min(first.bound, _objective_bound(first.form, fluid)))[1]


def _bound_of_plan(plan: Plan) -> float | None:
    """Returns the bound of a plan in which integer programs replace what prices prove about each assignment; None
    where it has none.
    """
    if plan.yardstick is None or not plan.yardstick.maximise:
        return None
    listed = [contest for contest in plan.contests if contest.unlisted is None]  # the program knows no others
    gained = sum(max(contest.bound - whole_assignment_bound(contest.question), 0.0) for contest in listed)
    return max(plan.yardstick.bound - gained, plan.yardstick.objective)


def whole_assignment_bound(question: AssignmentProblem) -> float:
    """Returns an upper bound on the value of every assignment of whole gangs: inf if HiGHS proves nothing within its
    nodes.
    """
    from scipy import sparse  # Imported late: simulations ask for no such bound and need not load scipy.

    columns, rows = len(question.job), len(question.capacity)
    shape = (question.jobs + rows, columns)
    values = np.concatenate((np.ones(columns), question.use_count))
    at = (
        np.concatenate((question.job, question.jobs + question.use_pool)),
        np.concatenate((np.arange(columns), question.use_column)),
    )
    limits = np.concatenate((np.ones(question.jobs), question.capacity))
    return _integer_bound(question.value, sparse.csc_array((values, at), shape=shape), limits, 1)


def _integer_bound(gain: FloatArray, rows: Any, limits: FloatArray, most: FloatArray | int) -> float:
    """Returns an upper bound on gain.y for whole numbers y of columns (c,), each at most `most`, with rows y <= limits;
    inf where HiGHS proves none within its nodes.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    found = milp(
        -gain,
        constraints=LinearConstraint(rows, ub=limits),
        integrality=np.ones(len(gain)),
        bounds=Bounds(0, most),
        options={"node_limit": _NODES},
    )
    return np.inf if found.mip_dual_bound is None else -float(found.mip_dual_bound)


@dataclass(frozen=True, slots=True, eq=False)
class _FractionalOptimum:
    """The fractional optimum: shares, prices of the rows, and the bound that these prove."""

    facts: JobwiseProblem
    proof: DualProof
    shares: Shares
    bound: float

    def best_packing(self, gain: FloatArray) -> float:
        """Returns the largest sum of gains (c,) of one packing, less what it pays for limits, plus the value of all
        limits at their prices.
        """
        facts, pools = self.facts, len(self.facts.capacity)
        limits = np.concatenate((np.zeros(pools), self.proof.prices[pools:]))
        net = np.where(facts.usable, gain - facts.cost(limits), 0.0)
        classes = aggregate_problem(facts.problem, facts.usable, [net], [np.zeros(facts.jobs)])
        class_problem = replace(classes.problem, capacity=facts.capacity)
        return best_integral_packing(class_problem, classes.per_column(net)) + float(limits @ facts.row_capacity)


def _objective_bound(form: CheckedObjective, fluid: _FractionalOptimum) -> float:
    """Returns the bound of one form of objective, in its own unit."""
    job = fluid.facts.problem.columns.job
    if isinstance(form, CheckedLevel):
        y = _level_weights(form, fluid)
        return _level_bound(form, y, fluid.best_packing(y[job] * form.worth), fluid.bound)
    if isinstance(form, CheckedSum):
        y = _floor_weights(form, fluid)
        return fluid.best_packing(form.value + y[job] * form.worth) - float(y @ form.floor)
    return _log_bound(form, fluid)


def _level_weights(form: CheckedLevel, fluid: _FractionalOptimum) -> FloatArray:
    """Returns what the last piece of each job's target costs at the prices (n,), per unit of utility."""
    menu = fluid.facts.menu(form.worth, fluid.facts.cost(fluid.proof.prices))
    target = form.targets.at(fluid.bound)
    last = cheapest_mixture(menu, target) - cheapest_mixture(menu, target * (1 - _PIECE))
    return _per_unit(last, target)


def _floor_weights(form: CheckedSum, fluid: _FractionalOptimum) -> FloatArray:
    """Returns what the last piece of each job's floor costs at the prices (n,), per unit of utility."""
    menu = fluid.facts.menu(form.worth, fluid.facts.cost(fluid.proof.prices) - form.value)
    last = cheapest_mixture_at_least(menu, form.floor) - cheapest_mixture_at_least(menu, form.floor * (1 - _PIECE))
    return _per_unit(last, form.floor)


def _per_unit(last: FloatArray, whole: FloatArray) -> FloatArray:
    counts = (whole > 0) & np.isfinite(last)
    return np.maximum(np.divide(last, whole * _PIECE, out=np.zeros(len(whole)), where=counts), 0.0)


def _level_bound(form: CheckedLevel, y: FloatArray, most: float, fluid: float) -> float:
    """Returns the largest level, at most `fluid`, whose weighted targets are worth at most the best packing."""

    def required(z: float) -> float:
        return float(y @ form.targets.at(z))

    return fluid if required(fluid) <= most else bisected(lambda z: required(z) <= most, 0.0, fluid)[1]


def _log_bound(form: CheckedLog, fluid: _FractionalOptimum) -> float:
    facts = fluid.facts
    utility = facts.gained(form.worth, fluid.shares)
    counted = (form.weight > 0) & (utility > 0)
    if not np.array_equal(counted, form.weight > 0):
        return fluid.bound
    y = np.divide(form.weight, utility, out=np.zeros(facts.jobs), where=counted)
    total = float(form.weight.sum())
    most = fluid.best_packing(y[facts.problem.columns.job] * form.worth)
    return float(form.weight[counted] @ np.log(utility[counted])) + total * float(np.log(most / total))


def best_integral_packing(class_problem: ClassProblem, gain: FloatArray) -> float:
    """Returns the largest sum of gains of one packing, or a proved bound on it; `gain`: of one member of its class in
    each column (C,).
    """
    useful = np.flatnonzero(gain > 0)
    if not len(useful):
        return 0.0
    from scipy import sparse  # Imported late: needed only where a program is solved.

    owner = class_problem.owner
    time = sparse.csr_array((np.ones(class_problem.columns), (owner, np.arange(class_problem.columns))))
    uses = np.repeat(np.arange(class_problem.columns), np.diff(class_problem.use_first))
    load = sparse.csr_array(
        (class_problem.use_count, (class_problem.use_row, uses)), shape=(class_problem.rows, class_problem.columns)
    )
    rows = sparse.vstack([time, load]).tocsc()[:, useful]
    limits = np.concatenate([class_problem.size, class_problem.capacity])
    scale = float(gain.max())  # the solver's tolerances are absolute
    return _integer_bound(gain[useful] / scale, rows, limits, class_problem.size[owner[useful]]) * scale
