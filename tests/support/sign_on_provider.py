"""An OpenID Connect provider on loopback, which says what a test wants, and a server whose users sign in there."""

import base64
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jwt
from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.http_face import Face, facing

POOL = {"shape": "ax2", "accelerator": "a", "accelerators": 2, "cpus": 8, "memory": "64GB"}
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
NONCE = "n" * 43


@dataclass
class Provider:
    """What the provider says; tests change it."""

    url: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    claims: dict[str, Any] = field(default_factory=dict)
    sign: Callable[[dict[str, Any]], str] = lambda claims: jwt.encode(claims, KEY, "RS256", headers={"kid": "k"})
    challenge: str = ""
    nonce: str = NONCE
    forms: list[dict[str, str]] = field(default_factory=list)
    status: int = 200

    async def configuration(self, _: web.Request) -> web.Response:
        urls = {"authorization_endpoint": "auth", "token_endpoint": "token", "jwks_uri": "keys"}
        return web.json_response(
            {"issuer": self.url, **{name: f"{self.url}/{path}" for name, path in urls.items()}, **self.facts}
        )

    async def auth(self, request: web.Request) -> web.Response:
        """Signs the user in at once, and sends the browser back."""
        self.challenge, self.nonce = request.query["code_challenge"], request.query["nonce"]
        back = urlencode({"code": "good", "state": request.query["state"]})
        raise web.HTTPFound(f"{request.query['redirect_uri']}?{back}")

    async def keys(self, _: web.Request) -> web.Response:
        key = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key()))
        return web.json_response({"keys": [key | {"kid": "k", "use": "sig", "alg": "RS256"}]})

    async def token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.forms.append(form)
        made = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=").decode()
        if form["code"] != "good" or (self.challenge and made != self.challenge):
            return web.json_response({"error": "invalid_grant"}, status=400)
        now = int(time.time())
        claims = {"iss": self.url, "aud": "walras", "sub": "1", "iat": now, "exp": now + 60, "nonce": self.nonce}
        claims |= {"email": "ada@example.org", "email_verified": True, **self.claims}
        told = {name: value for name, value in claims.items() if value is not None}
        return web.json_response({"id_token": self.sign(told)}, status=self.status)


@asynccontextmanager
async def provider_and_face(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[Provider, Face]]:
    provider, app = Provider(), web.Application()
    app.router.add_get("/.well-known/openid-configuration", provider.configuration)
    app.router.add_get("/keys", provider.keys)
    app.router.add_get("/auth", provider.auth)
    app.router.add_post("/token", provider.token)
    async with TestServer(app) as server:
        provider.url = str(server.make_url("")).rstrip("/")
        sign_in = {"issuer": provider.url, "client_id": "walras", **settings}
        async with facing(tmp_path, cluster={"pools": [POOL], "sign_in": sign_in}) as face:
            body = {"name": "ada@example.org", "settings": {"role": "operator", "projects": ["vision"]}}
            assert (await face.call("POST", "/api/v1/users", body)).status in (200, 201)
            yield provider, face
