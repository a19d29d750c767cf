"""The steps that a job of a server needs to its target, as the work of a job that is like it."""

from typing import TYPE_CHECKING

from walras.cli.session import job_named, with_client
from walras.errors import UserError
from walras.units import format_count

if TYPE_CHECKING:
    from walras.api import JobDetail, TargetView
    from walras.job import JobSpec

_OPTION = "--steps-of"


def with_steps_of(word: str, spec: "JobSpec") -> "tuple[JobSpec, str]":
    """The spec with those steps, unless it declares fewer, and a line that says which.

    Raises UserError where the job has no such target, or nobody can tell when it is there.
    """
    job_id = job_named(word)
    detail = with_client(lambda client: client.job(job_id))
    target = _checked(detail, spec)
    reached = target.reached_step
    steps = target.steps_expected if reached is None else reached
    if steps is None:
        raise UserError(
            f"job {job_id}: {target.detail}", field=_OPTION, fix="ask again when it has gone on, or write `steps`"
        )
    told = f"job {job_id} {'took' if reached is not None else 'is expected to take'} {format_count(round(steps))} steps"
    told += f" to {target.value} {target.at_most:g}"
    if spec.steps is not None and spec.steps <= steps:
        return spec, f"{told}; the file declares {format_count(spec.steps)}, which are fewer and count"
    return spec.model_copy(update={"steps": max(steps, 1.0)}), f"{told}, which count as the work"


def _checked(detail: "JobDetail", spec: "JobSpec") -> "TargetView":
    """Steps of another batch are other work, and to another target others."""
    from walras.job_elastic import batch_of

    if detail.target is None:
        raise UserError(f"job {detail.id} has no target", field=_OPTION, fix="name a job whose file has `target:`")
    wanted = spec.target
    if wanted is not None and (wanted.value, wanted.at_most) != (detail.target.value, detail.target.at_most):
        raise UserError(
            f"the target of job {detail.id} is {detail.target.value} {detail.target.at_most:g}, that of the file "
            f"{wanted.value} {wanted.at_most:g}",
            field="target",
            fix="make them equal, or leave the file's out",
        )
    batch = detail.spec.get("batch")
    theirs, ours = batch.get("global") if isinstance(batch, dict) else None, batch_of(spec.batch)
    if theirs is not None and ours is not None and theirs != ours:
        raise UserError(
            f"a step of job {detail.id} is {theirs} samples, one of the file {ours}",
            field="batch.global",
            fix=f"write `batch: {{global: {theirs}}}`, and try others with --batch",
        )
    return detail.target
