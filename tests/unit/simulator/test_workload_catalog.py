"""Workloads by name: licences are stated, copies are whole, and what is fetched is what was recorded or nothing."""

import hashlib
import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scheduler.live.auth.tls_material import own_certificate
from simulator.workloads import workload_actions
from simulator.workloads.formats import FORMATS
from simulator.workloads.workload_actions import CatalogWorkload, get_workload
from walras.cli.main import app
from walras.errors import ConfigError, ServerUnreachable
from walras.spec.shipped_files import shipped_files

TRACE = b"at,name,kind,gang,duration_s\n0,a,k,1,60\n"


@dataclass
class Publisher:
    """A server with TLS of one file; `answer` is what it sends, `moved` where it points instead."""

    address: str = ""
    answer: bytes = TRACE
    moved: str = ""
    status: int = 200
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def publisher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Publisher]:
    """Reached under the name `published`, with a certificate that is trusted."""
    found = Publisher()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append(self.path)
            self.send_response(302 if found.moved else found.status)
            if found.moved:
                self.send_header("Location", found.moved)
            self.send_header("Content-Length", str(len(found.answer)))
            self.end_headers()
            self.wfile.write(found.answer)

        def log_message(self, *_: Any) -> None:
            pass

    (tmp_path / "tls").mkdir()
    files = own_certificate(tmp_path / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    found.address = f"https://localhost:{server.server_port}/trace.csv"
    monkeypatch.setenv("SSL_CERT_FILE", str(files.certificate))
    monkeypatch.setenv("no_proxy", "localhost")
    entry = CatalogWorkload(
        "published", "one job", "MIT", "csv", ".csv", "example.org", found.address,
        hashlib.sha256(TRACE).hexdigest(), len(TRACE),
    )  # fmt: skip
    monkeypatch.setattr(workload_actions, "_PUBLISHED", (entry,))
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def test_every_workload_has_a_licence_and_every_published_one_a_hash() -> None:
    """And a commit in its address, so that it cannot change, and a format that is read."""
    for name, each in workload_actions.workload_catalog().items():
        assert each.name == name
        assert each.licence in ("Apache-2.0", "MIT", "CC-BY-4.0")
        assert each.format in FORMATS
        if each.address:
            assert each.address.startswith("https://")
            assert any(len(part) == 40 and set(part) <= set("0123456789abcdef") for part in each.address.split("/"))
            assert len(each.sha256) == 64
            assert 0 < each.size_bytes < 10_000_000


@pytest.mark.parametrize("name", sorted(shipped_files("workloads")))
def test_what_comes_with_walras_is_copied_whole(name: str, tmp_path: Path) -> None:
    _, path = get_workload(name, tmp_path / "new")
    assert path.read_bytes() == shipped_files("workloads")[name].read_bytes()
    assert [each.name for each in (tmp_path / "new").iterdir()] == [path.name]


def test_what_was_recorded_is_fetched(publisher: Publisher, tmp_path: Path) -> None:
    _, path = get_workload("published", tmp_path / "got")
    assert (path.name, path.read_bytes()) == ("published.csv", TRACE)
    with pytest.raises(ConfigError, match="exists already"):
        get_workload("published", tmp_path / "got")
    assert publisher.asked == ["/trace.csv"]
    get_workload("published", tmp_path / "got", force=True)


@pytest.mark.parametrize("answer", [TRACE.replace(b"60", b"61"), TRACE[:-1], TRACE + b"x", b"", b"x" * 1_000_000])
def test_something_else_is_not_kept(publisher: Publisher, tmp_path: Path, answer: bytes) -> None:
    """Changed by one letter, cut off, longer, empty, or without an end; a file that was there stays."""
    kept = tmp_path / "got" / "published.csv"
    kept.parent.mkdir()
    kept.write_bytes(b"mine")
    publisher.answer = answer
    with pytest.raises(ConfigError, match="something else than the recorded file"):
        get_workload("published", kept.parent, force=True)
    assert [each.name for each in kept.parent.iterdir()] == ["published.csv"]
    assert kept.read_bytes() == b"mine"


def _gone(publisher: Publisher) -> None:
    publisher.status = 404


def _to_http(publisher: Publisher) -> None:
    publisher.moved = "http://localhost:1/trace.csv"


def _to_file(publisher: Publisher) -> None:
    publisher.moved = "file:///etc/hostname"


@pytest.mark.parametrize("breaks", [_gone, _to_http, _to_file])
def test_what_cannot_be_fetched_is_said(
    publisher: Publisher, tmp_path: Path, breaks: Callable[[Publisher], None]
) -> None:
    """Not there any more, or it points away from https: nothing is kept, nothing else is opened."""
    breaks(publisher)
    with pytest.raises(ServerUnreachable, match="cannot be fetched from"):
        get_workload("published", tmp_path / "got")
    assert list((tmp_path / "got").iterdir()) == []


def test_a_certificate_that_nobody_vouches_for_is_refused(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(ServerUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
        get_workload("published", tmp_path / "got")
    assert publisher.asked == []


def test_without_a_network_the_command_says_so_in_words(publisher: Publisher, tmp_path: Path) -> None:
    entry = workload_actions.workload_catalog()["published"]
    workload_actions._PUBLISHED = (replace(entry, address="https://localhost:1/trace.csv"),)
    result = CliRunner().invoke(app, ["simulate", "workload", "get", "published", "--to", str(tmp_path / "got")])
    assert isinstance(result.exception, ServerUnreachable | SystemExit)
    assert "without a network" in result.output or "without a network" in str(result.exception)


def test_the_list_and_a_wrong_name(tmp_path: Path) -> None:
    """Licences and sources stand in the list; the nearest name is told."""
    listed = CliRunner().invoke(app, ["simulate", "workload", "list", "-o", "json"])
    rows = {row["name"]: row for row in json.loads(listed.stdout)}
    assert rows["pollux-6"]["licence"] == "Apache-2.0"
    assert rows["diurnal"]["what"] in ("generator", "workload, here")
    with pytest.raises(ConfigError) as refused:
        get_workload("polux-6", tmp_path)
    assert refused.value.fix == "did you mean 'pollux-6'?"
