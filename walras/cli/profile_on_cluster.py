"""`walras profile run --on TYPE`: the runs of a profile on a machine of the cluster, as a job of its queue.

The job has the folder, code, data, Python and secrets of the profiled one, takes one machine, and starts the profiler
of that machine's agent with the profiled job as JSON in a variable. Its outputs are the report and the profile.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from walras.cli.job_control_commands import wait_for_jobs
from walras.cli.session import remember_submitted_job, with_client
from walras.cli.submit_commands import with_snapshot
from walras.cli.terminal_output import safe_text, warn
from walras.errors import JobSpecError, NotFound, UserError
from walras.server_access import server_access
from walras.states import JobState

if TYPE_CHECKING:
    from walras.client import Client
    from walras.profiling.profile_documents import ProfileFile
    from walras.profiling.profile_report import ProfileReport
    from walras.spec.job_spec import JobSpec

REPORT_FILE = "walras-profile-report.json"
KIND_FILE = "walras-profile-kind.json"
_JOB_VARIABLE = "PROFILED_JOB"
#: The agent's own Python has the profiler; the job's modules and its PYTHONPATH must not hide that.
_COMMAND = (
    'exec env -u PYTHONPATH "$WALRAS_AGENT_PYTHON" -P -c "from walras.cli.main import main; main()" profile run -'
    " --ranks {ranks} --steps {steps} --warm-up {warm_up} --timeout {timeout_s:g}s"
    f' --json {REPORT_FILE} --profile {KIND_FILE} <<< "${_JOB_VARIABLE}"'
)
#: Fields that the profiling job takes over: where the script runs, as what, and for whom.
_OF_THE_PLACE = ("workdir", "code", "git", "inputs", "python", "setup", "project", "priority", "value_usd_per_h")
#: Fields of the script itself, which the profiler reads.
_OF_THE_SCRIPT = ("name", "run", "envs", "batch")
_MOST_RUNS = 6
_MOST_BYTES = 8 * 1024**2
_LOG_LINES = 20


@dataclass(frozen=True, slots=True)
class ProfilingOrder:
    """The accelerators to profile on, and the length of the runs: the options of `walras profile run`."""

    #: The accelerators as `--on` states them: `a100`, `a100:4`.
    on: str
    steps: int
    warm_up: int
    timeout_s: float


def profiling_job(spec: "JobSpec", order: ProfilingOrder, folder: Path) -> "JobSpec":
    """Returns the job that profiles `spec`. `folder`: where its relative `workdir` begins.

    Raises JobSpecError for a job that cannot be profiled in the queue.
    """
    from walras.job_request import ANY_ACCELERATOR
    from walras.spec.job_spec import parse_spec, spec_mapping
    from walras.spec.spec_request import kind_of

    if spec.image is not None:
        raise JobSpecError(
            "image: the profiler of the machine cannot start inside a container image",
            field="image",
            fix="profile with `python:` or the machine's own Python",
        )
    given = spec_mapping(spec)
    inner = {name: given[name] for name in _OF_THE_SCRIPT if name in given} | {"profile": kind_of(spec)}
    if spec.secrets:
        inner["secrets"] = {name: {"env": name} for name in spec.secrets}
    outer = {name: given[name] for name in _OF_THE_PLACE if name in given}
    if spec.workdir is not None and spec.workdir.startswith("/"):
        # The outputs go to a folder of the attempt, because other users may write to that of the job.
        inner["workdir"] = outer.pop("workdir")
    elif any(name in outer for name in ("workdir", "code", "git")):
        inner["workdir"] = "."
    outer |= {"name": f"profile {spec.name}"[:200], "profile": f"profile {kind_of(spec)}"[:200]}
    outer["envs"] = spec.envs | {_JOB_VARIABLE: json.dumps(inner)}
    outer["resources"] = given.get("resources", {}) | {"accelerators": order.on}
    outer["outputs"] = [REPORT_FILE, KIND_FILE]
    outer["limits"] = {"max_runtime": _MOST_RUNS * order.timeout_s + 120}
    if "secrets" in given:
        outer["secrets"] = given["secrets"]
    (demand, *others) = parse_spec(outer | {"run": "true"}, source="--on").resources.accelerators
    if others or demand.accelerator == ANY_ACCELERATOR:
        raise JobSpecError(f"--on {order.on}: not one type", field="--on", fix="name one, such as --on a100:4")
    if demand.count > 1:
        outer["nproc_per_node"] = 1
    outer["run"] = _COMMAND.format(
        ranks=demand.count, steps=order.steps, warm_up=order.warm_up, timeout_s=order.timeout_s
    )
    return parse_spec(outer, source=f"the profile of {spec.name}")


def submit_profiling(spec: "JobSpec", order: ProfilingOrder, start: Path) -> int:
    """Submit the job that profiles `spec`; returns its number. Folders are relative to `start`."""
    folder, sent, tree = with_snapshot(profiling_job(spec, order, start), start)

    async def send(client: "Client") -> int:
        if tree is not None:
            await client.send_folder(folder, tree)
        submitted = await client.submit(sent)
        assert submitted.id is not None
        return submitted.id

    job_id = with_client(send)
    remember_submitted_job(server_access().url, job_id)
    return job_id


def wait_for_profile(job_id: int) -> None:
    """Wait until the job that profiles has ended. Raises UserError with the end of its log if it failed."""
    warn(
        f"job {job_id} profiles; Ctrl-C leaves it in the queue, and `walras profile show {job_id}` shows what it found"
    )
    state = with_client(lambda client: wait_for_jobs(client, [job_id], None, whole=()), stays=True)[job_id]
    if state is not JobState.SUCCEEDED:
        raise UserError(
            f"job {job_id}, which was to profile, is {'gone' if state is None else state}\n{_log_tail(job_id)}",
            fix=f"walras logs {job_id}; walras explain {job_id}",
        )


def fetch_profile(job_id: int) -> "tuple[ProfileReport, ProfileFile]":
    """Returns what a profiling job found: the report, and the profile for `walras recommend` and the server.

    Raises UserError if it left none yet, ConfigError for files that are not what the profiler writes.
    """
    from walras.kept_outputs import fetch_outputs
    from walras.profiling.profile_documents import ProfileFile
    from walras.profiling.profile_report import ProfileReport
    from walras.spec.file_model import check_model

    with tempfile.TemporaryDirectory(prefix="walras-profile-") as place:
        folder = Path(place) / "outputs"
        try:
            with_client(lambda client: fetch_outputs(client, job_id, "", folder))
        except NotFound as error:
            raise UserError(
                f"{error}", field="JOB", fix="a job of `walras profile run --on TYPE` that has ended"
            ) from None
        report = check_model(
            ProfileReport, _json_of(folder / REPORT_FILE, job_id), source=f"the report of job {job_id}"
        )
        kind = check_model(ProfileFile, _json_of(folder / KIND_FILE, job_id), source=f"the profile of job {job_id}")
    if kind.kind != report.kind:
        raise UserError(f"job {job_id}: its report is of {report.kind!r}, its profile of {kind.kind!r}", field="JOB")
    return report, kind


def declared_speed(on: str, report: "ProfileReport", kind: "ProfileFile") -> str:
    """Returns the line of a job file that declares the measured speed; empty if the machine only emulates the type."""
    asked = on.partition(":")[0]
    if asked != "cpu" and any(row.accelerator == "cpu" for row in kind.measured):
        return ""
    return f"throughput: {{{asked}: {report.steps_per_s:.4g}}}"


def _json_of(file: Path, job_id: int) -> Any:
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise UserError(f"job {job_id}: {file.name} has more than {_MOST_BYTES:,} bytes", field="JOB")
        return json.loads(file.read_bytes())
    except OSError:
        raise UserError(
            f"job {job_id} left no {file.name}",
            field="JOB",
            fix="a job of `walras profile run --on TYPE` that has succeeded",
        ) from None
    except (ValueError, RecursionError):
        raise UserError(f"job {job_id}: {file.name} is no JSON", field="JOB") from None


def _log_tail(job_id: int) -> str:
    async def read(client: "Client") -> bytes:
        kept = b""
        async for piece in client.logs(job_id):
            kept = (kept + piece)[-16_384:]
        return kept

    try:
        text = with_client(read).decode(errors="replace")
    except UserError:
        return ""
    return safe_text("\n".join(text.splitlines()[-_LOG_LINES:]), lines=True)
