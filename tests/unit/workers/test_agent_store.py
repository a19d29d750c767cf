"""What an agent must not forget, across restarts."""

from pathlib import Path

import pytest

from walras.wire import EndedReport, NoticeReport, ProgressReport, StartedReport
from workers.agent.report_outbox import ReportOutbox
from workers.agent.report_store import AgentStore, AttemptPhase, KnownAttempt


def test_reports_stay_until_acknowledged_and_ids_only_grow(tmp_path: Path) -> None:
    """A restart loses no report and uses no id twice, also not one that was never written."""
    store = AgentStore(tmp_path)
    first = StartedReport(report_id=store.next_report_id(), job_id=1, attempt=1)
    second = StartedReport(report_id=store.next_report_id(), job_id=2, attempt=1)
    store.add_reports([first, second])
    unwritten = store.next_report_id()
    store.acknowledge(first.report_id)
    store.close()
    again = AgentStore(tmp_path)
    assert again.reports(10) == [second]
    assert again.next_report_id() > unwritten
    again.close()


def test_a_phase_and_its_report_are_one(tmp_path: Path) -> None:
    """What is over is over after a restart, and its report is there."""
    store = AgentStore(tmp_path)
    store.move_attempt(1, 1, AttemptPhase.STARTING, [])
    store.move_attempt(1, 2, AttemptPhase.STARTING, [])
    store.advance_journal(1, 2, 77, [])
    ended = EndedReport(report_id=store.next_report_id(), job_id=1, attempt=1, cause="exited", exit_code=0)
    store.move_attempt(1, 1, AttemptPhase.OVER, [ended])
    store.close()
    again = AgentStore(tmp_path)
    assert again.open_attempts() == [KnownAttempt(1, 2, AttemptPhase.STARTING, 77)]
    assert again.reports(10) == [ended]
    again.close()


def test_two_agents_do_not_share_a_folder(tmp_path: Path) -> None:
    """The second one is refused before it touches anything."""
    store = AgentStore(tmp_path)
    with pytest.raises(BlockingIOError):
        AgentStore(tmp_path)
    store.close()


def test_a_notice_is_new_once(tmp_path: Path) -> None:
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
    outbox.move(1, 1, AttemptPhase.OVER, ended)
    assert [report.type for report in outbox.batch()] == ["notice", "ended"]
    outbox.acknowledge(ended.report_id)
    assert outbox.batch() == []
    store.close()
