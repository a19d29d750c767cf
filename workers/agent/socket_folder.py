"""Where an agent keeps the sockets of its supervisors: below its state folder, or in /tmp where that path is too long.

A folder in /tmp names the state folder that it serves. Once that is gone, and nobody listens there any more, the next
agent that needs such a folder removes it: who deletes an agent's state need not know of it.
"""

import os
import shutil
import socket
import tempfile
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

#: The kernel's limit for the path of a Unix socket is 107 bytes.
MAX_SOCKET_FOLDER_BYTES = 80
TEMPORARY = Path("/tmp")
_PREFIX = "walras-"
#: In a folder of /tmp, the link to the state folder.
_SERVES = "state"
#: Folders looked at, and sockets in each.
_LOOKED_AT = 1000


def socket_folder(state: Path) -> Path:
    """The folder of this agent's sockets; the same as long as the state folder is there."""
    folder = state / "s"
    if len(os.fsencode(folder)) <= MAX_SOCKET_FOLDER_BYTES:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder
    link = state / "socket-folder"
    if not link.is_dir():
        remove_orphans(TEMPORARY)
        link.unlink(missing_ok=True)
        made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=TEMPORARY))
        (made / _SERVES).symlink_to(state.absolute())
        link.symlink_to(made)
    return Path(os.readlink(link))


def remove_orphans(temporary: Path) -> None:
    """Remove the folders of this user whose agents' state is gone."""
    for folder in islice(temporary.glob(f"{_PREFIX}*"), _LOOKED_AT):
        serves = folder / _SERVES
        if folder.is_symlink() or not serves.is_symlink() or serves.exists() or folder.stat().st_uid != os.getuid():
            continue
        if not any(map(_is_listened_to, _first(folder.iterdir()))):
            shutil.rmtree(folder, ignore_errors=True)


def _first(paths: Iterable[Path]) -> Iterable[Path]:
    return islice(paths, _LOOKED_AT)


def _is_listened_to(path: Path) -> bool:
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.setblocking(False)
        return caller.connect_ex(os.fspath(path)) == 0
