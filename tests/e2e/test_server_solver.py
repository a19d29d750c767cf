"""The solver's own process: answers, mistakes, and deaths."""

import asyncio
import operator
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from optimizer.policy import PolicySpec
from scheduler.core.commands import Solve
from scheduler.core.cycle.solve_requests import integral_gang_bound
from scheduler.core.events import Proposal, Solved, SolveFailed
from scheduler.live.loop.solver_pool import SolverPool, WholeGangBound
from tests.support.http_face import Face, facing
from tests.support.live_world import FakeAgent, world
from tests.support.problems import Setting, build

pytestmark = pytest.mark.slow
API = "/api/v1"
SHARES = {"policy": {"name": "max_min_fairness"}, "rules": {"round_s": 10, "resolve_min_s": 1}}


async def _question(folder: Path) -> Solve:
    """A question as the core puts it."""
    async with world(folder, policy=SHARES) as w:
        asked: list[Solve] = []

        class Note:
            def deliver(self, effects: object) -> None:
                asked.extend(effects.solves)  # type: ignore[attr-defined]

        w.loop.effect_handlers = [w.server.gateway, Note()]
        await FakeAgent(w, "n1").register()
        await w.submit({})
        await w.advance(5.0)
        return asked[-1]


async def test_the_solver_answers_from_its_own_process_and_survives_its_death(tmp_path: Path) -> None:
    """An answer; then kill -9 of the process: that solve fails, the next one is answered by a new process."""
    question = await _question(tmp_path)
    async with world(tmp_path / "other") as w:
        pool = SolverPool(w.loop, 60.0)
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
        wrong = SolverPool(w.loop, 60.0, operator.attrgetter("no_such_thing"))
        late = SolverPool(w.loop, 0.0)
        leaving = SolverPool(w.loop, 60.0, sys.exit)
        try:
            failed = await wrong._event(question)
            assert isinstance(failed, SolveFailed)
            assert "AttributeError" in failed.reason
            failed = await late._event(question)
            assert isinstance(failed, SolveFailed)
            assert "no answer within" in failed.reason
            failed = await leaving._event(question)
            assert isinstance(failed, SolveFailed)
            assert "SystemExit" in failed.reason
        finally:
            await wrong.close()
            await late.close()
            await leaving.close()


async def test_what_whole_gangs_can_reach_is_told_when_asked(tmp_path: Path) -> None:
    """Two gangs of three on four accelerators: no gap, three quarters; only on demand, and once per question."""
    async with facing(tmp_path, policy=SHARES, real_time=True) as face:
        assert (await face.json("GET", f"{API}/prices?whole=true"))[1]["certificate"] is None
        await FakeAgent(face.world, "n1", shape="ax4", accelerators=4).register()
        for _ in range(2):
            await face.world.submit({"steps": 1e6, "profile": "k", "resources": {"accelerators": "a:3"}})
        await _both_entitled(face)
        assert (await face.json("GET", f"{API}/prices"))[1]["certificate"]["integral_bound"] is None
        certificate = (await face.json("GET", f"{API}/prices?whole=true"))[1]["certificate"]
        assert certificate["gap"] < 1e-6
        assert certificate["integral_bound"] == pytest.approx(0.75 * certificate["bound"])
        again = (await face.json("GET", f"{API}/prices?whole=true"))[1]["certificate"]
        assert {**again, "realised": None} == {**certificate, "realised": None}


async def _both_entitled(face: Face) -> None:
    """Wait for a solve that knows both jobs."""
    for _ in range(300):
        proposal = face.world.live_state.proposal
        if proposal is not None and len(proposal.job_ids) == 2:
            return
        await asyncio.sleep(0.2)
    raise AssertionError("no solve within a minute")


async def test_the_bound_of_a_plan_comes_from_cvxpy_once_that_is_ready_in_the_solver(tmp_path: Path) -> None:
    """The first answer does not wait for it; a later one has the same plan, and a smaller bound."""
    random = np.random.default_rng(2)
    speeds = random.uniform(0.5, 2.0, (16, 2)).tolist()
    problem = build(Setting(speeds, [5, 6], gangs=random.choice([2, 4], 16).tolist()))
    question = Solve(1, problem, PolicySpec("walras"), None, 0.0)
    async with world(tmp_path) as w:
        pool = SolverPool(w.loop, 60.0)
        try:
            await pool.start()
            first = await _proposal(pool, question)
            later = await _proposal(pool, question)
        finally:
            await pool.close()
    assert (first.path, later.path) == ("assignment at prices", "assignment at prices; bound: cvxpy/highs")
    assert later.objective == first.objective <= later.bound < first.bound
    assert (later.job_ids, later.pool_rows, later.prices) == (first.job_ids, first.pool_rows, first.prices)
    whole = integral_gang_bound(question)
    assert whole is not None
    assert first.objective <= whole <= later.bound * (1 + 1e-6)


async def _proposal(pool: SolverPool, question: Solve) -> Proposal:
    found = await pool._event(question)
    assert isinstance(found, Solved)
    return found.proposal


async def test_a_search_that_takes_too_long_finds_no_bound(tmp_path: Path) -> None:
    """None, and its process is gone."""
    question = await _question(tmp_path)
    async with world(tmp_path / "other") as w:
        pool = SolverPool(w.loop, 60.0)
        try:
            pool.answered = question
            assert await WholeGangBound(pool, 0.0).bound() is None
        finally:
            await pool.close()
