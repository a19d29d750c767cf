"""The commands about jobs, run against a server, as a person or a program would run them."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from walras.connection.transport import Patience

Run = Callable[..., Any]


def job_file(text: str, name: str = "train.yaml") -> str:
    Path(name).write_text(text)
    return name


def attempt(**fields: Any) -> dict[str, Any]:
    """The first attempt of job 1, as the server would send it."""
    body = {"job_id": 1, "attempt": 1, "state": "RUNNING", "pool": "p", "accelerator": "a100", "placement": []}
    return body | {"accelerators": 1, "leased_at": "2026-11-05T18:00:00Z"} | fields


# ------------------------------------------------------------------------------------------------------ submitting


def test_submit_a_file(run: Run, fake: Any) -> None:
    """A job file becomes a job, named after the file; `last` then means it."""
    result = run("submit", job_file("run: python train.py\nresources: {accelerators: A100}"))
    assert (result.exit_code, result.stdout.splitlines()[0]) == (0, "job 1 (train) is in the queue")
    assert fake.requests[-1][2] == {
        "name": "train", "run": "python train.py", "resources": {"accelerators": {"a100": 1}},
    }  # fmt: skip
    assert run("show", "last").exit_code == 0


def test_submit_with_changes(run: Run, fake: Any) -> None:
    """Fields, variables and the command can be given beside the file; an absolute folder is one that machines have."""
    name = job_file("run: a\nworkdir: /shared/src\nenvs: {SEED: null, HERE: null}\npriority: low")
    args = ["-s", "priority=high", "-e", "SEED=007", "-e", "HERE", "-q", "--", "python", "b.py", "-x"]
    result = run("submit", name, *args, env={"HERE": "mine"})
    assert (result.exit_code, result.stdout) == (0, "1\n")
    sent = fake.requests[-1][2]
    assert sent["run"] == ["python", "b.py", "-x"]
    assert sent["priority"] == 80
    assert sent["envs"] == {"SEED": "007", "HERE": "mine"}
    assert sent["workdir"] == "/shared/src"


def test_submit_a_script_and_standard_input(run: Run, fake: Any) -> None:
    """A shell script is a job; `-` reads a job file or a script from standard input."""
    script = "#!/bin/bash\n#WALRAS resources.accelerators=any:2\n#WALRAS workdir=/shared\necho hi\n"
    assert run("submit", job_file(script, "night.sh")).exit_code == 0
    sent = fake.requests[-1][2]
    assert (sent["name"], sent["resources"]) == ("night", {"accelerators": {"any": 2}})
    assert sent["run"] == ["/bin/bash", "-c", script, "night.sh"]
    assert sent["workdir"] == "/shared"
    assert run("submit", "-", "-o", "json", stdin="run: hostname").exit_code == 0
    assert fake.requests[-1][2] == {"run": "hostname"}
    assert run("submit", "-", "--", "hostname", stdin="").exit_code == 0
    assert fake.requests[-1][2] == {"run": ["hostname"]}


def test_the_folder_of_a_relative_workdir_travels_with_the_job(run: Run, fake: Any) -> None:
    """Its files are with the server before the job is, less what ignore files name; a second time nothing is sent."""
    Path("src/out").mkdir(parents=True)
    Path("src/__pycache__").mkdir()
    for path, text in {
        "train.py": "print()", ".gitignore": "*.log\n", "big.log": "x", ".walrasignore": "out/\n", "out/model": "x",
        "__pycache__/a.pyc": "x", "data.txt": "1",
    }.items():  # fmt: skip
        Path("src", path).write_text(text)
    name = job_file("run: python train.py\nworkdir: src")
    result = run("submit", name)
    assert (result.exit_code, "4 files" in result.stdout) == (0, True), result.output
    sent = fake.requests[-1][2]
    assert ("workdir" in sent, sent["code"]["folder"], sent["code"]["files"]) == (False, "src", 4)
    tree = fake.trees[sent["code"]["tree"]]
    assert [file.path for file in tree.files] == [".gitignore", ".walrasignore", "data.txt", "train.py"]
    asked_before = len(fake.requests)
    assert run("submit", name).exit_code == 0
    assert not [path for method, path, _ in fake.requests[asked_before:] if method == "PUT"]


def test_a_script_takes_the_folder_it_is_submitted_from_with_it(run: Run, fake: Any) -> None:
    """As a person at a shell means it."""
    assert run("submit", job_file("#!/bin/bash\npython train.py\n", "night.sh")).exit_code == 0
    sent = fake.requests[-1][2]
    assert "night.sh" in {file.path for file in fake.trees[sent["code"]["tree"]].files}


def _huge() -> None:
    Path("src").mkdir()
    with open("src/data.bin", "wb") as file:
        file.truncate(2**30)


def _linked() -> None:
    Path("src").mkdir()
    Path("src/link").symlink_to("/etc/passwd")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: None, ["src is no folder"]),
        (_linked, ["no regular file", "walrasignore"]),
        (_huge, ["data.bin (1,073.7 MB)", "walrasignore"]),
    ],
)
def test_a_folder_that_cannot_travel_is_refused_by_name(
    run: Run, fake: Any, make: Callable[[], Any], said: list[str]
) -> None:
    make()
    result = run("submit", job_file("run: x\nworkdir: src"))
    assert result.exit_code == 2
    output = " ".join(result.output.split())
    assert not [word for word in said if word not in output], output
    assert fake.jobs == {}


def test_a_dry_run_submits_nothing(run: Run, fake: Any) -> None:
    """The ways to run the job are listed with the one that would be chosen."""
    result = run("submit", job_file("run: x"), "--dry-run")
    assert result.exit_code == 0
    assert "kind cnn" in result.stdout
    assert "✔" in result.stdout
    assert "nothing was submitted" in result.stdout
    assert json.loads(run("submit", "train.yaml", "--dry-run", "-o", "json").stdout)["chosen"]["accelerator"] == "a100"
    assert fake.jobs == {}


@pytest.mark.parametrize(
    ("content", "args", "said"),
    [
        (b"run: x\nsteps: -1", (), ["steps", "above 0"]),
        (b"runn: x", (), ["did you mean `run`"]),
        (b"run: \xff", (), ["line 1", "UTF-8"]),
        (b"run: [", (), ["line 2", "correct the YAML"]),
        (b"run: x\ncheckpoint: {dir: ../../etc}", (), ["checkpoint.dir", "'..'"]),
        (b"run: x # " + b"y" * 300_000, (), ["262,144", "name them in `run`"]),
        (b"run: x", ("-s", "priority=400"), ["priority", "100 or less"]),
        (b"run: x", ("-s", "colour=red"), ["colour", "unknown field"]),
        (b"run: x", ("-s", "nonsense"), ["FIELD=VALUE"]),
        (b"run: x\nenvs: {KEY: null}", (), ["KEY has no value", "--env KEY=VALUE"]),
        (b"run: x", ("-e", "NO_SUCH_VARIABLE"), ["NO_SUCH_VARIABLE"]),
        (b"", (), ["no fields"]),
        (b"#!/usr/bin/perl\n", (), ["not a shell script"]),
        (b"#!/bin/sh\n" + b"x" * 200_000, (), ["run", "131,071"]),
        (b"#!/bin/sh\n\xff", (), ["line 2", "UTF-8"]),
        (b"run: x\nresources: {accelerators: h900}", (), ["no pool has h900", "choose a100"]),
    ],
)
def test_bad_submissions_exit_2_and_create_nothing(
    run: Run, fake: Any, content: bytes, args: tuple[str, ...], said: list[str]
) -> None:
    """A bad job ends with exit code 2, a message that names field and fix, no traceback, and no job."""
    Path("job.yaml").write_bytes(content)
    result = run("submit", "job.yaml", *args)
    assert result.exit_code == 2
    assert all(word in result.stderr for word in said), result.stderr
    assert "Traceback" not in result.output
    assert fake.jobs == {}


def test_a_file_that_is_not_there(run: Run) -> None:
    """A missing file is the user's to mend."""
    result = run("submit", "none.yaml")
    assert (result.exit_code, "No such file" in result.stderr) == (2, True)


# --------------------------------------------------------------------------------------------------------- looking


def test_queue_and_jobs(run: Run, fake: Any) -> None:
    """`queue` lists what has not ended, `jobs` everything; filters and limits hold; JSON is stable."""
    for state in ("PENDING", "RUNNING", "FAILED", "SUCCEEDED"):
        fake.add(state=state)
    table = run("queue").stdout.splitlines()
    assert table[0].split()[:5] == ["JOB", "NAME", "USER", "PROJECT", "STATE"]
    assert [line.split()[0] for line in table[1:]] == ["1", "2"]
    assert "waits for accelerators to become free  " in table[1]
    assert len(run("queue", "--all", "--no-header").stdout.splitlines()) == 4
    assert [job["state"] for job in json.loads(run("queue", "--all", "-o", "json").stdout)] == [
        "PENDING", "RUNNING", "FAILED", "SUCCEEDED",
    ]  # fmt: skip
    assert [job["id"] for job in json.loads(run("queue", "--all", "--state", "failed", "-o", "json").stdout)] == [3]
    limited = run("queue", "--all", "--limit", "2", "--no-header")
    assert len(limited.stdout.splitlines()) == 2
    assert "--limit shows more" in limited.stderr
    refused = run("queue", "--all", "--state", "FAILD")
    assert (refused.exit_code, "did you mean FAILED" in refused.stderr) == (2, True)
    assert run("queue", "--user", "ada", "--project", "vision").exit_code == 0
    assert "user=ada&project=vision" in fake.requests[-1][1]


def test_an_empty_queue_is_empty_json(run: Run) -> None:
    """Programs get an empty list."""
    assert json.loads(run("queue", "-o", "json").stdout) == []


def test_nothing_a_job_is_called_reaches_the_terminal_raw(run: Run, fake: Any) -> None:
    """Escape sequences, carriage returns and bidirectional overrides in names and reasons are gone in every view."""
    evil = "\x1b]0;owned\x07\x1b[2Jname\r\x9b31m\u202eevil"
    fake.add(name=evil, detail=evil, user=evil)
    for args in (("queue",), ("show", "1"), ("explain", "1"), ("queue", "--all", "-o", "json")):
        result = run(*args)
        assert result.exit_code == 0
        assert not {"\x1b", "\x07", "\x9b", "\r", "\u202e"} & set(result.stdout)
    assert "name" in run("queue").stdout


@pytest.mark.parametrize(
    ("written", "at"), [("2026-11-05T18:00:30Z", 1793901630.0), ("+6h", 1793894400.0), ("soon", None), ("", 0.0)]
)
def test_show_says_the_deadline_as_an_instant(run: Run, fake: Any, written: str, at: float | None) -> None:
    """A length in the spec counts from submission; a job without one has no such line."""
    fake.add(submitted_at="2026-11-05T10:00:00Z", spec={"deadline": written} if written else {})
    lines = [line.split(maxsplit=1)[1].strip() for line in run("show", "1").stdout.splitlines() if "deadline" in line]
    shown = written if at is None else time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(at))
    assert lines == ([shown] if written else [])


def test_show_and_explain(run: Run, fake: Any) -> None:
    """One job with its attempts, and why it is where it is."""
    fake.add(
        state="RUNNING", steps=50, steps_total=200, accelerator_s={"a100": 75.0}, usd=0.5, last_values={"loss": 0.5}
    )
    fake.attempts[1] = [
        attempt(state="PREEMPTED", reason="POLICY:PREEMPTED", placement=["n1:0,1"], accelerators=2, signal=9)
        | {"failed_rank": 1, "checkpoint_step": 40, "emulated": True}
    ]
    shown = run("show", "1").stdout
    for word in ("50 of 200", "a100 1m15s", "$0.5000", "made way for", "2 x a100 (emulated)", "signal 9 (rank 1)",
                 "n1:0,1", "step 40", "loss 0.5 -> 0.5"):  # fmt: skip
        assert word in shown
    assert json.loads(run("show", "1", "-o", "json").stdout)["attempt_list"][0]["attempt"] == 1
    explained = run("explain", "1").stdout
    assert "waits for accelerators to become free: needs 1 x a100, 0 free" in explained
    assert "WAIT:" not in explained
    assert "accept v100 too" in explained
    assert "worth 2" not in explained
    assert "worth 2 here, price 3 (USD/h)" in run("explain", "1", "-v").stdout
    assert json.loads(run("explain", "1", "-o", "json").stdout)["reasons"][0]["fix"] == "accept v100 too"
    missing = run("show", "99")
    assert (missing.exit_code, "no job 99" in missing.stderr) == (2, True)


def test_logs(run: Run, fake: Any) -> None:
    """A log is printed without escape sequences and with broken bytes replaced; --raw prints the bytes."""
    fake.add(state="FAILED")
    fake.attempts[1] = [attempt(state="FAILED")]
    fake.logs[1, 1] = b"step 1\r\nstep \x1b[31m2\x1b[0m\xff\n\x1b]52;c;cm0gLXJm\x07done\n"
    result = run("logs", "1")
    assert (result.exit_code, result.stdout) == (0, "step 1\nstep 2\ufffd\ndone\n")
    assert run("logs", "1", "--raw").stdout_bytes == fake.logs[1, 1]
    followed = run("logs", "-f", "1")
    assert (followed.exit_code, followed.stdout) == (100, result.stdout)
    assert run("logs", "1", "--attempt", "1", "-f").exit_code == 0


def test_logs_of_all_ranks_are_marked(run: Run, fake: Any) -> None:
    """Each line begins with its rank, whether or not it ends; following and raw bytes are for one rank."""
    fake.add(accelerators=2)
    fake.attempts[1] = [attempt(accelerators=2)]
    fake.logs[1, 1] = b"one\n\x1b[31mtwo"
    result = run("logs", "1", "--rank", "all")
    assert (result.exit_code, result.stdout) == (0, "0| one\n0| two\n1| one\n1| two\n")
    for wrong in (("--rank", "all", "-f"), ("--rank", "first"), ("--rank", "-1")):
        refused = run("logs", "1", *wrong)
        assert (refused.exit_code, "--rank" in refused.stderr) == (2, True)


def test_the_lines_of_a_role_are_printed_by_its_name(run: Run, fake: Any) -> None:
    """Of all ranks, or followed on one, with what was said of its processes; another role's, or none, is refused."""
    fake.add(spec={"roles": {"learner": {}, "roll": {}}}, accelerators=2)
    fake.attempts[1] = [attempt(state="FAILED", accelerators=2)]
    fake.logs[1, 1] = (
        b"[roll 0] one\n[learner 0] loss\r[roll 0] no\n[walras] roll 1 ended\n"
        b"[walras] cannot start roll 0: no\n[walras] cannot start learner 0: no\n[rolls 0] no\n[roll 1] \x1b[31mtw"
    )
    own = "[roll 0] one\n[walras] roll 1 ended\n[walras] cannot start roll 0: no\n[roll 1] tw"
    assert run("logs", "1", "--role", "roll").stdout == f"{own}\n{own}\n"
    assert run("logs", "1", "--role", "roll", "--rank", "1").stdout == own
    assert run("logs", "1", "--role", "roll", "-r", "1", "-f", "-a", "1").stdout == own
    for wrong, said in (
        (("--role", "judge"), "learner, roll"), (("--role", "judge", "-r", "0"), "learner, roll"),
        (("--role", "roll", "-f"), "--rank"), (("--role", "roll", "-r", "0", "--tail", "1"), "--tail"),
    ):  # fmt: skip
        refused = run("logs", "1", *wrong)
        assert (refused.exit_code, said in refused.stderr) == (2, True)


def test_an_empty_log_says_why_it_is_empty(run: Run, fake: Any) -> None:
    """Nothing on standard output; on standard error the state and its reason."""
    fake.add()
    result = run("logs", "1")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "job 1 is PENDING, attempts 0: waits for accelerators to become free: needs" in result.stderr


def test_the_queue_shows_what_is_known_without_a_reason(run: Run, fake: Any) -> None:
    """A job on a silent machine has a detail before it has a reason."""
    fake.add(state="UNREACHABLE", reason=None, detail="no heartbeat from n1")
    assert "no heartbeat from n1" in run("queue").stdout


# -------------------------------------------------------------------------------------------------------- changing


def test_cancel_tells_an_end_from_a_wish(run: Run, fake: Any) -> None:
    """What has ended is said to have ended, not to be on its way."""
    fake.add(state="RUNNING")
    assert run("cancel", "1").stdout == "job 1 is CANCELLED\n"


def test_ranges_and_refusals(run: Run, fake: Any) -> None:
    """Ranges and several jobs at once; a job that refuses does not keep the others from it, but exit code 2 says so."""
    for _ in range(3):
        fake.add()
    result = run("cancel", "1-2", "3")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 3)
    assert {job["state"] for job in fake.jobs.values()} == {"CANCELLED"}
    fake.add(state="RUNNING")
    fake.add()
    mixed = run("hold", "4,5", "9")
    assert mixed.exit_code == 2
    assert mixed.stdout == "job 5 is held\n"
    assert "job 4: job runs" in mixed.stderr
    assert "no job 9\n" in mixed.stderr
    assert "job 9: no" not in mixed.stderr
    assert run("hold", "--off", "5").exit_code == 0
    assert fake.jobs[5]["state"] == "PENDING"
    assert run("update", "5", "--priority", "high").exit_code == 0
    assert fake.jobs[5]["priority"] == 80
    both = run("update", "5", "--priority", "low", "--budget", "12.5")
    assert both.stdout == "job 5 has priority 20 and may cost 12.5 USD\n"
    assert (fake.jobs[5]["priority"], fake.jobs[5]["budget_usd"]) == (20, 12.5)


@pytest.mark.parametrize(
    "args",
    [
        ("cancel", "x y"), ("cancel", "5-2"), ("cancel", "0"), ("cancel", "1-999999999"), ("cancel", "last"),
        ("show", "1-2"), ("update", "1", "--priority", "101"), ("update", "1", "--priority", "-1"), ("update", "1"),
        ("update", "1", "--budget", "0"),
        ("wait", "1", "--timeout", "soon"), ("cancel",), ("queue", "-w", "-o", "json"), ("no-such-command",),
    ],
)  # fmt: skip
def test_bad_arguments_exit_2(run: Run, fake: Any, args: tuple[str, ...]) -> None:
    """What cannot be meant is refused before the server is asked for anything."""
    result = run(*args)
    assert result.exit_code == 2
    assert result.stderr
    assert fake.requests == []


@pytest.mark.parametrize(
    ("states", "code"),
    [
        (["SUCCEEDED", "SUCCEEDED"], 0), (["SUCCEEDED", "FAILED", "CANCELLED"], 100), (["SUCCEEDED", "CANCELLED"], 103),
        (["TIMEOUT", "CANCELLED"], 104), (["RUNNING", "FAILED"], 101),
    ],
)  # fmt: skip
def test_wait_exit_codes(run: Run, fake: Any, states: list[str], code: int) -> None:
    """The exit code of `wait` tells how the jobs ended."""
    for state in states:
        fake.add(state=state)
    result = run("wait", f"1-{len(states)}", "--timeout", "0")
    assert result.exit_code == code
    assert result.stdout.splitlines() == [f"job {number} {state}" for number, state in enumerate(states, 1)]


def test_wait_for_a_job_that_is_not_there(run: Run, fake: Any) -> None:
    """102 says that a job does not exist, and JSON says which."""
    fake.add(state="SUCCEEDED")
    result = run("wait", "1", "7", "-o", "json")
    assert result.exit_code == 102
    assert json.loads(result.stdout) == [{"id": 1, "state": "SUCCEEDED"}, {"id": 7, "state": None}]


def test_wait_outlives_an_outage(run: Run, fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that goes away for a moment and comes back does not end the waiting."""
    fake.add(state="RUNNING")

    def advance(number: int) -> None:
        if number == 1:
            fake.script = [200, 503, 503, 503, 503]
        if number == 6:
            fake.jobs[1]["state"] = "SUCCEEDED"

    monkeypatch.setattr("walras.connection.transport.Patience.pause_s", lambda *_: 0.0)
    fake.on_request = advance
    assert run("wait", "1", "--timeout", "20s").exit_code == 0
    assert len(fake.requests) >= 6


def test_who_follows_a_log_outlasts_a_restart_of_the_server(
    run: Run, fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it has answered; other commands, and an address where nobody answers, fail soon."""
    monkeypatch.setattr(Patience, "pause_s", lambda self, tried: 0.0)
    fake.add(state="SUCCEEDED")
    fake.attempts[1] = [attempt(state="SUCCEEDED")]
    away = [503] * 10
    fake.script = [200, *away]
    assert run("logs", "-f", "1").exit_code == 0
    for command in (("show", "1"), ("logs", "1"), ("logs", "-f", "1")):
        fake.script = list(away)
        assert run(*command).exit_code == 75


def test_explain_tells_where_a_running_job_is_and_how_far(run: Run, fake: Any) -> None:
    """Its machines, since when, its steps and how long the rest takes; nothing that is not known."""
    fake.add(state="RUNNING", steps=50, steps_total=200, steps_per_s=2.5)
    fake.add(state="RUNNING")
    for job_id in (1, 2):
        fake.attempts[job_id] = [attempt(placement=["n1:0,1"], started_at="2026-11-05T18:00:00Z")]
    lines = run("explain", "1").stdout.splitlines()
    assert lines[0] == "job 1 is RUNNING"
    assert re.fullmatch(r"  attempt 1 on n1:0,1 for .*; 50 of 200 steps; at 2.5 steps/s about 1m00s left", lines[1])
    assert re.fullmatch(r"  attempt 1 on n1:0,1 for [^;]*", run("explain", "2").stdout.splitlines()[1])


def test_explain_tells_the_network_that_a_gang_got(run: Run, fake: Any) -> None:
    """Of a job that runs, as its ranks measured it; a job that does not run has none."""
    for state in ("RUNNING", "PENDING"):
        fake.add(state=state, last_values={"network_bytes_per_s": 1.25e9})
    assert "10 Gbit/s (the slowest link" in run("explain", "1").stdout
    assert "Gbit/s" not in run("explain", "2").stdout


def test_a_speed_names_its_pool_only_where_its_type_does_not(run: Run, fake: Any) -> None:
    types = {"a100x1/owned/default": "a100", "v100x1/owned/default": "v100", "v100x8/spot/default": "v100"}
    speeds = [{"pool": pool, "accelerator": kind, "accelerators": 1, "steps_per_s": 5.0, "source": "measured"}
              for pool, kind in types.items()]  # fmt: skip
    fake.add(speeds=speeds)
    assert [line.strip() for line in run("explain", "1").stdout.splitlines() if "steps/s" in line] == [
        "on 1 x a100: 5 steps/s (measured)",
        "on 1 x v100 (v100x1/owned/default): 5 steps/s (measured)",
        "on 1 x v100 (v100x8/spot/default): 5 steps/s (measured)",
    ]


def test_a_target_is_told_by_show_and_explain(run: Run, fake: Any) -> None:
    """The server's line, with the instant; as fields for programs; nothing of a job that has none."""
    detail = "loss 0.52 at step 400, target 0.35: expected at step 910 of 2,000 (in 3m24s at 2.5 steps/s)"
    target = {"value": "loss", "at_most": 0.35, "outlook": "expected", "detail": detail, "steps_expected": 910.0}
    fake.add(state="RUNNING", target=target | {"expected_at": "2026-11-05T18:00:00Z"})
    fake.add(state="RUNNING")
    for command in ("show", "explain"):
        flat = " ".join(run(command, "1").stdout.split())
        assert re.search(re.escape(detail) + r", about 2026-11-0\d \d\d:\d\d:\d\d \w+", flat)
        assert json.loads(run(command, "1", "-o", "json").stdout)["target"]["steps_expected"] == 910.0
        assert json.loads(run(command, "2", "-o", "json").stdout)["target"] is None
        assert "loss" not in run(command, "2").stdout
