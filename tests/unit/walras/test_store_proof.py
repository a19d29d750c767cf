"""A machine that shares the store answers what the server left there; every other one says why it cannot."""

from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.support.memory_objects import memory_objects
from walras.store_proof import PROBLEM_MOST, StoreChallenge, answer_challenge, check_answer, place_challenge

__all__ = ["memory_objects"]

NONCE, SECRET = "0" * 32, b"secret"


@pytest.fixture(params=["folder", "objects"])
def challenge(request: pytest.FixtureRequest, tmp_path: Path, objects: MemoryFileSystem) -> StoreChallenge:
    place = f"file://{tmp_path}/disk/proofs/c1" if request.param == "folder" else "s3://bucket/run/proofs/c1"
    return StoreChallenge(place=place, nonce=NONCE)


def test_a_machine_that_reads_and_writes_is_believed_by_its_own_name_alone(challenge: StoreChallenge) -> None:
    place_challenge(challenge, SECRET)
    assert not answer_challenge(challenge, "n1").problem
    assert not check_answer(challenge, SECRET, "n1")
    assert "does not arrive" in check_answer(challenge, SECRET, "n2")
    assert "does not arrive" in check_answer(challenge, b"other", "n1")


def test_a_folder_of_the_same_name_that_is_not_shared_is_found_out(challenge: StoreChallenge) -> None:
    """The server's secret is not in it."""
    told = answer_challenge(challenge, "n1")
    assert "is not here what it is for the server" in told.problem


def test_the_next_start_takes_away_what_the_last_one_left(challenge: StoreChallenge) -> None:
    place_challenge(challenge, SECRET)
    answer_challenge(challenge, "n1")
    place_challenge(challenge.model_copy(update={"nonce": "1" * 32}), SECRET)
    assert check_answer(challenge, SECRET, "n1")
    assert answer_challenge(challenge, "n1").problem


def test_a_store_that_may_be_read_alone_is_no_store(objects: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    challenge = StoreChallenge(place="s3://bucket/run/proofs/c1", nonce=NONCE)
    place_challenge(challenge, SECRET)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("Access Denied " + "x" * 1000)

    monkeypatch.setattr(objects, "pipe_file", refuse)
    told = answer_challenge(challenge, "n1")
    assert "lets nobody in" in told.problem
    assert len(told.problem) <= PROBLEM_MOST


def test_a_disk_that_takes_nothing_is_named(tmp_path: Path) -> None:
    challenge = StoreChallenge(place=f"file://{tmp_path}/proofs", nonce=NONCE)
    place_challenge(challenge, SECRET)
    (tmp_path / "proofs" / f"{NONCE}-n1").mkdir()
    assert "Is a directory" in answer_challenge(challenge, "n1").problem
