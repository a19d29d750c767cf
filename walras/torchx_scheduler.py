"""Walras as a scheduler of TorchX: `torchx run -s walras -cfg accelerator=a100 dist.ddp -j 2x4 --script train.py`.

The server and the token are those of the command line. An app of one role becomes one job: its replicas are the
machines of the gang, on each of which the role's command runs once. The workspace travels with the job. What TorchX
fills in while an app runs (`macros.replica_id` and the like) is read from the job's variables, by a shell. TorchX finds
this module by its entry point, or, in newer releases, in the namespace `torchx_plugins.schedulers`.
"""

import json
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream, filter_regex
from torchx.specs import AppDef, AppDryRunInfo, AppState, ReplicaStatus, Role, RoleStatus, macros, runopts
from torchx.workspace.dir_workspace import TmpDirWorkspaceMixin

from walras.api import JobDetail
from walras.blocking_client import BlockingClient
from walras.code_snapshot import code_fields, snapshot_folder
from walras.errors import ConfigError, NotFound
from walras.states import JobState

#: The most jobs that `torchx list` shows, newest first.
_LISTED = 200
#: The label with the name of an app's role.
_ROLE_LABEL = "torchx/role"
#: The placeholder of a macro until it is a variable of the shell.
_MARKS = {"@walras-app-id@": "$WALRAS_JOB_ID", "@walras-replica-id@": "$WALRAS_NODE_RANK"}
#: TorchX's state for each final state of a job; every other state counts as running.
_STATES = {
    JobState.PENDING: AppState.PENDING,
    JobState.HELD: AppState.PENDING,
    JobState.STARTING: AppState.PENDING,
    JobState.SUCCEEDED: AppState.SUCCEEDED,
    JobState.FAILED: AppState.FAILED,
    JobState.TIMEOUT: AppState.FAILED,
    JobState.CANCELLED: AppState.CANCELLED,
}


@dataclass(frozen=True)
class TorchxRequest:
    """A submission: a job, and the folder that travels with it."""

    job: dict[str, Any]
    folder: str = ""

    def __str__(self) -> str:
        whole = self.job | ({"workdir": self.folder} if self.folder else {})
        return str(yaml.safe_dump(whole, sort_keys=False))


def create_scheduler(session_name: str, **_: object) -> "WalrasScheduler":
    """Returns the scheduler, as TorchX asks for it. It connects at the first call."""
    return WalrasScheduler(session_name)


class WalrasScheduler(TmpDirWorkspaceMixin, Scheduler[Mapping[str, Any]]):
    """Implements TorchX's calls by those of the client. Errors are those of `walras.errors`."""

    def __init__(self, session_name: str, client: BlockingClient | None = None) -> None:
        super().__init__("walras", session_name)
        self._opened = client
        self._built: list[str] = []

    @property
    def _client(self) -> BlockingClient:
        self._opened = self._opened or BlockingClient()
        return self._opened

    def close(self) -> None:
        """Ends the connection, and removes the copies of workspaces."""
        while self._built:
            shutil.rmtree(self._built.pop(), ignore_errors=True)
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _run_opts(self) -> runopts:
        options = runopts()
        options.add("accelerator", type_=str, default="any", help="type of accelerators, such as a100")
        options.add("project", type_=str, default=None, help="project whose share of the fleet is used")
        options.add("priority", type_=int, default=None, help="0 to 100")
        options.add("image", type_=str, default=None, help="container image that the command runs in")
        options.add("job", type_=str, default=None, help="further fields of a job file, as JSON or a path to YAML")
        return options

    def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Mapping[str, Any]) -> None:
        super().build_workspace_and_update_role(role, workspace, cfg)
        self._built.append(role.image)

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo:
        return AppDryRunInfo(torchx_request(app, cfg), str)

    def schedule(self, dryrun_info: AppDryRunInfo) -> str:
        request: TorchxRequest = dryrun_info.request
        job = dict(request.job)
        if request.folder:
            folder = Path(request.folder)
            tree = snapshot_folder(folder)
            self._client.send_folder(folder, tree)
            # The copy of a workspace has a name that is drawn anew each time: equal apps would be of unlike kinds.
            job["code"] = code_fields(tree, Path("workspace") if request.folder in self._built else folder)
        submitted = self._client.submit(job)
        assert submitted.id is not None
        return str(submitted.id)

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        try:
            job = self._client.job(_number_of(app_id))
        except (NotFound, ValueError):
            return None
        role = str(job.labels.get(_ROLE_LABEL, job.name))
        return DescribeAppResponse(
            app_id=app_id,
            state=app_state(job.state),
            num_restarts=job.restarts,
            msg=" ".join(filter(None, (job.reason, job.detail))),
            ui_url=self._client.url,
            roles_statuses=[RoleStatus(role, _replicas(job, role))],
            roles=[Role(name=role, image=str(job.spec.get("image") or ""), num_replicas=_machines_of(job))],
        )

    def list(self, cfg: Mapping[str, Any] | None = None) -> "list[ListAppResponse]":
        """Returns the newest jobs of the token's user."""
        has_name = "name" in {each.name for each in fields(ListAppResponse)}
        user = self._client.whoami().user
        return [
            ListAppResponse(app_id=str(job.id), state=app_state(job.state), **({"name": job.name} if has_name else {}))
            for job in self._client.jobs(user=user, limit=_LISTED)
        ]

    def _cancel_existing(self, app_id: str) -> None:
        self._client.cancel(_number_of(app_id))

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """Yields the lines of the `k`-th machine's rank; `until` has no meaning here.

        Raises ValueError for one of the two streams, which a job writes into one log.
        """
        if streams not in (None, Stream.COMBINED):
            raise ValueError("a job of Walras writes both streams into one log; leave `streams` out")
        job_id, offset = _number_of(app_id), 0
        if since is not None:
            ago_s = (datetime.now(UTC) - since.astimezone(UTC)).total_seconds()
            offset = self._client.log_start(job_id, rank=k, since_s=max(round(ago_s), 0))
        lines = log_lines(self._client.logs(job_id, rank=k, offset=offset, follow=should_tail))
        found: Iterable[str] = filter_regex(regex, lines) if regex else lines
        return found


# -------------------------------------------------------------------------------------------------- from TorchX


def torchx_request(app: AppDef, cfg: Mapping[str, Any]) -> TorchxRequest:
    """Returns an app as a job. Raises ConfigError for what has no counterpart here."""
    if len(app.roles) != 1:
        raise ConfigError(
            f"the app has {len(app.roles)} roles", field="roles", fix="run each role as an app of its own"
        )
    role = app.roles[0]
    if role.mounts:
        raise ConfigError("the role has mounts", field="mounts", fix="name data in `inputs` (-cfg job=...)")
    command, envs = _command_of(role)
    is_folder = Path(role.image).is_dir()
    image = cfg.get("image") or ("" if is_folder else role.image)
    job: dict[str, Any] = {
        "name": app.name or role.name,
        "run": command,
        "envs": envs,
        "num_nodes": role.num_replicas,
        "nproc_per_node": 1,
        "resources": _resources_of(role, str(cfg.get("accelerator") or "any")),
        "labels": {**{str(name): str(value) for name, value in app.metadata.items()}, _ROLE_LABEL: role.name},
        "retry": {"max_restarts": role.max_retries},
    }
    job |= {"image": image} if image else {}
    job |= {name: cfg[name] for name in ("project", "priority") if cfg.get(name) is not None}
    return TorchxRequest(job | _further_fields(cfg.get("job")), role.image if is_folder else "")


def _command_of(role: Role) -> "tuple[list[str] | str, dict[str, str]]":
    """Returns what each machine runs, and the job's variables; text for a shell where a macro is known there alone."""
    app_id, replica_id = _MARKS
    values = macros.Values(img_root=".", app_id=app_id, replica_id=replica_id, rank0_env="MASTER_ADDR")
    argv = [role.entrypoint, *(values.substitute(each) for each in role.args)]
    envs = {name: values.substitute(value) for name, value in role.env.items()}
    late = {name: value for name, value in envs.items() if any(mark in value for mark in _MARKS)}
    if not late and not any(mark in word for word in argv for mark in _MARKS):
        return argv, envs
    exports = [f"export {shlex.quote(name)}={_shell_word(value)}" for name, value in late.items()]
    text = "\n".join([*exports, "exec " + " ".join(map(_shell_word, argv))])
    return text, {name: value for name, value in envs.items() if name not in late}


def _shell_word(text: str) -> str:
    """Returns a word that means this text to a shell, with the marks as variables."""
    word = shlex.quote(text)
    for mark, variable in _MARKS.items():
        # `@` is among the characters that are left unquoted.
        word = word.replace(mark, f"'\"{variable}\"'" if word.startswith("'") else f'"{variable}"')
    return word


def _resources_of(role: Role, accelerator: str) -> dict[str, Any]:
    """Returns what the gang needs: TorchX counts for each replica, a job file for each accelerator."""
    each = max(role.resource.gpu, 1)
    found: dict[str, Any] = {"accelerators": {accelerator: each * role.num_replicas}}
    if role.resource.cpu > 0:
        found["cpus"] = role.resource.cpu / each
    if role.resource.memMB > 0:
        found["memory"] = f"{max(int(role.resource.memMB // each), 1)}MiB"
    return found


def _further_fields(given: str | None) -> dict[str, Any]:
    """Returns the fields of `-cfg job=`. Raises ConfigError."""
    if not given:
        return {}
    from walras.spec.file_model import load_mapping

    if not given.lstrip().startswith("{"):
        return dict(load_mapping(Path(given)))
    with suppress(ValueError):
        found = json.loads(given)
        if isinstance(found, dict):
            return found
    raise ConfigError("job is no JSON object", field="-cfg job", fix='write such as job={"steps":1000}, or a path')


# ---------------------------------------------------------------------------------------------------- to TorchX


def app_state(state: JobState) -> AppState:
    """Returns the state that TorchX knows; a job that leaves or is not heard of still runs."""
    return _STATES.get(state, AppState.RUNNING)


def _machines_of(job: JobDetail) -> int:
    number = job.spec.get("num_nodes", 1)
    return number if isinstance(number, int) else 1


def _replicas(job: JobDetail, role: str) -> list[ReplicaStatus]:
    """Returns the machines of the newest attempt."""
    placement = job.attempt_list[-1].placement if job.attempt_list else []
    return [
        ReplicaStatus(id=number, state=app_state(job.state), role=role, hostname=place.rpartition(":")[0])
        for number, place in enumerate(placement)
    ]


def log_lines(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yields whole lines with their ends, of pieces that end anywhere."""
    left = b""
    for piece in pieces:
        *whole, left = (left + piece).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace") + "\n"
    if left:
        yield left.decode(errors="replace")


def _number_of(app_id: str) -> int:
    """Returns the number of the job. Raises ValueError."""
    if not (app_id.isascii() and app_id.isdigit()):
        raise ValueError(f"{app_id[:100]!r} is no app of Walras, whose ids are numbers of jobs")
    return int(app_id)
