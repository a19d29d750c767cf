"""Heartbeats, leases and fences, with agents played by hand."""

from pathlib import Path

import pytest

from scheduler.core.events import NodeLeaving
from scheduler.live.loop.apply_commands import emit
from tests.support.live_world import FakeAgent, World, world
from walras.cluster import NodeId
from walras.errors import Conflict
from walras.job_request import JobId
from walras.states import Reason
from walras.wire import StartCommand, StopCommand


async def test_a_job_runs_from_submit_to_success(tmp_path: Path) -> None:
    """Submit, start command, started, ended with 0: SUCCEEDED, and the machine is free."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").register()
        job_id = await w.submit({"envs": {"LR": "0.1"}, "resources": {"accelerators": "a:2"}})
        (start,) = await agent.start_all()
        assert (start.argv, start.env, start.devices) == (
            ["bash", "-euo", "pipefail", "-c", "true"],
            {"LR": "0.1", "WALRAS_ACCELERATORS": "a:2"},
            [0, 1],
        )
        assert (start.world_size, start.first_rank, start.master_port, start.resume) == (2, 0, 0, None)
        assert w.state(job_id) == "RUNNING"
        await agent.end(job_id)
        assert w.state(job_id) == "SUCCEEDED"
        assert w.server.views.nodes()[0].free == 2


async def test_commands_are_repeated_until_confirmed_and_reports_count_once(tmp_path: Path) -> None:
    """An answer that got lost is said again; a report that is repeated changes nothing."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").register()
        job_id = await w.submit({})
        lost = await agent.beat(ack=False)
        again = await agent.beat(ack=False)
        assert [c.command_id for c in lost.commands] == [c.command_id for c in again.commands] != []
        await agent.start_all()
        assert not w.live_state.nodes["n1"].outbox or agent.acks
        agent.next_report = 1
        answer = await agent.beat({"type": "started", "job_id": job_id, "attempt": 1})
        assert (answer.commands, w.state(job_id)) == ([], "RUNNING")


async def test_no_secret_of_a_job_is_written_down(tmp_path: Path) -> None:
    """The start command carries a job token; neither the outbox nor the journal holds it."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").register()
        await w.submit({})
        answer = await agent.beat(ack=False)
        token = answer.commands[0].job_token  # type: ignore[union-attr]
        assert token.startswith("wlr_j_1_1_")
        assert w.server.identify(token) is not None
        secrets = (token, agent.credential)
    written = _written(tmp_path)
    assert not [secret for secret in secrets if secret.encode() in written]


def _written(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("walras.db*"))


async def test_silence_is_unreachable_first_and_lost_only_after_the_lease(tmp_path: Path) -> None:
    """Lost contact is not death: the job waits until no lease can be alive, then starts elsewhere."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").register()
        job_id = await w.submit({})
        await agent.start_all()
        other = await FakeAgent(w, "n2").register()
        w.clock.at += 16.0
        await other.beat()
        await w.loop.perform(w.server.gateway.notice_silence)
        assert (w.live_state.nodes["n1"].row.state, w.state(job_id)) == ("unreachable", "UNREACHABLE")
        w.clock.at += 8.0  # 24 s after the last word: the lease of 20 s is over, the margin of 5 s is not
        await other.beat()
        await w.loop.perform(w.server.gateway.notice_silence)
        assert w.state(job_id) == "UNREACHABLE"
        w.clock.at += 2.0
        await other.beat()
        await w.loop.perform(w.server.gateway.notice_silence)
        assert w.live_state.nodes["n1"].row.state == "lost"
        (start,) = await other.start_all()
        assert (start.job_id, start.attempt) == (job_id, 2)


async def test_an_agent_back_within_the_lease_restarts_nothing(tmp_path: Path) -> None:
    """Back after 18 s of silence: the same attempt goes on."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").register()
        job_id = await w.submit({})
        await agent.start_all()
        w.clock.at += 18.0
        await w.loop.perform(w.server.gateway.notice_silence)
        answer = await agent.beat(resync=True)
        assert (answer.fenced, answer.commands, w.state(job_id)) == ([], [], "RUNNING")


async def test_an_old_attempt_is_fenced_and_commits_nothing(tmp_path: Path) -> None:
    """A machine thawed after its lease ran out: its attempt is told to stop, its checkpoint does not count."""
    async with world(tmp_path) as w:
        frozen = await FakeAgent(w, "n1").register()
        job_id = await w.submit({})
        await frozen.start_all()
        await frozen.beat(frozen.committed(job_id, 1, 100.0))
        w.clock.at += 16.0
        await w.loop.perform(w.server.gateway.notice_silence)
        w.clock.at += 10.0
        other = await FakeAgent(w, "n2").register()
        await w.loop.perform(w.server.gateway.notice_silence)
        (start,) = await other.start_all()
        assert start.resume is not None
        assert start.resume.step == 100.0
        answer = await frozen.beat(frozen.committed(job_id, 1, 900.0))
        assert [(f.job_id, f.attempt) for f in answer.fenced] == [(job_id, 1)]
        assert w.live_state.jobs[job_id].checkpoint.step == 100.0
        assert w.live_state.counters.stale_commits == 1
        assert w.live_state.nodes["n1"].row.state == "lost"  # until its old ranks are gone
        await frozen.beat()
        assert w.live_state.nodes["n1"].row.state == "up"


async def test_a_checkpoint_outside_the_jobs_folder_is_refused(tmp_path: Path) -> None:
    """A manifest may not point anywhere else, whatever its path looks like."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").register()
        job_id = await w.submit({})
        (start,) = await agent.start_all()
        for path in ("/etc", f"{start.checkpoint_dir}/../2", "relative"):
            await agent.beat(agent.committed(job_id, 1, 5.0, path))
        assert w.live_state.jobs[job_id].checkpoint is None
        assert w.live_state.counters.stale_commits == 3


async def test_an_attempt_missing_after_a_restart_of_the_agent_has_ended(tmp_path: Path) -> None:
    """`here` of a resync is the whole truth: what is not there has died, and the job goes on from its checkpoint."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").register()
        job_id = await w.submit({})
        await agent.start_all()
        agent.here.clear()
        await agent.beat(resync=True)
        row = w.server.store.attempts(job_id)[0]
        assert row.state.value == "NODE_LOST"
        assert [s.attempt for s in await agent.start_all()] == [2]


async def test_a_gang_starts_when_all_parts_have_and_ends_by_its_first_failure(tmp_path: Path) -> None:
    """Two machines: prepare, start with one rendezvous, RUNNING with the second; a failing part stops the other."""
    async with world(tmp_path) as w:
        one, two = await FakeAgent(w, "n1").register(), await FakeAgent(w, "n2").register()
        job_id = await w.submit({"num_nodes": 2, "resources": {"accelerators": "a:4"}})
        for agent in (one, two):
            await agent.beat()
        assert [c.type for agent in (one, two) for c in agent.commands] == ["prepare", "prepare"]
        first = next(a for a in (one, two) if a.commands[0].node_rank == 0)
        second = two if first is one else one
        prepared = {"type": "prepared", "job_id": job_id, "attempt": 1}
        await first.beat({**prepared, "address": "10.0.0.1", "port": 4321})
        await second.beat({**prepared, "address": "10.0.0.2"})
        (start,) = await first.start_all()
        assert w.state(job_id) == "STARTING"
        (rest,) = await second.start_all()
        assert (start.master_address, rest.master_address, rest.master_port) == ("10.0.0.1", "10.0.0.1", 4321)
        assert {start.env["WALRAS_NODE_ADDRESSES"], rest.env["WALRAS_NODE_ADDRESSES"]} == {"10.0.0.1,10.0.0.2"}
        assert (start.first_rank, rest.first_rank, rest.world_size) == (0, 2, 4)
        assert w.state(job_id) == "RUNNING"
        await second.end(job_id, exit_code=7, failed_rank=3)
        await first.beat()
        assert isinstance(first.commands[-1], StopCommand)
        assert w.state(job_id) == "RUNNING"
        await first.end(job_id, exit_code=None, signal=15)
        assert w.state(job_id) == "FAILED"
        row = w.server.store.attempts(job_id)[0]
        assert (row.exit_code, row.signal, row.failed_rank) == (7, None, 3)


async def _a_prepared_gang(w: World) -> tuple[FakeAgent, FakeAgent, int]:
    """A job on two machines, whose starts were ordered: the machine of its first ranks, and the other."""
    one, two = await FakeAgent(w, "n1").register(), await FakeAgent(w, "n2").register()
    job_id = await w.submit({"num_nodes": 2, "resources": {"accelerators": "a:4"}})
    for agent in (one, two):
        await agent.beat()
    first, second = (one, two) if one.commands[0].node_rank == 0 else (two, one)
    prepared = {"type": "prepared", "job_id": job_id, "attempt": 1}
    await first.beat({**prepared, "address": "10.0.0.1", "port": 4321})
    await second.beat(prepared)
    return first, second, job_id


async def test_what_a_machine_reports_of_its_ended_part_counts_for_nothing(tmp_path: Path) -> None:
    """The other part runs on: neither another end, nor a checkpoint, nor progress of the ended one is taken."""
    async with world(tmp_path) as w:
        first, second, job_id = await _a_prepared_gang(w)
        for agent in (first, second):
            await agent.start_all()
        late = [second.progress(job_id, 1, 900.0), second.committed(job_id, 1, 900.0)]
        await second.end(job_id)
        await second.beat(*late)
        await second.end(job_id, exit_code=7)
        assert (w.state(job_id), w.live_state.jobs[job_id].checkpoint, w.live_state.counters.stale_reports) == (
            "RUNNING", None, 3,
        )  # fmt: skip
        await first.end(job_id)
        assert w.state(job_id) == "SUCCEEDED"


async def test_a_part_that_vanishes_stops_the_others(tmp_path: Path) -> None:
    """Its machine's agent has begun anew without it: the others cannot go on, and are told so at once."""
    async with world(tmp_path) as w:
        first, second, job_id = await _a_prepared_gang(w)
        for agent in (first, second):
            await agent.start_all()
        second.here.clear()
        await second.beat(resync=True)
        await first.beat()
        assert isinstance(first.commands[-1], StopCommand)
        assert w.state(job_id) == "RUNNING", "its end is reported by the machine that still has it"


async def test_a_part_that_is_refused_stops_those_that_have_started(tmp_path: Path) -> None:
    """The attempt is over; what another machine has of it must not go on holding accelerators."""
    async with world(tmp_path) as w:
        first, second, job_id = await _a_prepared_gang(w)
        await first.start_all()
        await second.beat({"type": "refused", "job_id": job_id, "attempt": 1, "detail": "no room"})
        await first.beat()
        stop = first.commands[-1]
        assert isinstance(stop, StopCommand)
        assert (stop.job_id, stop.attempt, stop.reason) == (job_id, 1, "the attempt is over")


async def test_progress_is_coalesced_and_the_last_word_comes_before_the_end(tmp_path: Path) -> None:
    """The core hears the first figures, the first speed, then at most one a round, and what is known at the end."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").register()
        job_id = await w.submit({"steps": 1000})
        await agent.start_all()
        await agent.beat(agent.progress(job_id, 1, 1, start_s=2.0))
        await agent.beat(agent.progress(job_id, 1, 50, steps_per_s=10.0, samples=1))
        for steps in range(60, 100):
            await agent.beat(agent.progress(job_id, 1, steps, steps_per_s=11.0, samples=2, values={"loss": 0.5}))
        await agent.end(job_id)
        told = [row for row in w.server.store.journal() if row.type == "AttemptProgressed"]
        assert len(told) == 3
        (view,) = await w.server.views.jobs([w.server.store.job(job_id)], [])  # type: ignore[list-item]
        assert view.last_values == {"loss": 0.5}


async def test_a_machine_cannot_change_what_it_is(tmp_path: Path) -> None:
    """The same name with other facts, or a pool with another shape, is a conflict that says what to change."""
    async with world(tmp_path) as w:
        await FakeAgent(w, "n1").register()
        with pytest.raises(Conflict, match="another machine"):
            await FakeAgent(w, "n1", shape="bx4", accelerators=4).register()
        with pytest.raises(Conflict, match=r"has other machines: accelerators is 4 here, 2 there$"):
            await FakeAgent(w, "n2", accelerators=4).register()
        with pytest.raises(Conflict, match=r"has other machines: nominal_speed is 3.5 here, "):
            await FakeAgent(w, "n2", nominal_speed=3.5).register()
        with pytest.raises(Conflict, match="nobody asked"):
            await FakeAgent(w, "n3", rent_token="rent-99").register()


async def test_a_gang_whose_prepared_part_was_lost_is_not_started_when_another_part_is_ready(tmp_path: Path) -> None:
    """The agent began anew and knows of no start; the other says in one call that it is ready and that it ended."""
    async with world(tmp_path) as w:
        first, second = [await FakeAgent(w, name).register() for name in ("n1", "n2")]
        job_id = await w.submit({"resources": {"accelerators": "a:4"}, "num_nodes": 2})
        prepared = {"type": "prepared", "job_id": job_id, "attempt": 1}
        for agent in (first, second):
            await agent.beat()
        await first.beat({**prepared, "address": "10.0.0.1", "port": 4321})
        await first.beat(resync=True)
        ended = {"type": "ended", "job_id": job_id, "attempt": 1, "cause": "exited", "exit_code": 0}
        await second.beat(prepared, ended)
        await first.beat()
        assert [each for each in first.commands if isinstance(each, StartCommand) and each.attempt == 1] == []
        assert w.live_state.jobs[JobId(job_id)].row.attempts == 2


async def test_a_machine_that_outlives_its_notice_takes_jobs_again(tmp_path: Path) -> None:
    """The notice was late, or it was stopped and came back: ten minutes after the end that was told, if it is heard."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").register()
        await agent.beat({"type": "notice", "gone_in_s": 10.0})
        job_id = await w.submit({})
        for passed_s, cordon in ((300.0, "leaving"), (309.0, "leaving"), (10.0, "")):
            for _ in range(int(passed_s / 5.0)):
                w.clock.at += 5.0
                await agent.beat()
                await w.loop.perform(w.server.gateway.notice_silence)
            assert w.live_state.nodes["n1"].row.cordon == cordon, passed_s
        await agent.start_all()
        assert w.state(job_id) == "RUNNING"


async def test_a_drained_machine_is_no_machine_with_a_notice(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").register()
        node = w.live_state.nodes["n1"]
        await w.loop.perform(lambda step: emit(step, NodeLeaving(step.at, NodeId("n1"), step.at, Reason.HOLD_ADMIN)))
        for _ in range(400):
            w.clock.at += 5.0
            await agent.beat()
            await w.loop.perform(w.server.gateway.notice_silence)
        assert node.row.cordon == "leaving"
