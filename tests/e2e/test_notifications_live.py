"""Notifications of a real server: what was acknowledged is told after kill -9 too, and no address is in a log."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.real_server import FIFO, A, Serve, wait_for
from walras.resources.notifications import is_signed

pytestmark = pytest.mark.slow


class _Receiver(ThreadingHTTPServer):
    """Takes what is sent, and may be slow about it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[dict[str, str], bytes]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, _Receiver)
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[_Receiver]:
    receiver = _Receiver()
    yield receiver
    receiver.shutdown()
    receiver.server_close()


def test_what_was_acknowledged_is_told_whenever_the_server_is_killed(serve: Serve, receiver: _Receiver) -> None:
    """Six times: cancelled by another, 200, kill -9, start again. Each is told, under one id of its own, signed."""
    server = serve([A], FIFO, notify={"private_networks": ["127.0.0.0/8"]})
    url = f"http://127.0.0.1:{receiver.server_port}/T0SECRET"
    added = server.command("notify", "add", "-", "--on", "failed", input=url + "\n")
    assert added.returncode == 0, added.stderr
    key = added.stdout.strip()
    assert "http://127.0.0.1/…" in added.stderr
    tested = server.told("notify", "test", "1")
    assert tested == "channel 1 (http://127.0.0.1/…) took it\n"
    server.call("POST", "/users", {"name": "ops", "settings": {"role": "admin", "projects": ["*"]}})
    token = server.call("POST", "/tokens", {"user": "ops", "role": "admin", "projects": ["*"]})[1]["token"]
    own = (server.data / "admin.token").read_text()
    for number in range(1, 7):
        job_id = server.submit(run="true", name=f"j{number}")
        (server.data / "admin.token").write_text(token)
        assert server.call("POST", f"/jobs/{job_id}/cancel")[0] == 200
        (server.data / "admin.token").write_text(own)
        server.kill()
        server.start()
    wait_for(lambda: len(_told(receiver)) == 6, 60, f"all are told: {_told(receiver)}")
    wait_for(lambda: server.call("GET", "/notify")[1][0]["waiting"] == 0, 30, "nothing waits")
    ids = {name: {body["id"] for body in _bodies(receiver) if _name(body) == name} for name in _told(receiver)}
    assert all(len(found) == 1 for found in ids.values()), "a double has the id of the first"
    assert len(set.union(*ids.values())) == 6
    assert all(is_signed(key, headers, body, int(headers["webhook-timestamp"])) for headers, body in receiver.requests)
    shown = server.told("notify", "list")
    assert "http://127.0.0.1/…" in shown
    texts = (server.folder / "server.log").read_text() + shown + added.stderr + tested
    assert "T0SECRET" not in texts
    server.told("notify", "remove", "1")
    assert server.command("notify", "test", "1").returncode == 2


def _bodies(receiver: _Receiver) -> list[dict[str, object]]:
    return [json.loads(body) for _, body in receiver.requests if json.loads(body)["kind"] != "test"]


def _name(body: dict[str, object]) -> str:
    job = body["job"]
    assert isinstance(job, dict)
    return str(job["name"])


def _told(receiver: _Receiver) -> Counter[str]:
    return Counter(_name(body) for body in _bodies(receiver))
