"""Facts of kinds of jobs on their way into the core: from people, who are refused where they err, and from jobs, whose
words are left out where they cannot be believed, with the reason in the log.

A kind belongs to nobody: whoever may submit a job of it may state its facts, as with declared speeds. What a job
counted goes before what anybody stated.
"""

import logging

from scheduler.core.speed_events import FactsTold
from scheduler.live.records.journal import dump_facts
from scheduler.live.records.rows import FactsRow
from scheduler.live.turns.board import LiveAttempt, LiveJob
from scheduler.live.turns.carry_out import emit
from scheduler.live.turns.turn import Turn
from walras.ids import Kind
from walras.model_facts import ModelFacts, counted

log = logging.getLogger(__name__)


def state_facts(turn: Turn, kind: Kind, facts: ModelFacts, user: str) -> None:
    """Somebody says so."""
    _tell(turn, kind, facts, user)


def take_counted(turn: Turn, job: LiveJob, attempt: LiveAttempt, told: dict[str, float]) -> None:
    """Once an attempt: its first rank counts once, and repeats it with every report."""
    if attempt.facts_told:
        return
    attempt.facts_told = True
    batch = job.launch.env.get("WALRAS_BATCH", "")
    found = counted(told, attempt.row.accelerators, float(batch) if batch.isascii() and batch.isdigit() else None)
    for why in found.ignored:
        log.warning("job %d: a fact of kind %s is not believed: %s", job.row.job_id, job.launch.kind, why)
    if found.facts is not None:
        _tell(turn, job.launch.kind, found.facts, "")


def _tell(turn: Turn, kind: Kind, facts: ModelFacts, user: str) -> None:
    is_counted = not user
    if not turn.core.ledger.facts.has(kind, facts, counted=is_counted):
        emit(turn, FactsTold(turn.at, kind, facts, is_counted))
        turn.batch.facts.append(FactsRow(kind, is_counted, dump_facts(facts), turn.at, user))
