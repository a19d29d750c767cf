"""Hierarchical fairness: projects share the fleet, users share their project's part, jobs share their user's part.

The policy fills a tree of entities, projects and users (`optimizer.utility.entity_targets`). The shares of the projects
rise together, in proportion to their weights. Each entity divides its share among its children in the same way, or
gives it to its jobs in the order of submission (`inside: fifo`). A share that an entity cannot use goes to its
siblings. The method is that of Narayanan et al. (OSDI 2020, 4.3), with guaranteed shares, limits, and entities that do
not borrow.

The certificate states the first level: of the guarantees if there are any, otherwise of the projects.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from optimizer.classes.aggregation import aggregate_problem
from optimizer.classes.class_problem import Lexicographic
from optimizer.classes.segments import max_by
from optimizer.decision import Memory, Shares
from optimizer.lp.solver import solve
from optimizer.lp.staged_solution import SolveInput, StagedSolution
from optimizer.policies.share_answers import ValuedByWeight, empty_answer, fair_share_answer, staged_certificate
from optimizer.policy import HeterogeneityAware
from optimizer.problem import Entities, Problem
from optimizer.utility.entity_targets import (
    EntityHoldings,
    EntityTerms,
    EntityTierRule,
    configure_entities,
    entity_holdings,
)
from optimizer.utility.fair_share import Utility, fair_share_utility
from optimizer.validate import check_entities, validate_problem

_Fraction = Annotated[float, Field(ge=0, le=1)]
_Name = Annotated[str, Field(min_length=1, pattern="^[^/]+$")]


class UserTerms(BaseModel):
    """What a user may have of its project's part."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    guaranteed: _Fraction | None = None
    limit: _Fraction | None = None
    borrows: bool | None = None
    inside: Literal["fairness", "fifo"] | None = None

    @model_validator(mode="after")
    def _in_order(self) -> "UserTerms":
        if self.guaranteed is not None and self.limit is not None and self.guaranteed > self.limit:
            raise ValueError(f"guaranteed {self.guaranteed:g} is above the limit {self.limit:g}")
        return self

    def terms(self) -> EntityTerms:
        """Returns the terms in the optimizer's form."""
        fifo = None if self.inside is None else self.inside == "fifo"
        return EntityTerms(self.weight, self.guaranteed, self.limit, self.borrows, fifo)


class ProjectTerms(UserTerms):
    """What a project may have, and how its users share it."""

    users: Mapping[_Name, UserTerms] = Field(default_factory=dict)


Projects = Annotated[
    Mapping[_Name, ProjectTerms],
    Field(
        description="Quotas by project: {weight, guaranteed, limit (fractions of all accelerators), "
        "borrows, inside: fairness or fifo, users: {name: the same fields}}. Defaults: weight "
        "1, guaranteed 0, no limit, borrows, fairness inside."
    ),
]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Hierarchical(ValuedByWeight):
    """Divides the fleet fairly among projects, then among the users of each, then among their jobs.

    Source: Narayanan et al., OSDI 2020, section 4.3, with guarantees, limits and entities that do not borrow.
    """

    checked_by: ClassVar[str] = "optimizer.check.certificate:HIERARCHICAL"
    follows_weights: ClassVar[bool] = True

    aware: HeterogeneityAware = True
    projects: Projects = field(default_factory=dict)

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        """See `SharePolicy.decide`. Raises ProblemError also where the entities do not fit the configured terms."""
        validate_problem(problem)
        entities = self.entities(problem.entities)
        check_entities(entities)
        held = entity_holdings(problem, entities)
        utility = within_limits(fair_share_utility(problem, aware=self.aware), held, problem)
        if not utility.usable.any():
            return empty_answer(problem), memory
        weight, place = problem.jobs.weight, held.place.astype(np.float64)
        inside = [weight, place, held.rank, problem.jobs.entity.astype(np.float64) if len(held.limited) else place]
        classes = held.rows(aggregate_problem(problem, utility.usable, [utility.worth], inside))
        tree = held.tree(classes, weight, float(problem.pools.capacity.sum()))
        request = SolveInput(problem, utility, classes)
        solved, memory = solve(request, Lexicographic(EntityTierRule(tree)), memory)
        return _hierarchical_answer(solved, held), memory

    def entity_limits(self) -> Mapping[str, float]:
        """Returns the configured limits, by project and by project/user."""
        users = {f"{name}/{user}": each for name, said in self.projects.items() for user, each in said.users.items()}
        terms: dict[str, UserTerms] = {**self.projects, **users}
        return {name: each.limit for name, each in terms.items() if each.limit is not None}

    def entities(self, known: Entities) -> Entities:
        """Returns the problem's entities under the configured terms."""
        terms: dict[str, EntityTerms] = {}
        below: dict[str, str] = {}
        for project, said in self.projects.items():
            terms[project] = said.terms()
            for user, inner in said.users.items():
                terms[f"{project}/{user}"], below[f"{project}/{user}"] = inner.terms(), project
        return configure_entities(known, terms, below)


def within_limits(utility: Utility, held: EntityHoldings, problem: Problem) -> Utility:
    """Returns the utility without the columns that are larger than a limit."""
    usable = utility.usable & ~held.blocked(problem)
    worth = np.where(usable, utility.worth, 0.0)
    best = max_by(problem.columns.job, worth, len(problem.jobs))
    return replace(utility, usable=usable, worth=worth, best=best)


def _hierarchical_answer(solved: StagedSolution, held: EntityHoldings) -> Shares:
    """Returns the decision: users see the prices of pools, while the certificate keeps those of limits, too."""
    problem = solved.request.problem
    pools = len(problem.pools)
    certificate = staged_certificate(solved, *solved.first())
    over = (held.used(problem, solved.x) - held.allowed) / np.where(held.allowed > 0, held.allowed, 1.0)
    certificate = replace(certificate, violation=max(certificate.violation, float(over.max(initial=0.0))))
    seen = replace(solved, stages=tuple(replace(stage, prices=stage.prices[:pools]) for stage in solved.stages))
    return replace(fair_share_answer(seen, certificate), stages=solved.stages)
