"""The catalog: what ships, what users add, and what a bad row does."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from walras.cli.main import app
from walras.errors import ConfigError
from walras.spec.catalog import catalog_memory_bytes, catalog_speed, load_catalog

#: The instance that these tests override, and the facts of a machine that nobody sells.
OURS = "cloud: aws\nregion: us-east-1\nas_of: 2026-09-01\nsource: a quote\n"
NEW = "{instance: tiny, accelerator: Tesla T4, accelerators: 1, cpus: 2, memory: 8GiB, spot_usd_per_h: 0.01}"


def _run(*args: object) -> Any:
    return CliRunner().invoke(app, ["cloud", "prices", "--offers", *(str(arg) for arg in args)])


def test_what_ships_is_whole() -> None:
    """No row of ours is bad; every machine's accelerator is described; K80 to B200 and MI300X on three clouds."""
    catalog = load_catalog()
    assert catalog.problems == ()
    assert {entry.accelerator for entry in catalog.instances} <= set(catalog.accelerators)
    assert {"k80", "p100", "v100", "t4", "a100-40gb", "a100-80gb", "h100", "h200", "b200", "mi300x"} <= set(
        catalog.accelerators
    )
    assert {entry.cloud for entry in catalog.instances} == {"aws", "gcp", "azure"}
    for entry in catalog.instances:
        assert entry.on_demand_usd_per_h is not None
        assert entry.spot_usd_per_h is None or entry.spot_usd_per_h < entry.on_demand_usd_per_h


def test_a_users_file_adds_rows_and_overrides_fields(tmp_path: Path) -> None:
    """A row with a known key changes the fields that it gives, with their date, and keeps the others."""
    file = tmp_path / "ours.yaml"
    row = "{instance: p5.48xlarge, on_demand_usd_per_h: 40}"
    file.write_text(f"{OURS}instances:\n  - {row}\n  - {NEW}\naccelerators:\n  - {{name: NVIDIA B200, link: none}}\n")
    catalog = load_catalog([file])
    assert catalog.problems == ()
    changed = next(entry for entry in catalog.instances if entry.instance == "p5.48xlarge")
    assert (changed.on_demand_usd_per_h, changed.accelerators, changed.source) == (40.0, 8, "a quote")
    assert catalog.offers(accelerator="t4")[0].instance == "tiny"
    assert catalog.accelerators["b200"].link == "none"
    assert len(catalog.instances) == len(load_catalog().instances) + 1


@pytest.mark.parametrize(
    "bad",
    [
        "{instance: p5.48xlarge, on_demand_usd_per_h: -1}", "{instance: x, accelerator: t4}", "7", "{accelerator: t4}",
        "{instance: p5.48xlarge, colour: red}",
    ],
)  # fmt: skip
def test_a_bad_row_is_reported_and_left_out(tmp_path: Path, bad: str) -> None:
    """The row's place is told, what it would have overridden stays, and the rows beside it count."""
    file = tmp_path / "ours.yaml"
    file.write_text(f"{OURS}instances:\n  - {bad}\n  - {NEW}\n")
    catalog = load_catalog([file])
    assert len(catalog.problems) == 1
    assert "ours.yaml: instances[0]" in catalog.problems[0]
    assert {entry.instance for entry in catalog.instances} >= {"p5.48xlarge", "tiny"}
    assert next(e for e in catalog.instances if e.instance == "p5.48xlarge").on_demand_usd_per_h == 55.04


def test_a_broken_file_does_not_hide_the_others(tmp_path: Path) -> None:
    """What cannot be read at all is one problem; a path that does not exist is the caller's mistake."""
    (tmp_path / "a.yaml").write_text("instances: [")
    (tmp_path / "b.yaml").write_text(f"{OURS}instances: 3\naccelerators:\n  - {{name: z9, memory: 1GB}}\n")
    catalog = load_catalog([tmp_path])
    assert len(catalog.problems) == 2
    assert "z9" in catalog.accelerators
    with pytest.raises(ConfigError, match="no such file"):
        load_catalog([tmp_path / "missing.yaml"])


def test_offers_lists_the_cheapest_accelerator_hour_first(tmp_path: Path) -> None:
    """In a table and in JSON; problems go to standard error, never into the list."""
    told = json.loads(_run("-a", "H100", "-o", "json").stdout)
    each = [
        min(p for p in (e["on_demand_usd_per_h"], e["spot_usd_per_h"]) if p is not None) / e["accelerators"]
        for e in told
    ]
    assert each == sorted(each)
    assert {e["accelerator"] for e in told} == {"h100", "h100-94gb"}
    told = json.loads(_run("-a", "nvidia_h100_80gb_hbm3", "-o", "json").stdout)
    assert {e["accelerator"] for e in told} == {"h100"}
    file = tmp_path / "ours.yaml"
    file.write_text(f"{OURS}instances: [5]\n")
    shown = _run("--cloud", "azure", "--catalog", file)
    assert shown.exit_code == 0
    assert "MI300X" in shown.stdout
    assert "left out: ours.yaml: instances[0]" in shown.stderr
    assert _run("-a", "???").exit_code == 2


def test_types_have_the_relative_speed_of_their_data_sheet() -> None:
    """A V100 is 1; newer ones are faster; a name with the memory is the same type; what is unknown has none."""
    speeds = [catalog_speed(name) for name in ("k80", "t4", "v100-16gb", "a100-40gb", "h100-80gb")]
    assert None not in speeds
    assert speeds == sorted(speeds)  # type: ignore[type-var]
    assert speeds[2] == 1.0
    assert 3.0 < catalog_speed("h100") < 5.0  # type: ignore[operator]
    assert catalog_speed("a10g") is catalog_speed("frob-9000") is None


def test_a_type_has_its_sheet_also_under_the_name_that_a_driver_tells() -> None:
    """With its memory; a variant with a sheet of its own keeps that; memory counts likewise."""
    catalog = load_catalog()
    for told, listed in (("h100-80gb", "h100"), ("v100-16gb", "v100"), ("v100-32gb", "v100-32gb"), ("h200", "h200"),
                         ("rtx-2080-ti", "rtx-2080-ti")):  # fmt: skip
        sheet = catalog.sheet(told)
        assert sheet is not None
        assert sheet.name == listed
    assert catalog.sheet("frob-9000") is None
    assert catalog_memory_bytes("rtx-2080-ti") == 11 * 10**9
