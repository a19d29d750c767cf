"""Facts that people state: over HTTP with their roles, and by the commands that read profiles."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scheduler.live.auth.access_control import UserRole
from tests.support.http_face import Face
from walras.cli.main import app
from walras.job_request import Kind

FACTS = "/api/v1/facts"
STATED = {"kind": "cnn", "facts": {"flops_per_sample": 1e9, "gradient_bytes": 1e6, "batch_per_accelerator": 32}}
PROFILE = {
    "kind": "cnn",
    "flops_per_sample": 2e9,
    "gradient_bytes": 3e6,
    "measured": [{"accelerator": "cpu", "batch": 64, "accelerators": 2, "accumulated": 1, "steps_per_s": 5.0}],
}


async def walras(face: Face, folder: Path, *args: str) -> Any:
    """The command as a person would give it."""
    (folder / "token").write_text(face.admin)
    env = {"WALRAS_SERVER": str(face.client.make_url("/")).rstrip("/"), "WALRAS_TOKEN_FILE": str(folder / "token")}
    return await asyncio.to_thread(CliRunner().invoke, app, list(args), env=env | {"HOME": str(folder)})


def written(folder: Path, data: Any, name: str = "profile.json") -> str:
    (folder / name).write_text(json.dumps(data))
    return str(folder / name)


async def test_whoever_may_submit_may_state_facts_and_whoever_may_look_sees_them(face: Face) -> None:
    """The newest of people; a viewer may not, and a kind of which nothing is known does not exist."""
    ada, eve = face.token("ada", UserRole.USER), face.token("eve", UserRole.VIEWER)
    assert (await face.json("POST", FACTS, STATED, token=eve))[0] == 403
    status, view = await face.json("POST", FACTS, STATED, token=ada)
    assert (status, view["source"], view["facts"]["flops_per_sample"]) == (200, "stated", 1e9)
    newer = {**STATED, "facts": {**STATED["facts"], "flops_per_sample": 2e9}}  # type: ignore[dict-item]
    assert (await face.json("POST", FACTS, newer, token=face.token("bob", UserRole.USER)))[0] == 200
    status, listed = await face.json("GET", FACTS, token=eve)
    assert (status, [each["facts"]["flops_per_sample"] for each in listed]) == (200, [2e9])
    assert (await face.json("GET", f"{FACTS}?kind=rnn", token=eve))[0] == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"kind": "cnn", "facts": {"flops_per_sample": -1, "batch_per_accelerator": 1}}, "facts.flops_per_sample"),
        ({"kind": "cnn", "facts": {"flops_per_sample": 1e9}}, "facts.batch_per_accelerator"),
        ({"kind": "cnn", "facts": {"gradient_bytes": 1e30}}, "facts.gradient_bytes"),
        ({"kind": "", "facts": {}}, "kind"),
        ({"facts": {}}, "kind"),
        ({"kind": "cnn", "facts": {}, "batch": 0}, "batch"),
    ],
)
async def test_bad_facts_are_refused_by_name(face: Face, body: Any, field: str) -> None:
    """400, the field, the fix; nothing is known of the kind."""
    status, problem = await face.json("POST", FACTS, body)
    assert (status, problem["field"]) == (400, field)
    assert problem["fix"]
    assert face.world.server.core.ledger.facts.kinds() == []


async def test_a_published_profile_is_known_to_the_server(face: Face, tmp_path: Path) -> None:
    """Samples of a step on each accelerator are those of its measured row; `facts` shows what is believed, and why."""
    told = await walras(face, tmp_path, "profile", "publish", written(tmp_path, PROFILE))
    assert (told.exit_code, told.stdout) == (0, "the server knows kind cnn now\n")
    facts = face.world.server.core.ledger.facts.of(Kind("cnn"))
    assert (facts.flops_per_sample, facts.batch_per_accelerator) == (2e9, 16)
    shown = await walras(face, tmp_path, "profile", "facts", "-o", "json")
    assert json.loads(shown.stdout)[0]["facts"]["gradient_bytes"] == 3e6
    table = await walras(face, tmp_path, "profile", "facts", "cnn")
    assert "stated" in table.stdout
    assert (await walras(face, tmp_path, "profile", "facts", "rnn")).exit_code == 2


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"flops_per_sample": -2e9}, "flops_per_sample"),
        ({"measured": []}, "measured"),
        ({"measured": [{"accelerator": "cpu", "batch": 4, "steps_per_s": 0}]}, "measured[0].steps_per_s"),
        ({"flops_per_sample": None, "gradient_bytes": None}, "flops_per_sample"),
        ({"flops_per_sample": 1e20}, "facts.flops_per_sample"),
    ],
)
async def test_a_profile_that_says_nothing_is_not_published(
    face: Face, tmp_path: Path, change: dict[str, Any], field: str
) -> None:
    """Exit code 2; the message names the field and the fix."""
    told = await walras(face, tmp_path, "profile", "publish", written(tmp_path, PROFILE | change))
    assert told.exit_code == 2
    assert field in told.stderr
    assert face.world.server.core.ledger.facts.kinds() == []


async def test_a_job_file_may_name_the_file_of_a_profile(face: Face, tmp_path: Path) -> None:
    """Its facts travel with the job; a file that is missing, or is none, is said so."""
    named = written(tmp_path, PROFILE)
    job = written(tmp_path, {"run": "true", "profile": "cnn", "facts": named, "hold": True}, "job.yaml")
    assert (await walras(face, tmp_path, "submit", job)).exit_code == 0
    facts = face.world.server.core.ledger.facts.of(Kind("cnn"))
    assert facts.gradient_bytes == 3e6
    for name, said in (("nowhere.json", "is no file"), (written(tmp_path, {"kind": 3}, "bad.json"), "bad.json: kind")):
        told = await walras(face, tmp_path, "submit", job, "--set", f"facts={name}")
        assert told.exit_code == 2
        assert said in told.stderr
