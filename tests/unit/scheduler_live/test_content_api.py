"""Content through the server: chunks are sent once, a tree counts once it is whole, and names open nothing to users."""

import os
from pathlib import Path

import pytest

from scheduler.live.auth.access_control import UserRole
from scheduler.live.services.content_sweep import sweep_content
from scheduler.live.store import content_store
from scheduler.live.store.content_store import ContentStore
from tests.support.http_face import Face, facing
from walras.content import CHUNK_BYTES, ContentTree, DamagedContent, chunk_name, find_chunks, hash_folder
from walras.content_transfer import ContentTransfer
from walras.errors import ClusterError, Conflict, NotFound
from walras.transport import Patience, Transport

pytestmark = pytest.mark.sql

FACTS = {"shape": "ax1", "accelerator": "a", "accelerators": 1, "cpus": 2, "memory_bytes": 2**30}


def folder_of(path: Path, files: dict[str, bytes]) -> ContentTree:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return hash_folder(path, files)


async def agent_token(face: Face) -> str:
    join = face.world.server.secrets.join_token
    _, answer = await face.json("POST", "/agent/v1/register", {"node_id": "n1", "facts": FACTS}, token=join)
    return str(answer["credential"])


def connection(face: Face, token: str) -> Transport:
    return Transport(str(face.client.make_url("/")).rstrip("/"), token, Patience(tries=1))


async def test_a_folder_travels_from_a_user_to_a_machine(tmp_path: Path) -> None:
    files = {"train.py": b"print()", "data/w.bin": os.urandom(CHUNK_BYTES * 2 + 5)}
    tree = folder_of(tmp_path / "from", files)
    async with facing(tmp_path / "server") as face:
        async with connection(face, face.token("ada", UserRole.USER)) as user:
            first = ContentTransfer(user)
            assert await first.send(tmp_path / "from", tree) == tree.name
            again = ContentTransfer(user)
            await again.send(tmp_path / "from", tree)
            assert (first.sent_bytes > CHUNK_BYTES * 2, again.sent_bytes) == (True, 0)
        async with connection(face, await agent_token(face)) as machine:
            assert await ContentTransfer(machine).fetch(tree.name, tmp_path / "to") == tree
    assert hash_folder(tmp_path / "to", files) == tree
    assert sorted(os.listdir(tmp_path)) == ["from", "server", "to"]


async def test_a_change_of_one_chunk_sends_one_chunk(tmp_path: Path) -> None:
    whole = bytearray(os.urandom(CHUNK_BYTES * 8))
    tree = folder_of(tmp_path / "a", {"w": bytes(whole)})
    whole[CHUNK_BYTES * 3] ^= 1
    changed = folder_of(tmp_path / "b", {"w": bytes(whole)})
    async with facing(tmp_path / "server") as face, connection(face, face.token("ada", UserRole.USER)) as user:
        await ContentTransfer(user).send(tmp_path / "a", tree)
        second = ContentTransfer(user)
        await second.send(tmp_path / "b", changed)
        assert second.sent_bytes <= CHUNK_BYTES


async def test_a_name_opens_nothing_to_a_user_or_a_viewer(tmp_path: Path) -> None:
    tree = folder_of(tmp_path / "from", {"a": b"secret"})
    async with facing(tmp_path / "server") as face:
        user, viewer = face.token("ada", UserRole.USER), face.token("eve", UserRole.VIEWER)
        async with connection(face, user) as transport:
            await ContentTransfer(transport).send(tmp_path / "from", tree)
        for path in (f"/content/v1/chunks/{chunk_name(b'secret')}", f"/content/v1/trees/{tree.name}"):
            assert (await face.call("GET", path, token=user)).status == 403
        assert (await face.call("POST", "/content/v1/missing", {"names": []}, token=viewer)).status == 403


async def test_what_lies_about_itself_is_refused_with_words(tmp_path: Path) -> None:
    tree = folder_of(tmp_path / "from", {"a": b"one"})
    async with facing(tmp_path / "server") as face:
        for body, path in (
            (b"two", f"/content/v1/chunks/{chunk_name(b'one')}"),
            (b"x", "/content/v1/chunks/..%2f..%2fx"),
        ):
            status, problem = await face.json("PUT", path, body)
            assert status in (400, 404), problem
        status, problem = await face.json("POST", "/content/v1/trees", tree.encoded())
        assert (status, "missing" in problem["detail"]) == (409, True)
        evil = b'{"files": [{"path": "../x", "size": 0}]}'
        assert (await face.json("POST", "/content/v1/trees", evil))[0] == 400
    assert not list((tmp_path / "server" / "content").rglob("*x*"))


def test_what_nobody_needs_is_swept_once_it_is_old(tmp_path: Path) -> None:
    now = [1e9]
    store = ContentStore(tmp_path / "content", lambda: now[0])
    kept, gone = (folder_of(tmp_path / name, {"f": name.encode() * 10}) for name in ("kept", "gone"))
    for tree, name in ((kept, "kept"), (gone, "gone")):
        store.put(chunk_name(name.encode() * 10), name.encode() * 10)
        store.commit_tree(tree)
    now[0] = os.stat(tmp_path).st_mtime + 50.0
    assert store.sweep([kept.name], min_age_s=100.0) == 0
    now[0] += 100.0
    assert store.sweep([kept.name], min_age_s=100.0) > 0
    assert store.tree(kept.name) == kept
    with pytest.raises(NotFound):
        store.tree(gone.name)


def grow_old(folder: Path) -> None:
    for path in (folder / "content").rglob("*"):
        if path.is_file():
            os.utime(path, (1e9, 1e9))


async def test_the_server_keeps_the_code_of_active_jobs_however_old(tmp_path: Path) -> None:
    """What no active job needs goes; a new job makes the code that it names young again."""
    trees = [folder_of(tmp_path / name, {"f": name.encode()}) for name in ("used", "unused", "named")]
    async with facing(tmp_path / "server") as face:
        token = face.token("ada", UserRole.USER)
        async with connection(face, token) as user:
            for tree, name in zip(trees, ("used", "unused", "named"), strict=True):
                await ContentTransfer(user).send(tmp_path / name, tree)
        used, unused, named = trees
        spec = {"run": "x", "code": {"tree": used.name, "folder": "src", "files": 1, "size": 4}}
        assert (await face.json("POST", "/api/v1/jobs", spec, token=token))[0] == 201
        grow_old(tmp_path / "server")
        spec["code"] = {"tree": named.name, "folder": "src", "files": 1, "size": 5}
        assert (await face.json("POST", "/api/v1/jobs", spec, token=token))[0] == 201
        content = face.world.server.content
        assert await sweep_content(face.world.server) > 0
        assert (content.renew_tree(used.name), content.renew_tree(named.name)) == (used, named)
        with pytest.raises(NotFound):
            content.tree(unused.name)
        (content._path(chunk_name(b"used"))).unlink()
        spec["code"] = {"tree": used.name, "folder": "src", "files": 1, "size": 4}
        status, problem = await face.json("POST", "/api/v1/jobs", spec, token=token)
        assert (status, problem["field"]) == (400, "code.tree"), problem


async def test_results_are_fetched_through_their_job_alone_and_kept_as_long_as_it_is(tmp_path: Path) -> None:
    """A tree or chunk that is no result of the job stays closed, and so does a job of another project."""
    result, other = folder_of(tmp_path / "r", {"f": b"result"}), folder_of(tmp_path / "o", {"f": b"other"})
    async with facing(tmp_path / "server") as face:
        world, token = face.world, face.token("ada", UserRole.USER)
        status, answer = await face.json("POST", "/api/v1/jobs", {"run": "x", "outputs": "f"}, token=token)
        assert status == 201, answer
        base = f"/api/v1/jobs/{answer['id']}/outputs"
        machine = await agent_token(face)
        async with connection(face, machine) as sender:
            await ContentTransfer(sender).send(tmp_path / "r", result)
            await ContentTransfer(sender).send(tmp_path / "o", other)
        told = {"job_id": answer["id"], "node_rank": 0, "tree": result.name, "files": 1}
        for attempt, tree, status in ((7, result.name, 403), (1, "0" * 64, 409), (1, result.name, 204)):
            body = told | {"attempt": attempt, "tree": tree}
            assert (await face.call("POST", "/agent/v1/outputs", body, token=machine)).status == status
        async with connection(face, token) as user:
            assert await ContentTransfer(user, base).fetch(result.name, tmp_path / "got") == result
        for closed in (f"trees/{other.name}", f"chunks/{chunk_name(b'other')}"):
            assert (await face.call("GET", f"{base}/{closed}", token=token)).status == 404
        stranger = face.token("eve", UserRole.USER, "elsewhere")
        assert (await face.call("GET", f"{base}/trees/{result.name}", token=stranger)).status == 404
        grow_old(tmp_path / "server")
        assert await sweep_content(world.server) > 0
        assert world.server.content.renew_tree(result.name) == result
        with pytest.raises(NotFound):
            world.server.content.tree(other.name)


def test_a_full_disk_is_left_to_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_store, "FREE_LEAST_BYTES", 2**62)
    with pytest.raises(ClusterError, match="content store is full"):
        ContentStore(tmp_path).put(chunk_name(b"one"), b"one")


def test_bytes_that_the_disk_lost_are_noticed(tmp_path: Path) -> None:
    store = ContentStore(tmp_path)
    name = chunk_name(b"one")
    store.put(name, b"one")
    next(tmp_path.glob("??/*")).write_bytes(b"0ne")
    with pytest.raises(DamagedContent):
        store.get(name)
    with pytest.raises(Conflict):
        store.commit_tree(folder_of(tmp_path / "x", {"f": b"other"}))


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_tree_counts_once_every_byte_of_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    """A server that was started anew does not know what of the chunks there its predecessor has waited for."""
    tree = folder_of(tmp_path / "from", {"a": b"one", "b": b"two"})
    store, synced, sync = ContentStore(tmp_path / "content"), set[int](), os.fsync

    def fsync(descriptor: int) -> None:
        sync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    for name, content in find_chunks(tmp_path / "from", tree, set(tree.chunk_sizes())):
        store.put(name, content)
    if is_restarted:
        store = ContentStore(tmp_path / "content")
        synced.clear()
    store.commit_tree(tree)
    kept = [*tmp_path.glob("content/*"), *tmp_path.glob("content/*/*"), tmp_path / "content"]
    assert {path.stat().st_ino for path in kept} <= synced
