"""The pools of `walras admin`: what is asked of the server, what is printed, what is refused before."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scheduler.live.store import retention

Run = Callable[..., Any]
POOL = "sx2/spot/default"
FILE = """
shape: sx2
accelerator: s
accelerators: 2
cpus: 8
memory: 16GB
market: spot
provider: local
usd_per_h: 1.5
quota: 4
"""


def test_the_pools_are_listed(run: Run, fake: Any) -> None:
    """A row for each; JSON has what the API says."""
    row = run("admin", "list", "pools", "--no-header").stdout.split()
    assert row == [POOL, "2", "s", "1.5", "4", "2", "1", "3,8", "in", "use", "-"]
    (pool,) = json.loads(run("admin", "list", "pools", "-o", "json").stdout)
    assert (pool["pool_id"], pool["jobs"]) == (POOL, [3, 8])


def test_who_holds_what_is_listed(run: Run, fake: Any) -> None:
    row = run("admin", "list", "usage", "--no-header").stdout.split()
    assert row == ["bytes", "of", "content", "user", "ada", "7,000", "9,000"]
    assert "credit, audit, usage" in run("admin", "list", "planets").stderr


@pytest.mark.parametrize(("more", "did"), [((), "deleted"), (("--dry-run",), "would delete")])
def test_content_that_nothing_refers_to_is_pruned(run: Run, fake: Any, more: tuple[str, ...], did: str) -> None:
    lines = run("admin", "prune", "--content", *more).stdout.splitlines()
    assert lines == [f"{did} 9 MB of content that nothing refers to", "  user bob: 1 MB", "  user ada: 8 MB"]
    assert fake.requests[-1] == ("POST", "/api/v1/content/prune", {"dry_run": bool(more)})


def test_checkpoints_in_stores_are_pruned_by_the_server(run: Run, fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command cannot do by itself it says how to do; a store that did not answer is no success."""
    told = run("admin", "prune", "--content", "--checkpoints", "30d")
    assert fake.requests[-1][2] == {"dry_run": False, "checkpoints_older_s": 30 * 86_400.0}
    assert told.stdout.splitlines()[-1] == "deleted 7 objects in object stores"
    assert (told.exit_code, "s3://bucket/jobs/1" in told.stderr) == (1, True)
    monkeypatch.setattr(retention, "prune", lambda *_, **__: retention.PruneReport(jobs=0, logs=0))
    told = run("admin", "prune", "--data", "x", "--checkpoints", "30d")
    assert "`walras admin prune --content --checkpoints 30d`" in told.stdout


@pytest.mark.parametrize("words", ["--dry-run", "", "--data x --dry-run", "--data x --content"])
def test_prune_says_what_it_lacks(run: Run, fake: Any, words: str) -> None:
    refused = run("admin", "prune", *words.split())
    assert (refused.exit_code, "--data" in refused.stderr) == (2, True), refused.stderr
    assert fake.requests == []


def test_a_pool_of_a_file_is_added(run: Run, fake: Any, tmp_path: Path) -> None:
    """Checked here as a cluster file is; sent as it is written."""
    file = tmp_path / "pool.yaml"
    file.write_text(FILE)
    result = run("admin", "add", "pool", str(file))
    assert (result.exit_code, result.stdout) == (0, f"pool {POOL} is there\n")
    method, path, body = fake.requests[-1]
    assert (method, path, body["memory"], body["quota"]) == ("POST", "/api/v1/pools", "16GB", 4)
    asked = len(fake.requests)
    file.write_text(FILE.replace("spot", "owned"))
    refused = run("admin", "add", "pool", str(file))
    assert refused.exit_code == 2
    assert "an owned pool is not rented" in refused.stderr
    assert len(fake.requests) == asked


def test_a_pool_is_changed_drained_and_removed(run: Run, fake: Any) -> None:
    """The slashes of its id stay one part of the path; only what is given is sent; stranded jobs are a warning."""
    path = "/api/v1/pools/sx2%2Fspot%2Fdefault"
    assert run("admin", "set", "pool", POOL, "quota=6").stdout == f"pool {POOL}: quota 6, 1.5 USD/h\n"
    assert fake.requests[-1] == ("PATCH", path, {"quota": 6})
    assert run("admin", "set", "pool", POOL, "usd_per_h=0.5").stdout == f"pool {POOL}: quota 4, 0.5 USD/h\n"
    assert fake.requests[-1][2] == {"usd_per_h": 0.5}
    assert run("admin", "set", "pool", POOL).exit_code == 2
    told = run("admin", "drain", "--pool", POOL).stdout
    assert told == f"pool {POOL} takes no new jobs; 2 machines and 2 jobs are there still\n"
    assert fake.requests[-1] == ("PATCH", path, {"drained": True})
    assert run("admin", "drain", "--pool", POOL, "--off").stdout == f"pool {POOL} takes jobs again\n"
    assert fake.requests[-1][2] == {"drained": False}
    removed = run("admin", "remove", "pool", POOL)
    assert (removed.exit_code, removed.stdout) == (0, f"pool {POOL} is gone\n")
    assert "no other pool can run job 7, 9" in removed.stderr
    assert fake.requests[-1][:2] == ("DELETE", path)
