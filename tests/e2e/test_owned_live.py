"""What a project owns, under a real server and agents with emulated accelerators: lent, given back, lent again."""

import pytest

from tests.support.real_server import A, Serve, wait_for

pytestmark = pytest.mark.slow

POLICY = {"policy": {"name": "walras"}, "rules": {"round_s": 5, "backoff_s": 1}}


def test_a_lent_accelerator_is_back_when_its_owners_job_comes_and_lent_again_when_that_ends(serve: Serve) -> None:
    """The guest that leaves is the one on the owner's type, not the one on another; everybody is told why."""
    b = A | {"shape": "bx1", "accelerator": "b"}
    server = serve([A, b], POLICY)
    server.start_agent("n1")
    server.start_agent("n2", b)
    server.command("admin", "add", "project", "vision")
    assert server.command("admin", "set", "project", "vision", "owned.a=1").stdout.endswith("owns 1 x a\n")

    def submit(project: str, accelerator: str, run: str) -> int:
        return server.submit(
            run=run, project=project, preemptible="always", grace_period="5s",
            resources={"accelerators": f"{accelerator}:1"},
        )  # fmt: skip

    guest, other = submit("speech", "a", "sleep 600"), submit("speech", "b", "sleep 600")
    for job in (guest, other):
        server.until_running(job)
    shares = {each["name"]: each["owned"] for each in server.call("GET", "/share")[1]}
    assert [(each["used"], each["lent"]) for each in shares["vision"]] == [(0, 1.0)]
    own = submit("vision", "a", "sleep 20")
    server.until_running(own, timeout_s=30)
    assert server.job(guest)["state"] == "PENDING"
    told = server.command("explain", str(guest)).stdout
    assert f"job {own}" in told
    assert "vision owns 1 x a: 1 used by its own jobs" in server.command("money", "--shares").stdout
    server.until_state(own, "SUCCEEDED")
    server.until_running(guest, attempt=2)
    assert server.attempt(other)["attempt"] == 1
    wait_for(lambda: server.state(guest) == "RUNNING", 30, "the guest runs again")
