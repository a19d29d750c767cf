"""The web page: its files, and the sign-in by which a token, typed once, becomes a cookie that does not hold it.

The cookie is `wlr_s_<expiry>_<hash of the token>_<mac>` under the server's secret. It is HttpOnly (no script reads it)
and SameSite=Strict (no other site sends it); it outlives restarts of the server, ends after twelve hours, and is void
as soon as its token is revoked. Requests by cookie that change something must carry a header that other sites cannot
add without a preflight. Browsers do not separate cookies by port, so the cookie does not hold the token itself.

The files are read at the start and compressed when they are first asked for. They hold no data of the cluster and are
sent without a token, because the sign-in form must load before there is one. Their content security policy allows
scripts, styles, calls and frames of this server alone, and no inline script; no page frames them.
"""

import asyncio
import gzip
import hashlib
import hmac
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from aiohttp import web

from scheduler.live.auth.access_control import Caller, UserCaller, token_hash
from scheduler.live.server import Server
from walras.contract import split_token

#: The header that a page sends with every request that changes something.
CSRF_HEADER = "X-Walras-Page"
#: How long a user stays signed in, seconds.
SIGNED_IN_S = 12 * 3600
_BODY_BYTES, _BODY_S = 8192, 5.0
_HARMLESS_METHODS = ("GET", "HEAD")
_COOKIE = re.compile(r"wlr_s_(\d{1,12})_([0-9a-f]{64})_([0-9a-f]{64})", re.ASCII)


@dataclass(frozen=True, slots=True)
class WebSessions:
    """Signs users of the page in and out, and identifies them by their cookies."""

    server: Server

    @property
    def cookie_name(self) -> str:
        """The cookie's name, one for each cluster: several servers may listen on the same host."""
        return f"walras_{self.server.state.identity.cluster_id[:8]}"

    def caller(self, request: web.Request) -> UserCaller | None:
        """Returns the user whom the request's cookie identifies.

        Returns None where it identifies none, and where the request would change something without the page's header.
        """
        match = _COOKIE.fullmatch(request.cookies.get(self.cookie_name, ""))
        if match is None or "Authorization" in request.headers:
            return None
        if "Upgrade" in request.headers:
            return None  # any site may open a websocket here, and a browser would add the cookie
        if request.method not in _HARMLESS_METHODS and CSRF_HEADER not in request.headers:
            return None
        if int(match[1]) <= self.server.clocks.wall() or not hmac.compare_digest(
            match[3], self._mac(match[1], match[2])
        ):
            return None
        return self.server.user_behind(match[2])

    def known(self, request: web.Request) -> Caller | None:
        """Returns the caller, by the token in the request's header or by its cookie; None where neither is valid."""
        return self.server.identify(bearer_token(request)) or self.caller(request)

    async def answer_sign_in(self, request: web.Request) -> web.Response | None:
        """Returns the answer that sets the cookie, for a body `{"token": ...}`; None where the token is no user's."""
        token = await _token_in(request) if CSRF_HEADER in request.headers else ""
        if not isinstance(self.server.identify(token), UserCaller):
            return None
        return self.signed_in(request, token_hash(token))

    def signed_in(self, request: web.Request, digest: str) -> web.Response:
        """Returns the answer that sets the cookie of a token, by its hash."""
        until = str(int(self.server.clocks.wall()) + SIGNED_IN_S)
        response = web.json_response({"signed_in": True})
        response.set_cookie(
            self.cookie_name,
            f"wlr_s_{until}_{digest}_{self._mac(until, digest)}",
            max_age=SIGNED_IN_S,
            httponly=True,
            samesite="Strict",
            secure=request.secure,
            path="/",
        )
        return response

    def answer_sign_out(self) -> web.Response:
        """Returns the answer that deletes the cookie."""
        response = web.json_response({"signed_in": False})
        response.del_cookie(self.cookie_name, path="/")
        return response

    def _mac(self, until: str, digest: str) -> str:
        secret = self.server.secrets.job_tokens.secret
        return hmac.new(secret, f"page/{until}/{digest}".encode(), hashlib.sha256).hexdigest()


def bearer_token(request: web.Request) -> str:
    """Returns the token in the request's header, without the fingerprint that may follow it; "" if there is none."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return split_token(token)[0] if scheme.lower() == "bearer" else ""


async def small_body(request: web.Request) -> object:
    """Returns the JSON in a body of bounded size; None for anything else."""
    if not 0 < (request.content_length or 0) <= _BODY_BYTES:
        return None
    try:
        async with asyncio.timeout(_BODY_S):
            return json.loads(await request.content.readexactly(request.content_length or 0))
    except (ValueError, RecursionError, asyncio.IncompleteReadError, TimeoutError):
        return None


async def _token_in(request: web.Request) -> str:
    """Returns the token in a body, without the fingerprint that may follow it; "" for anything else."""
    data = await small_body(request)
    token = data.get("token") if isinstance(data, dict) else None
    return split_token(token.strip())[0] if isinstance(token, str) else ""


# ------------------------------------------------------------------------------------------ files


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
