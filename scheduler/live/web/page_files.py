"""The files of the web page, read at the start and compressed when they are first asked for.

They are sent with a policy that lets the browser run nothing else. They hold no data of the cluster, so they are sent
without a token: the sign-in form has to come from somewhere. The content security policy allows scripts, styles and
calls of this server alone, no inline script, no frames.
"""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from aiohttp import web

_TYPES = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
    "txt": "text/plain",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    # Asked for again each time, and answered with 304 as long as it is the same: a new release shows at once.
    "Cache-Control": "no-cache",
}
_PREFIX = "/web/"


@cache
def _packed(body: bytes) -> bytes:
    """A server that starts, after a crash for example, has no time for what nobody may ask for."""
    return gzip.compress(body, mtime=0)


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file as it is sent."""

    body: bytes
    content_type: str
    etag: str


class PageFiles:
    """All files of the page, by path."""

    def __init__(self) -> None:
        self._by_path: dict[str, PageFile] = {}
        self._add(files("scheduler.live.web") / "static", _PREFIX)
        self._by_path["/"] = self._by_path[_PREFIX + "index.html"]

    def _add(self, folder: Traversable, prefix: str) -> None:
        for each in folder.iterdir():
            if each.is_dir():
                self._add(each, f"{prefix}{each.name}/")
            elif (content_type := _TYPES.get(each.name.rpartition(".")[2])) is not None:
                body = each.read_bytes()
                etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
                self._by_path[prefix + each.name] = PageFile(body, content_type, etag)

    def answer(self, request: web.Request) -> web.Response | None:
        """Returns the file that is asked for; None where the path is none of the page's, or something is changed."""
        found = self._by_path.get(request.path)
        if found is None or request.method not in ("GET", "HEAD"):
            return None
        headers = {**_HEADERS, "ETag": found.etag, "Vary": "Accept-Encoding"}
        if request.headers.get("If-None-Match") == found.etag:
            return web.Response(status=304, headers=headers)
        takes_gzip = "gzip" in request.headers.get("Accept-Encoding", "")
        if takes_gzip:
            headers["Content-Encoding"] = "gzip"
        return web.Response(
            body=_packed(found.body) if takes_gzip else found.body,
            content_type=found.content_type,
            charset="utf-8",
            headers=headers,
        )
