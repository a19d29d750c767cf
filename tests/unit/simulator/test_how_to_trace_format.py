"""docs/how-to/add-a-trace-format.md, followed literally: its reader and its line read its sample."""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator.workloads import formats, published_traces
from walras.cli.main import app

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "how-to" / "add-a-trace-format.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's sample, in a file; the page's format is listed."""
    reader, line = blocks("python")
    names: dict[str, Any] = dict(vars(published_traces))
    exec(reader, names)
    added = eval(line, {**vars(formats), **names})
    monkeypatch.setitem(formats.FORMATS, added.name, added)
    path = tmp_path / "lab.csv"
    path.write_text(blocks("csv")[0])
    return path


def test_the_pages_reader_reads_the_pages_sample(sample: Path) -> None:
    """The format is recognised by its header, and minutes become seconds."""
    trace = formats.read_trace(sample)

    assert trace.format == "lab"
    assert [(job.at, job.name, job.kind, job.gang, job.duration_s, job.user) for job in trace.jobs] == [
        (0.0, "17", "resnet", 4, 5400.0, "ada"),
        (750.0, "18", "bert", 1, 1800.0, "bob"),
    ]


@pytest.mark.parametrize("command", [["workload", "list"], ["workload", "describe", "SAMPLE"]])
def test_the_commands_know_the_format(sample: Path, command: list[str]) -> None:
    done = CliRunner().invoke(app, [str(sample) if word == "SAMPLE" else word for word in command])

    assert done.exit_code == 0, done.output
    assert "lab" in done.stdout


def test_the_page_names_files_that_are_there() -> None:
    for path in re.findall(r"`((?:simulator|tests)/[\w/]+\.py)`", PAGE):
        assert (ROOT / path).is_file(), path
    for name in ("header_row_format", "named_row_format", "split_tabs", "read_gavel", "TraceRow", "TraceSource"):
        assert name in PAGE
        assert hasattr(published_traces, name)
