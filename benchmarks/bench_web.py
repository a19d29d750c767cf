"""What the web page costs with 10,000 active jobs: bytes and time of the first view, the server's time for 200 pages.

The server runs in a process of its own, with machines and jobs that only it knows. The pages are streams of the
overview, which this process reads, and one real browser (Debian's Chromium) for the time of the first view.
"""

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import psutil

from benchmarks.tables import Measured
from tests.support.browser import browser
from tests.support.http_face import facing
from tests.support.live_world import FakeAgent

JOBS, MACHINES, PAGES, SECONDS = 10_000, 250, 200, 30.0
#: What the first file of the page asks for: styles, scripts, and every module ahead of its use.
_NAMED = re.compile(r'(?:src|href)="(/web/[^"]+)"')
_DRAWN = (
    "const done = arguments[0]; const look = () => document.querySelector('.tile b')"
    " ? done(performance.now() / 1000) : requestAnimationFrame(look); look()"
)
_SIGN_IN = (
    "return fetch('/web/session', {method: 'POST', headers: {'X-Walras-Page': '1'}, body: arguments[0]})"
    ".then(answer => answer.status)"
)


async def serve(jobs: int, machines: int) -> None:
    """A server with that many machines of 8 and active jobs, until standard input ends."""
    with tempfile.TemporaryDirectory() as folder:
        async with facing(Path(folder) / "data", real_time=True) as face:
            agents = []
            for number in range(machines):
                agent = FakeAgent(face.world, f"node-{number:04}", shape="ax8", accelerators=8)
                agents.append(await agent.register())
            for first in range(0, jobs, 500):
                specs = [
                    {"name": f"job-{number}", "run": "true", "resources": {"accelerators": "a:1", "cpus": 0.1}}
                    for number in range(first, min(jobs, first + 500))
                ]
                status, _ = await face.json("POST", "/api/v1/jobs:batch", {"jobs": specs})
                assert status == 200
            for agent in agents:
                await agent.start_all()
            url = str(face.client.make_url("")).rstrip("/")
            print(json.dumps({"url": url, "token": face.admin}), flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def _first_view(url: str, token: str) -> tuple[int, int]:
    """Bytes over the wire: of the files of the page, and of the first event."""
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        shell = 0
        async with session.get(url + "/", headers={"Accept-Encoding": "identity"}) as response:
            named = _NAMED.findall(await response.text())
        for path in ("/", *dict.fromkeys(named)):
            async with session.get(url + path, headers={"Accept-Encoding": "gzip"}) as response:
                assert response.status == 200, path
                shell += len(await response.read())
        headers = {"Authorization": f"Bearer {token}"}
        async with session.get(f"{url}/api/v1/overview/events", headers=headers) as stream:
            event = await stream.content.readuntil(b"\n\n")
    return shell, len(event)


async def _read_pages(url: str, token: str, pages: int, process: psutil.Process) -> tuple[float, int]:
    """Part of one core that the server takes once the pages are open, and pages that heard from it."""
    heard: set[int] = set()

    async def page(number: int, session: aiohttp.ClientSession) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        async with session.get(f"{url}/api/v1/overview/events", headers=headers) as stream:
            await stream.content.readuntil(b"\n\n")
            opened.append(number)
            if len(opened) == pages:
                all_open.set()
            async for _ in stream.content.iter_any():
                heard.add(number)

    opened: list[int] = []
    all_open = asyncio.Event()
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        tasks = [asyncio.create_task(page(number, session)) for number in range(pages)]
        if pages:
            await all_open.wait()
        heard.clear()
        before, began = process.cpu_times(), time.monotonic()
        await asyncio.sleep(SECONDS)
        after, passed_s = process.cpu_times(), time.monotonic() - began
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return (after.user + after.system - before.user - before.system) / passed_s, len(heard)


def _browser_seconds(url: str, token: str) -> list[float]:
    """From the address to the drawn fleet, seven times, in a browser that is signed in."""
    found = []
    with browser() as page:
        page.get(url + "/")
        page.execute_script(_SIGN_IN, json.dumps({"token": token}))
        for _ in range(7):
            page.get(url + "/")
            found.append(float(page.execute_async_script(_DRAWN)))
    return sorted(found)


def measure(scale: float = 1.0) -> list[Measured]:
    """`scale` shrinks the number of jobs, machines and pages."""
    jobs, machines, pages = (max(1, round(scale * count)) for count in (JOBS, MACHINES, PAGES))
    code = f"import asyncio; from benchmarks.bench_web import serve; asyncio.run(serve({jobs}, {machines}))"
    command = [sys.executable, "-c", code]
    measured = Measured("the web page", f"{jobs:,} active jobs on {machines} machines of 8, {pages} pages")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        told = json.loads(server.stdout.readline())
        url, token, process = told["url"], told["token"], psutil.Process(server.pid)
        shell, event = asyncio.run(_first_view(url, token))
        measured.add("first view: files, compressed", shell / 1e3, "kB")
        measured.add("   with the overview", (shell + event) / 1e3, "kB", at_most=300.0)
        times = _browser_seconds(url, token)
        measured.add("   drawn after, median of 7", times[len(times) // 2], "s", at_most=1.0)
        measured.add("   at worst", times[-1], "s")
        idle, _ = asyncio.run(_read_pages(url, token, 0, process))
        one, _ = asyncio.run(_read_pages(url, token, 1, process))
        many, heard = asyncio.run(_read_pages(url, token, pages, process))
        measured.add("server without pages", 100 * idle, "% of a core")
        measured.add("   with one", 100 * one, "% of a core")
        measured.add("   with all", 100 * many, "% of a core", at_most=10.0)
        measured.add("   of which heard news", heard, "pages", at_least=pages)
        server.communicate("")
    return [measured]
