"""Tokens, logs, money, submission order: the parts that need no server."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.live.auth.access_control import JobTokens, UserCaller, UserRole, caller_of_token, new_user_token
from scheduler.live.holder_shares import FREE_LEAST_BYTES
from scheduler.live.http.web_application import BadTokenLimit
from scheduler.live.loop import billing, live_state
from scheduler.live.loop.live_state import LiveNode, LiveState, parse_placement, placement_json
from scheduler.live.main import check_host
from scheduler.live.providers.live_provider import ProviderContext, build_providers
from scheduler.live.services.job_submission import sibling_positions, submission_order
from scheduler.live.store import data_folder
from scheduler.live.store.data_folder import (
    CUT_NOTE,
    DataFolder,
    LogPlace,
    LogStore,
    offset_of_last_lines,
    offset_since,
)
from scheduler.live.store.table_rows import AttemptRow, NodeRow, RentRow
from walras.cluster import NodeId, NodeShare, Placement, Pool, PoolId, Shape
from walras.errors import ConfigError
from walras.job_request import JobId
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import check_model
from walras.spec.job_spec import JobSpec
from walras.states import AttemptState
from walras.wire import ShapeFacts


def test_a_token_expires_and_is_not_kept() -> None:
    """Only its hash and its prefix are in the row."""
    token, row = new_user_token(UserCaller("ada", UserRole.USER, ("p",)), "admin", expires_in_s=60.0)
    assert token not in repr(row)
    assert token.startswith(row.prefix)
    caller = caller_of_token(row, row.created_at)
    assert (caller.name, caller.role, caller.sees("p"), caller.sees("q")) == ("ada", UserRole.USER, True, False)
    row.expires_at = 1.0
    assert caller_of_token(row, row.created_at) is None


def test_job_tokens_cannot_be_made_up() -> None:
    """Another job, another attempt, another server's secret: not genuine."""
    tokens = JobTokens(b"s" * 32)
    token = tokens.issue(JobId(12), 3)
    assert tokens.check(token) == (12, 3)
    for forged in (token.replace("_12_", "_13_"), token.replace("_3_", "_4_"), token[:-2], "", "wlr_j_1_1_zz"):
        assert tokens.check(forged) is None
    assert JobTokens(b"t" * 32).check(token) is None


def test_an_address_that_fails_often_is_held_off_for_a_while() -> None:
    """The bucket empties, refills with time, and another address has its own."""
    limit = BadTokenLimit(burst=3, per_s=1.0)
    assert [limit.failed("a", 0.0) for _ in range(4)] == [True, True, True, False]
    assert limit.failed("b", 0.0)
    assert limit.failed("a", 10.0)


@given(st.binary(max_size=300), st.lists(st.tuples(st.integers(0, 320), st.integers(0, 64)), max_size=40))
def test_log_chunks_in_any_order_make_a_prefix_of_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, written: bytes, chunks: list[tuple[int, int]]
) -> None:
    """Repeats, overlaps and gaps: what is kept is always the beginning of the truth."""
    logs = LogStore(tmp_path_factory.mktemp("logs"), limit_bytes=200)
    for offset, length in chunks:
        logs.append(LogPlace(1, 1, 0), offset, written[offset : offset + length])
    kept = logs.read(LogPlace(1, 1, 0), 0, 1000)
    assert written[:200].startswith(kept)
    for offset in range(0, 300, 50):
        logs.append(LogPlace(1, 1, 0), offset, written[offset : offset + 60])
    assert logs.read(LogPlace(1, 1, 0), 0, 1000) == written[:200]


def test_logs_of_nobody_are_empty(tmp_path: Path) -> None:
    """No file is no error, and a rank's name cannot leave the folder."""
    logs = LogStore(tmp_path, 10)
    assert logs.read(LogPlace(1, 2, 3), 0, 10) == b""
    with pytest.raises(ValueError, match="invalid literal"):
        logs.append(LogPlace("../../x", 1, 0), 0, b"")  # type: ignore[arg-type]


def test_money_is_the_price_at_the_time_of_use() -> None:
    """Half a machine at 2 USD/h for half an hour, then the price doubles for another half hour."""
    pool = Pool(PoolId("p"), Shape("s", "a", 4, 1.0, 1), usd_per_h=2.0)
    placement = Placement(PoolId("p"), (NodeShare(NodeId("n"), (0, 1)),))
    row = AttemptRow(JobId(1), 1, AttemptState.RUNNING, PoolId("p"), "a", False, 2, 0.0, "[]")
    row.usd_per_h = billing.usd_per_h({pool.pool_id: pool}, placement)
    assert row.usd_per_h == 1.0
    other = replace(pool, pool_id=PoolId("q"), usd_per_h=8.0)
    spread = replace(placement, parts=(*placement.parts, NodeShare(NodeId("m"), (3,), other.pool_id)))
    assert billing.usd_per_h({pool.pool_id: pool, other.pool_id: other}, spread) == 1.0 + 2.0
    row.placement = placement_json(spread)
    assert parse_placement(row) == spread
    row.usd, row.usd_since_at = billing.attempt_usd(row, 1800.0), 1800.0
    row.usd_per_h = 2.0
    assert billing.attempt_usd(row, 3600.0) == pytest.approx(0.5 + 1.0)
    assert billing.accelerator_s(row, 3600.0) == 7200.0


@given(st.lists(st.lists(st.integers(0, 7), max_size=3).map(tuple), min_size=1, max_size=8))
def test_a_batch_is_ordered_with_dependencies_first(wants: list[tuple[int, ...]]) -> None:
    """Every position is either on a cycle or after all that it needs that is not on one."""
    siblings = [tuple(p for p in needs if p < len(wants)) for needs in wants]
    order, cyclic = submission_order(siblings)
    assert sorted([*order, *cyclic]) == list(range(len(siblings)))
    place = {position: index for index, position in enumerate(order)}
    for position in order:
        assert all(needed in cyclic or place[needed] < place[position] for needed in siblings[position])


def test_a_name_used_twice_in_a_batch_means_the_last_one_before() -> None:
    """Else the first of all; names that are not in the batch are looked for elsewhere."""
    specs = [
        JobSpec.model_validate({"run": "true", "name": name, "depends_on": needs})
        for name, needs in (("a", ["b"]), ("b", []), ("a", ["a"]), ("c", ["a", "b", "x", 7]), ("b", ["b"]))
    ]
    assert sibling_positions([*specs, None]) == [(1,), (), (0,), (2, 1), (1,), ()]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.4", "::", "example.org", ""])
def test_an_address_that_others_reach_is_refused(host: str) -> None:
    """Whoever may submit a job may run code: no listening beyond loopback without TLS."""
    with pytest.raises(ConfigError, match="will not listen"):
        check_host(host)
    for fine in ("127.0.0.1", "::1", "localhost", "127.1.2.3"):
        check_host(fine)


def test_a_cluster_file_with_an_unknown_provider_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    """Before, such pools were accepted and never rented. `simulated` is for the simulator, and no mistake."""
    entry = {"accelerator": "a", "accelerators": 1, "cpus": 1, "memory": "1GB", "market": "spot", "quota": 1}
    told = {name: {"pools": [{**entry, "shape": "s", "provider": name}]} for name in ("gcp", "locl", "simulated")}
    contexts = {
        name: ProviderContext(check_model(ClusterConfig, data, source="cluster"), DataFolder(tmp_path), b"")
        for name, data in told.items()
    }
    with pytest.raises(
        ConfigError, match="no provider is called 'gcp'; known: aws, local, slurm, simulated"
    ) as refused:
        build_providers(contexts["gcp"])
    assert refused.value.field == "pools[0].provider"
    with pytest.raises(ConfigError) as refused:
        build_providers(contexts["locl"])
    assert refused.value.fix == "did you mean `provider: local`?"
    assert "simulated" not in build_providers(contexts["simulated"])


@pytest.mark.parametrize("piece", [3, 256 * 1024])
@pytest.mark.parametrize(
    ("content", "lines", "rest"),
    [
        (b"one\ntwo\nthree\n", 1, b"three\n"), (b"one\ntwo\nthree\n", 2, b"two\nthree\n"),
        (b"one\ntwo\nthr", 2, b"two\nthr"), (b"one\ntwo\n", 9, b"one\ntwo\n"), (b"\n\n\n", 2, b"\n\n"),
        (b"one\n", 0, b""), (b"", 3, b""),
    ],
)  # fmt: skip
def test_the_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, lines: int, rest: bytes, piece: int
) -> None:
    monkeypatch.setattr(data_folder, "_PIECE_BYTES", piece)
    (tmp_path / "0.log").write_bytes(content)
    assert content[offset_of_last_lines(tmp_path / "0.log", lines) :] == rest


def test_what_came_within_a_time_and_the_later_of_both(tmp_path: Path) -> None:
    """What came at the instant itself is shown; a cut entry and a log of an older release do no harm."""
    now = [1000.0]
    store = LogStore(tmp_path, 10**6, lambda: now[0])
    offset = 0
    for at, text in ((1000.0, b"first\n"), (1000.2, b"same second\n"), (1060.0, b"a\nb\nc\n"), (1090.0, b"last\n")):
        now[0] = at
        offset = store.append(LogPlace(1, 1, 0), offset, text).next_offset
    now[0] = 1100.0

    def shown(lines: int | None, since_s: float | None) -> bytes:
        return store.read(LogPlace(1, 1, 0), store.start(LogPlace(1, 1, 0), lines=lines, since_s=since_s), 10**6)

    assert shown(None, 45.0) == b"a\nb\nc\nlast\n"
    assert shown(2, 45.0) == b"c\nlast\n"
    assert shown(3, 11.0) == b"last\n"
    assert shown(None, 5.0) == b""
    assert shown(None, 500.0).startswith(b"first\nsame second\n")
    log = tmp_path / "1" / "1" / "0.log"
    with open(log.with_suffix(".times"), "ab") as times:
        times.write(b"cut")
    assert shown(None, 45.0) == b"a\nb\nc\nlast\n"
    store.append(LogPlace(1, 1, 0), offset, b"more\n")
    assert shown(None, 5.0) == b"more\n"
    log.with_suffix(".times").unlink()
    assert offset_since(log, 1e9) == 0
    assert store.start(LogPlace(9, 1, 0), lines=3, since_s=None) == 0


def test_one_users_logs_leave_room_for_the_others_and_say_where_they_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of what the others leave; offsets stay those of the output, which goes on once there is room again."""
    folder, size = DataFolder(tmp_path), 20_000

    def usage(_: Path) -> SimpleNamespace:
        used = sum(path.stat().st_size for path in folder.logs.rglob("*.log"))
        return SimpleNamespace(free=FREE_LEAST_BYTES // 2 + size - used)

    monkeypatch.setattr("shutil.disk_usage", usage)
    folder.create()
    logs, output = LogStore(folder.logs, 10**9), bytes(range(200)) * 1000

    def written(job_id: int, user: str) -> int:
        at, following = -1, 0
        while following > at:
            at, piece = following, output[following:][:3000]
            following = logs.append(LogPlace(job_id, 1, 0), at, piece, user).next_offset
        return at

    assert [written(1, "ada"), written(2, "bob"), written(3, "ada")] == [
        10_000 + len(CUT_NOTE), 5_000 - len(CUT_NOTE) // 2 + len(CUT_NOTE), len(CUT_NOTE),
    ]  # fmt: skip
    shown = logs.read(LogPlace(1, 1, 0), 0, size)
    assert shown == output[:10_000] + CUT_NOTE
    assert logs.shares.standing().startswith("15,")
    assert "by ada; an administrator deletes old ones: `walras admin prune --logs" in logs.shares.standing()
    again = LogStore(folder.logs, 10**9)
    again.recount({1: "ada", 2: "bob", 3: "ada"})
    times = sum(path.stat().st_size for path in folder.logs.rglob("*.times"))
    assert sum(again.shares.held.values()) == sum(logs.shares.held.values()) + times
    assert logs.is_cutting
    shutil.rmtree(folder.logs / "1")
    logs.recount({2: "bob", 3: "ada"})
    assert not logs.is_cutting
    assert written(3, "ada") > 5000
    shown = logs.read(LogPlace(3, 1, 0), 0, 5000)
    assert shown == CUT_NOTE + output[len(CUT_NOTE) : 5000]


def test_one_users_many_small_logs_leave_files_for_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log beyond the share is not begun, and is once there is room; over a restart too. Some disks have no bound."""
    folder, bound = DataFolder(tmp_path), [4096 + 400]

    def files(_: Path) -> SimpleNamespace:
        left = bound[0] - 4 * len([*folder.logs.rglob("*.log")])
        blocks = dict.fromkeys(("f_blocks", "f_bfree", "f_bavail"), 10**6)
        return SimpleNamespace(f_files=bound[0], f_favail=left, f_frsize=4096, **blocks)

    monkeypatch.setattr("os.statvfs", files)
    folder.create()
    logs = LogStore(folder.logs, 10**9)

    def begun(job_id: int, user: str) -> int:
        told = [logs.append(LogPlace(job_id, number, 0), 0, b"x", user) for number in range(1, 61)]
        assert [each.full for each in told] == [False] * len(told)
        return sum(each.next_offset for each in told)

    assert (begun(1, "ada"), begun(2, "bob"), begun(3, "ada")) == (50, 25, 0)
    assert not (folder.logs / "3").exists()
    assert logs.standing() == "ok"
    bound[0] -= 40
    assert logs.standing().startswith("300 of 360 files of logs are held, 200 by ada")
    bound[0] += 40
    assert logs.is_cutting
    held = logs.files.held
    logs = LogStore(folder.logs, 10**9)
    logs.recount({1: "ada", 2: "bob"})
    assert logs.files.held == held
    assert begun(1, "ada") == 50  # what is begun goes on
    shutil.rmtree(folder.logs / "1")
    logs.recount({2: "bob", 3: "ada"})
    assert begun(3, "ada") == 37
    bound[0] = 0
    assert begun(4, "ada") == 60


def test_machines_of_requests_long_over_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the newest requests stay, as after a restart, and what an attempt was on stays until that is over."""
    monkeypatch.setattr(live_state, "PAST_RENTS_MOST", 2)
    state, facts = LiveState(), ShapeFacts(shape="s", accelerator="a", accelerators=1, cpus=1, memory_bytes=1)
    for number in range(5):
        token, node_id = f"t{number}", NodeId(f"n{number}")
        row = NodeRow(node_id, PoolId("p"), "", f"c{number}", "released", 0.0, rent_token=token)
        state.nodes[node_id], state.credentials[row.credential] = LiveNode(row, facts), node_id
        state.rents[token] = RentRow(token, PoolId("p"), 1, 0.0, "ended")
    attempt: Any = SimpleNamespace(parts={NodeId("n1"): None})
    state.jobs[JobId(1)] = SimpleNamespace(attempt=attempt)  # type: ignore[assignment]
    for rent in list(state.rents.values()):
        state.end_rent(rent)
    assert list(state.nodes) == ["n1", "n3", "n4"]
    assert list(state.credentials) == ["c1", "c3", "c4"]
