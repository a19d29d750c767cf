"""`walras note` and `walras report publish`, `list`, `fetch`, `remove`: what a person writes and reads."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from walras.api import JobDetail
from walras.cli import job_commands, note_commands, publish_commands
from walras.cli.main import app
from walras.errors import NotFound
from walras.job_notes import NoteView
from walras.published_reports import REPORT_BYTES, PublishedReport

AT = "2026-11-05T18:00:00Z"


class Fake:
    """Stands for the client: keeps what it was asked."""

    def __init__(self) -> None:
        self.kept = [NoteView(id=4, job_id=12, user="ada", at=AT, text="loss \x1b]0;owned\x07diverges\nat step 9")]
        self.asked: list[tuple[Any, ...]] = []
        self.has_notes = True

    async def job(self, job_id: int) -> JobDetail:
        fields = {"id": job_id, "name": "j", "project": "p", "user": "ada", "kind": "k", "state": "FAILED"}
        more = {"priority": 50, "accelerators": 1, "submitted_at": AT, "spec": {}}
        return JobDetail.model_validate(fields | more)

    async def notes(self, job_id: int) -> list[NoteView]:
        if not self.has_notes:
            raise NotFound("GET /jobs/12/notes")
        return self.kept

    async def add_note(self, job_id: int, text: str) -> NoteView:
        self.asked.append(("add", job_id, text))
        return NoteView(id=5, job_id=job_id, user="ada", at=AT, text=text)

    async def remove_note(self, job_id: int, note_id: int) -> NoteView:
        self.asked.append(("remove", job_id, note_id))
        return self.kept[0]

    async def publish_report(self, page: bytes, title: str, *, project: str | None = None) -> PublishedReport:
        self.asked.append(("publish", page, title, project))
        return self.report(title, project or "vision")

    def report(self, title: str, project: str) -> PublishedReport:
        fields = {"id": 7, "title": title, "project": project, "user": "ada", "published_at": AT, "sha256": "00"}
        return PublishedReport.model_validate(fields | {"size_bytes": 14_900})

    async def published_reports(self) -> list[PublishedReport]:
        return [self.report("a \x1b[31mtitle", "vision"), self.report("for all", "*")]

    async def report_page(self, report_id: int) -> bytes:
        return b"<p>page"

    async def remove_report(self, report_id: int) -> PublishedReport:
        return self.report("old", "vision")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fake:
    fake = Fake()
    for module in (job_commands, note_commands, publish_commands):
        monkeypatch.setattr(module, "with_client", lambda work: asyncio.run(work(fake)))
    monkeypatch.setenv("WALRAS_SERVER", "http://walras.lab:8080")
    monkeypatch.chdir(tmp_path)
    return fake


def run(*words: object, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "160"})
    assert done.exit_code == code, done.output
    return done


def test_a_note_is_its_words_and_notes_are_listed_safely(client: Fake) -> None:
    """One line of number, writer and time, then the text, without what a terminal would obey; `show` has them too."""
    assert run("note", 12, "the", "data were  wrong").stdout == "note 5 on job 12\n"
    assert client.asked == [("add", 12, "the data were  wrong")]
    head, *text = run("note", 12).stdout.splitlines()
    assert head.startswith("note 4, ada, ")
    assert text == ["  loss diverges", "  at step 9"]
    assert run("show", 12).stdout.splitlines()[-3:] == [head, *text]
    assert json.loads(run("show", 12, "-o", "json").stdout)["notes"][0]["id"] == 4
    assert json.loads(run("note", 12, "-o", "json").stdout)[0]["text"].startswith("loss \x1b")
    assert run("note", 12, "--remove", 4).stdout == "note 4 on job 12 is removed\n"
    assert "not both" in run("note", 12, "word", "--remove", 4, code=2).output


def test_a_job_without_notes_and_a_server_without_them(client: Fake) -> None:
    client.kept = []
    assert run("note", 12).stdout == "no notes on job 12\n"
    client.has_notes = False
    assert "note" not in run("show", 12).stdout


def test_a_page_or_a_folder_is_published_under_its_own_title(client: Fake, tmp_path: Path) -> None:
    """Or under one that is given; the answer is the address where it is read."""
    folder = tmp_path / "out"
    folder.mkdir()
    assert "holds none of compare.html" in run("report", "publish", folder, code=2).output
    page = b"<title>FIFO &amp; SRTF</title><p>"
    (folder / "compare.html").write_bytes(page)
    told = run("report", "publish", folder).stdout
    assert told == "report 7 (FIFO & SRTF) for readers of vision: http://walras.lab:8080/#/report/7\n"
    run("report", "publish", folder / "compare.html", "--title", "mine", "--project", "*")
    assert client.asked == [("publish", page, "FIFO & SRTF", None), ("publish", page, "mine", "*")]
    (tmp_path / "plain.html").write_bytes(b"<p>")
    assert "(plain)" in run("report", "publish", "plain.html").stdout
    (tmp_path / "large.html").write_bytes(b"x" * (REPORT_BYTES + 1))
    (tmp_path / "empty.html").write_bytes(b"")
    assert "larger than 8 MiB" in run("report", "publish", "large.html", code=2).output
    assert "is empty" in run("report", "publish", "empty.html", code=2).output
    assert run("report", "publish", "none.html", code=2).output.startswith("walras: none.html: No such file")


def test_reports_are_listed_fetched_and_removed(client: Fake, tmp_path: Path) -> None:
    """A file that is there is not overwritten; titles are made safe."""
    listed = run("report", "list").stdout
    assert "a title" in listed
    assert "readers of vision" in listed
    assert "everybody" in listed
    assert [each["project"] for each in json.loads(run("report", "list", "-o", "json").stdout)] == ["vision", "*"]
    assert run("report", "fetch", 7).stdout == "report-7.html\n"
    assert (tmp_path / "report-7.html").read_bytes() == b"<p>page"
    assert "is there already" in run("report", "fetch", 7, code=2).output
    assert run("report", "remove", 7).stdout == "report 7 (old) is removed\n"
