"""`walras top`: what its screens show of a real server, what its keys do, and what hostile names cannot do."""

import asyncio
import builtins
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.color import Color
from textual.pilot import Pilot
from textual.widgets import Input, Static

from scheduler.live.web import page
from tests.support.http_face import Face, facing
from tests.support.web_scene import machines, pools, settle, write_log
from tests.unit.walras.conftest import TOKEN, FakeServer
from walras.cli.machine_commands import first_look
from walras.cli.top_screens import ConfirmCancel, JobList, JobScreen, MachinesScreen, TopApp, colour_of_job
from walras.client import Client
from walras.connection.transport import Patience
from walras.errors import Forbidden, UserError
from walras.states import Reason

QUICK = Patience(tries=1, call_timeout_s=5.0, connect_timeout_s=1.0)
HOSTILE = "[red]x[/]\x1b[31m"
#: The server takes no control character in a name; another release, or another server, may.
TAKEN = "[red]x[/]"


@pytest.fixture
async def face(tmp_path: Path) -> AsyncIterator[Face]:
    async with facing(tmp_path / "data", cluster=pools()) as found:
        yield found


async def fill(face: Face) -> None:
    """One h100 machine: a job that holds half of it, one that holds the rest, and one that waits."""
    agents = await machines(face, {"h100": 1, "a100": 0, "v100": 0})
    for name in ("first", TAKEN, "third-one"):
        await face.world.submit(
            {"name": name, "project": "vision", "steps": 1000, "resources": {"accelerators": "h100:4"}}
        )
    await settle(agents)
    await write_log(face, agents[0], 1, b"[bold]epoch 1[/]\x1b[2J\nloss 0.5\n")


@asynccontextmanager
async def open_top(
    server: Face | FakeServer, *, size: tuple[int, int] | None = None, every_s: float = 0.05
) -> AsyncIterator[tuple[TopApp, "Pilot[None]"]]:
    """The application with its first view."""
    if isinstance(server, FakeServer):
        url, token, usual = server.url, TOKEN, (80, 24)
    else:
        url, token, usual = str(server.client.make_url("/")).rstrip("/"), server.admin, (80, 40)
    async with Client(url, token, patience=QUICK) as client:
        app = TopApp(client, every_s=every_s)
        async with app.run_test(size=size or usual, notifications=True) as pilot:
            yield app, pilot


def shown(app: TopApp) -> str:
    """The text of the screen, line by line."""
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text for strip in strips)


async def until(pilot: "Pilot[None]", holds: Callable[[], bool], limit_s: float = 100.0) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + limit_s
    while not holds():
        assert loop.time() < end, shown(pilot.app)  # type: ignore[arg-type]
        await pilot.pause(0.02)


def options(app: TopApp) -> int:
    """How many jobs the list has; 0 before there is one."""
    return sum(jobs.option_count for jobs in app.screen.query(JobList))


async def test_the_first_view_at_80_columns(face: Face) -> None:
    """Header, cells in the colours of their jobs, price, and the waiting job with its reason; no line is cut."""
    await fill(face)
    async with open_top(face) as (app, pilot):
        keys = "⏎ Job  n Machines  c Cancel  / Filter  q Quit"
        await until(pilot, lambda: all(words in shown(app) for words in ("third-one", "■", keys)))
        text = shown(app)
        assert "2 running, 1 waiting; free: 0 of 8 h100" in text
        assert "h100x8/owned/default  8 of 8 held, price 0" in text
        assert f"h100-01\u00a0{'■' * 8}" in text
        assert "1. 3 third-one" in text
        assert "waits for accelerators to become free" in text
        assert "▶  1 first" in text
        assert "on 4 x h100: h100-01" in text
        fleet = app.screen.query_one("#fleet", Static).render()
        styles = " ".join(str(span.style) for span in fleet.spans)  # type: ignore[union-attr]
        colours = [Color.parse(colour_of_job(job_id)).rgb for job_id in (1, 2)]
        assert colours[0] != colours[1]
        assert all(f"({red},{green},{blue})" in styles for red, green, blue in colours)


async def test_a_hostile_name_is_text(face: Face) -> None:
    """Markup stays as it was written, escape sequences are gone: in the list, in a job's screen and in its log."""
    await fill(face)
    async with open_top(face) as (app, pilot):
        await until(pilot, lambda: "[red]x[/]" in shown(app))
        assert "\x1b" not in shown(app)
        await pilot.press("j", "j", "enter")
        await until(pilot, lambda: "job 2 [red]x[/]" in shown(app))
        await pilot.press("escape")
        await pilot.press("k", "enter")
        await until(pilot, lambda: "loss 0.5" in shown(app))
        assert "[bold]epoch 1[/]" in shown(app)
        assert "\x1b" not in shown(app)


async def test_escapes_of_a_hostile_server_do_nothing(fake: FakeServer) -> None:
    """Names, reasons, users, machines and alerts with escape sequences and markup are plain text."""
    fake.add(name=HOSTILE, user=HOSTILE, detail=HOSTILE)
    machine = {"node_id": HOSTILE, "pool": HOSTILE, "accelerator": HOSTILE, "state": "leaving", "cells": [9, 0]}
    pool = {"pool": HOSTILE, "accelerator": HOSTILE, "market": "owned", "capacity": 2, "free": 1, "price": 0.5}
    fake.overview = overview_body(fake) | {
        "machines": [machine], "pools": [pool | {"unit": HOSTILE, "market_usd_per_h": 1.0}],
        "names": {"9": HOSTILE}, "alerts": [{"level": "error", "text": HOSTILE, "subject": HOSTILE}],
        "types": [{"accelerator": HOSTILE, "free": 1, "capacity": 2}],
    }  # fmt: skip
    async with open_top(fake, size=(100, 40)) as (app, pilot):
        await until(pilot, lambda: shown(app).count("[red]x[/]") >= 9)
        assert "\x1b" not in shown(app)
        await pilot.press("enter")
        await until(pilot, lambda: "job 1 [red]x[/]" in shown(app))
        assert "\x1b" not in shown(app)


async def test_a_job_is_opened(face: Face) -> None:
    """Its attempts with their times, why it waits, and the way back; a final job too."""
    await fill(face)
    async with open_top(face) as (app, pilot):
        await until(pilot, lambda: options(app) == 3)
        await pilot.press("enter")
        await until(pilot, lambda: "job 3 is PENDING" in shown(app))
        assert "It has not run yet." in shown(app)
        await pilot.press("escape", "j", "enter")
        await until(pilot, lambda: "job 1 is RUNNING" in shown(app))
        assert "RUNNING  4 x h100 on h100-01:0,1,2,3" in shown(app)
        await pilot.press("escape", "n")
        assert isinstance(app.screen, MachinesScreen)
        await until(pilot, lambda: "h100-01" in shown(app))
        assert "1,2" in shown(app)


async def test_a_job_is_cancelled_after_a_yes(face: Face) -> None:
    """`n` leaves the job alone; `y` ends it, and the list says so."""
    await fill(face)
    async with open_top(face) as (app, pilot):
        await until(pilot, lambda: options(app) == 3)
        await pilot.press("c")
        assert isinstance(app.screen, ConfirmCancel)
        await until(pilot, lambda: "Cancel job 3 third-one?" in shown(app))
        await pilot.press("n")
        await pilot.pause(0.2)
        assert face.world.state(3) == "PENDING"  # type: ignore[arg-type]
        await pilot.press("c", "y")
        await until(pilot, lambda: face.world.state(3) == "CANCELLED")  # type: ignore[arg-type]
        await until(pilot, lambda: "third-one" not in shown(app))
        await until(pilot, lambda: "job 3 is CANCELLED" in shown(app))


async def test_the_filter_chooses(face: Face) -> None:
    """By any word of a line; what is typed is no key; Escape shows all again; a number that is not shown is opened."""
    await fill(face)
    async with open_top(face) as (app, pilot):
        await until(pilot, lambda: options(app) == 3)
        jobs = app.screen.query_one(JobList)
        await pilot.press("slash", *"FIRST")
        await until(pilot, lambda: jobs.option_count == 1)
        assert jobs.chosen == 1
        await pilot.press("enter", "escape")
        await until(pilot, lambda: jobs.option_count == 3)
        await pilot.press("slash", *"quit-cn")
        assert app.is_running
        assert app.screen.query_one("#filter", Input).value == "quit-cn"
        await until(pilot, lambda: jobs.option_count == 0)
        await pilot.press("escape", "slash", *"987654", "enter")
        assert isinstance(app.screen, JobScreen)
        await until(pilot, lambda: "987654" in status(app))
        assert "trying again" not in status(app)


def status(app: TopApp) -> str:
    bar = app.screen.query_one("#status", Static)
    return str(bar.render()) if bar.display else ""


async def test_the_choice_stays_on_its_job(face: Face) -> None:
    """A job that leaves the list above the chosen one does not move the choice to another job."""
    await fill(face)
    async with open_top(face) as (app, pilot):
        await until(pilot, lambda: options(app) == 3)
        jobs = app.screen.query_one(JobList)
        await pilot.press("j")
        assert jobs.chosen == 1
        await face.call("POST", "/api/v1/jobs/3/cancel")
        await until(pilot, lambda: jobs.option_count == 2)
        assert jobs.chosen == 1


async def test_a_server_that_goes_and_comes_back(fake: FakeServer) -> None:
    """The screen says since when the server is away, keeps what it knows, and mends itself."""
    fake.add(name="lonely")
    fake.overview = overview_body(fake)
    async with open_top(fake) as (app, pilot):
        await until(pilot, lambda: "lonely" in shown(app))
        assert status(app) == ""
        fake.script = [503] * 10_000
        await until(pilot, lambda: "trying again" in shown(app))
        assert "lonely" in shown(app)
        fake.script = []
        await until(pilot, lambda: status(app) == "")
        fake.overview = overview_body(fake) | {"waiting": 77}
        await until(pilot, lambda: "77 waiting" in shown(app))


def overview_body(fake: FakeServer) -> dict[str, Any]:
    """An overview with the fake's jobs as the queue."""
    return {
        "as_of": "2026-11-05T18:00:00Z", "policy": "walras", "counts": {}, "types": [], "machines": [], "pools": [],
        "history": [], "names": {}, "alerts": [], "queue": list(fake.jobs.values()), "waiting": len(fake.jobs),
    }  # fmt: skip


async def test_a_long_list_says_what_it_leaves_out(fake: FakeServer) -> None:
    """250 jobs are listed and the others counted; the filter finds those too."""
    machine = {"node_id": "n1", "pool": "p", "accelerator": "a", "state": "up", "cells": list(range(1, 301))}
    names = {str(number): f"job-{number}" for number in range(1, 301)}
    fake.overview = overview_body(fake) | {"machines": [machine], "names": names, "waiting": 1000}
    async with open_top(fake) as (app, pilot):
        await until(pilot, lambda: "50 more run: / filters; 1,000 more wait behind these" in shown(app))
        assert options(app) == 250
        await pilot.press("slash", *"job-299")
        await until(pilot, lambda: options(app) == 1)


async def test_the_cells_follow_the_machines(fake: FakeServer) -> None:
    """A machine that leaves, and a job that goes, change the cells of the next look."""
    machine = {"node_id": "n1", "pool": "p", "accelerator": "a", "state": "up", "cells": [1, 1, 2, 0]}
    pool = {"pool": "p", "accelerator": "a", "market": "owned", "capacity": 4, "free": 1, "price": 0.5, "unit": "u"}
    seen = overview_body(fake) | {"pools": [pool | {"market_usd_per_h": 0.0}], "machines": [machine]}
    seen["history"] = [{"at": float(at), "prices": {"p": float(at)}} for at in range(8)]
    fake.overview = seen
    async with open_top(fake) as (app, pilot):
        await until(pilot, lambda: "n1\u00a0■■■□" in shown(app))
        assert "p  3 of 4 held, price 0.5 u ▁▂▃▄▅▆▇█" in shown(app)
        fake.overview = seen | {"machines": [machine | {"state": "leaving", "cells": [1, 1, 0, 0]}]}
        await until(pilot, lambda: "n1\u00a0▨▨▢▢\u00a0leaving" in shown(app))


async def test_numbers_are_whole_at_80_columns(fake: FakeServer) -> None:
    """A long name is cut in its middle; its number, its user and what it needs stand there whole."""
    fake.add(
        id=1234567, name="resnet-imagenet-learning-rate-sweep-with-a-long-name-lr=0.00017", accelerators=1024,
        detail="needs 1,024 x a100 of a100x8/owned/default, 1,016 are free and 8 leave within the hour",
    )  # fmt: skip
    fake.overview = overview_body(fake)
    async with open_top(fake) as (app, pilot):
        await until(pilot, lambda: "1234567" in shown(app))
        words = shown(app).split()
        assert {"1234567", "1,024", "ada/vision,"} <= set(words)
        assert any(word.endswith("lr=0.00017") for word in words)


async def test_what_cannot_be_watched_is_told_before_the_terminal_is_taken(fake: FakeServer) -> None:
    """A wrong token, and a server without an overview."""
    async with Client(fake.url, "wrong", patience=QUICK) as client:
        with pytest.raises(Forbidden):
            await first_look(client)
    async with Client(fake.url, TOKEN, patience=QUICK) as client:
        with pytest.raises(UserError, match="older than `walras top`"):
            await first_look(client)


def test_without_a_terminal_or_the_library(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are errors of the user's with what to do, exit code 2."""
    result = run("top")
    assert (result.exit_code, "needs a terminal" in result.stderr) == (2, True)
    real = builtins.__import__

    def without_textual(name: str, *args: Any, **more: Any) -> Any:
        if name.split(".")[0] == "textual":
            raise ModuleNotFoundError("No module named 'textual'", name="textual")
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without_textual)
    result = run("top")
    assert result.exit_code == 2
    assert "pip install 'walras[top]'" in result.stderr


@pytest.mark.slow
def test_the_command_in_a_terminal(fake: FakeServer, tmp_path: Path) -> None:
    """`walras top` as a process on a terminal of 80 columns: it shows the queue, and `q` ends it with exit code 0."""
    fake.add(name="lonely")
    fake.overview = overview_body(fake)
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = os.environ | {
        "WALRAS_SERVER": fake.url, "WALRAS_TOKEN": TOKEN, "HOME": str(tmp_path),
        "TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    command = [sys.executable, "-c", "from walras.cli.main import main; main()", "top", "--every", "0.5"]
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment, start_new_session=True) as top:
        os.close(its)
        try:
            read_terminal(ours, b"lonely")
            os.write(ours, b"q")
            read_terminal(ours, b"\x1b[?1049l")
            assert top.wait(20) == 0
        finally:
            top.kill()
            os.close(ours)


def read_terminal(terminal: int, wanted: bytes, limit_s: float = 100.0) -> None:
    """Reads what the program writes until `wanted` is in it."""
    end, seen = time.monotonic() + limit_s, b""
    while wanted not in seen:
        assert time.monotonic() < end, seen
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 65_536)


def test_every_reason_has_the_same_words_in_the_terminal_and_on_the_page() -> None:
    script = (Path(page.__file__).parent / "static" / "words.js").read_text()
    told = dict(re.findall(r'"([A-Z]+:[A-Z_]+)": "([^"]+)"', script))
    assert told == {str(reason): reason.words for reason in Reason}
