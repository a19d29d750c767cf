"""A real agent on a spot machine of EC2, as far as a metadata service makes one."""

from pathlib import Path

import pytest

from tests.support.agent_commands import LOOP, Begin, a_start
from tests.support.fake_agent_server import FakeAgentServer
from tests.support.metadata_service import metadata_service

pytestmark = pytest.mark.slow


async def test_a_hint_saves_and_a_notice_is_reported(server: FakeAgentServer, begin: Begin, tmp_path: Path) -> None:
    """After the recommendation the job has a checkpoint and runs on; the notice arrives with the seconds left."""
    async with metadata_service() as ec2:
        begin(spot_notices=True, metadata_url=ec2.url)
        await server.send(a_start(tmp_path, LOOP))
        progress = await server.report("progress")
        ec2.recommend()
        hint = await server.report("hint")
        assert "2026-05-01" in hint.detail
        committed = await server.report("committed")
        assert committed.manifest.step >= progress.steps
        steps = max(report.steps for report in server.of_type("progress"))
        await server.until(lambda: max(r.steps for r in server.of_type("progress")) > steps, 40, "it runs on")
        ec2.take_away(120)
        notice = await server.report("notice")
        assert 100 < notice.gone_in_s <= 120
        assert len(server.of_type("hint")) == 1
        assert not server.of_type("ended")
