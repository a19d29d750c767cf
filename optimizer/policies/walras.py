"""Walras: minimises completion times at market-clearing prices, and bounds starvation. It decides at every event.

    maximise  sum_c v_c y_c     s.t.  sum_{c of j} y_c <= 1,   sum_c use[c,r] y_c <= N[r]  (price l_r),   y in {0, 1}

    v_c = s^(1 - size) D^-gamma (p* / p_c)^eta     p_c  seconds until the job would end in c, restart included
    D   = s p* / (w (1 + waited / length / patience)^aging)     p* = min_c p_c,  s  accelerators of that configuration

The value v of a configuration is a priority (short, heavy and long-waiting jobs first) times its relative efficiency
for the job. p includes the restart that a change needs; the value of the current configuration gains by `stay`. The
policy assigns jobs of one accelerator exactly, and gangs by prices and local search. An elastic job's need counts in
the configuration with the most steps per accelerator-second; the value of larger ones grows with the square root of
their speed less `thrift` for each of its own sizes that they add, and changes cost more the more of its age went into
restarts. A job runs in the configuration with the largest value minus price, and waits if all are negative.

A job is overdue until it ends once its predicted slowdown exceeds `slowdown` and `margin` times the mean. Overdue jobs
are placed first: those that are later by a factor of 1.5 before the others, and otherwise the shortest. They may take
the fraction `reserve` of every pool; a larger gang may take the whole pool. This rule bounds waiting times. Priority
classes are placed one after the other, each with its own overdue jobs first. For jobs of unknown length, the policy
uses the Gittins rank as the remaining time, and none of them becomes overdue.

With several projects or users, a job's value grows with the time by which its project is behind its fair share, in
multiples of the job's length, and by which its user is behind within the project. Overdue jobs come first only within
the fair share of their project (`fair_standing`). Limits of projects and users are constraints beside the capacities of
the pools; guarantees are lower bounds with prices (`limit_rows`, `guarantee_rows`).

Source: our own; docs/walras-policy.md derives it.
"""

import dataclasses
import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from optimizer.decision import Memory, Plan, Quote
from optimizer.policy import HidesLengths, Newcomer
from optimizer.problem import Columns, Entities, FloatArray, Jobs, Pools, Problem

if TYPE_CHECKING:
    from optimizer.assignment.column_values import ColumnValues, StarvationGuard, ValueTerms
    from optimizer.assignment.fair_standing import FairStanding
    from optimizer.assignment.mixed_gangs import UnlistedGangs
    from optimizer.assignment.plan_draft import PlanDraft
    from optimizer.assignment.remaining_time import JobLengths, ReferenceConfigurations


Exponent = Annotated[float, Field(ge=0, le=10)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Walras:
    """Minimises completion times: assigns jobs to pools at market-clearing prices at every event; bounds starvation."""

    gamma: Annotated[
        Exponent,
        Field(
            description="Preference for short jobs: exponent of the remaining accelerator-seconds in a job's value; "
            "a higher one favours short jobs more."
        ),
    ] = 0.15
    eta: Annotated[
        Exponent,
        Field(
            description="Preference for fast pools: exponent of the relative speed; a higher one avoids pools on which "
            "a job is slow."
        ),
    ] = 0.5
    size: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="Preference for small gangs: exponent of the accelerators by which a gang's value is reduced; "
            "a higher one favours small gangs more.",
        ),
    ] = 0.2
    patience: Annotated[
        float,
        Field(
            gt=0,
            description="Waiting time, in multiples of its length, after which a job's remaining time counts half.",
        ),
    ] = 1.0
    aging: Annotated[
        Exponent,
        Field(description="Strength of aging: how fast the remaining time of a waiting job loses weight. 0: no aging."),
    ] = 1.0
    stay: Annotated[
        float,
        Field(
            ge=0,
            le=10,
            description="Bonus for not migrating: remaining time in the current configuration is divided by 1 + stay.",
        ),
    ] = 0.05
    thrift: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="Least worth of one more accelerator of an elastic job, relative to those it is measured by; "
            "below it accelerators stay idle.",
        ),
    ] = 0.01
    slowdown: Annotated[
        float,
        Field(
            ge=1,
            description="A job is overdue if its predicted slowdown exceeds this; a large value disables the rule.",
        ),
    ] = 2.5
    margin: Annotated[
        float,
        Field(
            ge=0, description="A job is overdue only if its predicted slowdown also exceeds this multiple of the mean."
        ),
    ] = 1.5
    reserve: Annotated[float, Field(ge=0, le=1, description="Fraction of every pool that overdue jobs may take.")] = 0.5
    hide_lengths: HidesLengths = False
    usd: Annotated[
        float,
        Field(ge=0, description="Weight of cost: value units per USD/h. 0: cost is ignored."),
    ] = 0.0
    fairness: Annotated[
        float,
        Field(
            ge=0,
            le=1000,
            description="Weight of fair shares: relative gain in value of a job whose project is behind its share by "
            "the length of the job. 0: the policy ignores projects and users.",
        ),
    ] = 8.0
    fair_half_life: Annotated[
        float,
        Field(gt=0, description="Half-life of the service by which a project or user is behind its share, in seconds."),
    ] = 604800.0
    checked_by: ClassVar[str] = "optimizer.check.certificate:WALRAS"
    #: Stops of an elastic job are bounded as others are; policies that only choose sizes weigh each themselves.
    bounds_resizes: ClassVar[bool] = True
    #: Running jobs may be moved, for other jobs or for their own benefit.
    moves: Annotated[bool, Field(description="False: a running job is never moved or preempted.")] = True

    def decide(self, problem: Problem, memory: Memory) -> tuple[Plan, Memory]:
        """Returns the plan, and the memory: the overdue jobs, how far projects and users are behind, and the starts of
        elastic jobs.
        """
        from optimizer.assignment import plan_draft

        measure = plan_draft.PlanMeasure("assignment at prices", "worth of one accelerator")
        whole, mixed = problem, None
        if problem.jobs.mixes.any():
            from optimizer.assignment.mixed_gangs import draft_with_mixed_gangs

            valued_once = functools.cache(
                functools.partial(self._valued, memory=memory)
            )  # Problems are compared by identity.

            def drafted(asked: Problem, unlisted: "UnlistedGangs") -> "PlanDraft":
                valued = valued_once(asked)
                return self._drafted(asked, valued, self._late(asked, valued, memory).first, unlisted)

            mixed = draft_with_mixed_gangs(problem, lambda asked: valued_once(asked).values.value, drafted)
            whole = mixed.problem
        valued = self._valued(whole, memory) if mixed is None else valued_once(whole)
        late = self._late(whole, valued, memory)
        told, first = late.told | valued.history, late.first
        draft = self._drafted(whole, valued, first) if mixed is None else mixed.draft
        if valued.standing is not None:
            told["fair"] = valued.standing.remembered(whole, draft.column)
        plan = plan_draft.finish_plan(whole, valued.values.value, draft, measure, first)
        if mixed is not None:
            return mixed.in_terms_asked(plan), told
        return self._with_duration(whole, valued, late, plan), told

    def _valued(self, problem: Problem, memory: Memory) -> "_ValuedColumns":
        """Returns the values of all columns, with the terms they come from and the standing of projects and users."""
        from optimizer.assignment import column_values, plan_draft, remaining_time
        from optimizer.assignment.fair_standing import FairnessTerms, fair_standing
        from optimizer.classes.segments import max_by

        measured_by = remaining_time.reference_configurations(problem)
        known = remaining_time.job_lengths_of(problem, measured_by.rate, self.hide_lengths)
        kept, history = None, dict[str, object]()
        if measured_by.elastic.any():
            facts = plan_draft.elastic_jobs_of(problem)
            past, told = plan_draft.recall_history(problem, facts, memory, measured_by.elastic)
            history = told if told["jobs"] else history
            kept = plan_draft.restart_factor(problem, facts, past)
            kept[~measured_by.elastic[problem.columns.job]] = 1.0
        values = column_values.column_values_of(problem, known, measured_by, self._terms(), kept)
        worth = max_by(problem.columns.job, values.value, len(problem.jobs))
        standing = fair_standing(
            problem, memory, known.total_s, worth, FairnessTerms(self.fairness, self.fair_half_life)
        )
        if standing is not None:
            values = replace(values, value=values.value * standing.factor[problem.columns.job])
        return _ValuedColumns(measured_by, known, values, standing, history)

    def _late(self, problem: Problem, valued: "_ValuedColumns", memory: Memory) -> "_Late":
        """Returns the overdue jobs, and which of them come first."""
        if not len(problem.jobs):
            return _Late({"overdue": []}, [], [])
        from optimizer.assignment.column_values import late_jobs  # compiled: loaded only where something is decided

        late = late_jobs(problem, valued.known, memory, self._guard())
        first = late if valued.standing is None else valued.standing.within_shares(problem, late)
        return _Late({"overdue": problem.jobs.job_id[late].tolist()}, first, late)

    def _with_duration(self, problem: Problem, valued: "_ValuedColumns", late: "_Late", plan: Plan) -> Plan:
        """Returns the plan, with the instant until which it holds if only time passes."""
        if not len(problem.jobs) or valued.standing is not None or plan.quote.prices.any():
            return plan
        from optimizer.assignment.column_values import PlanGrounds, holds_until

        known, measured_by = valued.known, valued.measured_by
        grounds = PlanGrounds(known, measured_by, self._terms(), self._guard(), late.jobs, late.first)
        until_at = holds_until(problem, plan, grounds)
        return plan if until_at is None else replace(plan, holds_until_at=until_at)

    def _drafted(
        self, problem: Problem, valued: "_ValuedColumns", first: list[int], unlisted: "UnlistedGangs | None" = None
    ) -> "PlanDraft":
        """Returns a draft in which these rows are placed first, and the other jobs by prices."""
        from optimizer.assignment import plan_draft, remaining_time

        plan, value = plan_draft.begin_plan(problem), valued.values.value
        if len(problem.jobs):
            from optimizer.assignment.column_assignment import assign_jobs
            from optimizer.assignment.column_values import place_overdue
            from optimizer.assignment.guarantee_rows import guaranteed_entities
            from optimizer.assignment.limit_rows import limited_entities
            from optimizer.assignment.transportation import assign_by_search

            modest = remaining_time.modest_columns(problem, valued.measured_by)
            ends_s = np.where(modest, valued.values.ends_s, np.inf)
            plan_draft.count_fixed(plan, value)
            classes = problem.jobs.priority_class

            def place_late(priority_class: int) -> None:
                """Places the class's overdue jobs; those of higher classes have taken their part of the reserve."""
                before = plan.column < 0
                late = [row for row in first if classes[row] >= priority_class]
                place_overdue(problem, ends_s, late, plan, self._guard())
                plan_draft.count_fixed(plan, value, before & (plan.column >= 0))

            assign_jobs(
                problem,
                value,
                plan,
                assign_by_search,
                only_fitting=False,
                limits=limited_entities(problem),
                guarantees=guaranteed_entities(problem),
                unlisted=unlisted,
                begin_class=place_late,
            )
        return plan

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Returns what each configuration would be worth if the arriving job were already there (c,)."""
        from optimizer.assignment import column_values, remaining_time

        problem = _alone(newcomer)
        measured_by = remaining_time.reference_configurations(problem)
        known = remaining_time.job_lengths_of(problem, measured_by.rate, self.hide_lengths)
        return column_values.column_values_of(problem, known, measured_by, self._terms()).value

    def _terms(self) -> "ValueTerms":
        from optimizer.assignment.column_values import ValueTerms

        return ValueTerms(self.gamma, self.eta, self.patience, self.aging, self.stay, self.usd, self.size, self.thrift)

    def _guard(self) -> "StarvationGuard":
        from optimizer.assignment.column_values import StarvationGuard

        return StarvationGuard(self.slowdown, self.margin, self.reserve)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _ValuedColumns:
    """The values of columns from which a decision starts."""

    measured_by: "ReferenceConfigurations"
    known: "JobLengths"
    values: "ColumnValues"
    #: None where no project or user has a sibling.
    standing: "FairStanding | None"
    #: The memory of the sizes and starts of elastic jobs; empty without any.
    history: dict[str, object]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Late:
    """The overdue jobs of a decision."""

    #: The memory for the next decision.
    told: dict[str, object]
    #: Rows of the jobs that come first, in their order.
    first: list[int]
    #: Rows of all overdue jobs.
    jobs: list[int]


def _alone(newcomer: Newcomer) -> Problem:
    """Returns a problem of this one job, which runs nowhere yet."""
    pools, c = len(newcomer.capacity), len(newcomer.pool)
    one = np.ones(1)
    usd_per_h = newcomer.usd_per_h if len(newcomer.usd_per_h) else np.zeros(pools)
    return Problem(
        at=newcomer.waited_s,
        jobs=Jobs(
            job_id=np.zeros(1, dtype=np.int64),
            weight=newcomer.weight * one,
            usual_weight=newcomer.usual_weight * one,
            gang=newcomer.count.min(initial=np.inf) * one,
            remaining_steps=newcomer.remaining_steps * one,
            submitted_at=0.0 * one,
            attained_s=0.0 * one,
            deadline_at=np.inf * one,
            value_usd_per_h=np.nan * one,
            priority_class=np.full(1, newcomer.priority_class),
            entity=np.zeros(1, dtype=np.int64),
            done_steps=newcomer.done_steps * one,
            length_s=newcomer.length_s * one,
            restart_s=newcomer.restart_s * one,
        ),
        columns=Columns(
            job=np.zeros(c, dtype=np.int64),
            steps_per_s=newcomer.steps_per_s,
            use_column=np.arange(c),
            use_pool=newcomer.pool,
            use_count=newcomer.count,
            running=np.zeros(c, dtype=np.bool_),
        ),
        pools=Pools(
            pool_id=tuple(str(row) for row in range(pools)),
            accelerator=("",) * pools,
            capacity=newcomer.capacity,
            rentable=np.zeros(pools),
            machine_size=np.ones(pools),
            usd_per_h=usd_per_h,
        ),
        entities=Entities(),
    )
