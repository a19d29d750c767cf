"""Machines get credentials for their own attempts' places in a store; one that does not reach the store is private."""

import asyncio
import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from scheduler.live.services import store_access
from scheduler.live.services.store_access import StoreAccessDesk, StsCalls
from tests.support.http_face import facing
from tests.support.live_world import FakeAgent, World, world
from tests.support.memory_objects import memory_objects
from tests.support.provider_kit import stand_in_of_aws
from tests.support.waiting import until
from walras.clocks import Clocks
from walras.errors import ConfigError, Forbidden
from walras.spec.cluster_file import CheckpointAccess, ClusterConfig
from walras.spec.file_model import check_model
from walras.storage.checkpoint_store import StoreAccess, StoreAccessRequest, job_policy, proof_policy
from walras.storage.store_proof import StoreProof, answer_challenge
from walras.wire import HeartbeatAnswer, StoreChallenge

__all__ = ["memory_objects"]

A = {"shape": "ax2", "accelerator": "a", "accelerators": 2, "cpus": 8, "memory": "16GiB"}
ROLE = "arn:aws:iam::123456789012:role/checkpoints"
CLUSTER = {"pools": [A], "checkpoints": "s3://bucket/run", "checkpoint_access": {"role": ROLE}}
PLACE = "s3://bucket/run/jobs/1"


class Sts:
    """Counts what it is asked for, and gives numbered credentials."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.problem: Exception | None = None

    def __call__(self, session: str, policy: str) -> StoreAccess:
        self.asked.append((session, json.loads(policy)))
        if self.problem is not None:
            raise self.problem
        number = len(self.asked)
        return StoreAccess(key=f"K{number}", secret=f"very-secret-{number}", token=f"token-{number}", lasts_s=3600.0)


@pytest.fixture
def sts(monkeypatch: pytest.MonkeyPatch, objects: MemoryFileSystem) -> Sts:
    found = Sts()
    monkeypatch.setattr(store_access, "StsCalls", lambda _: found)
    return found


async def a_running_job(w: World, node_id: str = "n1") -> FakeAgent:
    agent = await FakeAgent(w, node_id).register()
    await w.submit({"resources": {"accelerators": "a:2"}})
    await agent.start_all()
    return agent


def of_job(job_id: int, attempt: int = 1, place: str = "") -> StoreAccessRequest:
    return StoreAccessRequest(place=place or f"s3://bucket/run/jobs/{job_id}", job_id=job_id, attempt=attempt)


async def test_a_machine_gets_access_to_the_places_of_its_own_attempts_alone(tmp_path: Path, sts: Sts) -> None:
    async with world(tmp_path, cluster=CLUSTER) as w:
        first, _ = [await a_running_job(w, node_id) for node_id in ("n1", "n2")]
        desk = w.server.store_access
        assert (await desk.open_for("n1", of_job(1))).key == "K1"  # type: ignore[arg-type]
        assert sts.asked == [("walras-job-1-attempt-1", job_policy(PLACE))]
        for node_id, refused in (
            ("n2", of_job(1)),
            ("n1", of_job(2)),
            ("n1", of_job(1, attempt=2)),
            ("n1", of_job(1, place="s3://bucket/run/jobs/2")),
            ("n1", of_job(1, place="s3://bucket/run/jobs/*")),
            ("n1", of_job(7)),
            ("n1", StoreAccessRequest(place="s3://bucket/run")),
        ):
            with pytest.raises(Forbidden):
                await desk.open_for(node_id, refused)  # type: ignore[arg-type]
        assert len(sts.asked) == 1
        await first.end(1)
        with pytest.raises(Forbidden):
            await desk.open_for("n1", of_job(1))  # type: ignore[arg-type]


async def test_a_machine_that_shows_that_it_reaches_the_store_reads_a_secret_and_writes_its_answer(
    tmp_path: Path, sts: Sts
) -> None:
    async with world(tmp_path, cluster=CLUSTER) as w:
        await FakeAgent(w, "n1").register()
        proofs = w.server.gateway.proofs
        place, nonce = proofs.challenge.place, proofs.challenge.nonce
        await w.server.store_access.open_for("n1", StoreAccessRequest(place=place))  # type: ignore[arg-type]
    read, write = sts.asked[0][1]["Statement"]
    inner = place.removeprefix("s3://")
    assert (read["Action"], read["Resource"]) == (["s3:GetObject"], f"arn:aws:s3:::{inner}/{nonce}")
    assert (write["Action"], write["Resource"]) == (["s3:PutObject"], f"arn:aws:s3:::{inner}/{nonce}-n1")


async def test_credentials_are_asked_for_again_half_way_through_their_time(tmp_path: Path, sts: Sts) -> None:
    """What is left of it is told; a machine that asks often costs no call."""
    at = [1000.0]
    async with world(tmp_path, cluster=CLUSTER) as w:
        await a_running_job(w)
        desk = StoreAccessDesk(w.live_state, CheckpointAccess(role=ROLE), None, Clocks(boottime=lambda: at[0]))
        given = []
        for seconds in (0.0, 1700.0, 1900.0, 4000.0):
            at[0] = 1000.0 + seconds
            access = await desk.open_for("n1", of_job(1))  # type: ignore[arg-type]
            given.append((access.key, access.lasts_s))
    assert given == [("K1", 3600.0), ("K1", 1900.0), ("K2", 3600.0), ("K3", 3600.0)]


async def test_a_store_that_gives_none_is_named_and_asked_again(tmp_path: Path, sts: Sts) -> None:
    async with world(tmp_path, cluster=CLUSTER) as w:
        await a_running_job(w)
        sts.problem = RuntimeError("AccessDenied: not allowed to assume it")
        told = await w.server.store_access.open_for("n1", of_job(1))  # type: ignore[arg-type]
        assert (told.key, told.lasts_s) == ("", 0.0)
        assert "not allowed to assume it" in told.problem
        sts.problem = None
        assert (await w.server.store_access.open_for("n1", of_job(1))).key == "K2"  # type: ignore[arg-type]


def files_with(folder: Path, word: bytes) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and word in path.read_bytes()]


async def test_machines_ask_over_http_and_nothing_is_written_down(
    tmp_path: Path, sts: Sts, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in tables, journal and audit nor in the log; users cannot ask."""
    caplog.set_level(logging.DEBUG)
    async with facing(tmp_path, cluster=CLUSTER) as face:
        agent = await a_running_job(face.world)
        asked = of_job(1).model_dump()
        status, answer = await face.json("POST", "/agent/v1/store-access", asked, token=agent.credential)
        assert (status, answer["secret"]) == (200, "very-secret-1")
        assert (await face.json("POST", "/agent/v1/store-access", asked))[0] == 403
        other = of_job(2).model_dump()
        assert (await face.json("POST", "/agent/v1/store-access", other, token=agent.credential))[0] == 403
    assert not files_with(tmp_path, b"very-secret")
    assert "very-secret" not in caplog.text
    assert "very-secret" not in repr(StoreAccess(secret="very-secret", token="very-secret"))


async def test_machines_have_their_own_where_the_file_says_nothing(tmp_path: Path, objects: MemoryFileSystem) -> None:
    async with world(tmp_path, cluster={"pools": [A], "checkpoints": "s3://bucket/run"}) as w:
        await a_running_job(w)
        assert await w.server.store_access.open_for("n1", of_job(1)) == StoreAccess()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"checkpoints": "gs://bucket"}, "checkpoint_access"),
        ({"checkpoints": "server"}, "checkpoint_access"),
        ({"checkpoint_access": {"lasts": "5m"}}, "checkpoint_access.lasts"),
        ({"checkpoint_access": {"role": "checkpoints"}}, "checkpoint_access.role"),
        ({"checkpoint_access": {"key": "AKIA"}}, "checkpoint_access.key"),
    ],
)
def test_wrong_settings_are_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as told:
        check_model(ClusterConfig, CLUSTER | changes, source="cluster")
    assert told.value.field == field


def test_a_place_that_a_policy_would_read_as_a_pattern_is_none() -> None:
    for place in ("s3://bucket/jobs/*", "s3://bucket/${aws:userid}", "s3://bucket/jo?s", "s3://bucket", "gs://b/x"):
        with pytest.raises(ConfigError):
            job_policy(place)
        with pytest.raises(ConfigError):
            proof_policy(f"{place}*", "0" * 32, "n1")
    assert job_policy(PLACE, "aws-cn")["Statement"][0]["Resource"] == "arn:aws-cn:s3:::bucket/run/jobs/1/*"


@contextmanager
def a_guarded_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Clients of a stand-in by service: the server's, or of what it handed out. It asks who calls only once told to."""
    import boto3
    from moto import settings

    with stand_in_of_aws() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "of-the-server")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setattr(settings, "INITIAL_NO_AUTH_ACTION_COUNT", float("inf"))

        def client(service: str, access: StoreAccess | None = None) -> Any:
            told: dict[str, Any] = {}
            if access is not None:
                told = {"aws_access_key_id": access.key, "aws_secret_access_key": access.secret}
                told["aws_session_token"] = access.token
            return boto3.client(service, endpoint_url=url, **told)

        client("s3").create_bucket(Bucket="bucket")
        yield client


@pytest.mark.slow
def test_what_is_handed_out_opens_one_jobs_place_and_is_refused_at_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in holds a role to the session's own document, but for the condition on listings."""
    from botocore.exceptions import ClientError
    from moto import settings
    from moto.sts.models import sts_backends

    with a_guarded_bucket(monkeypatch) as client:
        trust = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}
        iam = client("iam")
        iam.create_role(RoleName="checkpoints", AssumeRolePolicyDocument=json.dumps({"Statement": [trust]}))
        for number in (1, 2):
            client("s3").put_object(Bucket="bucket", Key=f"run/jobs/{number}/chunks/c", Body=b"c")
        access = StsCalls(CheckpointAccess(role=ROLE))("walras-job-1-attempt-1", json.dumps(job_policy(PLACE)))
        session = sts_backends["123456789012"]["aws"].assumed_roles[-1]  # others are of other tests
        assert (session.session_name, session.role_arn) == ("walras-job-1-attempt-1", ROLE)
        document = json.loads(session.policy)
        assert document["Statement"][1].pop("Condition") == {"StringLike": {"s3:prefix": "run/jobs/1/*"}}
        iam.put_role_policy(RoleName="checkpoints", PolicyName="p", PolicyDocument=json.dumps(document))

        settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
        held = client("s3", access)
        held.put_object(Bucket="bucket", Key="run/jobs/1/chunks/d", Body=b"d")
        assert held.get_object(Bucket="bucket", Key="run/jobs/1/chunks/c")["Body"].read() == b"c"
        assert held.list_objects_v2(Bucket="bucket", Prefix="run/jobs/1/")["KeyCount"] == 2
        for call in (
            lambda: held.get_object(Bucket="bucket", Key="run/jobs/2/chunks/c"),
            lambda: held.put_object(Bucket="bucket", Key="run/jobs/2/chunks/c", Body=b"x"),
            lambda: held.put_object(Bucket="bucket", Key="run/jobs/10/chunks/c", Body=b"x"),
            lambda: held.delete_object(Bucket="bucket", Key="run/jobs/1/chunks/c"),
        ):
            with pytest.raises(ClientError, match="AccessDenied"):
                call()
        settings.INITIAL_NO_AUTH_ACTION_COUNT = float("inf")


def test_without_a_role_a_federation_token_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_guarded_bucket(monkeypatch):
        access = StsCalls(CheckpointAccess(lasts=900.0))("walras-job-1-attempt-1", json.dumps(job_policy(PLACE)))
    assert access.lasts_s == 900.0
    assert access.key
    assert access.token


async def asked(w: World, agent: FakeAgent) -> StoreChallenge:
    """The first challenge that it is answered with."""
    for _ in range(500):
        if (challenge := (await agent.beat()).challenge) is not None:
            return challenge
        await asyncio.sleep(0.01)
    raise AssertionError("it is not asked")


async def say(w: World, agent: FakeAgent, proof: StoreProof) -> HeartbeatAnswer:
    """A heartbeat with the proof, and the next one once the server has looked."""
    agent.identity["proof"] = proof.model_dump()
    await agent.beat()

    def has_looked() -> bool:
        return not any("StoreProofs." in str(task.get_coro()) for task in asyncio.all_tasks())

    await until(has_looked, 20.0, "the server has looked")
    await w.quiet()
    return await agent.beat()


def shown(w: World) -> tuple[bool, str]:
    (node,) = w.server.views.nodes()
    return node.private, node.detail


def core_knows(w: World) -> bool:
    machine = w.server.core.ledger.fleet.machine("n1")  # type: ignore[arg-type]
    return machine.is_private


def on_disk(tmp_path: Path) -> dict[str, Any]:
    return {"pools": [A], "checkpoints": f"file://{tmp_path}/disk"}


async def test_a_machine_that_does_not_is_private_until_the_disk_is_mounted(tmp_path: Path) -> None:
    """The next server knows it before the machine has said anything."""
    cluster = on_disk(tmp_path)
    async with world(tmp_path / "data", cluster=cluster) as w:
        agent = await FakeAgent(w, "n1").register()
        challenge = await asked(w, agent)
        answer = await say(w, agent, StoreProof(nonce=challenge.nonce, problem="no disk here"))
        assert answer.challenge == challenge
        assert shown(w) == (True, "private: no disk here")
        assert core_knows(w)
    async with world(tmp_path / "data", cluster=cluster) as w:
        assert core_knows(w)
        agent.world = w
        stale = await say(w, agent, StoreProof(nonce=challenge.nonce))
        assert shown(w)[0], "an answer to another server's question says nothing"
        assert stale.challenge != challenge
        challenge = await asked(w, agent)
        claim = answer_challenge(challenge, "n1")
        shutil.rmtree(tmp_path / "disk" / "proofs")
        await say(w, agent, claim)
        assert "does not arrive" in shown(w)[1], "it is looked at what a machine claims"
    async with world(tmp_path / "data", cluster=cluster) as w:
        agent.world = w
        answer = await say(w, agent, answer_challenge(await asked(w, agent), "n1"))
        assert answer.challenge is None
        assert shown(w) == (False, "")
        assert not core_knows(w)


async def test_a_machine_that_rebooted_shows_it_again(tmp_path: Path) -> None:
    """Without its disk, what its jobs save from now on is on that machine alone."""
    async with world(tmp_path / "data", cluster=on_disk(tmp_path)) as w:
        agent = await FakeAgent(w, "n1").names_itself().register()
        answer = await say(w, agent, answer_challenge(await asked(w, agent), "n1"))
        assert answer.challenge is None
        agent.names_itself(boot_id="boot-2")
        w.clock.at += 1000.0
        await agent.beat(resync=True)
        challenge = await asked(w, agent)
        await say(w, agent, StoreProof(nonce=challenge.nonce, problem="no disk here"))
        assert shown(w) == (True, "private: no disk here")


async def test_an_older_agent_is_taken_to_share_and_with_the_server_nobody_is_asked(tmp_path: Path) -> None:
    async with world(tmp_path / "data", cluster=on_disk(tmp_path)) as w:
        agent = await FakeAgent(w, "n1").register()
        await asked(w, agent)
        assert shown(w) == (False, "")
    async with world(tmp_path / "other") as w:
        agent = await FakeAgent(w, "n1").register()
        await agent.beat()
        await w.quiet()
        assert (await agent.beat()).challenge is None
