"""The programs that docs/simulator.md shows of other schedulers' worlds run as they are written."""

import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from tests.test_docs import ROOT

#: By the world of the program: the files that it names, below the reference data; jobs and their mean completion time.
WORLDS = {
    "pollux": (("pollux/workloads/workload-6.csv", "pollux/profiles"), 160),
    "shockwave": (("shockwave/tacc_throughputs.json", "shockwave/trace_tacc32_120jobs.tsv"), 120),
}


def program_of(world: str) -> str:
    """The program of the page that is about this world."""
    shown = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/simulator.md").read_text(), re.MULTILINE | re.DOTALL)
    (program,) = [each for each in shown if f"simulator.worlds.{world}." in each]
    return str(program)


@pytest.mark.parametrize("world", WORLDS)
def test_a_program_of_the_page_runs(
    world: str, reference_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, count = WORLDS[world]
    for file in files:
        (tmp_path / Path(file).name).symlink_to(reference_data / "golden" / file)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(program_of(world), "docs/simulator.md", "exec"), names)
    result = names["result"]
    assert result.violations == []
    assert len(result.jobs) == count
    assert fmean(job.jct_s for job in result.jobs) > 0.0
