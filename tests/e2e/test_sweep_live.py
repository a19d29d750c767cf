"""A sweep on real processes: every combination once, never more at once than its limit, cancelled as a whole."""

from pathlib import Path

import pytest

from tests.support.real_server import FIFO, A, Serve, wait_for

pytestmark = pytest.mark.slow

MANY = A | {"shape": "ax4", "accelerators": 4, "cpus": 4, "memory": "2GB"}
#: Notes its values, and how many of the sweep run beside it.
RUN = (
    "touch {out}/up-$WALRAS_ARRAY_INDEX; ls {out} | grep -c up- > {out}/seen-$WALRAS_ARRAY_INDEX; sleep 0.6; "
    "echo '{lr} {seed}' > {out}/values-$WALRAS_ARRAY_INDEX; rm {out}/up-$WALRAS_ARRAY_INDEX"
)


def test_every_combination_runs_once_within_the_limit(serve: Serve, tmp_path: Path) -> None:
    """Six jobs, two at once on four accelerators; then a long sweep is cancelled by its number."""
    server = serve([MANY], FIFO)
    out = tmp_path / "out"
    out.mkdir()
    server.start_agent(pool=MANY)
    first = server.submit(
        name="grid", run=RUN.replace("{out}", str(out)), matrix={"lr": [0.1, 0.2], "seed": "0-2"}, array="%2"
    )
    for job in range(first, first + 6):
        server.until_state(job, "SUCCEEDED", 60.0)
    values = sorted(path.read_text().strip() for path in out.glob("values-*"))
    assert values == sorted(f"{lr} {seed}" for lr in ("0.1", "0.2") for seed in range(3))
    assert {int(path.read_text()) for path in out.glob("seen-*")} <= {1, 2}
    long = server.submit(name="long", run="sleep 600", array="0-9%3")
    wait_for(lambda: [server.state(long + each) for each in range(3)] == ["RUNNING"] * 3, 30.0, "three run")
    done = server.command("cancel", str(long))
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout == f"sweep {long}: is CANCELLED (7 jobs), is being cancelled (3 jobs)\n"
    for each in range(10):
        server.until_state(long + each, "CANCELLED", 30.0)
    assert all(server.job(long + each)["attempts"] == 0 for each in range(3, 10))
