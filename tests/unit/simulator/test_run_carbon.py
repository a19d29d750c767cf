"""The grid's carbon intensity is read from untrusted files, and a run's energy and carbon are exact sums over it."""

import gzip
import json
import pickle
from itertools import pairwise
from math import inf, nan
from pathlib import Path
from typing import Any, TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from optimizer.planning.price_moves import StepFunction
from scheduler.core.commands import AttemptTransitioned
from scheduler.core.events import NodeLost, PoolDeclared
from simulator.reports import run_carbon
from simulator.reports.run_carbon import CarbonMeter, CarbonOptions, board_watts, parse_carbon_options
from simulator.reports.run_spec import RunSpec, WorkloadSource, describe_run
from simulator.shipped_configs import find_cluster
from simulator.workloads import carbon_intensity, trace_source
from simulator.workloads.carbon_intensity import read_carbon_intensity
from simulator.workloads.trace_source import open_text
from walras.cli.main import app
from walras.cluster import NodeId, NodeShare, Placement, Pool, PoolId, Shape
from walras.errors import ConfigError
from walras.job_request import JobId
from walras.spec.catalog import load_catalog
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import load_yaml
from walras.states import AttemptState

HEAD = "at,g_per_kwh\n"
ZONES = "at,g_per_kwh,zone\n"
DAY = 1_767_225_600  # 2026-01-01
HOURS = HEAD + f"{DAY},100\n{DAY + 3600},300\n{DAY + 7200},50\n"


def _file(folder: Path, text: str) -> str:
    path = folder / "grid.csv"
    path.write_text(text)
    return str(path)


# ------------------------------------------------------------------------------------------------------ the reader


@pytest.mark.parametrize(
    "text",
    [
        HOURS,
        HEAD + "2026-01-01,100\n2026-01-01T01:00:00Z,300\n2026-01-01T03:00:00+01:00,50\n",
        f"g_per_kwh,more,at\n100,x,{DAY}\n300,x,{DAY + 3600}\n50,x,{DAY + 7200}\n",
        "\ufeff" + HOURS.replace("\n", "\r\n"),
    ],
)
def test_instants_are_dates_or_seconds(tmp_path: Path, text: str) -> None:
    """A date without a time zone is in UTC; columns are found by their titles."""
    grid = read_carbon_intensity(_file(tmp_path, text))[""]
    assert grid.g_per_kwh == StepFunction((DAY, DAY + 3600, DAY + 7200), (100.0, 300.0, 50.0))


def test_a_value_holds_until_the_next_row_and_the_last_as_long_as_rows_are_apart(tmp_path: Path) -> None:
    """A file of one row is a constant, of which no end is known."""
    grid = read_carbon_intensity(_file(tmp_path, HOURS))[""]
    assert [grid.g_per_kwh.at(DAY + at) for at in (0, 3599, 3600, 7200)] == [100, 100, 300, 50]
    assert (grid.begins_at, grid.ends_at) == (DAY, DAY + 10_800)
    constant = read_carbon_intensity(_file(tmp_path, HEAD + f"{DAY},42\n"))[""]
    assert (constant.begins_at, constant.ends_at) == (-inf, inf)
    assert constant.g_per_kwh.integral(0.0, 2.0 * DAY) == 84.0 * DAY


def test_columns_and_zones_are_the_files_own(tmp_path: Path) -> None:
    """Other titles are mapped, other zones are left alone, even where they are wrong."""
    text = "Datetime (UTC),Zone Id,Carbon (direct)\n2026-01-01 00:00:00,DE,400\n2026-01-01 00:00:00,FR,oops\n"
    columns = ("at=Datetime (UTC)", "zone=Zone Id", "g_per_kwh=Carbon (direct)")
    packed = tmp_path / "grid.csv.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    grids = read_carbon_intensity(packed, ("DE",), columns)
    assert list(grids) == ["DE"]
    assert grids["DE"].g_per_kwh.values == (400.0,)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no header"),
        (HEAD, "no row below the header"),
        ("at,intensity\n0,1\n", "grid.csv:1: no column g_per_kwh; there are at, intensity"),
        ("at,at,g_per_kwh\n", "two columns 'at'"),
        (HEAD + "0,nan\n", "grid.csv:2: g_per_kwh is 'nan'"),
        (HEAD + "0,inf\n", "g_per_kwh is 'inf'"),
        (HEAD + "0,-1\n", "grid.csv:2: g_per_kwh is '-1'"),
        (HEAD + "0,\n", "g_per_kwh is ''"),
        (HEAD + "0,1e5\n", "g_per_kwh is '1e5'"),
        (HEAD + "0,4_0\n", "g_per_kwh is '4_0'"),
        (HEAD + "-5,1\n", "at is '-5'"),
        (HEAD + "nan,1\n", "at is 'nan'"),
        (HEAD + "2026-13-01,1\n", "at is '2026-13-01'"),
        (HEAD + f"{DAY}000,1\n", "at is '1767225600000'"),
        (HEAD + "0,1\n2026-01-01,1\n", "grid.csv:3: at is '2026-01-01'"),
        (HEAD + "0,1\n3600,1\n3600,2\n", "grid.csv:4: at is the instant of a row above"),
        (HEAD + "0,1\n3600,1\n1800,2\n", "grid.csv:4: at is before the row above of its zone"),
        (HEAD + "0,1\n3600,1\n7200,1\n14400,1\n", "grid.csv:5: at is 2h00m after the row before; rows are 1h00m apart"),
        (HEAD + "0,1\n3600,1\n10800,1\n", "grid.csv:4: at is 2h00m after the row before; rows are 1h00m apart"),
        (HEAD + "0,1,2\n", "grid.csv:2: 3 columns, 2 expected"),
        (HEAD + "0,1\n\n", "grid.csv:3: an empty line"),
        (HEAD + '"0,1\n', "grid.csv:2"),
        (HEAD + "0," + "1" * 70_000 + "\n", "more than 65536 characters"),
        (ZONES + "0,1,DE\n0,1,FR\n", "grid.csv:3: zone is 'FR', above it 'DE'"),
        (ZONES + "0,1,\x1b[31m\n", "grid.csv:2: zone"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_line(tmp_path: Path, text: str, told: str) -> None:
    """Every refusal names what is wrong, and how to mend it."""
    with pytest.raises(ConfigError) as error:
        read_carbon_intensity(_file(tmp_path, text))
    assert told in str(error.value)
    assert error.value.fix
    assert "--column" not in error.value.fix


def test_a_refused_file_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, though the error still refers to what was read."""
    opened = []

    def recorded(path: str | Path) -> TextIO:
        opened.append(open_text(path))
        return opened[-1]

    monkeypatch.setattr(trace_source, "open_text", recorded)
    with pytest.raises(ConfigError) as told:
        read_carbon_intensity(_file(tmp_path, HEAD + "0,1\n0,2\n60,3\n"))
    assert "grid.csv:3" in str(told.value)
    assert opened[0].closed


def test_what_is_asked_for_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zones, mapped columns, the file itself; and a file is bounded."""
    path = _file(tmp_path, ZONES + "0,1,DE\n")
    for zones, columns, told in (
        (("FR",), (), "no row of zone 'FR'; there are DE"),
        ((), ("at=when",), "no column 'when'"),
        ((), ("when=at",), "no column 'when' is asked for"),
        ((), ("at",), "maps no column"),
    ):
        with pytest.raises(ConfigError, match=told):
            read_carbon_intensity(path, zones, columns)
    for unreadable in (tmp_path / "gone.csv", tmp_path):
        with pytest.raises(ConfigError, match=r"directory|No such"):
            read_carbon_intensity(unreadable)
    monkeypatch.setattr(carbon_intensity, "_MOST_ROWS", 2)
    with pytest.raises(ConfigError, match="more than 2 rows"):
        read_carbon_intensity(_file(tmp_path, HOURS))


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True),
    st.integers(-5, 70),
    st.integers(0, 70),
)
def test_the_integral_is_the_sum_over_seconds(starts: list[int], since: int, length: int) -> None:
    """On whole numbers every sum is exact, beyond both ends too."""
    starts.sort()
    function = StepFunction(tuple(map(float, starts)), tuple(float(7 * at % 11) for at in starts))
    expected = sum(function.at(float(second)) for second in range(since, since + length))
    assert function.integral(float(since), float(since + length)) == expected


# ------------------------------------------------------------------------------------------------------- the meter

V100 = Pool(PoolId("v100"), Shape("v100x4", "v100", 4, 8.0, 2**36), zone="a")
OTHER = Pool(PoolId("other"), Shape("otherx4", "gpu-9", 4, 8.0, 2**36), zone="b")


def _held(meter: CarbonMeter, at: float, job: int, *parts: NodeShare, pool: Pool = V100) -> None:
    placement = Placement(pool.pool_id, parts)
    command = AttemptTransitioned(JobId(job), 1, AttemptState.LEASED, None, placement)
    meter.record(PoolDeclared(at, pool), [command])


def _freed(meter: CarbonMeter, at: float, job: int) -> None:
    command = AttemptTransitioned(JobId(job), 1, AttemptState.SUCCEEDED, None)
    meter.record(PoolDeclared(at, V100), [command])


def _devices(node: str, *devices: int) -> NodeShare:
    return NodeShare(NodeId(node), devices)


def test_energy_is_power_by_time_held_and_carbon_follows_the_grid(tmp_path: Path) -> None:
    """Two V100s for two hours, the first at 100 g/kWh and the second at 300; cooling takes a quarter more."""
    meter = CarbonMeter(CarbonOptions(_file(tmp_path, HOURS), pue=1.25), [V100])
    _held(meter, 0.0, 1, _devices("n", 0, 1))
    _freed(meter, 7200.0, 1)
    total = meter.finish(9000.0).total
    assert (total.held_h, total.left_out_h) == (4.0, 0.0)
    assert total.kwh == pytest.approx(1.25 * 1.2, rel=1e-12)
    assert total.kg_co2 == pytest.approx(1.25 * 0.6 * (0.1 + 0.3), rel=1e-12)


def test_a_run_begins_where_it_is_said_to(tmp_path: Path) -> None:
    """Half an hour into the file, half an hour of each value."""
    meter = CarbonMeter(CarbonOptions(_file(tmp_path, HOURS), begins_at=DAY + 1800.0), [V100])
    _held(meter, 0.0, 1, _devices("n", 0))
    assert meter.finish(3600.0).total.kg_co2 == pytest.approx(0.3 * 0.2, rel=1e-12)


def test_two_jobs_on_one_accelerator_have_half_each(tmp_path: Path) -> None:
    """As long as both are there."""
    meter = CarbonMeter(CarbonOptions(_file(tmp_path, HEAD + "0,1000\n")), [V100])
    _held(meter, 0.0, 1, _devices("n", 0))
    _held(meter, 3600.0, 2, _devices("n", 0))
    _freed(meter, 7200.0, 1)
    carbon = meter.finish(10_800.0)
    assert [carbon.jobs[JobId(job)].held_h for job in (1, 2)] == [1.5, 1.5]
    assert carbon.total.kg_co2 == pytest.approx(0.9, rel=1e-12)


def test_a_gang_that_lost_a_machine_holds_the_rest(tmp_path: Path) -> None:
    """From that instant on."""
    meter = CarbonMeter(CarbonOptions(_file(tmp_path, HEAD + "0,1000\n")), [V100])
    _held(meter, 0.0, 1, _devices("n", 0, 1), _devices("m", 0))
    meter.record(NodeLost(3600.0, NodeId("n")), [])
    _freed(meter, 7200.0, 1)
    assert meter.finish(7200.0).jobs[JobId(1)].held_h == 4.0


def test_a_type_without_known_power_is_left_out_and_named(tmp_path: Path) -> None:
    """Unless its power is stated; a slice has its part of the board's."""
    file = _file(tmp_path, HEAD + "0,1000\n")
    for watts, slices, kwh, left_out in (((), 1, 0.3, ["gpu-9"]), ((("gpu-9", 100.0),), 2, 0.2, [])):
        meter = CarbonMeter(CarbonOptions(file, watts=watts), [V100, OTHER], slices)
        _held(meter, 0.0, 1, _devices("n", 0))
        _held(meter, 0.0, 2, _devices("m", 0), pool=OTHER)
        carbon = meter.finish(3600.0)
        assert carbon.total.kwh == pytest.approx(kwh, rel=1e-12)
        assert list(carbon.left_out) == left_out
        assert carbon.total.left_out_h == len(left_out)
    with pytest.raises(ConfigError, match="no pool has accelerators 'v10'; there are v100"):
        CarbonMeter(CarbonOptions(file, watts=(("v10", 250.0),)), [V100])


def test_pools_may_be_on_several_grids(tmp_path: Path) -> None:
    """By the zone of the pool; a zone that no pool is in, and a pool whose grid is not named, are refused."""
    file = _file(tmp_path, ZONES + "0,1000,DE\n0,0,FR\n")
    meter = CarbonMeter(CarbonOptions(file, zones=(("b", "FR"), ("", "DE"))), [V100, OTHER])
    _held(meter, 0.0, 1, _devices("n", 0))
    assert meter.finish(3600.0).total.kg_co2 == pytest.approx(0.3)
    for zones, told in (((("c", "DE"),), "is in zone 'c'; it has a, b"), ((("a", "DE"),), "zone 'b' is not named")):
        with pytest.raises(ConfigError, match=told):
            CarbonMeter(CarbonOptions(file, zones=zones), [V100, OTHER])


def test_a_run_beyond_the_file_is_refused(tmp_path: Path) -> None:
    """Before its first instant and after its last hour nothing is known."""
    file = _file(tmp_path, HOURS)
    for begins_at in (DAY - 1.0, DAY + 10_800.0):
        with pytest.raises(ConfigError, match="says nothing of the instant"):
            CarbonMeter(CarbonOptions(file, begins_at=begins_at), [V100])
    meter = CarbonMeter(CarbonOptions(file), [V100])
    _held(meter, 0.0, 1, _devices("n", 0))
    with pytest.raises(ConfigError, match="ends 10m00s before the run has come to 3h10m"):
        meter.finish(11_400.0)


@pytest.mark.parametrize(
    ("zones", "begins", "pue", "watts", "told"),
    [
        (("DE", "FR"), None, 1.0, (), "carbon-zone 'DE, FR'"),
        (("a=",), None, 1.0, (), "carbon-zone 'a='"),
        ((), "tomorrow", 1.0, (), "carbon-from 'tomorrow'"),
        ((), None, 0.9, (), "pue 0.9"),
        ((), None, nan, (), "pue nan"),
        ((), None, 1.0, ("a10g",), "watts 'a10g'"),
        ((), None, 1.0, ("a10g=-5",), "watts 'a10g=-5'"),
        ((), None, 1.0, ("a10g=nan",), "watts 'a10g=nan'"),
    ],
)
def test_options_are_checked(
    zones: tuple[str, ...], begins: str | None, pue: float, watts: tuple[str, ...], told: str
) -> None:
    """Before anything is read."""
    with pytest.raises(ConfigError, match=told):
        parse_carbon_options("grid.csv", zones, (), begins, pue, watts)


def test_shipped_accelerators_have_a_known_power() -> None:
    """But for AWS's own a10g; a name with its memory is as good, one of a part of a board is not."""
    types = {pool.accelerator for path in find_cluster("sia-64").parent.glob("*.yaml")
             for pool in load_yaml(path, ClusterConfig).pools}  # fmt: skip
    types |= load_catalog().accelerators.keys()
    assert {name for name in types if board_watts(name, {}) is None} <= {"a10g", "cpu"}
    assert board_watts("h100-80gb", {}) == 700.0
    assert board_watts("h100-94gb", {}) == 400.0
    assert board_watts("a100-1g.10gb", {}) is None


# ---------------------------------------------------------------------------------------------------- the command

BURSTS = ("bursts", "--cluster", "sia-64", "--bounds", "none")


def _run(*args: object) -> Any:
    return CliRunner().invoke(app, ["simulate", *(str(arg) for arg in args)])


def _week(folder: Path) -> str:
    return _file(folder, HEAD + "".join(f"{DAY + 3600 * hour},{200 + 13 * (hour % 24)}\n" for hour in range(200)))


def test_a_run_tells_its_energy_and_carbon_by_pool_and_by_job(tmp_path: Path) -> None:
    """The jobs' sums and the pools' are those of the run, and a pool's energy is its hours held by its power."""
    done = _run("run", *BURSTS, "--policy", "fifo", "--carbon", _week(tmp_path), "--watts", "t4=80", "-o", "json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    carbon = told["carbon"]
    assert carbon["left_out"] == []
    for name in ("held_h", "kwh", "kg_co2"):
        assert sum(job["carbon"][name] for job in told["per_job"]) == pytest.approx(carbon[name], rel=1e-9)
        assert sum(pool[name] for pool in carbon["pools"].values()) == pytest.approx(carbon[name], rel=1e-9)
    watts = {"t4": 80, "rtx-2080-ti": 260, "a100-40gb": 400}
    for pool in told["pools"]:
        kwh = pool["held_h"] * watts[pool["accelerator"]] / 1000
        assert carbon["pools"][pool["pool_id"]]["kwh"] == pytest.approx(kwh, rel=1e-9)
    assert 200 < 1000 * carbon["kg_co2"] / carbon["kwh"] < 500
    assert set(told["run"]["carbon"]) >= {"file", "zones", "pue", "watts"}


def test_a_folder_of_a_run_says_which_grid_it_had(tmp_path: Path) -> None:
    """With the report, which is written again from it."""
    done = _run("run", *BURSTS, "--policy", "fifo", "--carbon", _week(tmp_path), "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert "kg CO2" in done.stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert len(summary["run"]["carbon"]["file"]) == 64
    assert _run("report", tmp_path / "run").exit_code == 0


def test_a_comparison_tells_them_of_each_policy(tmp_path: Path) -> None:
    """With intervals and differences as any other figure; without the option there is nothing of them."""
    args = ("compare", *BURSTS, "--policy", "fifo", "--policy", "las")
    shown = _run(*args, "--carbon", _week(tmp_path), "--pue", 1.5)
    assert shown.exit_code == 0, shown.output
    assert "energy (kWh)" in shown.stdout
    assert "carbon (kg CO2)" in shown.stdout
    with_carbon = json.loads(_run(*args, "--carbon", _week(tmp_path), "-o", "json").stdout)
    assert with_carbon["measures"]["kg_co2"]["policies"]["fifo"]["mean"] > 0
    without = json.loads(_run(*args, "-o", "json").stdout)
    assert "kg_co2" not in without["measures"]
    assert "carbon_left_out" not in without
    same = with_carbon["measures"]["avg_jct_s"]["policies"]
    assert same == without["measures"]["avg_jct_s"]["policies"]


def test_what_is_left_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the table of a run, and below that of a comparison."""
    monkeypatch.delitem(run_carbon.BOARD_WATTS, "t4")  # type: ignore[arg-type]
    for command in ("run", "compare"):
        shown = _run(command, *BURSTS, "--policy", "fifo", "--carbon", _week(tmp_path))
        assert shown.exit_code == 0, shown.output
        assert "their board power is unknown: t4" in shown.stdout


def test_a_sweep_counts_them_for_every_run_and_resumes(tmp_path: Path) -> None:
    """By options as by fields of its file, with the same figures; a grid without it has no column of them."""
    grid = ("--workload", "bursts", "--cluster", "sia-64", "--policy", "fifo", "--bounds", "none")
    week = _week(tmp_path)
    counted = ("sweep", *grid, "--carbon", week, "--pue", 1.5, "--watts", "t4=80", "--out", tmp_path / "by-options")
    first = _run(*counted)
    assert first.exit_code == 0, first.output
    told = json.loads(_run(*counted, "-o", "json").stdout)
    assert (told["ran"], told["rejected"]) == (0, [])
    carbon = {"file": week, "pue": 1.5, "watts": {"t4": 80}}
    data = {"workloads": ["bursts"], "clusters": ["sia-64"], "policies": ["fifo"], "bounds": "none", "carbon": carbon}
    file = tmp_path / "grid.yaml"
    file.write_text(json.dumps(data))
    by_file = json.loads(_run("sweep", file, "--out", tmp_path / "by-file", "-o", "json").stdout)
    assert by_file["settings"] == told["settings"]
    assert told["settings"][0]["measures"]["kg_co2"]["mean"] > 0
    single = json.loads(_run("run", *BURSTS, "--policy", "fifo", "--carbon", week, "--pue", 1.5, "-o", "json").stdout)
    assert told["settings"][0]["measures"]["kwh"]["mean"] > single["carbon"]["kwh"]  # The t4 takes 70 W there.
    assert "kg_co2" in (tmp_path / "by-options" / "sweep.csv").read_text().splitlines()[0]
    assert _run("sweep", *grid, "--out", tmp_path / "without").exit_code == 0
    assert "kg_co2" not in (tmp_path / "without" / "sweep.csv").read_text()


def test_a_sweep_says_what_it_left_out_also_when_it_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The types of unknown power are kept with the run's figures."""
    monkeypatch.delitem(run_carbon.BOARD_WATTS, "t4")  # type: ignore[arg-type]
    grid = ("--workload", "bursts", "--cluster", "sia-64", "--policy", "fifo", "--bounds", "none")
    for _ in range(2):
        shown = _run("sweep", *grid, "--carbon", _week(tmp_path), "--out", tmp_path / "sweep")
        assert shown.exit_code == 0, shown.output
        assert "their board power is unknown: t4" in shown.stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--pue", "1.2"), "give --carbon FILE"),
        (("--carbon", "gone.csv"), "gone.csv: No such file"),
        (("--carbon", "short.csv"), "short.csv: ends"),
        (("--carbon", "short.csv", "--carbon-zone", "DE"), "no column zone"),
    ],
)
def test_mistakes_are_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], told: str
) -> None:
    """Exit code 2, never a traceback."""
    monkeypatch.chdir(tmp_path)
    Path("short.csv").write_text(HEAD + "0,1\n60,1\n")
    done = _run("run", *BURSTS, "--policy", "fifo", *options)
    assert done.exit_code == 2, done.output
    assert told in done.stderr


def test_other_processes_can_count_it(tmp_path: Path) -> None:
    """A run's specification is sent to them whole; a file that changed makes another run."""
    options = CarbonOptions(_file(tmp_path, HOURS), zones=(("", "DE"),))
    spec = RunSpec(WorkloadSource("bursts"), "sia-64", "fifo", carbon=options)
    assert pickle.loads(pickle.dumps(spec)) == spec
    keys = [describe_run(spec)["carbon"]["file"] for text in (HOURS, HOURS + "x") if _file(tmp_path, text)]
    assert all(a != b for a, b in pairwise(keys))
