"""The bill of materials of a release: `python -m tests.support.software_bill FILE`.

cyclonedx-bom describes everything that is installed beside Walras, tools of development included. Kept is what an
installation with all extras consists of: what `walras[all]` requires, and what that requires.
"""

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from walras import __version__

ROOT = Path(__file__).resolve().parents[2]


def installed_closure(*asked: str) -> set[str]:
    """The canonical names of the requirements, and of all that they require here. Raises PackageNotFoundError for one
    that is required and not installed."""
    found: set[tuple[str, str]] = set()
    waiting = [Requirement(each) for each in asked]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        for extra in {"", *wanted.extras}:
            if (name, extra) in found:
                continue
            found.add((name, extra))
            for line in requires(name) or []:
                required = Requirement(line)
                if required.marker is None or required.marker.evaluate({"extra": extra}):
                    waiting.append(required)
    return {name for name, _ in found}


def release_bill() -> dict[str, Any]:
    """The bill as a CycloneDX document, the same for the same environment."""
    program = Path(sys.executable).with_name("cyclonedx-py")
    options = ["--pyproject", ROOT / "pyproject.toml", "--output-reproducible", "--validate", "--of", "JSON"]
    made = subprocess.run(
        [program, "environment", *options, sys.executable], check=True, capture_output=True, text=True, timeout=300
    )
    bill: dict[str, Any] = json.loads(made.stdout)
    bill["metadata"]["component"]["version"] = __version__
    names = installed_closure("walras[all]") - {"walras"}  # which is the main component
    bill["components"] = [each for each in bill["components"] if canonicalize_name(each["name"]) in names]
    kept = {each["bom-ref"] for each in bill["components"]}
    root = bill["metadata"]["component"]["bom-ref"]
    bill["dependencies"] = [
        {**each, "dependsOn": [ref for ref in each.get("dependsOn", []) if ref in kept]}
        for each in bill["dependencies"]
        if each["ref"] in kept | {root}
    ]
    return bill


def main() -> None:
    path = Path(sys.argv[1])
    try:
        bill = release_bill()
    except PackageNotFoundError as error:
        raise SystemExit(f"{error.name} is not installed here: `make install` first") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(bill, indent=1) + "\n")


if __name__ == "__main__":
    main()
