"""What is said to who waits where a market has no machine that serves: launches that hang, and a price out of reach.

That the provider's list, its bill and our records agree after whatever a cloud does is held by
`tests/unit/scheduler_live/test_janitor.py` and by `tests/whole_system`.
"""

import asyncio
from pathlib import Path

import pytest

from scheduler.core.events import PoolDeclared
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.live.providers.provisioning import MarketWatch, Provisioner
from tests.support.flaky_cloud import FlakyCloud
from tests.support.live_world import world
from walras.cluster import Market, Pool, PoolId, Shape

POOL = Pool(
    PoolId("ax2/spot/default"), Shape("ax2", "a", 2, 8.0, 1 << 34), Market.SPOT, usd_per_h=3.6, quota=3, boot_s=60.0
)
RENTING = {
    "policy": {"name": "throughput_per_dollar"},
    "rules": {"round_s": 60.0, "resolve_min_s": 1.0, "delay_usd_per_h": 100.0, "profiling_share": 0.0},
}
DEAR = "an hour of it is worth 100 USD by the policy, and 2 accelerators here cost 360 USD/h"


@pytest.mark.parametrize(("usd_per_h", "says"), [(3.6, "came up but did not join"), (360.0, DEAR)])
async def test_why_there_is_no_machine_is_said_to_who_waits(tmp_path: Path, usd_per_h: float, says: str) -> None:
    async with world(tmp_path, policy=RENTING) as w:
        cloud = FlakyCloud(w.clock.now, POOL, seed=0)
        cloud.is_well, cloud.usd_per_h = True, usd_per_h
        provisioner = Provisioner(w.loop, {POOL.pool_id: cloud})
        w.loop.effect_handlers.append(provisioner)
        await w.emit(lambda at: PoolDeclared(at, POOL))
        await MarketWatch(w.loop, cloud).look()
        job_id, told = await w.submit({"resources": {"accelerators": "a:2"}}), set[str]()
        for _ in range(30):
            w.clock.at += 60.0
            await w.advance(0.0)
            await provisioner.janitor.sweep()
            while provisioner._tasks:
                await asyncio.gather(*list(provisioner._tasks), return_exceptions=True)
            await w.quiet()
            told |= {line.detail for line in pending_reasons(w.loop.core, job_id)}
        assert any(says in detail for detail in told), sorted(told)
