"""The folder that jobs find `walras.training` in: that package, `walras/__init__.py`, and nothing else.

Never the checkout and never our site-packages: users have modules named `scheduler` and `optimizer` of their own.
"""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import walras
import walras.training


def build_client_folder(state: Path) -> Path:
    """Copy the client below the agent's state folder, once per version of it; safe against another agent doing so."""
    sources = _sources()
    hashed = hashlib.sha256()
    for relative, source in sources:
        hashed.update(str(relative).encode() + b"\0" + source.read_bytes())
    folder = state / "client" / hashed.hexdigest()[:16]
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent))
    partial.chmod(0o755)
    for relative, source in sources:
        target = partial / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    try:
        os.rename(partial, folder)
    except OSError:
        shutil.rmtree(partial)
        if not folder.exists():
            raise
    return folder


def _sources() -> list[tuple[Path, Path]]:
    package = Path(str(walras.__file__)).parent
    training = Path(str(walras.training.__file__)).parent
    files = [package / "__init__.py", *sorted(training.glob("*.py"))]
    return [(Path("walras") / file.relative_to(package), file) for file in files]
