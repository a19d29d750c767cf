"""The solver's own process: answers, mistakes, and deaths."""

import operator
import os
import signal
from pathlib import Path

import pytest

from scheduler.core.commands import Solve
from scheduler.core.events import Solved, SolveFailed
from scheduler.live.solver_pool import SolverPool
from tests.support.live_world import FakeAgent, world

pytestmark = pytest.mark.slow
SHARES = {"policy": {"name": "max_min_fairness"}, "rules": {"round_s": 10, "resolve_min_s": 1}}


async def _question(folder: Path) -> Solve:
    """A question as the core puts it."""
    async with world(folder, policy=SHARES) as w:
        asked: list[Solve] = []

        class Note:
            def deliver(self, effects: object) -> None:
                asked.extend(effects.solves)  # type: ignore[attr-defined]

        w.daemon.outlets = [w.server.gateway, Note()]
        await FakeAgent(w, "n1").register()
        await w.submit({})
        await w.advance(5.0)
        return asked[-1]


async def test_the_solver_answers_from_its_own_process_and_survives_its_death(tmp_path: Path) -> None:
    """An answer; then kill -9 of the process: that solve fails, the next one is answered by a new process."""
    question = await _question(tmp_path)
    async with world(tmp_path / "other") as w:
        pool = SolverPool(w.daemon, 60.0)
        try:
            await pool.start()
            assert isinstance(await pool._event(question), Solved)
            for pid in list(pool._pool._processes):
                os.kill(pid, signal.SIGKILL)
            assert isinstance(await pool._event(question), SolveFailed)
            assert isinstance(await pool._event(question), Solved)
        finally:
            await pool.close()


async def test_a_solve_that_raises_or_takes_too_long_is_an_answer_too(tmp_path: Path) -> None:
    """SolveFailed with what went wrong; the server goes on."""
    question = await _question(tmp_path)
    async with world(tmp_path / "other") as w:
        wrong = SolverPool(w.daemon, 60.0, operator.attrgetter("no_such_thing"))
        late = SolverPool(w.daemon, 0.0)
        try:
            failed = await wrong._event(question)
            assert isinstance(failed, SolveFailed)
            assert "AttributeError" in failed.reason
            failed = await late._event(question)
            assert isinstance(failed, SolveFailed)
            assert "no answer within" in failed.reason
        finally:
            await wrong.close()
            await late.close()
