"""`walras prices --market`: prices of a cluster's spot pools from EC2 (moto)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.support.provider_kit import IMAGE, stand_in_of_aws
from walras.cli.main import app

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
    return CliRunner().invoke(app, ["prices", "--market", str(path), *args])


def test_the_market_of_a_cluster_is_told(tmp_path: Path, stand_in: None) -> None:
    """Pool, instant and price, for people and as JSON."""
    content = {"pools": [POOL], "aws": AWS}
    (told, *_) = json.loads(_run(tmp_path, content, "-o", "json").stdout)
    assert (told["pool"], told["usd_per_h"]) == ("g4dn.xlarge/spot/us-east-1a", pytest.approx(0.00001))
    shown = _run(tmp_path, content)
    assert (shown.exit_code, "1e-05" in shown.stdout) == (0, True)


def test_a_market_needs_a_pool_that_a_cloud_rents_out(tmp_path: Path) -> None:
    """Exit 2 with what to give."""
    owned = {**POOL, "market": "owned", "provider": "", "quota": 0}
    result = _run(tmp_path, {"pools": [owned]})
    assert (result.exit_code, "no pool is rented from aws" in result.stderr) == (2, True)
