"""Real jobs on rented machines: what prices and revocations cost, who holds spot, who moves, what is saved."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.real_server import A, RealServer, Serve, wait_for

pytestmark = pytest.mark.slow

JOB = Path(__file__).resolve().parents[1] / "support" / "spot_job.py"
SPOT = {**A, "shape": "sx1", "accelerator": "s", "market": "spot", "provider": "local", "usd_per_h": 1.0, "quota": 1}
SURE = {**SPOT, "market": "on_demand", "usd_per_h": 3.0, "quota": 0}
POOL = "sx1/spot/default"
RENTING = {
    "policy": {"name": "max_min_fairness"},
    "rules": {"round_s": 5, "resolve_min_s": 1, "delay_usd_per_h": 100, "profiling_s": 1, "rent_backoff_s": 1},
}


def steps_of(log: str) -> list[tuple[int, float]]:
    """(step, when) of each step an attempt made."""
    lines = (line.split() for line in log.splitlines() if line.startswith("step "))
    return [(int(line[1]), float(line[2])) for line in lines if len(line) == 3]


def made(out: Path) -> list[list[int]]:
    """(step, ranks) of each whole line that an elastic job has written."""
    text = (out / "steps").read_text() if (out / "steps").exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


@pytest.mark.parametrize("notice_s", [6, 0])
def test_a_revocation_costs_at_most_one_checkpoint_interval(serve: Serve, tmp_path: Path, notice_s: int) -> None:
    """With notice the job saves and goes on elsewhere; without it loses no more than since its last checkpoint."""
    script = [{"at": "4s", "pool": POOL, "usd_per_h": 0.5}, {"at": "8s", "pool": POOL, "usd_per_h": 1.5}]
    server = serve([SPOT, SURE], RENTING, market=script)
    # It still runs when the machine goes, however late that is seen to, and until it is told that it has enough.
    job_id = server.submit(run=[sys.executable, str(JOB), "5000", "0.05"], steps=5000, grace_period="5s")
    server.until_step(job_id, 80, 90.0)
    assert server.call("POST", "/pools:revoke", {"pool_id": POOL, "notice_s": notice_s})[0] == 200
    server.until_running(job_id, attempt=2, timeout_s=90.0)
    wait_for(lambda: steps_of(server.log(job_id, 2)), 90.0, "it takes steps elsewhere", lambda: server.job(job_id))
    (tmp_path / "enough").touch()
    server.until_state(job_id, "SUCCEEDED", 90.0)
    first, second = steps_of(server.log(job_id, 1)), steps_of(server.log(job_id, 2))
    resumed_from = second[0][0]  # steps made before this one
    saved = max(step for attempt, step, _ in server.recorded(job_id) if attempt == 1)
    assert resumed_from == saved > 0
    lost = sum(step >= resumed_from for step, _ in first)
    assert lost * 0.05 <= 0.5 + 2.5, "more than an interval, and the time to save and tell"
    if notice_s:
        assert lost <= 1
    state = server.job(job_id)["attempt_list"][0]["state"]
    assert state in ("NODE_LOST", "PREEMPTED")

    def adds_up() -> bool:
        money = server.call("GET", "/money?by=job")[1]
        return bool(money["items"]) and money["items"][0]["key"] == str(job_id)

    wait_for(adds_up, 10, "the ledger knows the job")
    money = server.call("GET", "/money?by=job")[1]
    attempts = sum(attempt["usd"] for attempt in server.job(job_id)["attempt_list"])
    assert money["items"][0]["usd"] == pytest.approx(attempts, rel=1e-6)
    assert money["total_usd"] == pytest.approx(money["used_usd"] + money["idle_usd"])
    told = server.told("money", "--by", "pool")
    assert POOL in told
    assert "saved" in told
    assert money["on_demand_usd"] > 1.5 * money["total_usd"] > 0


NOBODY_PAYS = {**RENTING, "policy": {"name": "walras"}}
NOBODY_PAYS["rules"] = {**RENTING["rules"], "delay_usd_per_h": 0, "restart_default_s": 2}


def says(server: RealServer, job_id: int) -> str:
    conditions = server.call("GET", f"/jobs/{job_id}/explain")[1]["conditions"]
    return next((str(each["detail"]) for each in conditions if each["type"] == "spends_slack"), "nothing")


def test_one_with_slack_is_on_spot_through_a_revocation_and_one_without_on_demand(serve: Serve, tmp_path: Path) -> None:
    """The first says that its slack outlasts a loss, the second what its slack is for."""
    server = serve([SPOT, {**SURE, "quota": 1}], NOBODY_PAYS)
    how = {"grace_period": "2s", "checkpoint": {"interval": "1s"}, "throughput": {"s": 18}}
    patient = server.submit(run=[sys.executable, str(JOB), "1500", "0.05"], steps=1500, deadline="+30m", **how)
    hasty = server.submit(run=[sys.executable, str(JOB), "900", "0.05"], steps=900, deadline="+3m", **how)
    server.until_step(patient, 20, 60.0)
    assert server.attempt(patient)["pool"] == POOL
    wait_for(lambda: says(server, patient).startswith("holds spot"), 30, "the first says what it holds")
    needed = "is what a boot and a restart need"
    wait_for(lambda: says(server, hasty).endswith(needed), 30, "so does the second", lambda: says(server, hasty))
    assert server.call("POST", "/pools:revoke", {"pool_id": POOL, "notice_s": 2})[0] == 200
    server.until_running(patient, 2, 90.0)
    (tmp_path / "enough").touch()
    server.until_state(patient, "SUCCEEDED", 60.0)
    assert [each["pool"] for each in server.job(patient)["attempt_list"]] == [POOL, POOL]
    assert "on_demand" in server.attempt(hasty)["pool"]
    assert len(server.job(hasty)["attempt_list"]) == 1


ELASTIC_JOB = Path(__file__).resolve().parents[1] / "support" / "elastic_spot_job.py"
SMALL_SPOT = SPOT | {"notice": "5s"}
MARKET = {
    "policy": {"name": "walras"},
    "rules": {
        "round_s": 4, "resolve_min_s": 1, "min_runtime_s": 1, "backoff_s": 1, "profiling_s": 1, "rent_backoff_s": 1,
        "rent_keep_s": 2,
    },
}  # fmt: skip
#: A size is judged by so many of its steps that a machine which is busy for some of them does not decide.
MEASURED = MARKET | {"rules": MARKET["rules"] | {"profiling_s": 8}}
#: More than it makes: how long each change takes differs.
MADE_MAX = 6000


def test_an_elastic_job_grows_while_spot_is_cheap_shrinks_while_it_is_dear_and_survives_its_loss(
    serve: Serve, tmp_path: Path
) -> None:
    """Worth 12 USD an hour at its best: the first worker 6 of them, the second 3.6, the third 2.4."""
    out = tmp_path / "out"
    out.mkdir()
    server = serve([SMALL_SPOT | {"usd_per_h": 0.5}], MEASURED)
    job = server.submit(
        name="elastic", run=[sys.executable, str(ELASTIC_JOB), str(out), "2"], resources={"accelerators": "s:1"},
        elastic={"min": 1, "max": 3}, batch={"global": 6}, steps=MADE_MAX, grace_period="20s", value_usd_per_h=12.0,
    )  # fmt: skip

    def trained_by(ranks: int, since: int) -> bool:
        return sum(1 for _, each in made(out)[since:] if each == ranks) >= 5

    def sources_of(ranks: int) -> set[str]:
        speeds = server.call("GET", f"/jobs/{job}/explain")[1]["speeds"]
        return {each["source"] for each in speeds if each["accelerators"] == ranks}

    def change(**pool: float) -> int:
        assert server.call("PATCH", f"/pools/{POOL.replace('/', '%2F')}", pool)[0] == 200
        return len(made(out))

    wait_for(lambda: trained_by(1, 0), 150, "one worker, for there is one machine", lambda: str(server.job(job)))
    since = change(quota=3)
    wait_for(lambda: trained_by(3, since), 150, "three, at .5 USD an hour each", lambda: str(server.job(job)))
    # Until it is measured what three make, one is believed to make a third of it, and not to be worth 4.5 USD.
    wait_for(lambda: "measured" in sources_of(3), 150, "its speed on three is known", lambda: str(sources_of(3)))
    since = change(usd_per_h=4.5)
    wait_for(lambda: trained_by(1, since), 150, "one, at 4.5 USD", lambda: str(server.job(job)))
    since = change(usd_per_h=0.5)
    wait_for(lambda: trained_by(3, since), 150, "three again")
    assert server.call("POST", "/pools:revoke", {"pool_id": POOL, "notice_s": 5})[0] == 200
    since = len(made(out))
    wait_for(lambda: len(made(out)) > since + 5, 150, "it goes on", lambda: str(server.job(job)))
    (out / "enough").touch()
    server.until_state(job, "SUCCEEDED", 60.0)
    steps = [step for step, _ in made(out)]
    assert steps == list(range(len(steps)))  # each once, in order: nothing was lost
    assert len(server.job(job)["attempt_list"]) >= 4


SOME_STEPS = 2000


def test_its_set_of_machines_is_planned_again_when_price_deadline_and_market_change(
    serve: Serve, tmp_path: Path
) -> None:
    """Twenty minutes of work on one machine, half an hour to do it: two on spot while they cost next to nothing, one
    when they cost something, two when the deadline comes nearer, some on demand when the market takes those."""
    out = tmp_path / "out"
    out.mkdir()
    server = serve([{**SPOT, "quota": 2, "usd_per_h": 0.05}, {**SURE, "quota": 2}], NOBODY_PAYS)
    job = server.submit(
        name="planned", run=[sys.executable, str(ELASTIC_JOB), str(out)], resources={"accelerators": "s:1"},
        elastic={"min": 1, "max": 2}, batch={"global": 6}, steps=SOME_STEPS, grace_period="2s", deadline="+30m",
        throughput={"s": 5 / 3},
    )  # fmt: skip

    def trained_by(ranks: tuple[int, ...], pool: str) -> None:
        since = len(made(out))

        def is_so() -> bool:
            steps = made(out)[since:]
            return sum(1 for _, each in steps if each in ranks) >= 5 and pool in server.attempt(job)["pool"]

        wait_for(is_so, 90, f"{ranks} on {pool}", lambda: f"{says(server, job)} {server.job(job)['attempt_list']}")

    trained_by((2,), "spot")
    told = "a gang of 2 is the cheapest in time"
    wait_for(lambda: told in says(server, job), 30, "it says why", lambda: says(server, job))
    assert server.call("PATCH", f"/pools/{POOL.replace('/', '%2F')}", {"usd_per_h": 1.0})[0] == 200
    trained_by((1,), "spot")
    assert server.call("PATCH", f"/jobs/{job}", {"deadline": "+23m"})[0] == 200
    trained_by((2,), "spot")
    assert server.call("POST", "/pools:revoke", {"pool_id": POOL, "notice_s": 5})[0] == 200
    trained_by((1, 2), "on_demand")
    (out / "enough").touch()
    server.until_state(job, "SUCCEEDED", 60.0)
    steps = [step for step, _ in made(out)]
    assert steps == list(range(len(steps))), "each once, in order: nothing was lost"


WEST, EAST = (
    {**SMALL_SPOT, "zone": zone, "quota": 2, "usd_per_h": usd} for zone, usd in (("west", 1.0), ("east", 1.2))
)


def test_jobs_go_where_the_price_falls_and_lose_no_step(serve: Serve, tmp_path: Path) -> None:
    server = serve([WEST, EAST], MARKET)
    outs = [tmp_path / "one", tmp_path / "two"]
    for out in outs:
        out.mkdir()
    many = tmp_path / "many.yaml"
    jobs = [{"name": out.name, "run": [sys.executable, str(ELASTIC_JOB), str(out)]} for out in outs]
    shared = {
        "resources": {"accelerators": "s:1"}, "steps": SOME_STEPS, "grace_period": "20s", "value_usd_per_h": 8,
        "batch": {"global": 6}, "checkpoint": {"interval": "10m"}, "workdir": str(tmp_path),
    }  # fmt: skip
    many.write_text(yaml.safe_dump({"collection": "pair", "defaults": shared, "jobs": jobs}))
    numbers = [int(line) for line in server.told("submit", str(many), "-q").split()]
    assert len(numbers) == 2

    def pools() -> list[str | None]:
        return [server.job(number)["pool"] for number in numbers]

    wait_for(lambda: pools() == ["sx1/spot/west"] * 2, 60, "both where it is cheaper", lambda: str(pools()))
    for number in numbers:
        server.until_step(number, 10, 60.0)
    assert server.call("PATCH", "/pools/sx1%2Fspot%2Feast", {"usd_per_h": 0.2})[0] == 200
    wait_for(lambda: pools() == ["sx1/spot/east"] * 2, 90, "both where it is cheaper now", lambda: str(pools()))
    for number, out in zip(numbers, outs, strict=True):
        server.until_step(number, server.job(number)["steps"] + 10, 60.0)
        (out / "enough").touch()
    for number, out in zip(numbers, outs, strict=True):
        server.until_state(number, "SUCCEEDED", 120.0)
        steps = [json.loads(line)[0] for line in (out / "steps").read_text().splitlines()]
        assert steps == list(range(len(steps)))  # each once, in order
    assert {server.job(number)["labels"]["collection"] for number in numbers} == {"pair"}


#: What a step of the job takes at least.
STEP_S = 0.05
#: Machines of the pool are said to live half a minute in the mean.
SHORT_LIVED = {**SPOT, "lifetime": "exponential 30s"}


def test_the_plan_reaches_the_ranks_and_a_revocation_costs_no_more_than_it(serve: Serve, tmp_path: Path) -> None:
    """The first checkpoint comes by an assumed time of writing, later ones by the measured; a new attempt starts so."""
    server = serve([SHORT_LIVED], RENTING)
    job_id = server.submit(run=[sys.executable, str(JOB), "5000", "0.05", "planned"], steps=5000, grace_period="2s")
    server.until_running(job_id, timeout_s=90.0)
    first_s = server.job(job_id)["checkpoint_every_s"]
    assert 8.0 < first_s < 20.0, "writing is taken to last five seconds"
    wait_for(
        lambda: (server.job(job_id)["checkpoint_every_s"] or first_s) < first_s / 2,
        60.0,
        "planned again once writing was measured",
    )
    told = server.job(job_id)
    measured = re.search(r"writing one takes (\S+) s", told["checkpoint_detail"])
    assert measured, told["checkpoint_detail"]
    assert float(measured[1]) < 2.5, "and not five seconds"
    assert "the pool states exponential 30s" in told["checkpoint_detail"]
    assert "checkpoints: every" in server.told("explain", str(job_id))
    known = len(server.recorded(job_id))
    wait_for(lambda: len(server.recorded(job_id)) >= known + 3, 40.0, "the ranks keep to it")
    kept_s = server.job(job_id)["checkpoint_every_s"]
    assert server.call("POST", "/pools:revoke", {"pool_id": POOL, "notice_s": 0})[0] == 200
    server.until_running(job_id, attempt=2, timeout_s=90.0)
    planned_s = server.job(job_id)["checkpoint_every_s"]
    assert planned_s < first_s / 2, "what was measured is known to the next attempt"

    def marks() -> list[int]:
        return [step for attempt, step, _ in server.recorded(job_id) if attempt == 2]

    wait_for(lambda: len(marks()) >= 3, 60.0, "the attempt was started with its interval")
    (tmp_path / "enough").touch()
    server.until_state(job_id, "SUCCEEDED", 60.0)
    first, second = steps_of(server.log(job_id, 1)), steps_of(server.log(job_id, 2))
    lost = sum(step >= second[0][0] for step, _ in first)
    assert lost * STEP_S <= kept_s + 3.5, "an interval, and the time to save and tell"


def test_a_script_and_a_job_file_keep_what_they_state(serve: Serve, tmp_path: Path) -> None:
    server = serve([SHORT_LIVED], RENTING)
    own = server.submit(run=[sys.executable, str(JOB), "5000", "0.05"], steps=5000)
    server.until_step(own, 60, 90.0)
    assert server.job(own)["checkpoint_detail"] == "as its script states"
    wait_for(lambda: len(server.recorded(own)) >= 2, 20.0, "it has saved twice")
    (_, first, _), (_, second, _), *_ = server.recorded(own)
    assert (second - first) * STEP_S < 4.0, "every half second, whatever is planned"
    enough = tmp_path / "enough"
    enough.touch()
    server.until_state(own, "SUCCEEDED", 60.0)
    enough.unlink()
    filed = server.submit(
        run=[sys.executable, str(JOB), "5000", "0.05", "planned"], steps=5000, checkpoint={"interval": "2s"}
    )
    server.until_step(filed, 100, 90.0)
    assert server.job(filed)["checkpoint_detail"] == "every 2s, as its job file states"
    wait_for(lambda: server.recorded(filed), 20.0, "it has saved")
    assert server.recorded(filed)[0][1] * STEP_S < 8.0, "before what would be planned"
