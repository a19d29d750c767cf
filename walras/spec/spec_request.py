"""Converts a checked job spec to what the scheduler and the ranks receive: request, kind, command and environment."""

import hashlib
import re
from math import inf

from walras.errors import JobSpecError
from walras.job_request import GangRequest, JobId, JobRequest, Kind, RetryRule, group_fields
from walras.spec.field_types import (
    parse_instant,
)
from walras.spec.job_groups import (
    CheckpointSpec,
    batch_variables,
    global_batch_of,
)
from walras.spec.job_spec import JobSpec, gang_sizes_of
from walras.spec.plan_menus import gang_of_plans, speeds_of_plans
from walras.spec.sweeps import (
    array_variables,
    is_sweep,
    matrix_values,
    substituted,
)

_SHELL = ("bash", "-euo", "pipefail", "-c")


def missing_envs(spec: JobSpec) -> tuple[str, ...]:
    """Returns the variables that the spec names without a value: the submitter has to give one."""
    return tuple(name for name, value in spec.envs.items() if value is None)


def argv_of(spec: JobSpec) -> tuple[str, ...]:
    """Returns the program and arguments that each rank executes."""
    values = matrix_values(spec)
    return tuple(substituted(each, values) for each in _written_argv(spec))


def _written_argv(spec: JobSpec) -> tuple[str, ...]:
    return (*_SHELL, spec.run) if isinstance(spec.run, str) else spec.run


def env_of(spec: JobSpec, *, keeps_batch: bool = False) -> dict[str, str]:
    """Returns the job's own variables and those of its batch. Raises JobSpecError if one still lacks its value.

    `keeps_batch`: whoever runs the job says which batch it has; it chooses none itself.
    """
    for name in missing_envs(spec):
        raise JobSpecError(
            f"the variable {name} has no value", field=f"envs.{name}", fix=f"give one: --set envs.{name}=VALUE"
        )
    values = matrix_values(spec)
    env = {name: substituted(value or "", values) for name, value in spec.envs.items()} | array_variables(spec)
    return env | batch_variables(spec.batch, keeps_batch)


def kind_of(spec: JobSpec) -> Kind:
    """Returns the kind: jobs of one kind run equally fast on equal accelerators and share measurements.

    The declared `profile`; else a name from the command's script and a hash of all that decides the speed: the command
    with its arguments, the folder, the shape of the gang, and variables that set a batch size.
    """
    if spec.profile is not None:
        return Kind(spec.profile)
    # Jobs of a sweep are alike but for values that set a batch size.
    argv, values = _written_argv(spec), matrix_values(spec)
    texts = values | {name: substituted(value or "", values) for name, value in spec.envs.items()}
    batch = sorted((name, value) for name, value in texts.items() if "BATCH" in name.upper())
    if spec.batch is not None:
        batch.append(("batch", str(global_batch_of(spec.batch))))
    if spec.batch is not None and spec.batch.is_chosen:
        batch.append(("most", f"{spec.batch.max} {spec.batch.max_per_rank}"))
    gang = (spec.num_nodes, sorted((demand.accelerator, demand.count) for demand in spec.resources.accelerators))
    batch += [("plan", str([(use.accelerator, use.count) for use in plan.uses])) for plan in spec.plans]
    # An edited script is of the same kind: what is measured of it goes on counting.
    folder = spec.workdir if spec.code is None else spec.code.folder
    folder = folder if spec.git is None else spec.git.url
    digest = hashlib.sha256(repr((argv, folder, gang, batch)).encode()).hexdigest()[:10]
    script = re.search(r"([A-Za-z0-9_-]{1,40})\.(?:py|sh)\b", " ".join(argv), re.ASCII)
    return Kind(f"{script[1] if script else 'command'}-{digest}")


def to_request(
    spec: JobSpec,
    job_id: JobId,
    *,
    user: str,
    project: str,
    at: float,
    now_wall: float | None = None,
    depends_on: tuple[JobId, ...] = (),
) -> JobRequest:
    """Returns the scheduler's view of a job submitted at the instant `at`.

    `now_wall` is that same instant in seconds since 1970, for `deadline` and `not_before` on the calendar; a simulation
    may have none, then only `+12h` is accepted. `depends_on` are the numbers that the spec's dependencies stand for.
    Raises JobSpecError: a variable without a value, a deadline in the past.
    """
    if is_sweep(spec):
        raise JobSpecError(
            "a sweep is many jobs, and only a server makes them of it",
            field="array",
            fix="give one job: array_index: 0",
        )
    env_of(spec)
    deadline_at = _instant_at(spec.deadline, "deadline", at, now_wall, none=inf)
    not_before_at = _instant_at(spec.not_before, "not_before", at, now_wall, none=-inf)
    if deadline_at <= max(at, not_before_at):
        earlier = "submission" if deadline_at <= at else "not_before"
        raise JobSpecError(
            f"the deadline {spec.deadline!r} is before {earlier}", field="deadline", fix="choose a later one"
        )
    gang = gang_of_plans(spec.resources.gang_request(spec.num_nodes, gang_sizes_of(spec)), spec.plans)
    return JobRequest(
        job_id=job_id,
        kind=kind_of(spec),
        mixed=spec.mixed,
        fork_max=1 if spec.fork is None else spec.fork.max,
        project=project,
        user=user,
        priority=spec.priority,
        weight=spec.weight,
        steps=spec.steps,
        duration_s=spec.estimated_duration,
        preemptible=spec.preemptible is not False,
        retry=RetryRule(spec.retry.max_restarts, spec.retry.on_exit_codes),
        depends_on=depends_on,
        depends_on_any_end=spec.condition == "finished",
        not_before_at=not_before_at,
        deadline_at=deadline_at,
        max_runtime_s=spec.limits.max_runtime or inf,
        max_queue_s=spec.limits.max_queue_time or inf,
        budget_usd=inf if spec.limits.budget_usd is None else spec.limits.budget_usd,
        grace_s=spec.grace_period,
        held=spec.hold,
        value_usd_per_h=spec.value_usd_per_h,
        checkpoint_every_s=spec.checkpoint.interval,
        declared=tuple(sorted((spec.throughput or speeds_of_plans(gang)).items())),
        shared=spec.resources.device_share,
        **group_fields(gang, GangRequest),
    )


def is_unproven(spec: JobSpec) -> bool:
    """Returns whether nothing in the spec shows that the job saves its work when it is asked to stop.

    Its owner may say so (`checkpoint`), say that losing it is accepted (`preemptible: always`), or have it change its
    size or its parts while it runs, which only a job that saves can do.
    """
    says_so = spec.checkpoint != CheckpointSpec() or spec.elastic is not None or spec.fork is not None
    return not says_so and spec.preemptible != "always"


def _instant_at(text: str | None, field: str, at: float, now_wall: float | None, *, none: float) -> float:
    if text is None:
        return none
    if now_wall is None and not text.strip().startswith("+"):
        raise JobSpecError(
            f"{field} {text!r} is a date, and this run has no calendar",
            field=field,
            fix="write a length such as '+12h'",
        )
    wall = now_wall if now_wall is not None else 0.0
    return at + (parse_instant(text, now=wall) - wall)
