"""TorchX's apps as jobs, and jobs as what TorchX shows."""

import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

torchx = pytest.importorskip("torchx", reason="no torchx here: `make torchx` adds it")

from torchx.schedulers.api import Stream  # noqa: E402
from torchx.specs import AppDef, AppState, BindMount, Resource, Role, macros  # noqa: E402

from walras.blocking_client import BlockingClient  # noqa: E402
from walras.errors import ConfigError  # noqa: E402
from walras.spec.job_spec import parse_spec  # noqa: E402
from walras.states import JobState  # noqa: E402
from walras.torchx_scheduler import WalrasScheduler, app_state, log_lines, torchx_request  # noqa: E402
from walras.transport import Patience  # noqa: E402

TOKEN = "walras_user_secret"
QUICK = Patience(tries=2, backoff_s=0.0, poll_s=0.0)


def an_app(**changes: Any) -> AppDef:
    role = {"name": "trainer", "image": "registry/train:1", "entrypoint": "python", "args": ["train.py", "--lr", "0.1"]}
    return AppDef(name="mnist", roles=[Role(**role | changes)], metadata={"team": "vision"})


@pytest.fixture
def scheduler(fake: Any) -> Iterator[WalrasScheduler]:
    scheduler = WalrasScheduler("session", BlockingClient(fake.url, TOKEN, patience=QUICK))
    yield scheduler
    scheduler.close()


def test_an_app_is_one_job() -> None:
    """Replicas are machines, on each of which the command runs once; resources are counted as a job file counts."""
    app = an_app(num_replicas=2, max_retries=3, env={"A": "1"}, resource=Resource(cpu=8, gpu=4, memMB=65536))
    job = torchx_request(app, {"accelerator": "a100", "project": "vision", "priority": 70}).job
    assert job == {
        "name": "mnist", "run": ["python", "train.py", "--lr", "0.1"], "envs": {"A": "1"}, "num_nodes": 2,
        "nproc_per_node": 1, "resources": {"accelerators": {"a100": 8}, "cpus": 2.0, "memory": "16384MiB"},
        "labels": {"team": "vision", "torchx/role": "trainer"}, "retry": {"max_restarts": 3},
        "image": "registry/train:1", "project": "vision", "priority": 70,
    }  # fmt: skip
    assert parse_spec(job).num_nodes == 2


def test_an_app_without_resources_asks_for_one_accelerator_on_each_machine() -> None:
    """TorchX's null resource, and an app for CPUs alone."""
    assert torchx_request(an_app(), {}).job["resources"] == {"accelerators": {"any": 1}}
    app = an_app(num_replicas=3, resource=Resource(cpu=2, gpu=0, memMB=0))
    assert torchx_request(app, {}).job["resources"] == {"accelerators": {"any": 3}, "cpus": 2.0}


@pytest.mark.parametrize("text", [f"n={macros.replica_id} it's", f"{macros.app_id}/{macros.replica_id}", "$(echo no)"])
def test_macros_are_what_the_machine_knows(text: str) -> None:
    """The shell that runs the command fills in the job and the machine, and nothing else."""
    request = torchx_request(an_app(entrypoint="echo", args=[text], env={"X": f"{macros.app_id}!", "Y": "$HOME"}), {})
    assert request.job["envs"] == {"Y": "$HOME"}
    environment = {"WALRAS_JOB_ID": "17", "WALRAS_NODE_RANK": "1", "PATH": "/usr/bin:/bin"}
    command = ["bash", "-euo", "pipefail", "-c", request.job["run"]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout == text.replace(macros.app_id, "17").replace(macros.replica_id, "1") + "\n"
    assert "export X=" in request.job["run"]


def test_the_first_machine_is_found_by_its_variable() -> None:
    """`dist.ddp` asks for the name of the variable with rank 0's host."""
    app = an_app(entrypoint="bash", args=["-c", f"echo $${{{macros.rank0_env}:=localhost}} {macros.img_root}"])
    assert torchx_request(app, {}).job["run"] == ["bash", "-c", "echo ${MASTER_ADDR:=localhost} ."]


@pytest.mark.parametrize(
    ("app", "cfg", "what"),
    [
        (AppDef("two", [Role("a", "i"), Role("b", "i")]), {}, "has 2 roles"),
        (an_app(mounts=[BindMount("/a", "/b")]), {}, "has mounts"),
        (an_app(), {"job": "{broken"}, "no JSON object"),
        (an_app(), {"job": "/nowhere/job.yaml"}, "nowhere"),
    ],
)
def test_what_has_no_counterpart_is_refused(app: AppDef, cfg: dict[str, Any], what: str) -> None:
    """Named, before anything is sent."""
    with pytest.raises(ConfigError, match=what):
        torchx_request(app, cfg)


def test_further_fields_come_last(tmp_path: Path) -> None:
    """As JSON, or from a file; they overrule what the app says."""
    given = {"steps": 100, "resources": {"accelerators": "v100:2"}}
    (tmp_path / "more.yaml").write_text("steps: 100\nresources: {accelerators: 'v100:2'}\n")
    for job in (json.dumps(given), str(tmp_path / "more.yaml")):
        found = torchx_request(an_app(), {"job": job}).job
        assert {name: found[name] for name in given} == given


def test_a_workspace_travels(fake: Any, scheduler: WalrasScheduler, tmp_path: Path) -> None:
    """It becomes the job's code, whatever the copy is called, and the copy is gone in the end."""
    (tmp_path / "train.py").write_text("print('hello')\n")
    app_id = scheduler.submit(an_app(), {}, workspace=f"file://{tmp_path}")
    spec = fake.jobs[int(app_id)]["spec"]
    assert spec["code"]["folder"] == "workspace"
    assert "image" not in spec
    assert [file.path for file in fake.trees[spec["code"]["tree"]].files] == ["train.py"]
    info = scheduler.submit_dryrun(an_app(image=str(tmp_path)), {"image": "registry/base:2"})
    assert "image: registry/base:2" in str(info)
    assert f"workdir: {tmp_path}" in str(info)
    (copy,) = scheduler._built
    scheduler.close()
    assert not Path(copy).exists()


def test_what_torchx_shows_of_a_job(fake: Any, scheduler: WalrasScheduler) -> None:
    """State, reason, restarts, machines; a job that is not there is None; cancelling is for those that are."""
    app_id = scheduler.submit(an_app(), {})
    fake.jobs[1] |= {"labels": {"torchx/role": "trainer"}, "restarts": 2, "state": "RUNNING"}
    fake.attempts[1] = [
        {"job_id": 1, "attempt": 1, "state": "RUNNING", "pool": "p", "accelerator": "a", "accelerators": 2,
         "placement": ["n1:0", "n2:0,1"], "leased_at": "2026-11-05T18:00:00Z"}
    ]  # fmt: skip
    found = scheduler.describe(app_id)
    assert found is not None
    assert (found.app_id, found.state, found.num_restarts) == ("1", AppState.RUNNING, 2)
    assert found.msg == "WAIT:CAPACITY needs 1 x a100, 0 free"
    assert [(each.id, each.hostname) for each in found.roles_statuses[0].replicas] == [(0, "n1"), (1, "n2")]
    assert found.roles_statuses[0].role == found.roles[0].name == "trainer"
    assert [(each.app_id, each.state) for each in scheduler.list()] == [("1", AppState.RUNNING)]
    scheduler.cancel(app_id)
    assert fake.jobs[1]["state"] == "CANCELLED"
    assert scheduler.describe("99") is None
    assert scheduler.describe("../1") is None
    assert not scheduler.exists("99")


def test_every_state_has_one_of_torchx() -> None:
    """What has ended here has ended there, and nothing else."""
    ended = {AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED}
    assert all((app_state(state) in ended) == state.is_final for state in JobState)
    assert app_state(JobState.TIMEOUT) is AppState.FAILED
    assert app_state(JobState.PREEMPTING) is AppState.RUNNING


def test_logs_are_lines(fake: Any, scheduler: WalrasScheduler) -> None:
    """Of one machine, with their ends, filtered; one stream alone is refused."""
    app_id = scheduler.submit(an_app(), {})
    fake.logs[1, 0] = b"step 1\nloss 0.5\nhalf \xff"
    assert list(scheduler.log_iter(app_id, "trainer")) == ["step 1\n", "loss 0.5\n", "half \N{REPLACEMENT CHARACTER}"]
    assert list(scheduler.log_iter(app_id, "trainer", k=1, regex="loss")) == ["loss 0.5\n"]
    assert "rank=1" in fake.requests[-1][1]
    since = datetime.now(UTC) - timedelta(minutes=1)
    assert list(scheduler.log_iter(app_id, "trainer", since=since)) == ["loss 0.5\n", "half \N{REPLACEMENT CHARACTER}"]
    (asked,) = [request[1] for request in fake.requests if "/logs/start" in request[1]]
    assert 60 <= int(asked.rpartition("since_s=")[2]) < 120
    with pytest.raises(ValueError, match="both streams into one log"):
        scheduler.log_iter(app_id, "trainer", streams=Stream.STDERR)


def test_lines_survive_the_borders_of_pieces() -> None:
    """Pieces end anywhere, inside of characters too."""
    pieces = [b"a", b"b\nc\xc3", b"\xa9\n\n", b"d"]
    assert list(log_lines(pieces)) == ["ab\n", "c\N{LATIN SMALL LETTER E WITH ACUTE}\n", "\n", "d"]
