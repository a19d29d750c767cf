"""Content through the server: chunks are sent once, a tree counts once it is whole, and names open nothing to users."""

import os
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler.live import holder_shares
from scheduler.live.auth.access_control import UserRole
from scheduler.live.services.content_sweep import sweep_content
from scheduler.live.store import content_store
from scheduler.live.store.content_store import ContentStore
from scheduler.live.store.data_folder import CUT_NOTE, LogStore
from tests.support.http_face import Face, facing
from walras.connection.body import ApiCall
from walras.connection.transport import Patience, Transport
from walras.errors import ClusterError, Conflict, NotFound
from walras.storage.content import (
    CHUNK_BYTES,
    ContentTree,
    DamagedContent,
    chunk_name,
    content_of,
    find_chunks,
    hash_folder,
    join_chunks,
)
from walras.storage.content_transfer import ContentTransfer

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


class CountedTransport(Transport):
    """Counts the requests by their path's third word."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked: Counter[str] = Counter()

    def open(self, call: ApiCall, **more: Any) -> Any:
        self.asked[call.path.split("/")[3]] += 1
        return super().open(call, **more)


async def test_many_small_files_travel_in_few_requests(tmp_path: Path) -> None:
    """Beside large ones, with progress, both ways: a folder of 100,000 files is no 100,000 requests."""
    files = {f"d{number % 7}/f{number}.txt": b"%d" % (number % 1400) for number in range(1500)}
    tree = folder_of(tmp_path / "from", files | {"large": os.urandom(CHUNK_BYTES) + b"x", "empty": b""})
    async with facing(tmp_path / "server") as face:
        url = str(face.client.make_url("/")).rstrip("/")
        told: list[tuple[int, int]] = []
        async with CountedTransport(url, face.token("ada", UserRole.USER), Patience(tries=1)) as user:
            await ContentTransfer(user).send(tmp_path / "from", tree, lambda done, of: told.append((done, of)))
            assert user.asked["chunks"] + user.asked["packs"] <= 6
        assert told[-1] == (1402, 1402)
        assert told == sorted(told)
        async with CountedTransport(url, await agent_token(face), Patience(tries=1)) as machine:
            await ContentTransfer(machine).fetch(tree.name, tmp_path / "to")
            assert machine.asked["chunks"] + machine.asked["packs"] <= 6
    assert hash_folder(tmp_path / "to", [file.path for file in tree.files]) == tree


async def test_a_server_without_packs_gets_and_gives_one_chunk_a_time(tmp_path: Path) -> None:
    """One of the release before answers 404."""
    tree = folder_of(tmp_path / "from", {f"f{number}": b"%d" % number for number in range(50)})
    async with facing(tmp_path / "server") as face:
        async with connection(face, face.token("ada", UserRole.USER)) as user:
            older = ContentTransfer(user)
            older._has_packs = False
            await older.send(tmp_path / "from", tree)
        async with connection(face, await agent_token(face)) as machine:
            older = ContentTransfer(machine)
            older._has_packs = False
            assert await older.fetch(tree.name, tmp_path / "to") == tree


async def test_a_pack_that_lies_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    """Other bytes, other sizes, no list, names that lead elsewhere; and users fetch no pack."""
    good = (chunk_name(b"one"), b"one")
    async with facing(tmp_path / "server") as face:
        for body in (
            join_chunks([good, (chunk_name(b"two"), b"six")]),
            join_chunks([good])[:-1],
            join_chunks([good]) + b"more",
            join_chunks([good]).replace(good[0].encode(), b"../x"),
            b"",
            b"[]\n",
            b'[["%s",-1]]\n' % good[0].encode(),
        ):
            status, problem = await face.json("POST", "/content/v1/packs", body)
            assert status == 400, problem
        assert not [path for path in (tmp_path / "server" / "content").rglob("*") if path.is_file()]
        user = face.token("ada", UserRole.USER)
        assert (await face.call("POST", "/content/v1/packs/fetch", {"names": [good[0]]}, token=user)).status == 403


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


def disk_with(monkeypatch: pytest.MonkeyPatch, folder: Path, size: int) -> None:
    """The disk has room for this many bytes of content."""

    def usage(_: Path) -> SimpleNamespace:
        used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.suffix != ".by")
        return SimpleNamespace(free=holder_shares.FREE_LEAST_BYTES + size - used)

    monkeypatch.setattr(shutil, "disk_usage", usage)


#: What a piece of content counts at least.
PIECE = content_store.LEAST_BYTES


async def fill(face: Face, token: str, size: int = PIECE) -> int:
    """Sends chunks until one is refused; returns how many are kept."""
    for kept in range(100):
        content = os.urandom(size)
        answer = await face.call("PUT", f"/content/v1/chunks/{chunk_name(content)}", content, token=token)
        if answer.status == 413:
            problem = await answer.json(content_type=None)
            assert problem["code"] == "share_taken"
            assert "bytes of content of yours are held already, your share is" in problem["detail"]
            assert "walras admin prune --content" in problem["fix"]
            return kept
        assert answer.status == 204, await answer.text()
    raise AssertionError("no bound")


async def test_nobody_fills_the_store_so_that_a_checkpoint_of_another_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of what the others leave, to users without a reserve; a machine sends for the user of its job; and a
    restarted server counts the same.
    """
    async with facing(tmp_path) as face:
        disk_with(monkeypatch, tmp_path / "content", 80 * PIECE)
        world, ada, bob = face.world, face.token("ada", UserRole.USER), face.token("bob", UserRole.USER)
        assert (await face.json("GET", "/healthz"))[1]["checks"]["content"] == "ok"
        assert [await fill(face, ada), await fill(face, bob)] == [35, 17]
        machine = await agent_token(face)
        assert await fill(face, machine) == 14
        content = world.server.content
        assert content.holders.shares.held == {"user ada": 35 * PIECE, "user bob": 17 * PIECE, "machine n1": 14 * PIECE}
        told = (await face.json("GET", "/healthz"))[1]["checks"]["content"]
        assert told.startswith(
            f"{66 * PIECE:,} of {80 * PIECE:,} bytes of content are held, {35 * PIECE:,} by user ada; "
        )
        assert "walras admin prune --content" in told
        again = ContentStore(tmp_path / "content")
        assert [again.sweep([], 1e6).size_bytes for _ in range(2)] == [0, 0]
        assert again.holders.shares.held == content.holders.shares.held
        grow_old(tmp_path)
        assert again.sweep([], 1e6, is_dry=True).of_holders == content.holders.shares.held
        assert (await sweep_content(world.server)).size_bytes == 66 * PIECE
        assert (await face.json("GET", "/healthz"))[1]["checks"]["content"] == "ok"
        assert content.holders.shares.held == {}
        assert not [path for path in (tmp_path / "content").rglob("*") if path.is_file()]
        assert await fill(face, bob) == 35


async def test_a_small_piece_counts_what_its_files_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of a few bytes takes a block and an inode, and so does the list of its holders."""
    async with facing(tmp_path) as face:
        disk_with(monkeypatch, tmp_path / "content", 20 * PIECE)
        assert await fill(face, face.token("ada", UserRole.USER), size=8) < 20


async def test_what_a_machine_sends_for_a_job_is_its_users(tmp_path: Path) -> None:
    """As long as the job runs there: no machine charges a user whose jobs it does not have."""
    async with facing(tmp_path) as face:
        agent, job_id = await face.world.running()
        tree = folder_of(tmp_path / "from", {"w": b"weights"})
        async with connection(face, agent.credential) as machine:
            await ContentTransfer(machine, job_id=job_id).send(tmp_path / "from", tree)
            held = {"user ada": 2 * PIECE}
            assert face.world.server.content.holders.shares.held == held
            await ContentTransfer(machine, job_id=job_id + 1).send(tmp_path / "from", tree)
            assert face.world.server.content.holders.shares.held == {**held, "machine n1": held["user ada"]}


async def test_an_administrator_frees_what_nothing_refers_to(tmp_path: Path) -> None:
    """Not what was sent lately, which a job may be about to name, nor what a job needs; first told what it would be."""
    used, unused = (folder_of(tmp_path / name, {"f": name.encode()}) for name in ("used", "unused"))
    freed = 6 + len(unused.encoded())
    async with facing(tmp_path / "server") as face:
        token = face.token("ada", UserRole.USER)

        async def pruned(**asked: bool) -> Any:
            return (await face.json("POST", "/api/v1/content/prune", asked))[1]

        async with connection(face, token) as user:
            await ContentTransfer(user).send(tmp_path / "used", used)
            await ContentTransfer(user).send(tmp_path / "unused", unused)
        spec = {"run": "x", "code": {"tree": used.name, "folder": "src", "files": 1, "size": 4}}
        assert (await face.json("POST", "/api/v1/jobs", spec, token=token))[0] == 201
        none = {"size_bytes": 0, "holders": {}, "objects": 0, "unanswered": []}
        assert await pruned() == none
        grow_old(tmp_path / "server")
        told = none | {"size_bytes": freed, "holders": {"user ada": freed}}
        assert [await pruned(dry_run=True), await pruned(), await pruned()] == [told, told, none]
        assert face.world.server.content.tree(used.name) == used
        assert (await face.call("POST", "/api/v1/content/prune", {}, token=token)).status == 403


async def test_an_administrator_sees_who_holds_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of everything that is shared, with the shares; nobody else does."""
    async with facing(tmp_path) as face:
        disk_with(monkeypatch, tmp_path / "content", 80 * PIECE)
        ada = face.token("ada", UserRole.USER)
        await face.world.submit({})
        over = await face.world.submit({})
        assert (await face.call("POST", f"/api/v1/jobs/{over}/cancel")).status == 200
        assert await fill(face, ada) == 35
        uses = {(use["what"], use["holder"]): use for use in await face.got("/usage/holders")}
        held = uses["bytes of content", "user ada"]
        assert (held["held"], held["share"]) == (35 * PIECE, 35 * PIECE)
        assert uses["jobs", "user ada"]["held"] == 1
        assert (uses["ended jobs", "user ada"]["held"], uses["ended jobs", "user ada"]["share"]) == (1, 500_000)
        assert uses["requests under way", "user admin"]["held"] == 1
        assert (await face.call("GET", "/api/v1/usage/holders", token=ada)).status == 403


async def test_one_users_output_fills_neither_the_disk_nor_anybody_elses_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that prints for ever is cut with a line that says so; its user's, also over a restart, and told of."""
    async with facing(tmp_path) as face:
        agent, _ = await face.world.running()
        disk_with(monkeypatch, tmp_path / "logs", 10_000 - holder_shares.FREE_LEAST_BYTES // 2)
        place, at, following = "/agent/v1/logs?job_id=1&attempt=1&rank=0&offset=", -1, 0
        while following > at:
            at = following
            answer = await face.done("POST", f"{place}{at}", b"x" * 3000, token=agent.credential)
            following = answer["next"]
        shown = await (await face.call("GET", "/api/v1/jobs/1/logs")).read()
        assert shown.endswith(CUT_NOTE)
        assert len(shown) < 6000
        uses = {(use["what"], use["holder"]): use for use in await face.got("/usage/holders")}
        assert uses["bytes of logs", "user ada"]["held"] == len(shown)
        assert uses["bytes of logs", "user ada"]["share"] < len(shown)
        assert (await face.json("GET", "/healthz"))[1]["checks"]["logs"] == "ok"
        again = LogStore(tmp_path / "logs", 10**6)
        again.recount(face.world.server.store.users_of_jobs())
        assert again.shares.held["ada"] >= len(shown)


async def test_content_of_another_project_is_not_told_of(tmp_path: Path) -> None:
    """Neither by questions, nor by lists of files, nor by jobs; who sends it again has it, too."""
    files = {"train.py": b"print(1)"}
    tree = folder_of(tmp_path / "from", files)
    names = [chunk_name(files["train.py"]), tree.name]
    spec = {"run": "x", "code": {"tree": tree.name, "folder": "src", "files": 1, "size": 8}}
    async with facing(tmp_path / "server") as face:
        ada, mate = (face.token(name, UserRole.USER, "vision") for name in ("ada", "mate"))
        eve = face.token("eve", UserRole.USER, "speech")

        async def missing(token: str) -> list[str]:
            _, answer = await face.json("POST", "/content/v1/missing", {"names": names}, token=token)
            return list(answer["names"])

        async with connection(face, ada) as user:
            await ContentTransfer(user).send(tmp_path / "from", tree)
        assert [await missing(token) for token in (ada, mate, face.admin, eve)] == [[], [], [], names]
        assert (await face.json("POST", "/content/v1/trees", tree.encoded(), token=eve))[0] == 409
        status, problem = await face.json("POST", "/api/v1/jobs", spec, token=eve)
        assert (status, problem["field"]) == (400, "code.tree")
        async with connection(face, eve) as user:
            sent = ContentTransfer(user)
            await sent.send(tmp_path / "from", tree)
            assert sent.sent_bytes > 0
        assert await missing(eve) == []
        assert [(await face.json("POST", "/api/v1/jobs", spec, token=token))[0] for token in (eve, mate)] == [201, 201]


def test_what_nobody_needs_is_swept_once_it_is_old(tmp_path: Path) -> None:
    now = [1e9]
    store = ContentStore(tmp_path / "content", lambda: now[0])
    kept, gone = (folder_of(tmp_path / name, {"f": name.encode() * 10}) for name in ("kept", "gone"))
    for tree, name in ((kept, "kept"), (gone, "gone")):
        store.put(chunk_name(name.encode() * 10), name.encode() * 10)
        store.commit_tree(content_of(tree))
    now[0] = os.stat(tmp_path).st_mtime + 50.0
    assert store.sweep([kept.name], min_age_s=100.0).size_bytes == 0
    now[0] += 100.0
    assert store.sweep([kept.name], min_age_s=100.0).size_bytes > 0
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
        assert (await sweep_content(face.world.server)).size_bytes > 0
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
        assert (await sweep_content(world.server)).size_bytes > 0
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
        store.commit_tree(content_of(folder_of(tmp_path / "x", {"f": b"other"})))


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
    store.commit_tree(content_of(tree))
    kept = [*tmp_path.glob("content/*"), *tmp_path.glob("content/*/*"), tmp_path / "content"]
    assert {path.stat().st_ino for path in kept} <= synced
