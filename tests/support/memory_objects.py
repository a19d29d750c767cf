"""An object store in this process's memory, under addresses that begin with s3://, for tests without S3's library."""

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem


@pytest.fixture(name="objects")
def memory_objects(monkeypatch: pytest.MonkeyPatch) -> MemoryFileSystem:
    """Its file system; objects lie below /BUCKET."""
    files = MemoryFileSystem(skip_instance_cache=True)
    files.store, files.pseudo_dirs = {}, [""]

    def opened(url: str, **_: object) -> tuple[MemoryFileSystem, str]:
        return files, "/" + url.removeprefix("s3://")

    monkeypatch.setattr(fsspec, "url_to_fs", opened)
    return files


def names_below(files: MemoryFileSystem, kind: str) -> set[str]:
    """The names of all chunks, or of all trees."""
    return {str(path).rpartition("/")[2] for path in files.find("/bucket") if f"/{kind}/" in path}
