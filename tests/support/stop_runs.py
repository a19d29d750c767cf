"""Attempts side by side with real processes, stopped once each is up: what tests of stops run."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.attempts import SupervisedAttempt, wait_for
from tests.support.stopped_programs import PLAIN, SAVER

SAVE = "python save.py"
Run = Callable[..., dict[str, SupervisedAttempt]]


def stopping(tmp_path: Path) -> Iterator[Run]:
    """Starts attempts side by side, one for each command; stops them once each has said `up`; waits for their ends."""
    started: list[SupervisedAttempt] = []
    (tmp_path / "save.py").write_text(SAVER)
    (tmp_path / "plain.py").write_text(PLAIN)

    def run_all(
        commands: Mapping[str, list[str]],
        *,
        ups: int = 1,
        stop_s: float = 60.0,
        after: Callable[[SupervisedAttempt], bool] = lambda attempt: True,
        **changes: Any,
    ) -> dict[str, SupervisedAttempt]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        fields = {"lease_s": 600.0, "grace_s": 60.0} | changes
        env = {"PATH": path} | fields.pop("env", {})
        attempts = {}
        for name, argv in commands.items():
            folder = tmp_path / f"attempt-{len(started)}"
            attempts[name] = SupervisedAttempt(folder, argv, env=env, **fields)
            started.append(attempts[name])
            attempts[name].start()
        for name, attempt in attempts.items():
            wait_for(lambda a=attempt: said(a).count("up\n") >= ups, 60.0, f"{name} is up")  # type: ignore[misc]
            wait_for(lambda a=attempt: after(a), 60.0, f"{name} is as far as it should be")  # type: ignore[misc]
            attempt.tell({"type": "stop", "grace_s": stop_s, "reason": "preempted"})
        for attempt in attempts.values():
            attempt.wait_event("ended", 90.0)
            assert attempt.alive() == []
        return attempts

    yield run_all
    for attempt in started:
        attempt.close()


def said(attempt: SupervisedAttempt) -> str:
    return "".join(attempt.output(rank) for rank in attempt.plan.ranks)


def bash(text: str) -> list[str]:
    """As a job's `run: TEXT` is started."""
    return ["bash", "-euo", "pipefail", "-c", text]


def ends(attempts: Mapping[str, SupervisedAttempt]) -> dict[str, tuple[int, int, int | None, int | None]]:
    """By name: how often the signal was caught, how often a save was finished, exit code and signal."""
    found = {}
    for name, attempt in attempts.items():
        (ended,) = attempt.events("ended")
        output = said(attempt)
        found[name] = output.count("caught\n"), output.count("saved\n"), ended["exit_code"], ended["signal"]
        assert attempt.alive() == [], name
        assert (ended["unfinished"], ended["cause"]) == (True, "exited"), name
    return found
