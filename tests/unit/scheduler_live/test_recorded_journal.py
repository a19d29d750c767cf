"""A journal that an earlier version wrote, and what this version makes of it."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from optimizer.registry import names
from scheduler.live.store.event_journal import replay_journal
from scheduler.live.store.table_rows import JournalRow

#: Recorded at commit 6d64c02 (2026-11-22): jobs on three machines, each of 25 policies in force for a while.
RECORDED = Path(__file__).with_name("recorded_journal.jsonl.gz")


def recorded_rows() -> Iterator[JournalRow]:
    with gzip.open(RECORDED, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield JournalRow(*json.loads(line))


def test_a_journal_of_an_earlier_version_replays() -> None:
    """The same events give the same commands and put the same questions to the solver, digest by digest, even though
    classes and modules have other names by now."""
    report = replay_journal(recorded_rows())
    assert report.differences == []
    assert report.identical
    assert report.command_types["Solve"] == 80
    assert (report.events, report.generations) == (645, 1)


def test_the_recorded_journal_puts_questions_to_every_policy_of_its_time() -> None:
    """Or the replay would not notice that a policy's memory is recorded under another name."""
    changed = [json.loads(row.payload)["policy"]["name"] for row in recorded_rows() if row.type == "PolicyChanged"]
    assert len(set(changed)) == 25
    assert set(changed) <= set(names())
