"""Sign-in to the web page: a token, typed once, becomes a cookie that identifies the token without holding it.

The cookie is `wlr_s_<expiry>_<hash of the token>_<mac>` under the server's secret. It is HttpOnly (no script reads it)
and SameSite=Strict (no other site sends it); it outlives restarts of the server, ends after twelve hours, and is void
as soon as its token is revoked. Requests by cookie that change something must carry a header that other sites cannot
add without a preflight. Browsers do not separate cookies by port, so the cookie does not hold the token itself.
"""

import asyncio
import hashlib
import hmac
import json
import re
from dataclasses import dataclass

from aiohttp import web

from scheduler.live.auth.access_control import Caller, UserCaller, token_hash
from scheduler.live.server import Server
from walras.contract import split_token

#: The header that a page sends with every request that changes something.
CSRF_HEADER = "X-Walras-Page"
_LASTS_S = 12 * 3600
_BODY_BYTES, _BODY_S = 4096, 5.0
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
        digest, until = token_hash(token), str(int(self.server.clocks.wall()) + _LASTS_S)
        response = web.json_response({"signed_in": True})
        response.set_cookie(
            self.cookie_name,
            f"wlr_s_{until}_{digest}_{self._mac(until, digest)}",
            max_age=_LASTS_S,
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


async def _token_in(request: web.Request) -> str:
    """Returns the token in a body of bounded size, without the fingerprint that may follow it; "" for anything else."""
    if not 0 < (request.content_length or 0) <= _BODY_BYTES:
        return ""
    try:
        async with asyncio.timeout(_BODY_S):
            data = json.loads(await request.content.readexactly(request.content_length or 0))
    except (ValueError, RecursionError, asyncio.IncompleteReadError, TimeoutError):
        return ""
    token = data.get("token") if isinstance(data, dict) else None
    return split_token(token.strip())[0] if isinstance(token, str) else ""
