"""What an agent must not forget, across restarts."""

import itertools
from pathlib import Path

import pytest

from walras.wire import (
    CommittedReport,
    EndedReport,
    Manifest,
    NoticeReport,
    ProgressReport,
    RefusedReport,
    StartedReport,
)
from workers.agent.report_store import PRUNE_EVERY, ROWS_KEPT, AgentStore, AttemptPhase, KnownAttempt, ReportOutbox
from workers.devices import AttemptKey


def test_reports_stay_until_acknowledged_and_ids_only_grow(tmp_path: Path) -> None:
    """A restart loses no report and uses no id twice, also not one that was never written."""
    store = AgentStore(tmp_path)
    first = StartedReport(report_id=store.next_report_id(), job_id=1, attempt=1)
    second = StartedReport(report_id=store.next_report_id(), job_id=2, attempt=1)
    store.add_reports([first, second])
    unwritten = store.next_report_id()
    store.acknowledge(first.report_id)
    store.flush()
    store.close()
    again = AgentStore(tmp_path)
    assert again.reports(10) == [second]
    assert again.next_report_id() > unwritten
    again.close()


def test_a_phase_and_its_report_are_one(tmp_path: Path) -> None:
    """What is over is over after a restart, and its report is there."""
    store = AgentStore(tmp_path)
    store.move_attempt(AttemptKey(1, 1), AttemptPhase.STARTING)
    store.move_attempt(AttemptKey(1, 2), AttemptPhase.STARTING)
    store.advance_journal(AttemptKey(1, 2), 77, [])
    ended = EndedReport(report_id=store.next_report_id(), job_id=1, attempt=1, cause="exited", exit_code=0)
    store.move_attempt(AttemptKey(1, 1), AttemptPhase.OVER, [ended])
    store.flush()
    store.close()
    again = AgentStore(tmp_path)
    assert again.open_attempts() == [KnownAttempt(AttemptKey(1, 2), AttemptPhase.STARTING, 77)]
    assert again.reports(10) == [ended]
    again.close()


def test_two_agents_do_not_share_a_folder(tmp_path: Path) -> None:
    """The second one is refused before it touches anything."""
    store = AgentStore(tmp_path)
    with pytest.raises(BlockingIOError):
        AgentStore(tmp_path)
    store.close()
    store = AgentStore(tmp_path)
    assert [store.is_new_notice("a"), store.is_new_notice("a"), store.is_new_notice("b")] == [True, False, True]
    store.close()


async def test_only_the_newest_progress_is_sent_and_none_after_the_end(tmp_path: Path) -> None:
    """Progress replaces progress; an end drops it; the order of ids is the order of sending."""
    store = AgentStore(tmp_path)
    outbox = ReportOutbox(store)
    for steps in (1, 2, 3):
        outbox.put_progress(ProgressReport(report_id=outbox.next_id(), job_id=1, attempt=1, steps=steps))
    outbox.put(NoticeReport(report_id=outbox.next_id(), gone_in_s=5))
    batch = outbox.batch()
    assert [report.type for report in batch] == ["progress", "notice"]
    assert batch[0] == ProgressReport(report_id=3, job_id=1, attempt=1, steps=3)
    outbox.mark_sent(batch)
    assert [report.type for report in outbox.batch()] == ["notice"]
    outbox.put_progress(ProgressReport(report_id=outbox.next_id(), job_id=1, attempt=1, steps=4))
    ended = EndedReport(report_id=outbox.next_id(), job_id=1, attempt=1, cause="exited")
    outbox.move(AttemptKey(1, 1), AttemptPhase.OVER, ended)
    assert [report.type for report in outbox.batch()] == ["notice", "ended"]
    outbox.acknowledge(ended.report_id)
    assert outbox.batch() == []
    store.close()


def test_rows_that_cannot_be_read_back_are_dropped(tmp_path: Path) -> None:
    """What an older agent wrote, or a bad disk: the rest is sent, the agent starts."""
    store = AgentStore(tmp_path)
    good = StartedReport(report_id=store.next_report_id(), job_id=1, attempt=1)
    store.add_reports([good])
    for number, body in enumerate(('{"type": "progress", "steps": null}', "no JSON", "[" * 30_000), start=100):
        store._db.execute("INSERT INTO reports VALUES (?, ?)", (number, body))
    not_strict = ProgressReport.model_construct(report_id=200, job_id=1, attempt=1, steps=float("nan"))
    store.add_reports([not_strict])
    assert store.reports(10) == [good]
    assert store._db.execute("SELECT count(*) FROM reports").fetchone() == (1,)
    store.close()


def test_what_is_over_is_forgotten_in_the_end(tmp_path: Path) -> None:
    """A thousand attempts and notices are remembered, the newest; what still runs always is."""
    store = AgentStore(tmp_path)
    store.move_attempt(AttemptKey(1, 1), AttemptPhase.RUNNING)
    store.flush()
    with store._db:
        store._db.execute("BEGIN")
        for number in range(2, ROWS_KEPT + 500):
            store._db.execute("INSERT INTO granted VALUES (NULL, '', ?, 1, 'over', 0, NULL, NULL)", (number,))
            store._db.execute("INSERT INTO notices VALUES (?)", (str(number),))
    for number in range(5000, 5000 + PRUNE_EVERY):
        store.move_attempt(AttemptKey(number, 1), AttemptPhase.OVER)
    for table, kept in (("granted", ROWS_KEPT + 1), ("notices", ROWS_KEPT)):
        assert store._db.execute(f"SELECT count(*) FROM {table}").fetchone() == (kept,)
    assert store.attempt(AttemptKey(1, 1)) == KnownAttempt(AttemptKey(1, 1), AttemptPhase.RUNNING, 0)
    assert store.attempt(AttemptKey(2, 1)) is None
    assert store.attempt(AttemptKey(5000, 1)) is not None
    store.close()


def test_what_a_full_disk_refuses_reads_as_if_it_were_written(tmp_path: Path) -> None:
    """In its order; it is written once there is room, unless it is acknowledged by then."""
    store = AgentStore(tmp_path)
    store.move_attempt(AttemptKey(1, 1), AttemptPhase.STARTING)
    store.next_report_id()
    store._db.execute("PRAGMA query_only = ON")  # every write is an OperationalError, as on a full disk
    first, second = (StartedReport(report_id=store.next_report_id(), job_id=1, attempt=1) for _ in range(2))
    store.move_attempt(AttemptKey(1, 1), AttemptPhase.RUNNING, [first])
    store.advance_journal(AttemptKey(1, 1), 77, [second])
    store.move_attempt(AttemptKey(2, 1), AttemptPhase.OVER)
    assert store.is_new_notice("n")
    assert not store.is_new_notice("n")
    assert store.problem
    assert store.attempt(AttemptKey(1, 1)) == KnownAttempt(AttemptKey(1, 1), AttemptPhase.RUNNING, 77)
    assert store.attempt(AttemptKey(2, 1)) == KnownAttempt(AttemptKey(2, 1), AttemptPhase.OVER, 0)
    assert store.reports(10) == [first, second]
    store.acknowledge(first.report_id)
    assert store.reports(10) == [second]
    assert not store.flush()
    store._db.execute("PRAGMA query_only = OFF")
    assert store.flush()
    assert store.problem == ""
    store.close()
    again = AgentStore(tmp_path)
    assert again.reports(10) == [second]
    assert again.open_attempts() == [KnownAttempt(AttemptKey(1, 1), AttemptPhase.RUNNING, 77)]
    again.close()


def _saved(store: AgentStore, step: float) -> CommittedReport:
    manifest = Manifest(step=step, path=f"/c/1/step-{step:g}", digest="0" * 64)
    saved = CommittedReport(report_id=store.next_report_id(), job_id=1, attempt=1, manifest=manifest)
    store.advance_journal(AttemptKey(1, 1), int(step), [saved])
    return saved


def _told(store: AgentStore) -> list[tuple[str, float | None]]:
    """What is sent, except starts: the kinds of reports, and the steps of checkpoints."""
    reports = [each for each in store.reports(20) if each.type != "started"]
    return [(each.type, each.manifest.step if isinstance(each, CommittedReport) else None) for each in reports]


@pytest.mark.parametrize("has_room", [True, False])
def test_what_was_acknowledged_on_a_full_disk_is_told_to_a_restored_server(tmp_path: Path, has_room: bool) -> None:
    """In its order, whether there is room by then or not: checkpoints, the end after them, and what was refused.

    A server that is restored twice is told the same again, once; what stays is the newest checkpoint.
    """
    store = AgentStore(tmp_path)
    store.move_attempt(AttemptKey(1, 1), AttemptPhase.RUNNING)
    store.acknowledge(_saved(store, 3.0).report_id)
    store.flush()
    store._db.execute("PRAGMA query_only = ON")
    _saved(store, 9.0)
    ended = EndedReport(report_id=store.next_report_id(), job_id=1, attempt=1, cause="exited", exit_code=0)
    store.move_attempt(AttemptKey(1, 1), AttemptPhase.OVER, [ended])
    refused = RefusedReport(report_id=store.next_report_id(), job_id=2, attempt=1, detail="disk full")
    store.move_attempt(AttemptKey(2, 1), AttemptPhase.OVER, [refused])
    store.acknowledge(refused.report_id)
    assert store.reports(10) == []
    if has_room:
        store._db.execute("PRAGMA query_only = OFF")
    store.flush()
    newest = [("committed", 9.0), ("ended", None), ("refused", None)]
    for _ in range(2):
        highest = store.highest_report_id
        count = store.tell_again(())
        assert _told(store) == ([] if has_room else [("committed", 3.0)]) + newest
        assert count == len(store.reports(20))
        assert min(each.report_id for each in store.reports(20)) > highest
    store._db.execute("PRAGMA query_only = OFF")
    assert store.flush()
    assert count == len(store.reports(20))
    store.acknowledge(store.highest_report_id)
    store.flush()
    store.tell_again(())
    assert _told(store) == newest
    store.close()


def test_a_checkpoint_that_is_told_again_is_recorded_once_that_is_acknowledged(tmp_path: Path) -> None:
    """Not with its number of before, which says nothing to a restored server."""
    store = AgentStore(tmp_path)
    outbox, key = ReportOutbox(store), AttemptKey(1, 1)
    store.move_attempt(key, AttemptPhase.RUNNING)
    manifest = Manifest(step=9.0, path="/c/1/step-9", digest="0" * 64)
    saved = CommittedReport(report_id=outbox.next_id(), **key._asdict(), manifest=manifest)
    outbox.advance_journal(key, 7, [saved])
    outbox.batch()
    outbox.tell_again(())
    (again,) = (report for report in outbox.batch() if report.type == "committed")
    assert outbox.acknowledge(again.report_id - 1) == []
    assert outbox.acknowledge(again.report_id) == [(key, manifest.digest)]
    store.close()


def test_renumbered_reports_keep_their_order_and_wait_for_room(tmp_path: Path) -> None:
    """All that waits goes beyond the number, or nothing changes while the disk is full."""
    store = AgentStore(tmp_path)
    outbox = ReportOutbox(store)
    manifest = Manifest(step=9.0, path="/c/4/step-9", digest="0" * 64)
    saved = CommittedReport(report_id=outbox.next_id(), job_id=1, attempt=1, manifest=manifest)
    outbox.advance_journal(AttemptKey(1, 1), 7, [saved])
    store._db.execute("PRAGMA query_only = ON")
    outbox.put(StartedReport(report_id=outbox.next_id(), job_id=2, attempt=1))
    assert outbox.is_overtaken(5_000_000)
    assert not outbox.renumber(5_000_000)
    assert [report.report_id for report in store.reports(10)] == [1, 2]
    store._db.execute("PRAGMA query_only = OFF")
    assert outbox.renumber(5_000_000)
    assert not outbox.is_overtaken(5_000_000)
    assert [(report.type, report.report_id > 5_000_000) for report in store.reports(10)] == [
        ("committed", True),
        ("started", True),
    ]
    assert outbox.acknowledge(5_000_000) == []
    assert outbox.acknowledge(6_000_000) == [(AttemptKey(1, 1), "0" * 64)]
    assert store.reports(10) == []
    used = store.next_report_id()
    store.close()
    again = AgentStore(tmp_path)
    assert again.next_report_id() > used
    again.close()


def test_ids_grow_over_starts_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two starts in a row without a write, then one with: the server would take no report whose id it has seen."""
    seconds = itertools.count(1000)
    monkeypatch.setattr("workers.agent.report_store.processes.boottime", lambda: float(next(seconds)))
    ids = []
    for is_full in (False, True, True, False, False):
        store = AgentStore(tmp_path)
        store._db.execute(f"PRAGMA query_only = {'ON' if is_full else 'OFF'}")
        ids += [store.next_report_id() for _ in range(3)]
        store.close()
    assert len(set(ids)) == len(ids)
    assert ids == sorted(ids)
    monkeypatch.setattr("workers.agent.report_store.processes.boottime", lambda: 0.0)
    store = AgentStore(tmp_path)
    store.add_reports([StartedReport(report_id=10**9, job_id=1, attempt=1)])
    store.close()
    store = AgentStore(tmp_path)
    assert store.next_report_id() > 10**9  # it waits to be sent before those to come
    store._db.execute("PRAGMA query_only = ON")
    before = store.next_report_id()
    store._db.execute("PRAGMA query_only = OFF")
    assert store.flush()
    store.close()
    again = AgentStore(tmp_path)
    assert again.next_report_id() > before
    again.close()
