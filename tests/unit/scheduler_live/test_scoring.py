"""Beliefs about speed against measurements, out of a server's journal."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scheduler.live.store.event_journal import scored_folder
from tests.support.live_world import FakeAgent, world
from walras.cli.main import app


async def recorded(folder: Path, machine: str = "n1") -> None:
    """Two jobs of a kind, one after the other: what was believed of the first is not believed of the second."""
    async with world(folder) as w:
        agent = await FakeAgent(w, machine).register()
        for steps_per_s in (4.0, 4.1):
            job_id = await w.submit({"profile": "cnn", "throughput": {"a": 5.0}})
            await agent.start_all()
            await agent.beat(agent.progress(job_id, 1, 5.0, steps_per_s=steps_per_s, start_s=1.5))
            await agent.end(job_id)


@pytest.mark.sqlite_file
async def test_a_journal_tells_what_was_believed(tmp_path: Path) -> None:
    """One belief a cell: the declared speed, against the one that was measured and published."""
    await recorded(tmp_path)
    (only,) = scored_folder(tmp_path)
    assert (only.kind, only.accelerator, only.count) == ("cnn", "a", 1)
    assert (only.source, only.predicted, only.measured) == ("declared", 5.0, 4.0)


@pytest.mark.sqlite_file
async def test_a_restarted_server_does_not_score_again_what_it_knows(tmp_path: Path) -> None:
    """What the last generation measured comes from a table: it is no prediction."""
    await recorded(tmp_path)
    await recorded(tmp_path, "n2")
    assert len(scored_folder(tmp_path)) == 1


@pytest.mark.sqlite_file
async def test_the_report_of_a_folder_can_be_read_again(tmp_path: Path) -> None:
    """`walras profile report` says the same of a folder and of the JSON it printed."""
    await recorded(tmp_path / "data")
    told = CliRunner().invoke(app, ["profile", "report", str(tmp_path / "data"), "-o", "json"])
    assert told.exit_code == 0, told.output
    report = json.loads(told.stdout)
    assert report["by"]["source"][0]["median_error"] == pytest.approx(0.2)
    assert report["weights"] == {"declared": 1.0}
    (tmp_path / "again.json").write_text(told.stdout)
    again = CliRunner().invoke(app, ["profile", "report", str(tmp_path / "again.json"), "-o", "json"])
    assert json.loads(again.stdout) == report
