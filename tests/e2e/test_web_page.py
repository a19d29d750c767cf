"""The web page in a real browser: every page, a job from the form to its log, hostile names, dark, phone, axe."""

import asyncio
import gzip
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import browser
from tests.support.http_face import Face, facing
from tests.support.live_world import FakeAgent
from tests.support.real_server import FIFO, A, RealServer, Serve
from tests.support.sign_on_provider import provider_and_face
from tests.support.waiting import PATIENCE
from tests.support.web_scene import HOSTILE, device_samples, pools, scene, until_solved, write_log
from walras.spec.file_model import load_mapping

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
AXE = ROOT / "tests" / "support" / "axe.min.js.gz"
#: Where screenshots are kept for people to look at; empty: nowhere.
KEPT = os.environ.get("WALRAS_SCREENSHOTS", "")
#: Keys that select what a field holds (Control and A, released): unlike `clear`, they cannot fall between two drawings.
ALL_OF_IT = "\ue009a\ue000"
PAGES = {
    "": "of 24 h100 free", "jobs": "8 pending", "jobs/1": "Log", "jobs/7": HOSTILE, "submit": "Submit a job",
    "machines": "Machines", "machines/h100-01": "What ran here", "money": "Filled again",
    "policy": "Versions", "audit": "Audit",
    "shares": "held on average", "whatif": "Futures of the cluster",
    "report": "above that bound", "people": "Make a token",
}  # fmt: skip


def wait(page: Any, look: Callable[[], Any], what: str, within_s: float = 60.0) -> Any:
    until = time.monotonic() + PATIENCE * within_s
    while not (seen := look()):
        assert time.monotonic() < until, f"{what}; the page says: {text_of(page)[:2000]}"
        time.sleep(0.05)
    return seen


def text_of(page: Any) -> str:
    return str(page.execute_script("return document.body.innerText"))


def until_text(page: Any, words: str) -> None:
    """In any case: headings are shown in capitals."""
    wait(page, lambda: words.lower() in text_of(page).lower(), f"{words!r} is shown")


def until_compared(page: Any, look: Callable[[], Any], what: str) -> None:
    """Until the futures are compared; asks again where the server took too long, as the page says to."""

    def looked() -> Any:
        if "try again in a minute" in text_of(page):
            assert all("whatif" in each for each in complaints(page)), "nothing but the refusal"
            page.find_element("xpath", "//button[text()='Compare']").click()
            time.sleep(1.0)
        return look()

    wait(page, looked, what, 180.0)


def sign_in(page: Any, url: str, token: str) -> None:
    page.get(url + "/")
    wait(page, lambda: page.find_elements("id", "token"), "the form")
    page.find_element("id", "token").send_keys(token)
    page.find_element("css selector", "button.first").click()
    until_text(page, "waiting")


@pytest.fixture
def server(serve: Serve) -> RealServer:
    server = serve([{**A, "machines": 1}], FIFO)
    server.start_agent()
    return server


@contextmanager
def administrators_page(server: RealServer) -> Iterator[Any]:
    """A page that an administrator has signed in at. In the end its console has said nothing."""
    with browser() as page:
        sign_in(page, server.url, (server.data / "admin.token").read_text().strip())
        yield page
        assert complaints(page) == []


def complaints(page: Any) -> list[str]:
    """What the console says beyond recommendations."""
    return [each["message"] for each in page.get_log("browser") if each["level"] not in ("DEBUG", "INFO")]


def findings(page: Any) -> list[str]:
    """What axe finds."""
    page.execute_script(gzip.decompress(AXE.read_bytes()).decode())
    found = page.execute_async_script(
        "axe.run(document).then(arguments[0], error => arguments[0]({error: '' + error}))"
    )
    assert "violations" in found, found
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:200]} {each['nodes'][0]['failureSummary'][:200]}"
        for each in found["violations"]
    ]


def fits(page: Any, what: str = "document.documentElement") -> bool:
    """Whether nothing of it lies beside what is seen."""
    shown, room = page.execute_script(f"const seen = {what}; return [seen.scrollWidth, seen.clientWidth]")
    return bool(shown <= room)


def keep(page: Any, name: str) -> None:
    if KEPT:
        Path(KEPT).mkdir(parents=True, exist_ok=True)
        page.save_screenshot(str(Path(KEPT) / f"{name}.png"))


def go(page: Any, path: str, words: str) -> None:
    page.execute_script("location.hash = arguments[0]", f"#/{path}")
    until_text(page, words)
    time.sleep(0.4)  # what is loaded later has its place too


async def _lively(face: Face) -> tuple[str, list[FakeAgent]]:
    """A scene with a log; returns its URL and its machines."""
    agents = await scene(face, 50)
    sweep = {"name": "sweep", "run": "true", "array": "1-8", "resources": {"accelerators": "v100:4"}}
    assert (await face.call("POST", "/api/v1/jobs", sweep | {"priority": 0})).status == 201
    await until_solved(face, agents)
    for agent in agents:
        if (1, 1) in agent.here:
            await write_log(face, agent, 1, f"step 1 {HOSTILE}\n\x1b[31mred\x1b[0m words\n".encode())
    assert (await face.call("POST", "/api/v1/nodes/v100-02/drain", {})).status == 200
    return str(face.client.make_url("")).rstrip("/"), agents


async def _tell_of_devices(agent: FakeAgent) -> None:
    """What its devices do, again and again: the page shows what is half a minute old at most."""
    while True:
        await agent.beat(devices=device_samples(agent))
        await asyncio.sleep(3.0)


async def _waiting_job(face: Face) -> int:
    """The number of a job that waits."""
    _, found = await face.json("GET", "/api/v1/jobs?state=PENDING&sweeps=folded&limit=1")
    return int(found["items"][0]["id"])


def _every_page(url: str, token: str, waiting: int) -> None:
    pages = {**PAGES, f"jobs/{waiting}": "Why it does not run"}
    found: dict[str, list[str]] = {}
    with browser() as page:
        page.set_window_size(390, 900)
        page.get(url + "/")
        wait(page, lambda: page.find_elements("id", "token"), "the form")
        assert fits(page), "the sign-in is wider than a phone"
        assert findings(page) == []
        sign_in(page, url, token)
        go(page, "machines/h100-01", "30 of 80 GiB")
        for theme, width in (("light", 1360), ("dark", 1360), ("light", 390)):
            page.set_window_size(width, 900)
            page.execute_script("localStorage.setItem('theme', arguments[0])", theme)
            page.refresh()
            for path, words in pages.items():
                go(page, path, words)
                name = f"{path.replace('/', '-') or 'fleet'}-{theme}-{width}"
                keep(page, name)
                assert "owned" not in page.title, name
                assert fits(page), f"{name} is wider than its window"
                found[name] = findings(page)
                if not path:
                    drawn = len(page.find_elements("css selector", ".machines .cell"))
                    told = re.findall(r"of ([0-9]+) \w+ free|([0-9]+) take no jobs", text_of(page))
                    assert sum(int(free or aside) for free, aside in told) == drawn, "what is counted is what is drawn"
                    assert len(page.find_elements("css selector", ".queue li")) > 10, "each job beside the sweep"
                    until_text(page, "7 more of its sweep")
                if (path, width) == ("jobs", 390):
                    assert fits(page, "document.querySelector('.cards')"), "jobs are read on a phone without scrolling"
        assert {name: those for name, those in found.items() if those} == {}
        fetched = page.execute_script("return performance.getEntriesByType('resource').map(each => each.name)")
        assert [each for each in fetched if not each.startswith(url)] == []
        assert complaints(page) == []


async def test_every_page_in_light_dark_and_on_a_phone(tmp_path: Path) -> None:
    """No console errors, no serious finding of axe, nothing wider than the window, nothing fetched from elsewhere,
    hostile names and logs shown as text."""
    policy = load_mapping(ROOT / "configs" / "policies" / "walras.yaml")
    policy["rules"] = {**policy.get("rules", {}), "budgets": [{"project": "vision", "month_usd": 5000.0}]}
    async with facing(tmp_path / "data", cluster=pools(), policy=policy, real_time=True) as face:
        url, agents = await _lively(face)
        telling = asyncio.create_task(_tell_of_devices(agents[0]))
        try:
            await asyncio.to_thread(_every_page, url, face.admin, await _waiting_job(face))
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)


async def test_a_page_is_opened_while_the_frame_is_drawn_for_the_first_time(tmp_path: Path) -> None:
    """Between the first drawing and the first listening nobody hears that the address has changed."""
    opened_meanwhile = """const listen = window.addEventListener;
        window.addEventListener = function (kind, ...rest) {
          if (kind === "hashchange") history.replaceState(null, "", "#/policy");
          return listen.call(window, kind, ...rest);
        };"""

    def look(url: str, token: str) -> None:
        with browser() as page:
            sign_in(page, url, token)
            page.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": opened_meanwhile})
            page.refresh()
            until_text(page, "Versions")

    async with facing(tmp_path / "data", cluster=pools(), real_time=True) as face:
        await asyncio.to_thread(look, str(face.client.make_url("")).rstrip("/"), face.admin)


def test_a_job_from_the_form_to_its_log(server: RealServer, tmp_path: Path) -> None:
    """A script is chosen, tried, sent with its job, followed to its end, searched; one from a file is cancelled."""
    with administrators_page(server) as page:
        go(page, "submit", "Submit a job")
        wait(page, lambda: page.find_elements("id", "field-run"), "the fields")
        script = tmp_path / "it's mine.sh"
        script.write_text("for i in 1 2 3; do echo line $i; done; echo '<b>the end</b>'\n")
        page.find_element("id", "script").send_keys(str(script))
        wait(page, lambda: page.find_element("id", "field-run").get_property("value"), "the command of the script")
        assert page.find_element("id", "field-name").get_property("value") == "it's mine"
        page.find_element("id", "field-resources.accelerators").send_keys("a:1")
        page.find_element("xpath", "//button[text()='Dry run']").click()
        until_text(page, "It would start at once on 1 a")
        page.find_element("css selector", "button.first").click()
        until_text(page, "<b>the end</b>")
        until_text(page, "succeeded")
        page.find_element("css selector", "[aria-labelledby=log] input[type=search]").send_keys("line 2")
        wait(
            page, lambda: page.find_element("css selector", ".log").text.strip() == "line 2", "the line that was found"
        )
        go(page, "submit", "Submit a job")
        page.find_element("xpath", "//button[text()='File']").click()
        job_file = tmp_path / "job.yaml"
        job_file.write_text(
            f"name: from-a-file\nrun: sleep 600\nworkdir: {server.folder}\nresources: {{accelerators: 'a:1'}}\n"
        )
        page.find_element("id", "job-file").send_keys(str(job_file))
        wait(page, lambda: "from-a-file" in page.find_element("id", "file").get_property("value"), "the file's text")
        page.find_element("css selector", "button.first").click()
        until_text(page, "from-a-file")
        until_text(page, "running")
        page.find_element("xpath", "//button[text()='Cancel']").click()
        page.find_element("css selector", "dialog[open] button.danger").click()
        until_text(page, "cancelled")
        # The page says so, by whom, before the processes are gone.
        wait(page, lambda: server.state(2) == "CANCELLED", "the end of the cancelled job")
    assert server.state(1) == "SUCCEEDED"


_KEEP_WHAT_IS_SAVED = """
const make = URL.createObjectURL;
URL.createObjectURL = (blob) => { blob.text().then((text) => { window.saved = text; }); return make.call(URL, blob); };
"""


def test_a_file_that_a_job_left_is_listed_and_saved(server: RealServer) -> None:
    """Its path, its size, and its bytes as the job wrote them."""
    leaves = "mkdir -p out && printf 'loss 0.25' > 'out/<b>result.txt'"
    job = server.submit(name="leaves-a-file", run=leaves, outputs=["out/"], resources={"accelerators": "a:1"})
    with administrators_page(server) as page:
        go(page, f"jobs/{job}", "out/<b>result.txt")
        until_text(page, "9 B")
        page.execute_script(_KEEP_WHAT_IS_SAVED)
        page.find_element("xpath", "//*[@aria-labelledby='files']//button[text()='Save']").click()
        wait(page, lambda: page.execute_script("return window.saved") == "loss 0.25", "the bytes of the file")


def test_policies_are_checked_applied_and_rolled_back_and_a_way_is_taken(server: RealServer) -> None:
    """What administrators and submitters do with the policy and with futures, from the page alone."""
    server.submit(name="long", run="sleep 600", resources={"accelerators": "a:1"}, steps=600, throughput={"a": 1.0})
    with administrators_page(server) as page:
        go(page, "policy", "Versions")
        box = page.find_element("id", "policy-file")
        box.send_keys(ALL_OF_IT, '{"policy": {"name": "srtf"}, "rules": {"round_s": 7}}')
        page.find_element("xpath", "//button[text()='Check']").click()
        until_text(page, "a policy that this server can run")
        until_text(page, "round_s")
        page.find_element("id", "policy-reason").send_keys("<b>shorter</b> waits")
        page.find_element("xpath", "//button[text()='Apply']").click()
        page.find_element("css selector", "dialog[open] button.danger").click()
        until_text(page, "version 2, since")
        until_text(page, "<b>shorter</b> waits")
        assert server.call("GET", "/policy")[1]["name"] == "srtf"
        page.find_element("xpath", "//button[text()='Compare']").click()
        until_text(page, "Version 1")
        page.find_element("xpath", "//button[text()='Roll back']").click()
        page.find_element("css selector", "dialog[open] button.danger").click()
        until_text(page, "back to version 1")
        assert server.call("GET", "/policy")[1]["name"] == "fifo"
        go(page, "whatif", "Futures of the cluster")
        page.find_element("id", "remove").send_keys("a")
        page.find_element("xpath", "//button[text()='Compare']").click()
        until_compared(page, lambda: "what would be different" in text_of(page).lower(), "the difference")
        entered = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))"
        page.execute_script(entered, page.find_element("id", "remove"), "")
        page.execute_script(entered, page.find_element("id", "more-a"), "3")
        until_text(page, "a, more: 3")
        page.find_element("xpath", "//button[text()='Compare']").click()
        until_compared(page, lambda: page.find_elements("css selector", ".spread"), "the bars of the differences")
        until_text(page, "If 3 x ax1 more")
        keep(page, "whatif-difference")
        go(page, "submit", "Submit a job")
        wait(page, lambda: page.find_elements("id", "field-run"), "the fields")
        for name, value in (("name", "quoted"), ("run", "true"), ("steps", "60"), ("resources.accelerators", "a:1")):
            page.find_element("id", f"field-{name}").send_keys(value)
        page.find_element("xpath", "//button[text()='Quote']").click()
        until_text(page, "Ways to run it")
        until_text(page, "Promised")
        way = {"way": "1 x a", "forecast": {"start": [1, 2, 3], "end": [4, 5, 6]}, "promised_by": 9, "usd": [0, 1, 2]}
        take = "import('/web/futures.js').then(m => arguments[1](m.taken({}, {as_of: 1}, arguments[0]).quoted.end_by))"
        assert page.execute_async_script(take, way) == 9, "what is promised, not the late end of the interval"

        def promised() -> Any:
            """A way with a promise. Few futures, on a busy machine, may promise nothing: then it is asked again."""
            if "nothing: in one future" in text_of(page):
                page.find_element("xpath", "//button[text()='Quote']").click()
            return page.find_elements("xpath", "//button[text()='Take']")

        wait(page, promised, "a way")[0].click()
        until_text(page, "quoted")
        wait(page, lambda: "/jobs/2" in page.current_url, "the job's page")
    spec = server.call("GET", "/jobs/2")[1]["spec"]
    assert spec["quoted"]["way"] == "1 x a"
    assert spec["deadline"]


def test_people_are_added_changed_and_given_tokens(serve: Serve) -> None:
    """A user by form, another role, a project with a limit, a token shown once that opens what it should, revoked."""
    server = serve([{**A, "machines": 1}], FIFO)
    with browser() as page:
        sign_in(page, server.url, (server.data / "admin.token").read_text().strip())
        go(page, "people", "Make a token")

        def fill(title: str, **fields: str) -> None:
            form = page.find_element("xpath", f"//button[text()='{title}']/ancestor::form")
            for name, value in fields.items():
                field = form.find_element("name", name)
                field.send_keys("" if field.tag_name == "select" else ALL_OF_IT, value)
            form.find_element("xpath", f".//button[text()='{title}']").click()

        fill("Add a project", name="vision")
        wait(page, lambda: page.find_elements("xpath", "//td[.='vision']"), "the project")
        page.find_element("xpath", "//tr[td[.='vision']]//button[text()='Change']").click()
        fill("Change vision", weight="3", fleet="2")
        until_text(page, "2 of fleet")
        fill("Add a user", name="ada", role="viewer", projects="vision")
        wait(page, lambda: page.find_elements("xpath", "//td[.='ada']"), "the user")
        page.find_element("xpath", "//tr[td[.='ada']]//button[text()='Change']").click()
        fill("Change ada", role="user")
        wait(page, lambda: page.find_elements("xpath", "//tr[td[1][.='ada'] and td[2][.='user']]"), "the role")
        fill("Make a token", user="ada", role="admin", projects="vision")
        until_text(page, "cannot be admin")
        fill("Make a token", user="ada", role="user", projects="vision", days="7")
        token = wait(page, lambda: page.find_elements("id", "made-token"), "the token")[0].text
        assert token.startswith("wlr_u_")
        of_token = f"//tr[td[.='{token[:10]}…'] or td[2][.='ada']]//button[text()='Revoke']"
        wait(page, lambda: page.find_elements("xpath", of_token), "the row of the token")[0].click()
        page.find_element("css selector", "dialog[open] button.danger").click()
        until_text(page, "opens nothing")
        go(page, "report", "above that bound")
        assert [each for each in complaints(page) if "409" not in each] == [], "nothing but the refusal"
    projects = {each["name"]: each["share"] for each in server.call("GET", "/projects")[1]}
    assert (projects["vision"]["weight"], projects["vision"]["limits"]) == (3.0, {"fleet": 2})
    users = {each["name"]: each for each in server.call("GET", "/users")[1]}
    assert (users["ada"]["role"], users["ada"]["projects"], users["ada"]["tokens"]) == ("user", ["vision"], 0)


def _there_and_back(url: str) -> None:
    with browser() as page:
        page.get(url + "/?code=good&state=of-nobody")
        until_text(page, "this answers another sign-in")
        wait(page, lambda: page.find_elements("xpath", "//button[.='Sign in with single sign-on']"), "the button")[
            0
        ].click()
        until_text(page, "ada@example.org")
        assert "code=" not in page.current_url
        assert page.execute_script("return sessionStorage.length") == 0
        assert complaints(page) == []


async def test_who_signs_in_at_the_provider_comes_back_signed_in(tmp_path: Path) -> None:
    """The browser goes there with a challenge and comes back with a code; what nobody asked for is refused."""
    async with provider_and_face(tmp_path) as (_, face):
        await asyncio.to_thread(_there_and_back, str(face.client.make_url("")).rstrip("/"))


def test_a_wrong_token_and_a_revoked_one(serve: Serve) -> None:
    """A wrong token is refused in words; who is signed in with a token that is revoked sees the form again."""
    server = serve([{**A, "machines": 1}], FIFO)
    status, made = server.call("POST", "/tokens", {"user": "ada", "role": "viewer", "projects": ["*"]})
    assert status == 201
    with browser() as page:
        page.get(server.url + "/")
        wait(page, lambda: page.find_elements("id", "token"), "the form")
        page.find_element("id", "token").send_keys("wlr_u_wrong")
        page.find_element("css selector", "button.first").click()
        until_text(page, "no valid token")
        page.find_element("id", "token").send_keys(ALL_OF_IT)
        sign_in(page, server.url, made["token"])
        assert "Submit" not in text_of(page)
        assert "Audit" not in text_of(page)
        assert page.get_cookies()[0]["httpOnly"]
        assert page.execute_script("return document.cookie") == ""
        assert server.call("DELETE", f"/tokens/{made['prefix']}")[0] == 200
        go(page, "jobs", "Token")
        assert json.dumps(page.execute_script("return {...localStorage}")).find("wlr_") < 0
