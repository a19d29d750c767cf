"""Checkpoints in an object store: only news is sent, nothing that is needed is deleted, and faults have names."""

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.support.memory_objects import memory_objects, names_below
from walras.errors import ConfigError, Conflict, NotFound
from walras.storage import object_store
from walras.storage.checkpoint_store import StoreAccess, check_store
from walras.storage.content import CHUNK_BYTES, ContentTree, DamagedContent, hash_folder
from walras.storage.object_store import OBJECTS_KEPT_S, ObjectFolder, ObjectTransfer, StoreFailure, sweep_objects
from walras.storage.store_proof import PROBLEM_MOST, StoreChallenge, answer_challenge, check_answer, place_challenge

__all__ = ["memory_objects"]

PLACE = "s3://bucket/jobs/1"


def a_state(folder: Path, chunks: list[bytes]) -> ContentTree:
    """A file of as many chunks, each full of its byte."""
    folder.mkdir(exist_ok=True)
    (folder / "model.pt").write_bytes(b"".join(each * CHUNK_BYTES for each in chunks))
    return hash_folder(folder, ["model.pt"])


async def send(folder: Path, tree: ContentTree) -> int:
    """Returns the bytes that were sent."""
    async with ObjectTransfer(ObjectFolder(PLACE)) as transfer:
        assert await transfer.send(folder, tree) == tree.name
        return transfer.sent_bytes


def letters(first: int, count: int) -> list[bytes]:
    return [bytes([first + number]) for number in range(count)]


async def test_a_checkpoint_comes_back_and_of_a_second_one_what_changed_is_sent(
    objects: MemoryFileSystem, tmp_path: Path
) -> None:
    tree = a_state(tmp_path / "state", letters(1, 20))
    assert await send(tmp_path / "state", tree) == 20 * CHUNK_BYTES
    changed = a_state(tmp_path / "state", [*letters(1, 19), b"x"])
    assert await send(tmp_path / "state", changed) == CHUNK_BYTES
    async with ObjectTransfer(ObjectFolder(PLACE)) as transfer:
        await transfer.fetch(changed.name, tmp_path / "back")
    assert hash_folder(tmp_path / "back", ["model.pt"]) == changed


async def test_a_send_that_was_cut_goes_on_where_it_was(
    objects: MemoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, left = a_state(tmp_path / "state", letters(1, 8)), [5]
    put = ObjectFolder.put_chunk

    def fails_after_some(folder: ObjectFolder, name: str, content: bytes) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise StoreFailure("cut")
        put(folder, name, content)

    with monkeypatch.context() as patched:
        patched.setattr(ObjectFolder, "put_chunk", fails_after_some)
        with pytest.raises(StoreFailure, match="cut"):
            await send(tmp_path / "state", tree)
    assert not names_below(objects, "trees")
    assert await send(tmp_path / "state", tree) == 3 * CHUNK_BYTES


async def test_a_store_that_lies_is_caught(objects: MemoryFileSystem, tmp_path: Path) -> None:
    """A chunk with other bytes fails its fetch; one of another length is not counted as there."""
    tree = a_state(tmp_path / "state", letters(1, 2))
    await send(tmp_path / "state", tree)
    path = f"/bucket/jobs/1/chunks/{tree.files[0].chunks[0]}"
    objects.pipe_file(path, b"z" * CHUNK_BYTES)
    async with ObjectTransfer(ObjectFolder(PLACE)) as transfer:
        with pytest.raises(DamagedContent):
            await transfer.fetch(tree.name, tmp_path / "back")
    objects.pipe_file(path, b"short")
    assert await send(tmp_path / "state", tree) == CHUNK_BYTES


async def test_chunks_that_vanish_while_others_are_sent_keep_the_commit_from_counting(
    objects: MemoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ObjectFolder, "put_chunk", lambda *_: None)
    tree = a_state(tmp_path / "state", letters(1, 2))
    with pytest.raises(Conflict, match="does not have 2 of the chunks that it took"):
        await send(tmp_path / "state", tree)
    assert not names_below(objects, "trees")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "is full"),
        (OSError("QuotaExceeded: no more"), "is full"),
        (FileNotFoundError("The specified bucket does not exist"), "is gone"),
        (PermissionError("Access Denied"), "lets nobody in"),
        (RuntimeError("credentials expired\n" + "x" * 10_000), "fails: credentials expired"),
    ],
)
async def test_what_is_wrong_with_a_store_has_a_name(
    objects: MemoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise error

    tree = a_state(tmp_path / "state", letters(1, 1))
    await send(tmp_path / "state", tree)
    for method in ("pipe_file", "find", "cat_file"):
        monkeypatch.setattr(objects, method, fail)
    with pytest.raises(StoreFailure, match=f"{PLACE} {words}") as told:
        await send(tmp_path / "state", tree)
    assert len(str(told.value)) < 500
    async with ObjectTransfer(ObjectFolder(PLACE)) as transfer:
        with pytest.raises(StoreFailure, match=words):
            await transfer.fetch(tree.name, tmp_path / "back")


async def test_a_bucket_that_is_gone_has_not_lost_the_checkpoint(
    objects: MemoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is there without the object has."""
    async with ObjectTransfer(ObjectFolder(PLACE)) as transfer:
        with pytest.raises(NotFound):
            await transfer.fetch("0" * 64, tmp_path / "back")

        def gone(*_: object, **__: object) -> Any:
            raise FileNotFoundError("The specified bucket does not exist")

        monkeypatch.setattr(objects, "find", gone)
        with pytest.raises(StoreFailure, match="is gone"):
            await transfer.fetch("0" * 64, tmp_path / "back")


async def test_what_is_not_there_is_told_from_what_is_refused_where_one_place_alone_is_open(
    objects: MemoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 refuses both to who may list one place alone. Its list is asked for by the folders in it, never as a whole."""
    tree = a_state(tmp_path / "state", letters(1, 1))
    await send(tmp_path / "state", tree)
    listed, found = [], MemoryFileSystem.find

    def refuse(*_: object, **__: object) -> Any:
        raise PermissionError("Access Denied")

    def find(path: str, prefix: str = "", **more: Any) -> Any:
        listed.append(prefix)
        return {name: told for name, told in found(objects, path, **more).items() if f"/jobs/1/{prefix}" in name}

    monkeypatch.setattr(objects, "cat_file", refuse)
    monkeypatch.setattr(objects, "find", find)
    access = StoreAccess(key="k", secret="s", token="t", lasts_s=900.0)
    folder = ObjectFolder(PLACE, access)
    with pytest.raises(StoreFailure, match="lets nobody in"):
        folder.encoded_tree(tree.name)
    with pytest.raises(NotFound):
        folder.encoded_tree("0" * 64)
    assert listed == ["chunks/", "trees/"] * 2


async def test_a_transfer_goes_on_with_what_opens_the_place_anew(objects: MemoryFileSystem, tmp_path: Path) -> None:
    tree, opened = a_state(tmp_path / "state", letters(1, 6)), list[ObjectFolder]()

    async def renewed() -> ObjectFolder:
        opened.append(ObjectFolder(PLACE))
        return opened[-1]

    async with ObjectTransfer(ObjectFolder("s3://bucket/closed"), renewed=renewed) as transfer:
        assert await transfer.send(tmp_path / "state", tree) == tree.name
    assert len(opened) == 8, "for the list, each chunk and the commit"
    assert not objects.exists("/bucket/closed")


async def test_a_store_that_does_not_answer_is_given_up(
    objects: MemoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "CALL_TIMEOUT_S", 0.2)
    monkeypatch.setattr(objects, "find", lambda *_, **__: time.sleep(1.0))
    with pytest.raises(StoreFailure, match=r"does not answer within 0\.2 s"):
        await send(tmp_path, a_state(tmp_path / "state", letters(1, 1)))


async def test_what_newer_ones_took_the_place_of_is_swept_and_nothing_that_is_needed(
    objects: MemoryFileSystem, tmp_path: Path
) -> None:
    """In use, young, and the newest stay, and so does what they share with the rest."""
    folder, trees = ObjectFolder(PLACE), []
    for number in range(4):
        trees.append(a_state(tmp_path / "state", [b"s", bytes([number])]))
        await send(tmp_path / "state", trees[-1])
    names, now = [tree.name for tree in trees], time.time()
    assert sweep_objects(folder, set(), now) == 0
    later = now + 2 * OBJECTS_KEPT_S
    assert sweep_objects(folder, {names[1]}, later) == 4
    assert names_below(objects, "trees") == {names[1], names[3]}
    assert names_below(objects, "chunks") == {*trees[1].chunk_sizes(), *trees[3].chunk_sizes()}
    assert sweep_objects(folder, set(), later, is_over=True) == 5
    assert not objects.find("/bucket")


async def test_a_list_that_cannot_be_read_keeps_all(objects: MemoryFileSystem, tmp_path: Path) -> None:
    tree = a_state(tmp_path / "state", letters(1, 1))
    await send(tmp_path / "state", tree)
    objects.pipe_file(f"/bucket/jobs/1/trees/{tree.name}", b"{}")
    with pytest.raises(DamagedContent):
        sweep_objects(ObjectFolder(PLACE), set(), time.time() + 2 * OBJECTS_KEPT_S)
    assert names_below(objects, "chunks") == set(tree.chunk_sizes())


async def test_an_upload_counts_on_nothing_that_a_sweep_may_take(
    objects: MemoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old chunk of an old checkpoint is sent anew; one of the newest is not."""
    old = a_state(tmp_path / "state", [b"o", b"s"])
    await send(tmp_path / "state", old)
    await send(tmp_path / "state", a_state(tmp_path / "state", [b"n", b"s"]))
    for stored in objects.store.values():
        stored.created = stored.created.replace(year=2020)
    newest = next(path for path in objects.store if "/trees/" in path and old.name not in path)
    objects.store[newest].created = objects.store[newest].created.replace(year=2021)
    assert await send(tmp_path / "state", a_state(tmp_path / "state", [b"o", b"s", b"t"])) == 2 * CHUNK_BYTES


def test_places_in_object_stores_are_checked() -> None:
    assert check_store(" s3://bucket/prefix/ ") == "s3://bucket/prefix"
    assert check_store("gs://bucket") == "gs://bucket"
    for wrong in (
        "s3:///x",
        "s3://",
        "s3://key:secret@bucket/x",
        "s3://bucket/x?y=1",
        "s3://b/../c",
        "s3://" + "x" * 1000,
    ):
        with pytest.raises(ConfigError):
            check_store(wrong)


def test_a_machine_without_the_library_says_what_to_install() -> None:
    with pytest.raises(ConfigError) as told:
        ObjectFolder("nostore://bucket/x")
    assert "walras[stores]" in told.value.fix
    assert os.sep not in told.value.field


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
