"""Takes pictures of the web page: `python -m docs.pictures.draw_page FOLDER` writes fleet.png and job.png.

The page is the real one, of a server with machines that only answer; what the jobs report is made up.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.browser import browser
from tests.support.http_face import Face, facing
from tests.support.live_world import FakeAgent
from tests.support.web_scene import machines, pools, settle, tell_progress, until_solved, write_log
from walras.spec.file_model import load_mapping

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("llama-sft", "vit-large", "digits", "whisper", "diffusion", "rnn-table")
PEOPLE = (("ada", "vision"), ("bob", "language"), ("eve", "speech"))
WANTED = ("h100:4", "a100:2", "any:1", "v100:4", "any:2", "a100:4")
JOBS, WIDTH, HEIGHT = 45, 1360, 860


async def busy(face: Face) -> list[FakeAgent]:
    """Machines of three types, jobs on all of them and behind them, progress, and a log of the first job."""
    agents = await machines(face)
    for number in range(JOBS):
        user, project = PEOPLE[number % 3]
        name = NAMES[number % len(NAMES)]
        spec = {"name": name, "project": project, "profile": name, "steps": 20_000}
        await face.world.submit({**spec, "resources": {"accelerators": WANTED[number % 6]}}, user=user)
    await until_solved(face, agents)
    for steps in range(3000, 6600, 200):  # the speeds become known, and prices follow from them
        await settle(agents)
        await tell_progress(agents, float(steps))
        await asyncio.sleep(1.0)
    for agent in agents:
        if (1, 1) in agent.here:
            log = "".join(f"step {step} loss {2.1 / (1 + step / 900):.3f}\n" for step in range(0, 6600, 100))
            await write_log(face, agent, 1, log.encode())
    return agents


def until(page: Any, words: str) -> None:
    """Wait until the page shows these words. Raises TimeoutError after a minute."""
    until_s = time.monotonic() + 60
    while words not in str(page.execute_script("return document.body.innerText")):
        if time.monotonic() > until_s:
            raise TimeoutError(f"the page does not show {words!r}")
        time.sleep(0.1)


def draw(url: str, token: str, folder: Path) -> None:
    """Sign in, and take both pictures."""
    with browser() as page:
        page.set_window_size(WIDTH, HEIGHT)
        page.get(url)
        until(page, "Token")
        page.find_element("id", "token").send_keys(token)
        page.find_element("css selector", "button.first").click()
        for name, place, words in (("fleet", "", "of 24 h100 free"), ("job", "jobs/1", "loss")):
            page.execute_script("location.hash = arguments[0]", f"#/{place}")
            until(page, words)
            time.sleep(2)  # the lines of the prices, and the log
            page.save_screenshot(str(folder / f"{name}.png"))


async def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as data:
        policy = load_mapping(ROOT / "configs/policies/walras.yaml")
        async with facing(Path(data) / "data", cluster=pools(), policy=policy, real_time=True) as face:
            await busy(face)
            await asyncio.to_thread(draw, str(face.client.make_url("/")), face.admin, folder)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
