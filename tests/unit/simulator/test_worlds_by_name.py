"""`walras simulate --world`: other simulators' worlds by name, and what does not fit them."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import walras
from scheduler.core.rules import parse_policy
from simulator.worlds.arena.arena_scenario import ARENA
from simulator.worlds.gavel.gavel_scenario import GAVEL_POLICIES
from simulator.worlds.pollux.pollux_scenario import POLLUX, POLLUX_POLICIES
from simulator.worlds.shockwave.shockwave_scenario import SHOCKWAVE, SHOCKWAVE_POLICIES
from simulator.worlds.sia.sia_scenario import SIA
from simulator.worlds.world_registry import WORLDS
from walras.cli.main import app
from walras.errors import ConfigError

GAVEL = ("three-types", "--cluster", "gavel-12-12-12", "--set", "world=gavel")
POLLUX_JOBS = "name,time,application,num_replicas,batch_size\none,0,bert,1,12\ntwo,70,bert,2,12\n"
SHOCKWAVE_KIND = "ResNet-18 (batch size 32)"


def _simulate(*args: object) -> Any:
    return CliRunner().invoke(app, ["simulate", *(str(arg) for arg in args)])


def _told(*args: object) -> Any:
    done = _simulate(*args, "-o", "json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """A workload of two jobs, and a profile: 12 samples a second and accelerator, two epochs of 1,200 samples.

    Step times are there under the names of both simulators' files.
    """
    folder = tmp_path / "profiles" / "bert"
    folder.mkdir(parents=True)
    places = [f"{place},{batch},{batch / 12},0\n" for place in (1, 2, 3, 4, 44) for batch in (4, 12, 24)]
    around = [f"{n},{gpus},{batch},{batch / 12},0\n" for n in (1, 2, 6) for gpus in (n, 4 * n) for batch in (4, 12, 24)]
    for ending in (".csv", "-aws.csv.gz"):
        rows = "placement,local_bsz,step_time,sync_time\n" + "".join(places)
        more = "num_nodes,num_replicas,local_bsz,step_time,sync_time\n" + "".join(around)
        for name, text in (("placements", rows), ("scalability", more)):
            (folder / f"{name}{ending}").write_bytes(_packed(text) if ending.endswith(".gz") else text.encode())
    for batch in (12, 48):
        rows = "".join(f"{epoch * 100},{epoch * 1200 // batch},1.0,1000000\n" for epoch in (1, 2))
        (folder / f"validation-{batch}.csv").write_text("progress,iteration,grad_sqr,grad_var\n" + rows)
    (tmp_path / "jobs.csv").write_text(POLLUX_JOBS)
    shape = "{shape: t4x4, accelerator: t4, accelerators: 4, cpus: 8, memory: 64GB, machines: 2}"
    (tmp_path / "cluster.yaml").write_text(f"pools:\n  - {shape}\n")
    return tmp_path


def _packed(text: str) -> bytes:
    import gzip

    return gzip.compress(text.encode())


def _adapting(folder: Path, world: str, *more: object) -> tuple[object, ...]:
    files = (folder / "jobs.csv", "--cluster", folder / "cluster.yaml", "--set", f"speeds={folder / 'profiles'}")
    return ("run", *files, "--set", f"world={world}", *more)


def test_the_worlds_are_listed() -> None:
    """Each with a line and its policies, those of Walras that it takes among them."""
    shown = _simulate("workload", "list")
    assert shown.exit_code == 0
    for name, world in WORLDS.items():
        assert f"{name}  " in shown.stdout
        assert f"{world.about}: " in shown.stdout
    worlds = {each["name"]: each["policies"] for each in _told("workload", "list") if each["what"] == "world"}
    assert list(worlds) == ["walras", "gavel", "pollux", "sia", "shockwave", "arena"]
    taking = [name for name, world in WORLDS.items() if world.takes_plans]
    assert taking
    assert all("walras" in worlds[name] for name in taking)


def test_the_registry_names_the_policies_that_each_world_has() -> None:
    assert {name: list(world.policies) for name, world in WORLDS.items()} == {
        "gavel": list(GAVEL_POLICIES), "pollux": list(POLLUX_POLICIES), "sia": ["gavel"],
        "shockwave": list(SHOCKWAVE_POLICIES), "arena": ["fcfs"],
    }  # fmt: skip


def test_gavels_rounds_are_not_ours() -> None:
    """The same jobs on the same cluster under policies of one name: ours starts at once, Gavel's when a round begins.

    What was run is told with the figures.
    """
    theirs = _told("run", *GAVEL, "--policy", "fifo_fixed")
    ours = _told("run", *GAVEL[:3], "--policy", "fifo")
    assert theirs["jobs"] == ours["jobs"] == 60
    assert theirs["makespan_s"] != ours["makespan_s"]
    assert theirs["run"]["world"] == "gavel"
    assert theirs["run"]["policy"] == {"name": "fifo_fixed", "parameters": {}, "own": True}
    assert "world" not in ours["run"]
    assert min(theirs["bounds"][gap] for gap in ("no_contention_gap", "makespan_gap")) >= 0


def test_policies_of_one_world_are_compared_and_swept(tmp_path: Path) -> None:
    """With Gavel's own `isolated` as the reference of fairness; a sweep's runs are another world's runs."""
    told = _told(
        "compare", *GAVEL, "--policy", "fifo", "--policy", "isolated", "--set", "fairness=true", "--bounds", "none"
    )
    assert told["measures"]["isolated_mean"]["policies"]["isolated"]["mean"] == pytest.approx(1.0)
    assert told["runs"]["fifo"]["world"] == "gavel"
    options = ("--workload", GAVEL[0], *GAVEL[1:3], "--policy", "fifo", "--set", "bounds=none", "--out", tmp_path)
    assert _told("sweep", *options, "--set", "world=gavel")["ran"] == 1
    assert _told("sweep", *options, "--set", "world=gavel")["ran"] == 0
    assert _told("sweep", *options)["ran"] == 1


@pytest.mark.slow
def test_the_report_says_which_world(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = _simulate("run", *GAVEL, "--policy", "fifo", "--out", out)
    assert done.exit_code == 0, done.output
    assert "60 jobs in the world of gavel, run complete" in done.stdout
    page = (out / "report.html").read_text()
    assert "world gavel" in page
    assert f"<td>walras</td><td>{walras.__version__}</td>" in page
    assert _simulate("report", out).exit_code == 0
    assert (out / "report.html").read_text() == page


def test_jobs_train_in_polluxs_world(bert: Path) -> None:
    """200 steps at one a second, seen at the end of a minute, 30 s to start: 290 s in all. The second has two."""
    told = _told(*_adapting(bert, "pollux", "--policy", "tiresias"))
    assert [job["jct_s"] for job in told["per_job"]] == [290.0, 180.0]
    assert told["per_job"][0]["alone_s"] == pytest.approx(200.0)
    assert told["bounds"]["no_contention_s"] is None
    adapted = _told(*_adapting(bert, "pollux", "--policy", "sia"))
    assert adapted["run"]["policy"]["own"] is False
    assert adapted["avg_jct_s"] < told["avg_jct_s"]
    assert adapted["per_job"][0]["alone_s"] == pytest.approx(200.0)


def test_a_file_means_our_policy_where_a_bare_name_means_theirs(bert: Path) -> None:
    """Both are called optimus."""
    ours = Path(__file__).parents[3] / "configs" / "policies" / "optimus.yaml"
    owns = [_told(*_adapting(bert, "pollux", "--policy", name))["run"]["policy"]["own"] for name in ("optimus", ours)]
    assert owns == [True, False]


def test_types_have_our_names_in_sias_world(bert: Path) -> None:
    """t4 is what Sia calls aws; bert is slowed down by 1.2 there and starts in 120 s."""
    told = _told(*_adapting(bert, "sia", "--policy", "gavel"))
    assert list(told["accelerator_h"]) == ["aws"]
    assert told["per_job"][0]["alone_s"] == pytest.approx(240.0)
    assert told["per_job"][0]["overhead_s"] == pytest.approx(120.0)
    told = _told(*_adapting(bert, "sia", "--policy", "sia", "--set", f"learning={bert / 'profiles'}"))
    assert told["by_state"] == {"SUCCEEDED": 2}


def _shockwave(tmp_path: Path, gang: int = 1) -> tuple[object, ...]:
    table = {"v100": {f"('{SHOCKWAVE_KIND}', {size})": {"null": 10.0} for size in (1, 64)}}
    (tmp_path / "speeds.json").write_text(json.dumps(table))
    columns = (SHOCKWAVE_KIND, "run", "dir", "--num_steps", "1", "2400", str(gang), "static", "1", "-1", "240", "0")
    (tmp_path / "trace.tsv").write_text("\t".join(columns) + "\n")
    files = (tmp_path / "trace.tsv", "--set", "format=shockwave", "--set", f"speeds={tmp_path / 'speeds.json'}")
    return ("run", *files, "--cluster", "shockwave-32", "--set", "world=shockwave")


@pytest.mark.parametrize("policy", ["gandiva_fair", "shockwave"])
def test_jobs_train_in_shockwaves_world(tmp_path: Path, policy: str) -> None:
    """2,400 steps at ten a second, two rounds, nothing lost by the very first start."""
    told = _told(*_shockwave(tmp_path), "--policy", policy)
    assert told["per_job"][0]["jct_s"] == pytest.approx(240.0)
    assert told["per_job"][0]["alone_s"] == pytest.approx(2 * 50_000 / 32 / 10.0, rel=0.7)


@pytest.mark.parametrize("policy", ["gandiva_fair", "shockwave"])
def test_a_gang_larger_than_shockwaves_pool_is_refused(tmp_path: Path, policy: str) -> None:
    """Under their policies and ours: nobody would ever start it."""
    done = _simulate(*_shockwave(tmp_path, gang=64), "--policy", policy)
    assert done.exit_code == 2, done.output
    assert "wants 64 accelerators, 32 are there" in done.stderr


@pytest.mark.parametrize(("policy", "jct_s"), [("fcfs", 3000.0), ("walras", 1500.0)])
def test_jobs_train_in_arenas_world(tmp_path: Path, policy: str, jct_s: float) -> None:
    """300 iterations of 10 s on the one accelerator that was asked for; of 5 s on two, which ours takes."""
    (tmp_path / "jobs.csv").write_text(
        "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,gpu_type\n"
        "a,100,1500,bert__760M,200,100,1,a40\n"
    )
    places = "".join(f"bert,760M,100,a40,1,{each},{each},{10 / each},ok\n" for each in (1, 2))
    (tmp_path / "places.csv").write_text(
        "model,params,batch_size,gpu_type,nodes,gpus_per_node,num_gpus,seconds_per_iteration,status\n" + places
    )
    files = (tmp_path / "jobs.csv", "--set", f"speeds={tmp_path / 'places.csv'}", "--cluster", "arena-1280")
    told = _told("run", *files, "--set", "world=arena", "--policy", policy)
    assert told["per_job"][0]["jct_s"] == pytest.approx(jct_s)
    assert told["per_job"][0]["alone_s"] == pytest.approx(3000.0)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ((*GAVEL[:4], "world=gavl", "--policy", "fifo"), "did you mean 'gavel'?"),
        ((*GAVEL, "--policy", "walras"), "world 'gavel' cannot run policy 'walras': only its own policies run there"),
        ((*GAVEL, "--policy", "fiffo"), "did you mean 'fifo'?"),
        ((*GAVEL, "--policy", "gone.yaml"), "gone.yaml"),
        ((*GAVEL, "--policy", "fifo", "--set", "conditions=rough"), "world 'gavel' has costs and delays of its own"),
        ((*GAVEL, "--policy", "fifo", "--set", "learning=x"), "leave learning out"),
        ((*GAVEL[:3], "--policy", "fifo", "--set", "learning=x"), "leave learning out"),
        (("three-types", "--cluster", "sia-64", "--set", "world=gavel", "--policy", "fifo"), "such as gavel-12-12-12"),
        (("three-types", "--cluster", "mixed-cloud", "--set", "world=gavel", "--policy", "fifo"), "owned machines"),
        (("diurnal", "--cluster", "pollux-64", "--set", "world=pollux", "--policy", "tiresias"), "profiles"),
        (("bursts", "--cluster", "sia-64", "--set", "world=pollux", "--policy", "tiresias"), "has one pool"),
        (("bursts", "--cluster", "arena-1280", "--set", "world=arena", "--policy", "fcfs"), "a table of places"),
        (("bursts", "--cluster", "mixed-cloud", "--set", "world=arena", "--policy", "fcfs"), "owned machines"),
        (("bursts", "--cluster", "sia-64", "--set", "world=sia", "--policy", "fifo"), "which answers no plan"),
        (("bursts", "--cluster", "hadar-60", "--set", "world=sia", "--policy", "sia"), "was measured on t4"),
        (
            ("bursts", "--cluster", "sia-64", "--set", "world=sia", "--policy", "sia", "--set", "bounds=all"),
            "no lower bound",
        ),
        (
            ("bursts", "--cluster", "sia-64", "--set", "world=sia", "--policy", "sia", "--set", "fairness=true"),
            "no policy 'isolated'",
        ),
    ],
)
def test_what_does_not_fit_a_world_is_told_with_what_does(args: tuple[object, ...], told: str) -> None:
    done = _simulate("run", *args)
    assert done.exit_code == 2, done.output
    assert told in done.stderr


def test_what_no_other_world_knows_of_a_job_is_refused_by_line(tmp_path: Path) -> None:
    """A dependency would be forgotten in silence."""
    (tmp_path / "t.csv").write_text(
        "at,name,kind,gang,duration_s,depends_on\n0,a,k,1,5,\n1,b,k,1,5,a\n", encoding="utf-8"
    )
    done = _simulate("run", tmp_path / "t.csv", *GAVEL[1:], "--policy", "fifo")
    assert done.exit_code == 2, done.output
    assert "line 3: job 'b' depends on another job, which world 'gavel' does not know" in done.stderr


def test_a_gang_is_refused_by_line_under_a_policy_without_gangs(tmp_path: Path) -> None:
    """AlloX matches jobs to single accelerators; in rounds of Gavel's the run would break down hours later."""
    path = tmp_path / "t.csv"
    path.write_text("at,name,kind,gang,duration_s\n0,a,k,1,5\n1,b,k,2,5\n", encoding="utf-8")
    done = _simulate("run", path, *GAVEL[1:], "--policy", "allox")
    assert done.exit_code == 2, done.output
    assert "line 3: job 'b' is a gang of 2, which policy 'allox' of world 'gavel' does not know" in done.stderr
    assert _simulate("run", path, *GAVEL[1:], "--policy", "fifo").exit_code == 0


@pytest.mark.parametrize("mechanism", ["gavel", POLLUX, SIA, SHOCKWAVE, ARENA])
def test_no_server_gets_the_rounds_of_another_world(mechanism: str) -> None:
    """A policy file cannot ask for a mechanism that a server does not know."""
    with pytest.raises(ConfigError, match="mechanism"):
        parse_policy({"policy": "fifo", "rules": {"mechanism": mechanism}})
