"""How far machines are apart: the graph that a topology gives, the place of a gang in it, and files that give none."""

from itertools import combinations, permutations
from pathlib import Path
from pickle import dumps, loads

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from walras.errors import ConfigError
from walras.machines.topology import FreeMachine, Topology, host_names, slurm_switches, tightest_machines
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import check_model

POOL = {"shape": "gpu", "accelerator": "a100", "accelerators": 4, "cpus": 8, "memory": "64GiB", "machines": 8}
UPLINKS = {"machine": "100Gbit", "rack": "10 Gbit/s", "row": "0.5GB/s"}
ROWS = {"r1": "n[1-2]", "r2": "n[3-4]", "r3": "n[5-6]", "east": "r[1-2]", "west": "r3,n7"}


def cluster_with(**topology: object) -> ClusterConfig:
    return check_model(ClusterConfig, {"pools": [POOL], "topology": topology}, source="c.yaml")


def topology(uplinks: dict[str, str] = UPLINKS, switches: dict[str, str] = ROWS) -> Topology:
    found = cluster_with(uplinks=uplinks, switches=switches).pool_list()[0].topology
    assert found is not None
    return found


def test_the_slowest_link_between_machines_is_that_of_the_levels_they_cross():
    """Within a rack the machines' own links, over racks of a row theirs, and over rows the slowest of all."""
    links = topology().links
    assert links.slowest(["n1", "n2"]) == pytest.approx(12.5e9)
    assert links.slowest(["n1", "n3"]) == pytest.approx(1.25e9)
    assert links.slowest(["n1", "n5"]) == pytest.approx(0.5e9)
    assert [links.level(each) for each in (["n1"], ["n1", "n2"], ["n1", "n3"], ["n5", "n7"], ["n1", "away"])] == [
        *(0, 1, 2, 2, 3)
    ]
    assert [links.crossed(each) for each in (["n1", "n2"], ["n1", "n3", "n4"], ["n1", "n7"])] == [
        *("2 machines", "2 racks", "2 rows")
    ]
    assert links.path("n1.cluster.example") == links.path("n1")
    assert [links.knows(each) for each in ("n1", "n7", "away")] == [True, True, False]


def test_rented_machines_are_below_no_switch():
    rented = {**POOL, "market": "spot", "provider": "local", "quota": 2, "machines": 0}
    pools = {"pools": [POOL, rented], "topology": {"uplinks": UPLINKS, "switches": ROWS}}
    owned, spot = check_model(ClusterConfig, pools, source="c.yaml").pool_list()
    assert owned.topology is not None
    assert spot.topology is None


def test_a_topology_travels_without_its_graph_and_means_the_same():
    """It is pickled with each question about the future, and a graph of 100,000 machines is large."""
    made = topology()
    assert len(dumps(made)) < 500
    assert made.links.path("n4") == loads(dumps(made)).links.path("n4") == ("r2", "east", "the root")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu[08-10,2],login", ["gpu08", "gpu09", "gpu10", "gpu2", "login"]),
        ("r[1-2]n[1-2]-ib", ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]),
        (" a.b , c ", ["a.b", "c"]),
    ],
)
def test_machines_are_listed_as_slurm_lists_them(text: str, names: list[str]):
    assert host_names(text) == names


def test_a_topology_of_slurm_is_read_as_it_stands(tmp_path: Path):
    path = tmp_path / "topology.conf"
    path.write_text("# leaves\nSwitchName=r1 Nodes=n[1-2] LinkSpeed=100\nswitchname=r2 nodes=n[3-4]\n\n"
                    "SwitchName=east \\\n  Switches=r[1-2] # the top\n")  # fmt: skip
    found = cluster_with(uplinks={"machine": "100Gbit", "rack": "10Gbit"}, slurm=str(path)).pool_list()[0].topology
    assert found is not None
    assert found.switches == (("r1", "n[1-2]"), ("r2", "n[3-4]"), ("east", "r[1-2]"))
    assert slurm_switches("BlockName=b1 Nodes=n[1-32]\nBlockSizes=32,64") == {"b1": "n[1-32]"}


@pytest.mark.parametrize(
    ("topology", "field", "what", "fix"),
    [
        ({"switches": {"r1": "n[1-3]", "r2": "n3"}}, "switches", "'n3' is below 'r1' and 'r2'", "name it once"),
        ({"switches": {"r1": "r2", "r2": "r1"}}, "switches", "is a ring", "a tree"),
        ({"switches": {"r1": "r1"}}, "switches", "is a ring", "a tree"),
        ({"switches": ROWS, "uplinks": {"machine": "1Gbit"}}, "switches", "2 levels above", "name 3 levels"),
        ({"switches": {}}, "switches", "no switch is named", "switches: {r1"),
        ({"switches": {"r1": "n[1-999999999]"}}, "switches", "no range", "gpu[01-08]"),
        ({"switches": {"r1": "n[1-900][1-900]"}}, "switches", "too many names", "100,000"),
        ({"switches": {"r1": "n" + "[1-99999]" * 100_000}}, "switches", "too many names", "100,000"),
        ({"switches": {"r1": "n[1-60000]", "r2": "m[1-60000]"}}, "switches", "100,000 names", "one cluster"),
        ({"switches": {"r1": "n[1"}}, "switches", "no list of machines", "gpu[01-08]"),
        ({"switches": {"r1": "n;rm"}}, "switches", "no list of machines", "gpu[01-08]"),
        ({"switches": {"r\x1b": "n1"}}, "switches.", "position 1", ""),
        ({"switches": ROWS, "slurm": "x"}, "slurm", "named there and", "one of them"),
        ({"slurm": "/dev/zero"}, "slurm", "no file", "path of topology.conf"),
        ({"switches": ROWS, "uplinks": {"machine": "fast"}}, "uplinks.machine", "no speed", "100Gbit"),
        ({"switches": ROWS, "uplinks": {"machine": 0}}, "uplinks.machine", "no speed", "100Gbit"),
        ({"switches": ROWS, "uplinks": {}}, "uplinks", "", ""),
    ],
)
def test_a_topology_that_is_none_is_refused_with_its_field_and_the_fix(
    topology: dict[str, object], field: str, what: str, fix: str
):
    with pytest.raises(ConfigError) as refused:
        cluster_with(**{"uplinks": UPLINKS, **topology})
    assert refused.value.field.startswith(f"topology.{field}")
    assert what in str(refused.value)
    assert fix in refused.value.fix


@pytest.mark.parametrize(
    "line", ["Nodes=n1", "SwitchName=a", "SwitchName=a Nodes=n1 Speed=1", "hello", "SwitchName=b Nodes=n2"]
)
def test_a_line_of_slurm_that_is_no_switch_is_refused_by_its_number(line: str):
    with pytest.raises(ValueError, match="line 2"):
        slurm_switches(f"SwitchName=b Nodes=n3\n{line}")


# ---------------------------------------------------------------------------------------------- places


def machines(*free: int, rows: dict[str, str] = ROWS) -> list[FreeMachine]:
    links = topology(switches=rows).links
    return [FreeMachine(row, each, 0, links.path(f"n{row}")) for row, each in enumerate(free, 1) if each]


@pytest.mark.parametrize(
    ("parts", "free", "chosen"),
    [
        ([4, 4], (4, 0, 4, 4, 4, 4), {3, 4}),  # one rack, though n1 comes first
        ([4, 2], (4, 4, 4, 2, 4, 4), {3, 4}),  # the rack with the fewest free
        ([4, 4, 4], (4, 4, 4, 4, 4, 4, 4), {5, 6, 7}),  # the smaller row
        ([4, 4, 4], (4, 0, 4, 4, 4, 4, 0), {1, 3, 4}),  # within a row before over rows, and a whole rack of it
        ([4, 4, 4, 4], (4, 4, 0, 0, 4, 4, 0), {1, 2, 5, 6}),  # over rows, in as few racks as possible
        ([4, 4], (4, 3, 3, 3, 3, 3), None),
    ],
)
def test_a_gang_takes_the_tightest_block_that_fits(parts: list[int], free: tuple[int, ...], chosen: set[int] | None):
    found = tightest_machines(parts, machines(*free))
    assert (None if found is None else {row for row, _ in found}) == chosen


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=7, max_size=7),
    st.lists(st.integers(1, 4), min_size=2, max_size=4).map(lambda parts: sorted(parts, reverse=True)),
)
def test_no_place_crosses_more_levels_than_it_must_and_none_is_missed(free: list[int], parts: list[int]):
    """Compared with every set of machines that could hold the gang."""
    able, links = machines(*free), topology().links
    sets = [
        rows
        for rows in combinations(able, len(parts))
        if any(all(each.free >= part for each, part in zip(order, parts, strict=True)) for order in permutations(rows))
    ]
    found = tightest_machines(parts, able)
    if found is None:
        assert not sets
        return
    held = {each.row: each.free for each in able}
    assert sorted((part for _, part in found), reverse=True) == parts
    assert all(held[row] >= part for row, part in found)
    assert len({row for row, _ in found}) == len(parts)
    least = min(links.level([f"n{each.row}" for each in rows]) for rows in sets)
    assert links.level([f"n{row}" for row, _ in found]) == least
