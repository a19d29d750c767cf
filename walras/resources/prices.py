"""Prices of the pools at the last solve, and what one more accelerator was worth: hours that the server recorded.

The worth of a pool's hour is what the jobs would gain, per hour, from one accelerator more beside the plans in force.
It is a value at the margin: it says what the next jobs in line gain, not that all behind them move up too.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import Field

from walras.connection.body import Body
from walras.resources.endpoint import API, Calls, Endpoint
from walras.resources.people import EntityPriceView


class PriceView(Body):
    pool: str
    accelerator: str
    market: str
    capacity: float
    free: float
    #: Dual price of one accelerator held all the time, in `unit`, from the last solve.
    price: float
    unit: str
    market_usd_per_h: float
    rented_machines: int = 0
    quota_machines: int = 0
    #: The gain of the job on it that gains least at the prices, 0 without jobs: with one accelerator less, it would go.
    marginal_job: int = 0


class CertificateView(Body):
    status: str
    objective: float
    bound: float
    gap: float
    path: str
    solved_at: str
    #: Utility realised over the last rounds, as a fraction of the bound: gangs are whole, restarts take time.
    realised: float | None = None
    #: Bound for whole gangs (`?whole=true`); null: more than 64 accelerators, a policy that ranks jobs, or out of time.
    integral_bound: float | None = None
    usd_per_h: tuple[float, float] | None = None  # earned by the plan, and at most; null: nobody states values


class PriceList(Body):
    items: list[PriceView]
    certificate: CertificateView | None = None
    entities: list[EntityPriceView] = Field(default_factory=list)  # of the projects that the caller sees


#: The most rows of an answer: three months of ten pools.
MOST_HOURS = 25_000
#: How far an answer looks back at most, in seconds.
LONGEST_WORTH_S = 120 * 86_400


class WorthHour(Body):
    """The worth of one pool in one hour of the clock, or in a part of one. Instants are seconds since 1970."""

    pool: str
    since: float
    until: float
    #: Seconds for which there was a price.
    seconds: float
    #: Mean shadow price of one accelerator, in the policy's unit.
    price: float
    unit: str
    #: What one more accelerator would gain the jobs, in USD per hour; null where no job states what its hour is worth.
    usd_per_h: float | None = None
    #: Mean market price of an accelerator-hour.
    rent_usd_per_h: float


class WorthReport(Body):
    """The hours, in order of time."""

    since: float
    until: float
    items: list[WorthHour]


@dataclass(frozen=True, slots=True)
class WorthMean:
    """What one more accelerator of a pool was worth and cost, as means over some hours."""

    pool: str
    #: The hour of the week, such as "Mon 14"; empty: all hours.
    when: str
    #: Hours for which there was a price.
    hours: float
    #: None where its worth in USD is known in no hour.
    usd_per_h: float | None
    price: float
    unit: str
    rent_usd_per_h: float
    #: The part of the time in which it was worth more than its rent.
    pays: float


@dataclass(slots=True)
class _Sums:
    unit: str = ""
    seconds: float = 0.0
    price_s: float = 0.0
    usd_s: float = 0.0
    usd_known_s: float = 0.0
    rent_s: float = 0.0
    pays_s: float = 0.0

    def add(self, hour: WorthHour, usd_per_h: float | None) -> None:
        self.unit = hour.unit
        self.seconds += hour.seconds
        self.price_s += hour.price * hour.seconds
        self.rent_s += hour.rent_usd_per_h * hour.seconds
        if usd_per_h is not None:
            self.usd_s += usd_per_h * hour.seconds
            self.usd_known_s += hour.seconds
            self.pays_s += hour.seconds if usd_per_h > hour.rent_usd_per_h else 0.0

    def mean(self, pool: str, when: str) -> WorthMean:
        known = self.usd_s / self.usd_known_s if self.usd_known_s > 0 else None
        pays = self.pays_s / self.usd_known_s if self.usd_known_s > 0 else 0.0
        price, rent = self.price_s / self.seconds, self.rent_s / self.seconds
        return WorthMean(pool, when, self.seconds / 3600.0, known, price, self.unit, rent, pays)


def mean_worth(
    hours: Iterable[WorthHour], *, by_hour_of_week: bool = False, usd_per_unit: float | None = None
) -> list[WorthMean]:
    """Returns time-weighted means by pool, and with `by_hour_of_week` by hour of the week (UTC, Monday first), too.

    `usd_per_unit`: what an hour at a price of 1 is worth in USD, instead of what the jobs state.
    """
    sums: dict[tuple[str, int], _Sums] = {}
    for hour in hours:
        if hour.seconds <= 0:
            continue
        usd = hour.usd_per_h if usd_per_unit is None else hour.price * usd_per_unit
        slot = _hour_of_week(hour.since) if by_hour_of_week else -1
        sums.setdefault((hour.pool, slot), _Sums()).add(hour, usd)
    return [each.mean(pool, _slot_name(slot)) for (pool, slot), each in sorted(sums.items())]


def _hour_of_week(unix_s: float) -> int:
    at = datetime.fromtimestamp(unix_s, UTC)
    return at.weekday() * 24 + at.hour


def _slot_name(slot: int) -> str:
    days = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
    return "" if slot < 0 else f"{days[slot // 24]} {slot % 24:02d}"


class PriceCalls(Calls):
    """The client's calls about prices."""

    @Endpoint("GET", f"{API}/prices")
    async def prices(self, *, whole: bool = False) -> PriceList:
        """Prices of the pools at the last solve. With its certificate; `whole`: with what whole gangs can reach at
        best, which takes some seconds.
        """

    @Endpoint("GET", f"{API}/worth")
    async def worth(self, *, since_s: float, pool: str = "") -> WorthReport:
        """What one more accelerator was worth, hour by hour.

        Raises UserError where that is longer than `LONGEST_WORTH_S` or more than `MOST_HOURS` rows.
        """
