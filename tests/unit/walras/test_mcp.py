"""`walras admin mcp`: the tools as a real client of the protocol calls them over standard input and output."""

import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client as AssistantClient
from mcp import StdioServerParameters

from tests.support.http_face import Face, facing
from tests.support.web_scene import machines, pools, settle
from tests.unit.walras.conftest import FakeServer
from walras.cli.mcp_commands import CONFIRM_WITHIN_S, LONGEST_ANSWER, AssistantTools, bounded_json, read_job_text
from walras.errors import JobSpecError, UserError

ROOT = Path(__file__).parents[3]
JOB = "{name: tiny, run: python train.py, steps: 1000, resources: {accelerators: 'h100:8'}}"
PROBLEM = (ROOT / "configs" / "problems" / "three_pools.json").read_text()


@pytest.fixture
async def face(tmp_path: Path) -> AsyncIterator[Face]:
    """One h100 machine that job 1 holds."""
    async with facing(tmp_path / "data", cluster=pools()) as found:
        agents = await machines(found, {"h100": 1, "a100": 0, "v100": 0})
        await found.world.submit({"name": "first", "steps": 1000, "resources": {"accelerators": "h100:8"}})
        await settle(agents)
        yield found


@asynccontextmanager
async def assistant(url: str, token: str, home: Path) -> AsyncIterator[Callable[..., Any]]:
    """Calls tools of a `walras admin mcp` that runs as a process; returns (is it an error, its text)."""
    (home / "token").write_text(token)
    environment = {
        "WALRAS_SERVER": url, "WALRAS_TOKEN_FILE": str(home / "token"), "HOME": str(home),
        "PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"],
    }  # fmt: skip
    started = StdioServerParameters(
        command=sys.executable, args=["-c", "from walras.cli.main import main; main()", "admin", "mcp"], env=environment
    )
    async with AssistantClient(started) as client:

        async def call(name: str, **given: Any) -> tuple[bool, str]:
            answer = await client.call_tool(name, given)
            return bool(answer.is_error), "".join(part.text for part in answer.content)  # type: ignore[union-attr]

        call.client = client  # type: ignore[attr-defined]
        yield call


@pytest.mark.slow
async def test_the_tools_over_stdio(face: Face, tmp_path: Path) -> None:
    """Looking, asking, and submitting in two steps; the code submits once, and errors are the commands' words."""
    url = str(face.client.make_url("/")).rstrip("/")
    async with assistant(url, face.admin, tmp_path) as call:
        tools = {tool.name: tool for tool in (await call.client.list_tools()).tools}  # type: ignore[attr-defined]
        looking = {"queue", "show", "explain", "quote", "whatif", "submit_check", "solve"}
        assert set(tools) == looking | {"submit_confirmed"}
        assert {name for name, tool in tools.items() if tool.annotations.read_only_hint} == looking

        assert (await call("show", job=1))[1].startswith('{"id":1,"name":"first"')
        assert await call("show", job=77) == (True, "no job 77")
        assert "job 1 is RUNNING" in (await call("explain", job=1))[1]
        failed, quoted = await call("quote", job_file=JOB)
        assert (failed, set(json.loads(quoted))) == (False, {"as_of", "draws", "note", "ways"})
        failed, different = await call("whatif", add=["8xh100"], job_files=[JOB])
        assert (failed, len(json.loads(different)["submitted"])) == (False, 1)

        checked = json.loads((await call("submit_check", job_file=JOB))[1])
        assert (checked["submitted"], checked["dry_run"]["accelerators"]) == (False, 8)
        assert json.loads((await call("queue"))[1])["waiting"] == 0
        failed, refused = await call("submit_confirmed", confirmation_code="guessed")
        assert (failed, refused.splitlines()[0]) == (True, "this confirmation code is not valid, or not any more")
        failed, submitted = await call("submit_confirmed", confirmation_code=checked["confirmation_code"])
        assert (failed, json.loads(submitted)["id"]) == (False, 2)
        assert (await call("submit_confirmed", confirmation_code=checked["confirmation_code"]))[0]
        queue = json.loads((await call("queue"))[1])
        assert [(job["job"], job["name"]) for job in queue["next"]] == [(2, "tiny")]
        assert queue["running"] == {"1": "first"}


@pytest.mark.slow
async def test_solving_needs_no_server_and_errors_keep_their_words(tmp_path: Path) -> None:
    """A problem is answered and checked; a broken one, a policy in a file, and a server that is away are told."""
    async with assistant("http://127.0.0.1:9", "walras_user_secret", tmp_path) as call:
        failed, solved = await call("solve", problem=PROBLEM)
        assert (failed, "checked: it holds" in solved, "unit of prices" in solved) == (False, True, True)
        failed, told = await call("solve", problem='{"pools": 3}')
        assert failed
        assert "the problem: pools" in told
        assert str(Path("/tmp")) not in told
        for name in ("evil.py:Policy", "--memory=/etc/passwd", "../x.yaml"):
            assert (await call("solve", problem=PROBLEM, policy=name))[0]
        failed, told = await call("quote", job_file="{run: 7, nme: x}")
        assert (failed, "field: " in told, "fix: " in told) == (True, True, True)
        failed, told = await call("show", job=1)
        assert (failed, "no Walras server answers at http://127.0.0.1:9" in told) == (True, True)


async def test_a_confirmation_ends_after_its_time(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Late codes submit nothing; a submission whose server was away may be tried again, and makes one job."""
    monkeypatch.setenv("WALRAS_SERVER", fake.url)
    monkeypatch.setenv("WALRAS_TOKEN", "walras_user_secret")
    now = [0.0]
    tools = AssistantTools(lambda: now[0])
    code = json.loads(await tools.submit_check("run: python train.py"))["confirmation_code"]
    now[0] = CONFIRM_WITHIN_S
    with pytest.raises(UserError, match="not valid"):
        await tools.submit_confirmed(code)
    assert fake.jobs == {}
    code = json.loads(await tools.submit_check("run: python train.py"))["confirmation_code"]
    fake.script = ["drop"] * 4
    with pytest.raises(Exception, match="no Walras server answers"):
        await tools.submit_confirmed(code)
    assert json.loads(await tools.submit_confirmed(code))["id"] == 1
    assert list(fake.jobs) == [1]


async def test_a_check_says_how_many_jobs_there_would_be(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short file may be a sweep of hundreds."""
    monkeypatch.setenv("WALRAS_SERVER", fake.url)
    monkeypatch.setenv("WALRAS_TOKEN", "walras_user_secret")
    told = [await AssistantTools().submit_check(text) for text in ("run: x", "{run: x, array: 1-300}")]
    assert [json.loads(each)["jobs"] for each in told] == [1, 300]


async def test_nothing_of_this_machine_is_read_for_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets from variables, variables without a value, and folders are left to the user's own submit."""
    monkeypatch.setenv("API_KEY", "do not tell")
    for text, field in (
        ("{run: x, secrets: {API_KEY: env}}", "secrets"),
        ("{run: x, envs: {API_KEY: null}}", "envs.API_KEY"),
        ("{run: x, workdir: .}", "workdir"),
    ):
        with pytest.raises(JobSpecError) as refused:
            read_job_text(text)
        assert refused.value.field.startswith(field), text


@pytest.mark.parametrize(
    "data",
    [
        {"items": [{"name": "x" * 300, "n": n} for n in range(5000)]},
        {"text": "é\x1b" * 100_000},
        {str(n): ["y" * 50] * 20 for n in range(3000)},
        [[[["z" * 90] * 50] * 50] * 50],
    ],
)
def test_answers_are_bounded(data: Any) -> None:
    """However large, an answer is JSON of at most so many characters, without control characters."""
    text = bounded_json(data)
    assert len(text) <= LONGEST_ANSWER
    assert json.loads(text)
    assert "\x1b" not in text


def test_small_answers_are_whole() -> None:
    assert json.loads(bounded_json({"a": [1, "b"]})) == {"a": [1, "b"]}


def test_without_the_library(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    result = run("admin", "mcp")
    assert (result.exit_code, "pip install 'walras[mcp]'" in result.stderr) == (2, True)
