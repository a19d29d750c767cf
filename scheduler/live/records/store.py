"""The narrow waist between the server and whatever keeps its state.

One thread calls the writing half, any thread the reading half. A commit is atomic and durable when it returns: only
then does the server answer or act. Another database is another class with these methods and the same contract tests.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

from scheduler.live.records.rows import (
    AnswerRow,
    AttemptRow,
    Batch,
    ChargeRow,
    CheckpointRow,
    JobQuery,
    JobRow,
    JournalRow,
    Loaded,
    MoneyQuery,
    MoneySum,
    PolicyRow,
    SpecRow,
    TokenRow,
    Usage,
)
from walras.ids import JobId, NodeId


class Store(Protocol):
    """What the server keeps."""

    # ---------------------------------------------------------------- writing (one thread)

    def commit(self, batch: Batch) -> None:
        """Write everything or nothing; durable on return."""
        ...

    def touch(self) -> None:
        """Write something, to show that writing works."""
        ...

    def close(self) -> None:
        """Let go of the database and of its lock."""
        ...

    # ---------------------------------------------------------------- reading (any thread)

    def epoch_unix_s(self) -> float:
        """Unix seconds of instant 0."""
        ...

    def last_at(self) -> float:
        """The latest instant in the journal."""
        ...

    def load(self) -> Loaded:
        """Everything that is not over."""
        ...

    def journal(self, *, whole: bool = False) -> Iterator[JournalRow]:
        """The journal in order: of the current generation (since the last start), or the whole of it."""
        ...

    def job(self, job_id: JobId) -> JobRow | None: ...

    def jobs(self, query: JobQuery) -> list[JobRow]: ...

    def job_named(self, user: str, name: str) -> JobId | None:
        """The user's newest job of that name."""
        ...

    def spec(self, job_id: JobId) -> SpecRow | None: ...

    def attempts(self, job_id: JobId) -> list[AttemptRow]: ...

    def usage(self, job_ids: Iterable[JobId], at: float) -> list[Usage]:
        """Accelerator-seconds and money by job and accelerator type until `at`."""
        ...

    def charges(self, job_id: JobId | None = None) -> list[ChargeRow]:
        """The ledger of money in order, of one job or the whole of it."""
        ...

    def spent(self) -> dict[tuple[str, str], float]:
        """USD by (project, month), as budgets count it: project "" is everything."""
        ...

    def money(self, query: MoneyQuery) -> list[MoneySum]:
        """Sums over the ledger of money."""
        ...

    def attempt_was_on(self, job_id: JobId, attempt: int, node_id: NodeId) -> bool: ...

    def checkpoint(self, job_id: JobId) -> CheckpointRow | None:
        """The newest one that was recorded."""
        ...

    def policies(self, limit: int = 100) -> list[PolicyRow]:
        """Newest first."""
        ...

    def answer(self, user: str, key: str) -> AnswerRow | None: ...

    def token(self, sha256: str) -> TokenRow | None: ...

    def tokens(self) -> list[TokenRow]: ...
