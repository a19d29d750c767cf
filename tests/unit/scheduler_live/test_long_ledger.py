"""A ledger of many jobs: the dearest are told apart, and nothing is lost of the others."""

from pathlib import Path

from scheduler.live.loop.billing import spending_report
from scheduler.live.store.sqlite_store import SqliteStore
from scheduler.live.store.store_interface import MoneyQuery, MoneySum, WriteBatch
from scheduler.live.store.table_rows import ChargeKind
from tests.support.charges import charge
from tests.support.http_face import facing
from walras.api import MoneyReport


def test_the_dearest_are_told_apart_with_what_is_open(tmp_path: Path) -> None:
    """What is still open counts: it may lift a job over those that are written. Sums are those without a limit."""
    store = SqliteStore(tmp_path)
    rows = [
        charge(number, float(number), job=number, market="spot" if number % 2 else "owned") for number in range(1, 9)
    ]
    rows.append(charge(9, 1.0, job=1))  # one job on two markets
    rows.append(charge(10, 50.0, node="n1", market="spot"))
    store.commit(WriteBatch(charges=rows))
    open_now = [MoneySum("2", ChargeKind.USE, True, 100.0, 100.0, 60.0)]

    def report(by: str, limit: int) -> MoneyReport:
        query = MoneyQuery(by, 11, limit=limit)
        opened = open_now if by == "job" else []
        return spending_report(query, [*store.money(query, [each.key for each in opened]), *opened])

    whole, short = report("job", 1000), report("job", 3)
    assert [row.key for row in whole.items] == ["2", "8", "7", "6", "5", "4", "3", "1"]
    assert (whole.rest, whole.rest_of) == (None, 0)
    assert short.items == whole.items[:3]
    assert short.rest_of == 5
    assert short.rest is not None
    assert short.rest.usd == 6.0 + 5.0 + 4.0 + 3.0 + 2.0
    for name in ("used_usd", "idle_usd", "total_usd", "on_demand_usd"):
        assert getattr(short, name) == getattr(whole, name)
    pools, dearest = report("pool", 1000), report("pool", 1)
    assert [row.key for row in pools.items] == ["x/spot", "x/owned"]
    assert dearest.rest is not None
    assert (dearest.items, dearest.rest.usd) == (pools.items[:1], pools.items[1].usd)
    store.close()


async def test_a_long_ledger_is_answered_by_job(tmp_path: Path) -> None:
    """The thousand dearest apart, the others as one sum. How long it takes: `python -m benchmarks ledger`."""
    many = 1_730
    async with facing(tmp_path) as face:
        charges = [charge(number, 1.0 + number % 97, job=number) for number in range(1, many + 1)]
        face.world.server.store.commit(WriteBatch(charges=charges))
        face.world.live_state.next_charge_id = many + 1
        status, found = await face.json("GET", "/api/v1/money?by=job")
        assert (status, len(found["items"]), found["rest_of"]) == (200, 1000, many - 1000)
        assert found["total_usd"] == sum(each.usd for each in charges)
        assert min(row["usd"] for row in found["items"]) >= found["rest"]["usd"] / found["rest_of"]
        assert (await face.json("GET", "/api/v1/money?by=job&limit=0"))[0] == 400
