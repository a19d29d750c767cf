"""Where the ranks of a gang over several machines meet: an address of this machine and a port kept free for it."""

import socket
from urllib.parse import urlsplit


def bind_port() -> socket.socket:
    """A port that nobody else here gets while the socket is open."""
    holder = socket.socket()
    holder.bind(("", 0))
    return holder


def own_address(server_url: str) -> str:
    """The address of ours from which the server is reached; loopback where that cannot be found out."""
    parts = urlsplit(server_url)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # Connecting a datagram socket sends nothing; it only picks the route.
            probe.connect((parts.hostname or "127.0.0.1", parts.port or 443))
            address: str = probe.getsockname()[0]
            return address
    except OSError:
        return "127.0.0.1"
