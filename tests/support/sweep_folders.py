"""What lies in the folder of a sweep, for tests that compare one with another."""

import json
from pathlib import Path


def done_cells(out: Path) -> list[Path]:
    """The files of runs that are done, without the levels over time that some have beside them."""
    return [path for path in sorted((out / "cells").glob("[!.]*.json")) if not path.name.endswith(".levels.json")]


def swept_figures(out: Path) -> dict[str, object]:
    """What every run came to, without what depends on the machine."""
    return {path.name: json.loads(path.read_text())["row"]["values"] for path in done_cells(out)}
