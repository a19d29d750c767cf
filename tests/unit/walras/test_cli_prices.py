"""`walras cloud prices --worth`: hours by pool and by hour of the week, in USD or in the policy's unit."""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from scheduler.live.providers.aws_provider import AwsProvider
from scheduler.live.providers.live_provider import SpotPricePoint
from scheduler.providers.provider import ProviderProblem, ProviderProblemKind
from tests.support.provider_kit import IMAGE, stand_in_of_aws
from tests.unit.walras.conftest import answers_from
from walras.cli import price_commands
from walras.cli.main import app
from walras.cluster import Market
from walras.resources.fleet import PoolView
from walras.resources.prices import WorthHour, WorthReport, mean_worth
from walras.resources.what_if import DifferenceView, WhatIfRequest, WhatIfView

HOUR = 3600.0
#: A Monday, 00:00 UTC.
MONDAY = 1_700_438_400.0


def hour(pool: str, at_h: float, usd: float | None, **more: Any) -> WorthHour:
    since = MONDAY + at_h * HOUR
    told = {"price": 0.5, "unit": "u", "rent_usd_per_h": 2.0, "seconds": HOUR} | more
    return WorthHour(pool=pool, since=since, until=since + HOUR, usd_per_h=usd, **told)


#: Worth 6 on two Mondays at 14, 1 in the hour after; b is worth nothing.
HOURS = [hour("a", 14, 6.0), hour("a", 15, 1.0), hour("a", 14 + 168, 6.0, seconds=HOUR / 2), hour("b", 14, 0.0)]


class Fake:
    """Stands for the client: keeps what it was asked."""

    def __init__(self) -> None:
        self.items = HOURS
        self.asked: list[WhatIfRequest] = []

    async def worth(self, *, since_s: float, pool: str = "") -> WorthReport:
        items = [each for each in self.items if pool in ("", each.pool)]
        return WorthReport(since=MONDAY, until=MONDAY + since_s, items=items)

    async def pools(self) -> list[PoolView]:
        return [
            PoolView(pool_id="a", shape="ax2", accelerator="a100", accelerators=2, market=Market.SPOT, zone="z",
                     usd_per_h=4.0, quota=1, drained=False, machines=1, coming=0, jobs=[])
        ]  # fmt: skip

    async def what_if(self, asked: WhatIfRequest) -> WhatIfView:
        self.asked.append(asked)
        same = DifferenceView(project="all", jobs=2, completion_s=(-60.0, -50.0, -40.0), usd=(0.0, 0.0, 0.0))
        return WhatIfView(as_of=0.0, draws=20, changes=["2 a100 more"], total=same, projects=[], jobs=[],
                          submitted=[], unfinished=(0.0, 0.0))  # fmt: skip


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake()
    answers_from(monkeypatch, fake, price_commands)
    return fake


def run(*words: object) -> Any:
    return CliRunner().invoke(app, ["cloud", "prices", "--worth", *(str(word) for word in words)])


def rows_of(shown: str) -> list[Sequence[str]]:
    return [line.split() for line in shown.splitlines()]


def test_means_are_weighted_by_time() -> None:
    """(6 + 1 + 6 / 2) / 2.5 h = 4, above its rent of 2 for 1.5 of 2.5 h."""
    a, b = mean_worth(HOURS)
    assert (a.usd_per_h, a.hours, a.pays, a.rent_usd_per_h) == pytest.approx((4.0, 2.5, 0.6, 2.0))
    assert (b.usd_per_h, b.pays) == (0.0, 0.0)
    by_week = mean_worth(HOURS, by_hour_of_week=True)
    assert [(each.pool, each.when, each.hours) for each in by_week] == [
        ("a", "Mon 14", 1.5), ("a", "Mon 15", 1.0), ("b", "Mon 14", 1.0)
    ]  # fmt: skip
    assert mean_worth(HOURS, usd_per_unit=10.0)[0].usd_per_h == pytest.approx(5.0)
    assert mean_worth([hour("a", 1, None, seconds=0.0)]) == []


def test_each_pool_has_its_worth_its_rent_and_its_peak(client: Fake) -> None:
    shown = run().stdout
    assert "Mon 14h $6.00/h" in shown
    assert "$4.00/h" in shown
    assert "60%" in shown
    hours = run("--pool", "a").stdout
    assert [line[:2] for line in rows_of(hours)[1:3]] == [["Mon", "14h"], ["Mon", "15h"]]
    found = json.loads(run("--pool", "a", "-o", "json").stdout)
    assert [each["when"] for each in found["items"]] == ["Mon 14", "Mon 15"]


def test_what_is_not_known_in_usd_is_not_made_up(client: Fake) -> None:
    """It is told what would make it known."""
    client.items = [hour("a", 14, None)]
    shown = run().stdout
    assert rows_of(shown)[1][1] == "-"
    assert "--usd-per-unit" in shown
    assert "$5.00/h" in run("--usd-per-unit", 10).stdout
    client.items = []
    assert "no price of the last" in run().stderr


def test_a_check_adds_one_machine_of_the_pool(client: Fake) -> None:
    """Of its type and market; and the answer of what-if is shown below."""
    shown = run("--pool", "a", "--check").stdout
    assert "2 a100 more" in shown
    (asked,) = client.asked
    assert asked.add[0].model_dump() == {"accelerator": "a100", "accelerators": 2, "market": Market.SPOT}
    assert run("--check").exit_code != 0
    assert "no pool c" in run("--pool", "c", "--check").output + str(run("--pool", "c", "--check").exception)


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("--worth", "--offers"), "--offers"), (("--pool", "a"), "--pool"), (("--usd-per-unit", "0"), "--usd-per-unit"),
        (("--worth", "--cloud", "aws"), "--cloud"), (("--accelerator", "a100"), "--accelerator"),
        (("--since", "7d"), "--since"), (("--offers", "--since", "7d"), "--since"), (("--worth", "--whole"), "--whole"),
        (("--market", "cluster.yaml", "--check"), "--check"),
    ],
)  # fmt: skip
def test_options_of_another_listing_are_refused(words: tuple[str, ...], field: str) -> None:
    """By name, before anything is asked."""
    result = CliRunner().invoke(app, ["cloud", "prices", *words])
    assert (result.exit_code, field in result.stderr) == (2, True), result.output


POOL = {
    "shape": "g4dn.xlarge", "accelerator": "t4", "accelerators": 1, "cpus": 4, "memory": "16GiB", "market": "spot",
    "zone": "us-east-1a", "provider": "aws", "quota": 4, "usd_per_h": 0.19,
}  # fmt: skip
AWS = {"region": "us-east-1", "image": IMAGE, "server_url": "https://walras.example"}


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with stand_in_of_aws() as url:
        for name, value in {"ENDPOINT_URL": url, "ACCESS_KEY_ID": "none", "SECRET_ACCESS_KEY": "none"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        yield


def _run(folder: Path, content: dict[str, Any], *args: str) -> Any:
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(content))
    return CliRunner().invoke(app, ["cloud", "prices", "--market", str(path), *args])


def test_the_market_of_a_cluster_is_told(tmp_path: Path, stand_in: None) -> None:
    """Pool, instant and price, for people and as JSON."""
    content = {"pools": [POOL], "aws": AWS}
    (told, *_) = json.loads(_run(tmp_path, content, "-o", "json").stdout)
    assert (told["pool"], told["usd_per_h"]) == ("g4dn.xlarge/spot/us-east-1a", pytest.approx(0.00001))
    shown = _run(tmp_path, content)
    assert (shown.exit_code, "1e-05" in shown.stdout) == (0, True)


def test_a_region_that_does_not_answer_is_named_beside_the_prices_of_the_others(
    tmp_path: Path, stand_in: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first or the further one; exit 1 where none answers."""
    pools = [POOL, {**POOL, "zone": "us-west-2b"}]
    content = {"pools": pools, "aws": {**AWS, "regions": {"us-west-2": {"image": IMAGE}}}}
    truth, silent = AwsProvider.price_history, set[str]()

    async def history(self: AwsProvider, since: datetime) -> list[SpotPricePoint]:
        if self.region in silent:
            raise ProviderProblem(ProviderProblemKind.UNAVAILABLE, "no answer within 90 s")
        return await truth(self, since)

    monkeypatch.setattr(AwsProvider, "price_history", history)
    for region, answering in (("us-east-1", "us-west-2b"), ("us-west-2", "us-east-1a")):
        silent = {region}
        result = _run(tmp_path, content, "-o", "json")
        assert {told["pool"] for told in json.loads(result.stdout)} == {f"g4dn.xlarge/spot/{answering}"}
        assert result.exit_code == 0
        assert f"aws {region} are not known: unavailable: no answer within 90 s" in result.stderr
        assert answering[:-1] not in result.stderr
    silent = {"us-east-1", "us-west-2"}
    result = _run(tmp_path, content)
    assert (result.exit_code, result.stdout, "no answer within 90 s" in result.stderr) == (1, "", True)


def test_a_market_needs_a_pool_that_a_cloud_rents_out(tmp_path: Path) -> None:
    """Exit 2 with what to give."""
    owned = {**POOL, "market": "owned", "provider": "", "quota": 0}
    result = _run(tmp_path, {"pools": [owned]})
    assert (result.exit_code, "no pool is rented from aws" in result.stderr) == (2, True)
