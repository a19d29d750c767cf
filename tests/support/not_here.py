"""What is done where this machine lacks a program: a test is skipped, or fails where it is required."""

import os
from typing import NoReturn

from benchmarks.needs import NotHereError


def not_here(name: str, why: str) -> NoReturn:
    """Skip the running test (WALRAS_REQUIRE=NAME: fail it); in a benchmark, without pytest, raise NotHereError."""
    if "PYTEST_VERSION" not in os.environ:
        raise NotHereError(why)
    import pytest

    if name in os.environ.get("WALRAS_REQUIRE", "").split(","):
        pytest.fail(f"WALRAS_REQUIRE asks for {name}: {why}")
    pytest.skip(why)
