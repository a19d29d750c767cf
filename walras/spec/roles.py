"""`roles:` of a job file: processes with different commands that are placed, started and stopped together.

A job with roles is one gang over several pools: its accelerators are a plan (`walras.job_request.GangPlan`), or several
plans where a role may have more or fewer processes. Its command is the in-job client's, started once on each machine,
which starts the processes there (`walras.training.roles`). The first role leads the job.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from math import prod
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from walras.job_request import ANY_ACCELERATOR, Demand, GangPlan, GangRequest, RoleUse
from walras.spec.accelerator_names import covers
from walras.spec.field_types import MAX_ARGUMENT_BYTES, ONE_OR_MANY, Demands, WholeNumber, parse_run
from walras.spec.file_model import FieldMistake, FileModel
from walras.spec.job_groups import PLANS_MOST
from walras.spec.sweeps import substituted

#: What starts the processes of all roles on a machine, whatever modules its folder has; and the variable that tells it
#: of them.
_CODE = "import sys; sys.path[:] = filter(None, sys.path); from walras.training.roles import start_roles; start_roles()"
ROLES_COMMAND = ("python3", "-c", _CODE)
ROLES_VARIABLE = "WALRAS_ROLES"
#: The most roles, and processes of all of them.
_ROLES_MOST, _PROCESSES_MOST = 16, 256
#: The accelerator type of the demand of a gang that only plans over several pools can hold.
_TOGETHER = "roles"

RoleName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]{0,31}$")]


class RoleSpec(FileModel):
    """One role: its command, what each of its processes has, and how many there are."""

    #: As `run` of a job; each process executes it. Example: python rollout.py
    run: Annotated[str | tuple[str, ...], BeforeValidator(parse_run)]
    #: One type, and how many accelerators each process has of it, on one machine. None: none, on the machine of the
    #: first role's first process. Example: v100:1
    accelerators: Demands | None = None
    #: Processes; with `max_count` the fewest. Example: 2
    count: WholeNumber = Field(default=1, ge=1, le=_PROCESSES_MOST)
    #: Elastic: there may be so many processes, as the policy chooses. None: there are `count`. Example: 4
    max_count: WholeNumber | None = Field(default=None, ge=1, le=_PROCESSES_MOST)
    #: Roles whose processes have to accept connections at their addresses, or to have succeeded, before one of this
    #: role starts. Empty: it starts at once. Example: [rollout]
    after: Annotated[tuple[RoleName, ...], Field(max_length=_ROLES_MOST), ONE_OR_MANY] = ()
    #: Times that a process is started again alone when it fails; after these the whole job fails. Example: 3
    restarts: WholeNumber = Field(default=0, ge=0, le=1000)

    other_words: ClassVar[Mapping[str, str]] = {
        "command": "run", "cmd": "run", "gpus": "accelerators", "replicas": "count", "instances": "count",
        "depends_on": "after", "max_restarts": "restarts",
    }  # fmt: skip

    @model_validator(mode="after")
    def _is_of_one_type(self) -> "RoleSpec":
        if self.accelerators is not None and (len(self.accelerators) > 1 or self.demand.accelerator == ANY_ACCELERATOR):
            raise FieldMistake("accelerators", "is not one type; name one, such as 'v100:1', or leave it out for none")
        if self.max_count is not None and self.max_count < self.count:
            raise FieldMistake("max_count", f"{self.max_count} is below count {self.count}; write the larger number")
        if self.max_count is not None and self.accelerators is None:
            raise FieldMistake("max_count", "is for a role with accelerators; write `count`")
        return self

    @property
    def demand(self) -> Demand:
        """Returns what each process has."""
        return Demand("", 0) if self.accelerators is None else self.accelerators[0]


Roles = Annotated[dict[RoleName, RoleSpec], Field(max_length=_ROLES_MOST)]


def with_roles_command(given: object) -> object:
    """Returns the data of a job file, with the command of a job that has roles. Raises FieldMistake for another."""
    if not isinstance(given, Mapping) or not given.get("roles"):
        return given
    for field, only in (("run", (ROLES_COMMAND, list(ROLES_COMMAND))), ("nproc_per_node", (1,))):
        if given.get(field, only[0]) not in only:
            raise FieldMistake(field, "stands beside `roles`, whose processes have commands of their own; remove it")
    return {**given, "run": ROLES_COMMAND, "nproc_per_node": 1}


def check_roles(roles: Mapping[str, RoleSpec], beside: Mapping[str, bool]) -> None:
    """Refuses roles that contradict themselves, each other, or another field of the job.

    `beside`: fields that roles stand in for, and whether the job states them. Raises FieldMistake.
    """
    if not roles:
        return
    for field in (name for name, stands in beside.items() if stands):
        raise FieldMistake(field, "stands beside `roles`, which say what the job takes; remove it")
    first, *_ = roles
    if roles[first].accelerators is None:
        raise FieldMistake(f"roles.{first}.accelerators", "is missing; the first role leads the job, and has some")
    most = {name: role.max_count or role.count for name, role in roles.items()}
    if sum(most.values()) > _PROCESSES_MOST:
        raise FieldMistake("roles", f"have {sum(most.values())} processes; at most {_PROCESSES_MOST}")
    if (menu := prod(most[name] - role.count + 1 for name, role in roles.items())) > PLANS_MOST:
        raise FieldMistake("roles", f"can be combined in {menu:,} ways, at most {PLANS_MOST}; narrow a `max_count`")
    named = {role.demand.accelerator for role in roles.values() if role.accelerators is not None}
    for one, other in ((one, other) for one in named for other in named if one != other and covers(one, other)):
        raise FieldMistake("roles", f"name {one!r} and {other!r}; write one name of the type in all of them")
    elastic = [role.demand.accelerator for role in roles.values() if role.max_count is not None]
    if len(set(elastic)) < len(elastic):
        raise FieldMistake("roles", "have two elastic ones of one type; leave `max_count` to one of them")
    _check_order(roles)
    size = len(json.dumps([role.run for role in roles.values()]).encode())
    if size > MAX_ARGUMENT_BYTES // 2:
        raise FieldMistake("roles", f"have commands of {size:,} bytes together; put them into files")


def _check_order(roles: Mapping[str, RoleSpec]) -> None:
    """Raises FieldMistake where a role starts after one that is none, or after itself."""
    before: dict[str, set[str]] = {name: set(role.after) for name, role in roles.items()}
    for name, role in roles.items():
        if unknown := sorted(before[name] - roles.keys()):
            raise FieldMistake(f"roles.{name}.after", f"names {unknown[0]!r}; the roles are {', '.join(roles)}")
        if role.restarts and name == next(iter(roles)):
            raise FieldMistake(
                f"roles.{name}.restarts", "is for other roles than the first; write `retry.max_restarts`"
            )
    for _ in roles:
        before = {name: set().union(*(before[each] for each in those)) for name, those in before.items()}
    if left := [name for name, those in before.items() if those]:
        raise FieldMistake(f"roles.{left[0]}.after", "leads back to the role itself; let one of them start first")


def written_argv(run: str | tuple[str, ...]) -> tuple[str, ...]:
    """Returns the program and arguments of a `run`; text runs in a shell."""
    return ("bash", "-euo", "pipefail", "-c", run) if isinstance(run, str) else run


def gang_of_roles(gang: GangRequest, roles: Mapping[str, RoleSpec], steps_per_s: float | None) -> GangRequest:
    """Returns the gang with one plan for each combination of the roles' counts; a gang without roles is unchanged.

    `steps_per_s` is the speed of the plan with the most processes (None: unknown). Other plans are assumed to be slower
    in proportion to their accelerators.
    """
    if not roles:
        return gang
    ranges = [range(role.count, (role.max_count or role.count) + 1) for role in roles.values()]
    plans = [_plan_of(roles, counts) for counts in product(*ranges)]
    most = max(plan.steps_per_s for plan in plans)
    unit = 1.0 if steps_per_s is None else steps_per_s / most
    plans = [replace(plan, steps_per_s=plan.steps_per_s * unit) for plan in plans]
    fewest = min(sum(use.count for use in plan.uses) for plan in plans)
    return replace(gang, demands=(Demand(_TOGETHER, fewest),), plans=tuple(plans))


def _plan_of(roles: Mapping[str, RoleSpec], counts: tuple[int, ...]) -> GangPlan:
    """Returns the plan with so many processes of each role, and its accelerators as its speed."""
    uses = tuple(
        RoleUse(name, role.demand.accelerator, role.demand.count, count)
        for (name, role), count in zip(roles.items(), counts, strict=True)
    )
    held: dict[str, int] = {}
    for use in uses:
        if use.each:
            held[use.accelerator] = held.get(use.accelerator, 0) + use.each * use.count
    return GangPlan(tuple(Demand(name, held[name]) for name in sorted(held)), float(sum(held.values())), uses)


def role_variables(roles: Mapping[str, RoleSpec], values: Mapping[str, str]) -> dict[str, str]:
    """Returns what the command on each machine reads of the roles; `values` replace `{name}` in their commands."""
    if not roles:
        return {}
    told = {
        name: {
            "argv": [substituted(each, values) for each in written_argv(role.run)],
            "after": role.after,
            "restarts": role.restarts,
        }
        for name, role in roles.items()
    }
    return {ROLES_VARIABLE: json.dumps(told)}
