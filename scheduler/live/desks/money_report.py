"""What was spent, summed: the ledger of money and what is open now, in one answer that adds up.

The bill is what owned machines' use and rented machines cost. Of a rented machine, what attempts held is theirs; the
rest was idle. Both halves are taken at one instant, so nothing is counted twice or not at all.
"""

from dataclasses import dataclass

from scheduler.live.records.rows import MONEY_KEYS, ChargeKind, ChargeRow, MoneyQuery, MoneySum
from walras.api import MoneyReport, MoneyRow
from walras.cluster import Market


@dataclass(slots=True)
class _Sums:
    #: By attempts: in all, of that on rented machines, and what it would have cost on demand.
    use_usd: float = 0.0
    rented_use_usd: float = 0.0
    use_on_demand_usd: float = 0.0
    rented_use_on_demand_usd: float = 0.0
    machines_usd: float = 0.0
    machines_on_demand_usd: float = 0.0
    accelerator_s: float = 0.0

    def add(self, part: MoneySum) -> None:
        if part.kind is ChargeKind.MACHINE:
            self.machines_usd += part.usd
            self.machines_on_demand_usd += part.on_demand_usd
            return
        self.use_usd += part.usd
        self.use_on_demand_usd += part.on_demand_usd
        self.accelerator_s += part.accelerator_s
        if not part.is_owned:
            self.rented_use_usd += part.usd
            self.rented_use_on_demand_usd += part.on_demand_usd


def sums_of(charges: list[ChargeRow], query: MoneyQuery) -> list[MoneySum]:
    """Charges as the store sums them."""
    found = []
    for charge in charges:
        if (query.month and charge.month != query.month) or (query.project and charge.project != query.project):
            continue
        if query.projects is not None and (charge.kind is ChargeKind.MACHINE or charge.project not in query.projects):
            continue
        held_s = charge.accelerators * (charge.until_at - charge.since_at)
        key = str(getattr(charge, MONEY_KEYS[query.by]))
        is_owned = charge.market == Market.OWNED
        found.append(MoneySum(key, charge.kind, is_owned, charge.usd, charge.on_demand_usd, held_s))
    return found


def report(query: MoneyQuery, sums: list[MoneySum]) -> MoneyReport:
    """Rows by key, dearest first, and the totals. What was idle of rented machines is a row of its own where nothing
    of the key says whose it is.
    """
    whole, by_key = _Sums(), {}  # type: ignore[var-annotated]
    for part in sums:
        whole.add(part)
        if part.kind is ChargeKind.USE or MONEY_KEYS[query.by] in ("pool_id", "month"):
            by_key.setdefault(part.key, _Sums()).add(part)
    rows = [_row(key, each) for key, each in by_key.items()]
    sees_machines = query.projects is None and not query.project
    total = _row("", whole)
    return MoneyReport(
        by=query.by,
        items=sorted(rows, key=lambda row: (-row.usd - row.idle_usd, row.key)),
        used_usd=whole.use_usd,
        idle_usd=total.idle_usd if sees_machines else 0.0,
        total_usd=whole.use_usd + (total.idle_usd if sees_machines else 0.0),
        on_demand_usd=total.on_demand_usd,
    )


def _row(key: str, sums: _Sums) -> MoneyRow:
    idle_usd, idle_on_demand_usd = 0.0, 0.0
    if sums.machines_usd or sums.machines_on_demand_usd:
        idle_usd = sums.machines_usd - sums.rented_use_usd
        idle_on_demand_usd = sums.machines_on_demand_usd - sums.rented_use_on_demand_usd
    return MoneyRow(
        key=key,
        accelerator_s=sums.accelerator_s,
        usd=sums.use_usd,
        idle_usd=0.0 if abs(idle_usd) < 1e-9 else idle_usd,
        on_demand_usd=sums.use_on_demand_usd + idle_on_demand_usd,
    )
