"""What the demo makes of what it saw: changes, checks, tables, picture."""

from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from simulator.reports.recorded_runs import ResimulatedJob
from walras.demo.main import (
    SpecialJobs,
    check_promises,
    check_simulated_ends,
    checks_table,
    comparison_table,
    draw_timeline,
    find_losses,
    print_changes,
    print_demo_report,
    print_failure,
)
from walras.demo.workload_run import DemoRecording, LiveView
from walras.job_request import JobId
from walras.resources.fleet import NodeView
from walras.resources.jobs import AttemptView, JobDetail, JobView
from walras.resources.prices import PriceView
from walras.states import AttemptState, JobState, Reason

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
A100, K80, V100 = "a100x2/owned/default", "k80x2/owned/default", "v100x1/spot/default"


def at(seconds: float) -> str:
    return (EPOCH + timedelta(seconds=seconds)).isoformat()


def an_attempt(
    job_id: int, number: int, span: tuple[float, float], node: str = "a100-1:0", **fields: Any
) -> AttemptView:
    accelerator = node.split("-", maxsplit=1)[0]
    given = {
        "job_id": job_id,
        "attempt": number,
        "state": AttemptState.SUCCEEDED,
        "pool": {"a100": A100, "k80": K80, "v100": V100}[accelerator],
        "accelerator": accelerator,
        "placement": [node],
        "accelerators": 1,
        "leased_at": at(span[0]),
        "started_at": at(span[0] + 1),
        "ended_at": at(span[1]),
        **fields,
    }
    return AttemptView.model_validate(given)


def a_job(job_id: int, attempt_list: list[AttemptView], **fields: Any) -> JobDetail:
    given = {
        "id": job_id,
        "name": f"job-{job_id}",
        "project": "vision",
        "user": "ada",
        "kind": "cnn",
        "state": JobState.SUCCEEDED,
        "priority": 50,
        "accelerators": 1,
        "attempts": len(attempt_list),
        "steps": 100,
        "steps_total": 100,
        "submitted_at": at(0),
        "ended_at": attempt_list[-1].ended_at if attempt_list else at(0),
        "first_values": {"loss": 2.0},
        "last_values": {"loss": 0.5},
        "accelerator_s": {"a100": 10.0},
        "spec": {},
        "attempt_list": attempt_list,
        **fields,
    }
    return JobDetail.model_validate(given)


def a_node(name: str, pool: str, state: str = "up", accelerators: int = 2) -> NodeView:
    accelerator = name.split("-", maxsplit=1)[0]
    facts = {"emulated": True, "market": pool.split("/")[1], "zone": "default", "free": 0, "jobs": []}
    return NodeView.model_validate(
        {
            "node_id": name,
            "pool": pool,
            "accelerator": accelerator,
            "state": state,
            "accelerators": accelerators,
            **facts,
        }
    )


def a_price(pool: str, price: float) -> PriceView:
    return PriceView(
        pool=pool, accelerator="a100", market="owned", capacity=2, free=0, price=price, unit="share", market_usd_per_h=0
    )


CAST = SpecialJobs(failing=2, plain=3, gang=4, revoked_pool=V100)


@pytest.fixture
def recording() -> DemoRecording:
    """A run in which everything went as promised."""
    seen = DemoRecording(EPOCH)
    preempted = {"state": AttemptState.PREEMPTED, "reason": Reason.POLICY_MOVED, "checkpoint_step": 40.0}
    reclaimed = {"state": AttemptState.PREEMPTED, "reason": Reason.INFRA_SPOT_RECLAIM, "checkpoint_step": 70.0}
    moved = [
        an_attempt(1, 1, (0, 20), "k80-1:0", **preempted),
        an_attempt(1, 2, (20, 40), "v100-1:0", **reclaimed),
        an_attempt(1, 3, (41, 60), "a100-1:0"),
    ]
    failed = an_attempt(2, 1, (5, 12), "k80-1:1", state=AttemptState.FAILED, exit_code=1)
    gang = an_attempt(4, 1, (12, 30), "k80-1:0,1", accelerators=2)
    seen.jobs = {
        1: a_job(1, moved),
        2: a_job(2, [failed], state=JobState.FAILED, reason=Reason.USER_EXIT_CODE, detail="exit code 1", steps=31),
        3: a_job(
            3, [an_attempt(3, 1, (3, 30))], kind="plain_script", first_values={}, last_values={}, steps=0,
            steps_total=None,
        ),
        4: a_job(4, [gang], accelerators=2, user="bob"),
    }  # fmt: skip
    seen.note_nodes([a_node("a100-1", A100), a_node("k80-1", K80), a_node("v100-1", V100, accelerators=1)], 0)
    seen.note_nodes([a_node("a100-1", A100), a_node("k80-1", K80), a_node("v100-1", V100, "leaving", 1)], 60)
    seen.note_prices([a_price(A100, 0.5), a_price(K80, 0.25)], 1)
    seen.paces[("cnn", "a100")] = [15.0, 16.0]
    return seen


LOGS = {3: "step 0 loss 2.3122\nstep 50 loss 1.1\nstep 99 loss 0.2026\n"}


def test_every_promise_is_kept_in_a_good_run(recording: DemoRecording) -> None:
    """The checklist has no failure where everything happened."""
    checks = check_promises(recording, CAST, find_losses(recording, LOGS), took_s=170)
    assert [check for check in checks if not check.kept] == []


@pytest.mark.parametrize(
    ("spoil", "promise"),
    [
        (lambda seen: seen.jobs.pop(2), "the failing job is FAILED with a reason"),
        (lambda seen: seen.jobs.update({5: a_job(5, [], state=JobState.FAILED)}), "every job ended as it should"),
        (lambda seen: seen.jobs[1].last_values.update(loss=1.9), "every loss fell below 0.7 of the first"),
        (lambda seen: seen.prices.clear(), "prices were given"),
        (lambda seen: seen.nodes.clear(), "the spot machine was revoked and its job went on elsewhere"),
        (lambda seen: seen.jobs.pop(1), "jobs moved between accelerator types"),
        (lambda seen: seen.jobs.pop(1), "jobs were preempted"),
        (lambda seen: seen.jobs[4].attempt_list.clear(), "the gang ran with two ranks"),
        (lambda seen: seen.jobs[1].attempt_list.extend(seen.jobs[1].attempt_list * 7), "at most 24 rank starts"),
    ],
)
def test_a_broken_promise_is_found(recording: DemoRecording, spoil: Any, promise: str) -> None:
    """Each check fails when its promise is broken."""
    spoil(recording)
    checks = check_promises(recording, CAST, find_losses(recording, LOGS), took_s=170)
    assert promise in [check.promise for check in checks if not check.kept]


@pytest.mark.parametrize(
    ("simulated_s", "least_s", "most_s", "is_kept", "detail"),
    [
        (63.0, 60.0, 66.0, True, "median error 5.0% (goal 10%), 0.0% more than order changes, 3 of 3 jobs 0"),
        (75.0, 50.0, 90.0, True, "median error 25.0% (over goal 10%), 0.0% more than order changes, 3 of 3 jobs 0"),
        (75.0, 69.0, 90.0, False, "median error 25.0% (over goal 10%), 15.0% more than order changes, 0 of 3 jobs 0"),
    ],
)
def test_the_demo_says_how_far_the_simulation_was_off(
    simulated_s: float, least_s: float, most_s: float, is_kept: bool, detail: str
) -> None:
    """What order alone changes is told apart, and is no broken promise."""
    check = check_simulated_ends([ResimulatedJob(JobId(n), 60.0, simulated_s, least_s, most_s) for n in (1, 2, 3)])
    assert (check.kept, check.detail) == (is_kept, detail)


def test_losses_of_a_script_that_reports_nothing_are_read_from_its_log(recording: DemoRecording) -> None:
    """First and last `loss` that it printed."""
    assert find_losses(recording, LOGS)[3] == (2.3122, 0.2026)


def test_the_report_shows_every_job_user_and_pool(recording: DemoRecording, tmp_path: Path) -> None:
    """Tables, the failed job with the end of its log, changes, comparison and picture come out whole."""
    console = Console(file=StringIO(), width=200)
    print_demo_report(console, recording, find_losses(recording, LOGS), {"cnn": {"a100": 16.0, "k80": 4.0}})
    print_failure(console, recording, 2, "first line\nArithmeticError: the loss is nan")
    print_changes(console, recording)
    again = [ResimulatedJob(JobId(1), 60.0, 66.0, 60.0, 70.0), ResimulatedJob(JobId(2), 10.0, 10.0, 9.0, 12.0)]
    console.print(comparison_table(recording, again))
    console.print(checks_table(check_promises(recording, CAST, {}, 10)))
    file = console.file
    assert isinstance(file, StringIO)
    text = file.getvalue()
    for expected in ("k80 > v100 > a100", "Jain's index", "15.5 / 16", "ArithmeticError: the loss is nan", "FAIL"):
        assert expected in text
    assert "moved to v100" in text
    assert "66.0" in text
    draw_timeline(recording, tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def running(steps: float, **fields: Any) -> JobView:
    given = {"accelerator": "a100", "attempts": 1, "steps_per_s": 10.0, "state": JobState.RUNNING, **fields}
    return a_job(1, [], steps=steps, **given)


def test_only_changes_are_told() -> None:
    """A job that goes on, prices that stay and machines that are there are told once."""
    seen = DemoRecording(EPOCH)
    assert len(seen.note_jobs([running(0)], 0)) == 1
    assert seen.note_jobs([running(5)], 1) == []
    assert len(seen.note_jobs([running(5, state=JobState.PREEMPTING)], 2)) == 1
    assert len(seen.note_prices([a_price(A100, 0.5)], 0)) == 1
    assert seen.note_prices([a_price(A100, 0.5)], 2) == []
    assert len(seen.note_nodes([a_node("a100-1", A100)], 0)) == 1
    assert seen.note_nodes([a_node("a100-1", A100)], 1) == []


def test_without_a_terminal_the_view_prints_lines_only() -> None:
    """Each change is one line; showing tables prints nothing."""
    console = Console(file=StringIO(), width=100)
    with LiveView(console, live=True) as view:
        view.say(1.5, ["job 1 [red]x[/red]: RUNNING"])
        view.show([running(1)], [a_node("a100-1", A100)], [a_price(A100, 0.5)])
    file = console.file
    assert isinstance(file, StringIO)
    assert file.getvalue() == "   1.5 s  job 1 [red]x[/red]: RUNNING\n"
