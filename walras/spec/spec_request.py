"""Converts a checked job spec to what the scheduler and the ranks receive: request, kind, command and environment.

It also finds jobs that start a launcher of ranks (torchrun, accelerate, deepspeed) wrongly. A launcher that is started
once for each accelerator makes as many complete trainings on the same devices. All of them may succeed, so nothing but
a warning at submission would tell.
"""

import hashlib
import re
from dataclasses import replace
from math import inf
from pathlib import PurePosixPath

from walras.errors import JobSpecError
from walras.job_needs import JobNeeds
from walras.job_request import GangRequest, JobId, JobRequest, Kind, RetryRule, group_fields
from walras.spec.field_types import (
    parse_instant,
)
from walras.spec.job_groups import (
    CheckpointSpec,
    batch_variables,
    gang_of_plans,
    global_batch_of,
    speeds_of_plans,
)
from walras.spec.job_spec import JobSpec, gang_sizes_of
from walras.spec.roles import gang_of_roles, role_variables, written_argv
from walras.spec.sweeps import (
    array_variables,
    is_sweep,
    matrix_values,
    substituted,
)

#: Programs that start ranks themselves, and those that do so with a certain first argument.
_LAUNCHERS = frozenset({"torchrun", "deepspeed", "horovodrun", "mpirun", "mpiexec", "bagua-launch"})
_LAUNCHING_COMMANDS = {"accelerate": "launch", "colossalai": "run", "lightning": "run"}
_LAUNCHING_MODULES = frozenset(
    {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner"}
)
#: What separates the commands of a line. Quotes do as well, since `bash -c 'torchrun ...'` starts it.
_BETWEEN_COMMANDS = re.compile(r"[;&|()`'\"]+")
#: Commands whose arguments may name a launcher without starting it.
_SPEAKING = frozenset({"echo", "printf", "which", "command", "type", "grep", "cat", "export", "cd", "ls"})


def launcher_in(run: str | tuple[str, ...]) -> str | None:
    """Returns the launcher that a command starts, as it is written there; None if none is known in it."""
    text = run if isinstance(run, str) else " ".join(run)
    for line in text.replace("\\\n", " ").splitlines():
        for command in _BETWEEN_COMMANDS.split(re.sub(r"(^|\s)#.*", "", line)):
            words = command.split()
            if words and words[0] not in _SPEAKING and "install" not in words and (found := _launcher_among(words)):
                return found
    return None


def _launcher_among(words: list[str]) -> str | None:
    for word, following in zip(words, [*words[1:], ""], strict=True):
        program = PurePosixPath(word).name
        if program in _LAUNCHERS:
            return program
        if _LAUNCHING_COMMANDS.get(program) == following:
            return f"{program} {following}"
        if word == "-m" and following in _LAUNCHING_MODULES:
            return following
    return None


def _largest_gang(spec: JobSpec) -> int:
    """Returns the accelerators that the job takes at most, but for what an elastic one grows to."""
    planned = (sum(use.count for use in plan.uses) for plan in spec.plans)
    return max(*(demand.count for demand in spec.resources.accelerators), *planned, 1)


def is_launcher(spec: JobSpec) -> bool:
    """Returns whether the command is started once on each machine although the gang may have more devices there."""
    has_many = _largest_gang(spec) > spec.num_nodes
    return bool(spec.roles) or (spec.nproc_per_node == 1 and (has_many or spec.elastic is not None))


def launcher_note(spec: JobSpec) -> str:
    """Returns what the submitter of a launcher should know, as the rest of a sentence; empty if nothing is wrong."""
    if is_launcher(spec) and isinstance(spec.run, tuple) and PurePosixPath(spec.run[0]).name == "deepspeed":
        return (
            "starts deepspeed without a shell, which alone tells it its devices, machines and port: "
            "write `run` as one line, `deepspeed train.py`"
        )
    launcher = None if is_launcher(spec) else launcher_in(spec.run)
    most = _largest_gang(spec)
    if spec.elastic is not None:
        most = max(most, spec.elastic.max)
    if launcher is None or most <= spec.num_nodes:
        return ""
    return (
        f"starts {launcher} once for each of its {most} accelerators, and each time it trains on all of them: "
        f"write `nproc_per_node: 1`, and {launcher} is started once on each machine"
    )


def missing_envs(spec: JobSpec) -> tuple[str, ...]:
    """Returns the variables that the spec names without a value: the submitter has to give one."""
    return tuple(name for name, value in spec.envs.items() if value is None)


def argv_of(spec: JobSpec) -> tuple[str, ...]:
    """Returns the program and arguments that each rank executes."""
    values = matrix_values(spec)
    return tuple(substituted(each, values) for each in written_argv(spec.run))


def env_of(spec: JobSpec, *, keeps_batch: bool = False) -> dict[str, str]:
    """Returns the job's own variables, batch and checkpoints. Raises JobSpecError if a variable still lacks its value.

    `keeps_batch`: whoever runs the job says which batch it has; it chooses none itself.
    """
    for name in missing_envs(spec):
        raise JobSpecError(
            f"the variable {name} has no value", field=f"envs.{name}", fix=f"give one: --set envs.{name}=VALUE"
        )
    values = matrix_values(spec)
    env = {name: substituted(value or "", values) for name, value in spec.envs.items()} | array_variables(spec)
    kept = {} if spec.checkpoint.keep is None else {"WALRAS_CHECKPOINT_KEEP": str(spec.checkpoint.keep)}
    return env | batch_variables(spec.batch, keeps_batch) | role_variables(spec.roles, values) | kept


def kind_of(spec: JobSpec) -> Kind:
    """Returns the kind: jobs of one kind run equally fast on equal accelerators and share measurements.

    The declared `profile`; else a name from the command's script and a hash of all that decides the speed: the command
    with its arguments, the folder, the shape of the gang, and variables that set a batch size.
    """
    if spec.profile is not None:
        return Kind(spec.profile)
    # Jobs of a sweep are alike but for values that set a batch size.
    run = next((role.run for role in spec.roles.values()), spec.run)
    argv, values = written_argv(run), matrix_values(spec)
    texts = values | {name: substituted(value or "", values) for name, value in spec.envs.items()}
    batch = sorted((name, value) for name, value in texts.items() if "BATCH" in name.upper())
    if spec.batch is not None:
        batch.append(("batch", str(global_batch_of(spec.batch))))
    if spec.batch is not None and spec.batch.is_chosen:
        batch.append(("most", f"{spec.batch.max} {spec.batch.max_per_rank}"))
    gang = (spec.num_nodes, sorted((demand.accelerator, demand.count) for demand in spec.resources.accelerators))
    batch += [("plan", str([(use.accelerator, use.count) for use in plan.uses])) for plan in spec.plans]
    for name, role in spec.roles.items():
        count = role.count if role.max_count is None else None  # of one that is elastic, what it holds tells
        batch.append(("role", repr((name, role.run, role.demand, count))))
    # An edited script is of the same kind: what is measured of it goes on counting.
    folder = spec.workdir if spec.code is None else spec.code.folder
    folder = folder if spec.git is None else spec.git.url
    digest = hashlib.sha256(repr((argv, folder, gang, batch)).encode()).hexdigest()[:10]
    script = re.search(r"([A-Za-z0-9_-]{1,40})\.(?:py|sh)\b", " ".join(argv), re.ASCII)
    return Kind(f"{script[1] if script else 'command'}-{digest}")


#: An option that sets the seed of random numbers, and its value.
_SEED = re.compile(r"[\0 ]--(?:random[-_])?seed[\0 =][0-9]{1,20}(?=[\0 ]|$)", re.ASCII)


def program_of(spec: JobSpec, needs: JobNeeds) -> str:
    """Returns a digest of all that a machine runs for the job: code, command, environment, what is prepared. Programs
    that differ in the seed of random numbers are one.

    Empty where something is not known by content: a folder of the machines, secrets, a batch size that the job chooses.
    """
    if spec.code is None or spec.secrets or (spec.batch is not None and spec.batch.is_chosen):
        return ""
    command = _SEED.sub("", "\0".join(argv_of(spec)))
    prepared = needs.model_dump_json(exclude={"owner", "outputs"})
    told = (spec.code.tree, command, sorted(env_of(spec).items()), spec.num_nodes, is_launcher(spec), prepared)
    return hashlib.sha256(repr(told).encode()).hexdigest()[:32]


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
    speed = spec.steps / spec.estimated_duration if spec.steps and spec.estimated_duration else None
    gang = gang_of_roles(gang, spec.roles, speed)
    gang = replace(gang, mixed=spec.mixed is not False, shares=spec.mixed == "shares")
    return JobRequest(
        job_id=job_id,
        kind=kind_of(spec),
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
