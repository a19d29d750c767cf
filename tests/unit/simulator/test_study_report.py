"""What `--out` leaves behind: every file readable, and a page that trusts nobody's names."""

import csv
import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_tags import Tags

from simulator.reports.baselines import BoundsChoice
from simulator.reports.report_page import (
    EVENTS_FILE,
    JOBS_FILE,
    REPORT_FILE,
    SUMMARY_FILE,
    TIMELINE_FILE,
    open_events_table,
    read_report,
    report_html,
    write_run_folder,
)
from simulator.reports.run_spec import CompletedRun, RunSpec, WorkloadSource, execute_run
from simulator.reports.timeline import StepSeries, Timeline, binned_means, series_means
from walras.errors import ConfigError

EVIL = "<script>alert(1)</script>"
#: An opened bracket, a dollar sign that would begin mathematics, a closed attribute, a closed style element.
NAMES = (EVIL, "$\\frac{1}{$", '" onload="x', "</style></svg><b>", "a&amp;b", "plain")
CLUSTER = """
pools:
  - {shape: a, accelerator: a100, accelerators: 2, cpus: 8, memory: 8GB, machines: 1, usd_per_h: 3}
  - {shape: b, accelerator: v100, accelerators: 1, cpus: 8, memory: 8GB, machines: 2, usd_per_h: 1}
"""


def written(folder: Path, policy: str = "max_min_fairness") -> tuple[CompletedRun, Timeline]:
    """A small run whose jobs, kinds, users and projects have names to be afraid of."""
    (folder / "c.yaml").write_text(CLUSTER)
    with (folder / "t.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["at", "name", "kind", "gang", "duration_s", "user", "project"])
        for number, name in enumerate(NAMES):
            rows.writerow([number, name, name, 1, 500 + number, name, name])
    spec = RunSpec(WorkloadSource(str(folder / "t.csv")), str(folder / "c.yaml"), policy)
    with open_events_table(folder) as tell:
        timeline = Timeline(tell)
        ran = execute_run(spec, timeline.record)
    write_run_folder(folder, ran, timeline)
    return ran, timeline


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    written(folder)
    return folder


def test_names_from_a_trace_are_text_and_nothing_else(folder: Path) -> None:
    """No script, no handler, no broken element; the names are there to be read, in tables and in pictures."""
    html = (folder / REPORT_FILE).read_text()
    assert EVIL not in html
    tags = Tags()
    tags.feed(html)
    tags.close()
    assert tags.open == []
    assert not tags.tags & {"script", "b", "iframe", "object", "embed", "link", "img", "foreignobject"}
    assert not [name for name in tags.attributes if name.startswith("on")]
    shown = "".join(tags.text)
    for name in NAMES:
        assert shown.count(name) >= 2, name  # in the table of jobs and in the timeline


def test_the_page_needs_nothing_from_outside(folder: Path) -> None:
    """No address anywhere, and every reference leads to an element of the page that is there once."""
    html = (folder / REPORT_FILE).read_text()
    assert re.findall(r"(?i)\b(?:https?|ftp|file|data|javascript):|//[a-z]|@import|url\((?!#)", html) == []
    tags = Tags()
    tags.feed(html)
    assert all(link.startswith("#") and link[1:] in tags.ids for link in tags.links)
    assert len(tags.ids) == len(set(tags.ids))
    assert set(re.findall(r"url\(#([^)]+)\)", html)) <= set(tags.ids)
    assert tags.tags >= {"svg", "table", "h2"}


def test_the_page_has_every_picture(folder: Path) -> None:
    """Completion times, queueing, utilisation, prices, money, fairness and the timeline; and what decided it all."""
    headings = re.findall(r"<h2>([^<]+)</h2>", (folder / REPORT_FILE).read_text())
    assert headings == [
        "Figures", "Completion times", "Queueing", "Utilisation by pool", "Prices", "Money by market",
        "Fairness by project", "Timeline", "Pools", "Projects", "Jobs", "What decides these figures",
    ]  # fmt: skip


def test_a_market_that_moves_is_drawn_and_the_conditions_are_named(tmp_path: Path) -> None:
    """On the page, and in the folder that it can be written from again."""
    cell = RunSpec(
        WorkloadSource("deadlines"), "mixed-cloud", "fifo", bounds=BoundsChoice.NONE, conditions="spot-market"
    )
    with open_events_table(tmp_path) as tell:
        timeline = Timeline(tell)
        ran = execute_run(cell, timeline.record)
    write_run_folder(tmp_path, ran, timeline)
    html = (tmp_path / REPORT_FILE).read_text()
    assert "<h2>Market prices</h2>" in html
    assert "Cluster mixed-cloud, conditions spot-market, seed 0" in html
    assert read_report(tmp_path).conditions == "spot-market"


def test_the_tables_hold_every_job_and_every_event(folder: Path) -> None:
    """And the summary is JSON without numbers that JSON does not know."""
    with (folder / JOBS_FILE).open(newline="") as file:
        jobs = list(csv.DictReader(file))
    assert [job["name"] for job in jobs] == list(NAMES)
    assert {job["state"] for job in jobs} == {"SUCCEEDED"}
    assert all(float(job["jct_s"]) >= float(job["alone_s"]) * (1 - 1e-9) for job in jobs)
    with gzip.open(folder / EVENTS_FILE, "rt", newline="") as file:
        events = list(csv.DictReader(file))
    ended = [event for event in events if event["what"] == "job SUCCEEDED"]
    assert len(ended) == len(NAMES)
    assert [float(event["at"]) for event in events] == sorted(float(event["at"]) for event in events)
    for name in (SUMMARY_FILE, TIMELINE_FILE):
        json.loads((folder / name).read_text(), parse_constant=lambda constant: pytest.fail(constant))


def test_a_run_that_ends_before_its_time_leaves_no_table(tmp_path: Path) -> None:
    """Half a table of events could be taken for a whole one; that of an earlier run stays."""
    (tmp_path / EVENTS_FILE).write_text("earlier")

    def broken_off() -> None:
        with open_events_table(tmp_path) as tell:
            tell((0.0, "job submitted", "1", "", "", ""))
            raise ConfigError("a job that no machine can run")

    with pytest.raises(ConfigError):
        broken_off()
    assert [path.name for path in tmp_path.iterdir()] == [EVENTS_FILE]
    assert (tmp_path / EVENTS_FILE).read_text() == "earlier"


def test_equal_runs_leave_equal_files(tmp_path: Path, folder: Path) -> None:
    """All but the figures of this machine's clock: the events, the jobs and the timeline to the last byte."""
    written(tmp_path)
    for name in (EVENTS_FILE, JOBS_FILE, TIMELINE_FILE):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_the_timeline_agrees_with_the_meters(tmp_path: Path) -> None:
    """Accelerator-seconds held and running, told twice: once by the timeline, once by the metrics."""
    ran, timeline = written(tmp_path, "isolated")
    for meter in ran.result.pools:
        track = timeline.pools[meter.pool.pool_id]
        for level, seconds in (
            (track.there, meter.there_s), (track.held, meter.held_s), (track.running, meter.running_s),
        ):  # fmt: skip
            edges = np.array([*level.at, ran.result.ended_at])
            assert float((np.array(level.value) * np.diff(edges)).sum()) == pytest.approx(seconds)
    assert timeline.waiting.now == 0


def test_a_report_can_be_written_again_from_the_folder(folder: Path) -> None:
    """To the last byte: everything that it tells is in the other files."""
    assert report_html(read_report(folder)) == (folder / REPORT_FILE).read_text()


@pytest.mark.parametrize("name", [SUMMARY_FILE, JOBS_FILE, TIMELINE_FILE])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"[1]", b"\xff", b'{"pools": 3, "summary": [], "words": 0}'])
def test_a_folder_that_is_not_what_a_run_left(folder: Path, tmp_path: Path, name: str, content: bytes | None) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(name)):
        read_report(tmp_path)


@given(st.lists(st.tuples(st.floats(0.01, 10), st.integers(0, 9)), min_size=1, max_size=60), st.floats(0, 5))
def test_thinned_levels_keep_their_integral(changes: list[tuple[float, int]], rest_s: float) -> None:
    level, at = StepSeries(), 0.0
    for passed_s, value in changes:
        at += passed_s
        level.set(at, value)
    until_at = at + rest_s
    begin, value = binned_means(level, until_at)
    exact_at, exact = series_means(level, until_at)
    area = float((exact[:-1] * np.diff(exact_at)).sum())
    assert float(value.sum()) * (until_at / len(begin)) == pytest.approx(area, rel=1e-6, abs=1e-6)
