"""The bill of materials of a release: `python -m tests.support.software_bill FILE [RELEASED...]`.

It is signed with OpenSSH's `ssh-keygen`, which needs no network, if WALRAS_SIGNING_KEY names a private key; files that
are released beside it are then named in it with their SHA-256, so that one signature vouches for all.

cyclonedx-bom describes everything that is installed beside Walras, tools of development included. Kept is what an
installation with all extras consists of: what `walras[all]` requires, and what that requires.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from walras import __version__

ROOT = Path(__file__).resolve().parents[2]
SIGNING_KEY = "WALRAS_SIGNING_KEY"
#: What a signature is for: one that the same key made for something else does not count.
NAMESPACE = "walras-release"


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


def with_released(bill: dict[str, Any], released: Iterable[Path]) -> dict[str, Any]:
    """Returns the bill with the hashes of the released files as references of its main component."""
    main = bill["metadata"]["component"]
    references = [
        {
            "type": "distribution",
            "url": path.name,
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}],
        }
        for path in sorted(released)
    ]
    if not references:
        return bill
    main = {**main, "externalReferences": [*main.get("externalReferences", []), *references]}
    return {**bill, "metadata": {**bill["metadata"], "component": main}}


def sign_file(path: Path, key: Path) -> Path:
    """Signs the file with a private key of OpenSSH, or the public half of one that an agent holds; returns the
    signature's path. Raises SystemExit in words where that fails.
    """
    signature = path.with_name(f"{path.name}.sig")
    signature.unlink(missing_ok=True)
    try:
        subprocess.run(
            ["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", NAMESPACE, path],
            check=True, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError:
        raise SystemExit("ssh-keygen is not here: install OpenSSH's client to sign") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{path.name} was not signed with {key}: {error.stderr.strip()}") from None
    return signature


def main() -> None:
    path, released = Path(sys.argv[1]), [Path(each) for each in sys.argv[2:]]
    try:
        bill = with_released(release_bill(), released)
    except PackageNotFoundError as error:
        raise SystemExit(f"{error.name} is not installed here: `make install` first") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(bill, indent=1) + "\n")
    # A signature of an earlier bill vouches for nothing.
    path.with_name(f"{path.name}.sig").unlink(missing_ok=True)
    if key := os.environ.get(SIGNING_KEY):
        sign_file(path, Path(key))


if __name__ == "__main__":
    main()
