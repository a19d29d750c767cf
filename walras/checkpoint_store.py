"""Where checkpoints are kept, so that a job can go on anywhere: the setting, and what a store of checkpoints can do.

    server              on the server's disk, through its own port; works everywhere with nothing to set up
    s3://bucket/prefix  in an object store (also gs:// and az://), which machines reach with credentials of their own or
                        with what the server hands out for one job's place (`walras.store_access`)
    file:///shared/...  in a folder that all machines share; ranks write to it, and nothing is sent

With the first two the ranks of a job write to a folder of their own machine, and its agent sends what they commit. A
checkpoint counts once it is whole in the store.
"""

from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Protocol
from urllib.parse import urlsplit

from walras.content import ContentTree
from walras.errors import ConfigError

#: The setting that keeps checkpoints with the server.
SERVER_STORE = "server"
_FILE = "file"
#: Schemes of object stores (`walras.object_store`).
_OBJECT_SCHEMES = frozenset({"s3", "gs", "gcs", "az", "abfs", "abfss"})
#: Characters of a setting.
_SETTING_MOST = 1000


class CheckpointStore(Protocol):
    """A store that holds checkpoints as trees of content. A transfer that was cut begins again and sends what is
    missing.
    """

    #: Bytes that went to the store and came from it.
    sent_bytes: int
    fetched_bytes: int

    async def send(self, folder: Path, tree: ContentTree) -> str:
        """Make the files of a folder durable in the store; returns the tree's name.

        Raises DamagedContent where a file changes meanwhile, ServerUnreachable or ClusterError where trying again may
        help, and another UserError where the store refuses.
        """
        ...

    async def fetch(self, name: str, folder: Path, check: Callable[[ContentTree], None] = ...) -> ContentTree:
        """Make `folder` with the files of a tree, whole or not at all. `check` may raise before its chunks are fetched.

        Raises NotFound or DamagedContent where the store does not have them, FileExistsError, and as `send`.
        """
        ...


def check_store(setting: str) -> str:
    """Returns the setting as it is kept. Raises ConfigError for one that names no store."""
    text, fix = setting.strip().rstrip("/"), "write server, s3://bucket/prefix, or file:///shared/folder"
    if text == SERVER_STORE:
        return text
    parts = urlsplit(text)
    if len(text) <= _SETTING_MOST and is_object_store(text):
        if not parts.netloc or parts.password or parts.query or parts.fragment or ".." in parts.path.split("/"):
            fix = "write s3://bucket/prefix; credentials are in the environment, or handed out (checkpoint_access)"
            raise ConfigError(f"{setting[:100]!r} is no place in an object store", field="checkpoints", fix=fix)
        return text
    if len(text) > _SETTING_MOST or parts.scheme != _FILE or parts.query or parts.fragment:
        raise ConfigError(f"{setting[:100]!r} names no store of checkpoints", field="checkpoints", fix=fix)
    if parts.netloc or not PurePosixPath(parts.path).is_absolute():
        raise ConfigError(f"{setting[:100]!r} is no absolute path", field="checkpoints", fix="write file:///shared")
    return text


def is_object_store(setting: str) -> bool:
    """Returns whether checkpoints are sent to an object store under this setting."""
    return urlsplit(setting).scheme in _OBJECT_SCHEMES


def shared_folder(setting: str) -> Path | None:
    """Returns the folder that all machines share under this setting; None where checkpoints are sent to a store."""
    parts = urlsplit(setting)
    return Path(parts.path) if parts.scheme == _FILE else None
