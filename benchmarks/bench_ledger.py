"""How long sums over a long ledger of money take: by job, the most expensive of 37,730 apart, over HTTP.

    python -m benchmarks ledger

Processor time of a whole server and its caller in one process, which other processes cannot lengthen: the best of five.
"""

import asyncio
import tempfile
import time
from pathlib import Path

from benchmarks.tables import Measured
from scheduler.live.store.store_interface import WriteBatch
from tests.support.charges import charge
from tests.support.http_face import facing

CHARGES, _MOST_S, _TRIES = 37_730, 0.2, 5


async def _took_s(folder: Path, charges: int) -> float:
    async with facing(folder) as face:
        rows = [charge(number, 1.0 + number % 97, job=number) for number in range(1, charges + 1)]
        face.world.server.store.commit(WriteBatch(*rows))
        face.world.live_state.next_charge_id = charges + 1
        took_s = []
        for _ in range(_TRIES):
            began = time.process_time()
            status, found = await face.json("GET", "/api/v1/money?by=job")
            took_s.append(time.process_time() - began)
            assert (status, len(found["items"]) + found["rest_of"]) == (200, charges)
    return min(took_s)


def measure(scale: float = 1.0) -> list[Measured]:
    """`scale` shrinks the ledger."""
    charges = max(100, round(CHARGES * scale))
    measured = Measured("a long ledger", f"{charges:,} charges of as many jobs")
    with tempfile.TemporaryDirectory(prefix="walras-bench-") as folder:
        measured.add("`money?by=job`, processor time", asyncio.run(_took_s(Path(folder), charges)), "s", _MOST_S)
    return [measured]
