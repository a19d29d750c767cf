"""`plans:` of a job file: a menu of ways to run one job, each over accelerators of one type or several, with its speed.

Where a model is trained over unlike accelerators with a pipeline cut for them, no rule says how fast a mixture is: its
owner states that, from measurements. The policy takes one way of the menu, by the prices of the types. What the rest of
the job says must leave the choice of accelerators to the menu.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from walras.job_request import ANY_ACCELERATOR, Demand, GangPlan, GangRequest
from walras.spec.field_types import Demands, Number
from walras.spec.file_model import FieldMistake, FileModel
from walras.spec.job_groups import BatchSpec, ResourcesSpec

#: The most plans of a job, and the most accelerator types of one plan.
PLANS_MOST = 256
_TYPES_MOST = 8


class PlanChoice(FileModel):
    """One way: these accelerators, all at once."""

    #: The number of accelerators of each type; with several types, each is taken from one pool. Example: {a100: 4}
    accelerators: Demands
    #: Steps of the whole job in a second. Example: 0.2
    steps_per_s: Annotated[Number, Field(gt=0, le=1e9)]

    other_words: ClassVar[Mapping[str, str]] = {
        "gpus": "accelerators",
        "uses": "accelerators",
        "rate": "steps_per_s",
        "throughput": "steps_per_s",
        "speed": "steps_per_s",
    }

    @model_validator(mode="after")
    def _names_types(self) -> "PlanChoice":
        if any(use.accelerator == ANY_ACCELERATOR for use in self.accelerators):
            raise FieldMistake("accelerators", "names 'any', and a speed holds for certain types; name them")
        if len(self.accelerators) > _TYPES_MOST:
            raise FieldMistake(
                "accelerators", f"mixes {len(self.accelerators)} types; a plan has 1 to {_TYPES_MOST} of them"
            )
        return self

    @property
    def uses(self) -> tuple[Demand, ...]:
        """Returns the accelerators of each type, ascending by its name."""
        return tuple(sorted(self.accelerators, key=lambda use: use.accelerator))


def _as_list(value: object) -> object:
    if not isinstance(value, list | tuple):
        raise ValueError("is no list; write such as `[{accelerators: {a100: 32, v100: 96}, steps_per_s: 0.19}]`")
    return value


#: The menu; empty: the job has none.
PlanMenu = Annotated[tuple[PlanChoice, ...], Field(max_length=PLANS_MOST), BeforeValidator(_as_list)]


def check_plan_is_no_menu(given: object) -> None:
    """Raises FieldMistake where a job file writes its menu under `plan`, which holds one recommendation."""
    plan = given.get("plan") if isinstance(given, Mapping) else None
    if isinstance(plan, list | tuple):
        raise FieldMistake("plan", "is what `walras submit --recommend` expected of one way; a menu is called `plans`")


def check_plans(
    menu: tuple[PlanChoice, ...],
    resources: ResourcesSpec,
    beside: Mapping[str, bool],
    ranks: Literal["auto"] | int,
    batch: BatchSpec | None,
) -> None:
    """Refuses a menu that contradicts itself or another field of the job.

    Args:
        menu: the plans; nothing is refused of a job without any.
        resources: of the job.
        beside: fields that a menu stands in for, and whether the job states them.
        ranks: on each machine.
        batch: of the job.

    Raises:
        FieldMistake: names the field that contradicts.
    """
    if not menu:
        return
    seen: dict[tuple[Demand, ...], int] = {}
    for place, choice in enumerate(menu):
        if choice.uses in seen:
            raise FieldMistake(
                f"plans[{place}].accelerators", f"is plans[{seen[choice.uses]}] again; give each mix one speed"
            )
        seen[choice.uses] = place
    if all(len(uses) > 1 for uses in seen):
        raise FieldMistake(
            "plans",
            "are all of several types; add one of a single type, as which the job runs where no policy chooses",
        )
    chosen = {
        "resources.accelerators": "accelerators" in resources.model_fields_set,
        "resources.shared": resources.shared is not None,
    }
    for field in (name for name, stands in (chosen | dict(beside)).items() if stands):
        raise FieldMistake(field, "stands beside `plans`, which say what the job takes and how fast it is; remove it")
    if ranks not in ("auto", 1):
        raise FieldMistake("nproc_per_node", "is another on another machine of a plan; write auto, or 1")
    if batch is not None and batch.is_chosen:
        raise FieldMistake("batch", "is chosen while the job trains, and the speeds of `plans` hold for one; fix it")


def gang_of_plans(gang: GangRequest, menu: tuple[PlanChoice, ...]) -> GangRequest:
    """Returns the gang with the menu: as one gang it is the first plan of each single type. Without one, as it is."""
    if not menu:
        return gang
    plans = tuple(GangPlan(choice.uses, choice.steps_per_s) for choice in menu)
    alone = {plan.uses[0].accelerator: plan.uses[0] for plan in reversed(plans) if len(plan.uses) == 1}
    return replace(gang, demands=tuple(alone[name] for name in sorted(alone)), plans=plans)


def speeds_of_plans(gang: GangRequest) -> dict[str, float]:
    """Returns the speed of each single type as which the job may run; of a gang without plans, nothing."""
    found = {use.accelerator: gang.plan_of({use.accelerator: use.count}) for use in gang.demands if gang.plans}
    return {name: plan.steps_per_s for name, plan in found.items() if plan is not None}
