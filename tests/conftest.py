"""What all tests share."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples every time, so that a change is judged by what it changes; `make explore` looks for new ones.
# No deadline: how long an example takes says more of the machine than of the code.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", print_blob=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

#: A slow test that takes longer hangs. How long one takes that does not says more of the machine than of the code.
SLOW_HANGS_AFTER_S = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(SLOW_HANGS_AFTER_S))


@pytest.fixture(scope="session")
def reference_data() -> Path:
    """The folder of reference data: skips where there is none, fails where it is required (WALRAS_REQUIRE=data)."""
    given = os.environ.get("WALRAS_DATA", "")
    required = "data" in os.environ.get("WALRAS_REQUIRE", "").split(",")
    if not given:
        if required:
            pytest.fail("WALRAS_REQUIRE asks for the reference data, and WALRAS_DATA is not set")
        pytest.skip("WALRAS_DATA is not set: no reference data")
    folder = Path(given)
    if not folder.is_dir():
        pytest.fail(f"WALRAS_DATA names {folder}, which is no folder")
    return folder
