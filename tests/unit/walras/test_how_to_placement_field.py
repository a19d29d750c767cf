"""docs/how-to/add-a-placement-field.md, followed to the letter on a copy of the code."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/how-to/add-a-placement-field.md"
#: Jobs limited to one of two zones, and one that is not; what is said of a job that is limited to a third.
RUN = """
from fake_fleet import FakeFleet
from optimizer.policy import PolicySpec
from scheduler.core import commands as cmd, events as ev
from scheduler.core.explain.feasibility import PoolLimit, infeasibility
from scheduler.core.rules import RoundRules
from walras.cluster import NodeId, Pool, PoolId, Shape
from walras.job_request import JobId
from walras.spec.job_spec import parse_spec
from walras.spec.spec_request import to_request

def request(number, zones):
    spec = parse_spec({"run": "x", "steps": 10, "resources": {"accelerators": "a:1", "zones": zones}})
    return to_request(spec, JobId(number), user="u", project="p", at=0.0)

fleet = FakeFleet()
pools = [Pool(PoolId(zone), Shape("ax1", "a", 1, 4.0, 2**33), zone=zone) for zone in ("north", "south")]
fleet.tell(ev.PolicyChanged(0.0, PolicySpec("fifo", {}), RoundRules()))
for pool in pools:
    fleet.tell(ev.PoolDeclared(0.0, pool))
    for number in range(2):
        fleet.tell(ev.NodeJoined(0.0, NodeId(f"{pool.zone}-{number}"), pool.pool_id))
for number, zones in ((1, ["south"]), (2, ["north"]), (3, ["south"]), (4, [])):
    for command in fleet.tell(ev.JobSubmitted(0.0, request(number, zones))):
        if isinstance(command, cmd.Start):
            print(command.job_id, command.placement.pool_id)
print(infeasibility(request(5, ["west"]), [PoolLimit(pool, 2.0) for pool in pools]).detail)
"""


def a_copy(folder: Path) -> Path:
    """The packages that take part, those to be changed as files and the others as links."""
    shutil.copytree(ROOT / "walras", folder / "walras", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "docs").mkdir()
    shutil.copy(ROOT / "docs/job-spec.md", folder / "docs")
    for package in ("optimizer", "scheduler"):
        (folder / package).symlink_to(ROOT / package)
    return folder


def test_a_field_that_limits_placement_costs_three_files(tmp_path: Path) -> None:
    """The page's changes apply to three files, and jobs then start only where the new field lets them."""
    changes = re.findall(r"^```diff\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    copy = a_copy(tmp_path)
    patch = tmp_path / "page.diff"
    patch.write_text("".join(changes))
    # Outside of any repository, so that git takes the paths as they are.
    environ = os.environ | {"GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    applied = subprocess.run(["git", "apply", "-v", patch.name], cwd=copy, env=environ, capture_output=True, text=True)
    assert applied.returncode == 0, applied.stderr
    assert len(changes) == applied.stderr.count("Applied patch") == 3, applied.stderr

    path = os.pathsep.join((str(copy), str(ROOT / "tests/support")))
    done = subprocess.run(
        [sys.executable, "-P", "-c", RUN], cwd=copy, env=os.environ | {"PYTHONPATH": path}, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *starts, refusal = done.stdout.splitlines()
    assert starts == ["1 south", "2 north", "3 south", "4 north"]
    assert refusal == "wants 1 x a in west; this fleet has a"
