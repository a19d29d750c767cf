"""The files of the web page, read at the start and compressed when they are first asked for.

They hold no data of the cluster and are sent without a token, because the sign-in form must load before there is one.
Their content security policy allows scripts, styles, calls and frames of this server alone, and no inline script; no
page frames them.
"""

import gzip
import hashlib
from collections.abc import Iterator, Mapping
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
    # Browsers ask again each time and get 304 while the file is unchanged: a new release shows at once.
    "Cache-Control": "no-cache",
}
_PREFIX = "/web/"
#: Files below the digest of all files never change, so browsers need not ask again.
_KEPT_HEADERS = {**_HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
#: The place in `index.html` for links that preload all modules at once, instead of one after another.
_MODULES_MARK = "<!-- modules -->"


@cache
def _packed(body: bytes) -> bytes:
    """Returns the file compressed, at its first request: a start, after a crash for example, should be quick."""
    return gzip.compress(body, mtime=0)


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file with the headers that it is sent with."""

    body: bytes
    content_type: str
    etag: str
    headers: Mapping[str, str]


class PageFiles:
    """All files of the page by path: under `/web/`, and under `/web/DIGEST/` as the page itself asks for them."""

    def __init__(self) -> None:
        found = dict(sorted(_files_below(files("scheduler.live.web") / "static", "")))
        digest = hashlib.sha256(b"".join(hashlib.sha256(body).digest() for body in found.values())).hexdigest()[:16]
        kept = f"{_PREFIX}{digest}/"
        self._by_path = {_PREFIX + name: _page_file(name, body, _HEADERS) for name, body in found.items()}
        self._by_path |= {kept + name: _page_file(name, body, _KEPT_HEADERS) for name, body in found.items()}
        page = _page_file("index.html", _entry_page(found, kept), _HEADERS)
        self._by_path["/"] = self._by_path[_PREFIX + "index.html"] = page

    def answer(self, request: web.Request) -> web.Response | None:
        """Returns the answer for a file of the page; None for other paths and for methods beside GET and HEAD."""
        found = self._by_path.get(request.path)
        if found is None or request.method not in ("GET", "HEAD"):
            return None
        headers = {**found.headers, "ETag": found.etag, "Vary": "Accept-Encoding"}
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


def _files_below(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    """Yields (path in the folder, content) of every file of a type that is sent."""
    for each in folder.iterdir():
        if each.is_dir():
            yield from _files_below(each, f"{prefix}{each.name}/")
        elif each.name.rpartition(".")[2] in _TYPES:
            yield prefix + each.name, each.read_bytes()


def _page_file(name: str, body: bytes, headers: Mapping[str, str]) -> PageFile:
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return PageFile(body, _TYPES[name.rpartition(".")[2]], etag, headers)


def _entry_page(found: Mapping[str, bytes], kept: str) -> bytes:
    """Returns `index.html` with preload links, and with paths below the digest, where files never change."""
    text = found["index.html"].decode()
    # A script that the page loads with `defer` is no module.
    modules = [name for name in found if name.endswith(".js") and f'src="{_PREFIX}{name}" defer' not in text]
    lines = [f'<link rel="modulepreload" href="{_PREFIX}{name}">' for name in modules]
    return text.replace(_MODULES_MARK, "\n".join(lines)).replace(f'"{_PREFIX}', f'"{kept}').encode()
