"""docs/python.md: its examples run as they are written, as one script, against a real server and agent."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.real_server import CPU_POOL, FIFO, Serve

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_examples_run_as_they_are_written(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each prints what the page says that it shows."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)  # jobs find our programs first
    cluster = serve([CPU_POOL], FIFO)
    cluster.start_agent("n1", CPU_POOL)
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(examples) == 8
    script = tmp_path / "examples.py"
    script.write_text("\n".join(examples))
    environment = cluster.access | {"PYTHONUNBUFFERED": "1"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["learning", "loss 0.5"]
    assert re.fullmatch(r"hello SUCCEEDED \d+\.\d\d USD", lines[2])
    assert lines[3].startswith("it would run on {")
    assert "costs about" in lines[4]
    assert "['lr-0.001 SUCCEEDED', 'lr-0.01 SUCCEEDED', 'lr-0.1 SUCCEEDED']" in lines
    told = lines[lines.index("['lr-0.001 SUCCEEDED', 'lr-0.01 SUCCEEDED', 'lr-0.1 SUCCEEDED']") + 1 :]
    assert told[0] == "0 wait; {'cpu': 2} free"
    assert told[1].startswith("cpux2/")
    assert "CANCELLED" in told
    assert told[told.index("it says done") + 1] == "['plain']"
    assert "loss 0.349 by job learn" in told
    assert "[0.5, 0.5625]" in told
    assert "ValueError 2.0 is too fast | ValueError: 2.0 is too fast" in told
    assert "jobs by state: {'CANCELLED': 1, 'FAILED': 1, 'SUCCEEDED': 8} UTC" in told
    assert told[told.index("jobs by state: {'CANCELLED': 1, 'FAILED': 1, 'SUCCEEDED': 8} UTC") + 2].startswith("cpux2/")
    assert any(re.fullmatch(r"\d+ jobs cost money; 1 machine", line) for line in told)
    assert "h900" in told[-2]
    assert "resources.accelerators" in told[-2]
    assert told[-1] == "no job 987654"
