"""Single sign-on against a provider of our own on loopback: page, command, and every token that is not right."""

import asyncio
import base64
import json
import threading
import time
import urllib.request
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.http_face import Face, facing
from tests.support.sign_on_provider import KEY, NONCE, POOL, provider_and_face
from walras.cli.login import sign_in
from walras.errors import ConfigError, UserError
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import check_model

PATH, PAGE = "/web/sign-on", {"X-Walras-Page": "1"}
OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
VERIFIER, BACK = "v" * 43, "http://127.0.0.1:1/"


async def come_back(face: Face, **changes: Any) -> tuple[int, dict[str, Any]]:
    body = {"code": "good", "verifier": VERIFIER, "nonce": NONCE, "redirect_uri": BACK, **changes}
    response = await face.client.post(PATH, json=body, headers=PAGE)
    return response.status, await response.json()


async def test_who_signs_in_is_the_user_of_that_name(tmp_path: Path) -> None:
    """Role and projects are those of the table; the page gets a cookie, a command a token for twelve hours."""
    async with provider_and_face(tmp_path) as (provider, face):
        facts = await (await face.client.get(PATH)).json()
        assert facts["authorization_endpoint"] == f"{provider.url}/auth"
        assert await come_back(face) == (200, {"signed_in": True})
        who = (await (await face.client.get("/web/session")).json())["user"]
        assert who == {"user": "ada@example.org", "role": "operator", "projects": ["vision"]}
        status, made = await come_back(face, token=True)
        assert status == 200
        assert (await face.got("/whoami", token=made["token"]))["user"] == "ada@example.org"
        assert provider.forms[-1]["code_verifier"] == VERIFIER
        made_by = {each["created_by"] for each in (await face.got("/tokens"))["items"]}
        assert "sign-on" in made_by
        (_, signed) = await face.got("/audit?user=ada@example.org")
        assert (signed["action"], signed["role"]) == ("POST /web/sign-on", "operator")
        assert signed["subject"].startswith("token wlr_u_")


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "issuer": ({"iss": "https://evil.example"}, "not valid"), "audience": ({"aud": "another"}, "not valid"),
    "several audiences": ({"aud": ["walras", "another"]}, "another client"),
    "party": ({"azp": "another"}, "another client"), "nonce": ({"nonce": "m" * 43}, "another sign-in"),
    "no nonce": ({"nonce": None}, "not valid"), "expired": ({"exp": 1}, "not valid"),
    "no expiry": ({"exp": None}, "not valid"), "of the future": ({"iat": int(time.time()) + 10_000}, "not valid"),
    "unknown user": ({"email": "eve@example.org"}, "no user"),
    "unverified": ({"email_verified": False}, "not verified"),
    "nobody said verified": ({"email_verified": None}, "not verified"),
    "a list for a name": ({"email": ["ada@example.org"]}, "no claim"), "no name": ({"email": None}, "no claim"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
async def test_claims_that_are_not_right_open_nothing(what: str, tmp_path: Path) -> None:
    claims, why = HOSTILE[what]
    async with provider_and_face(tmp_path) as (provider, face):
        provider.claims = claims
        status, told = await come_back(face)
        assert status == 403
        assert why in told["detail"], told
        assert not (await (await face.client.get("/web/session")).json())["signed_in"]


def _hmac_with_public_key(claims: dict[str, Any]) -> str:
    """The old confusion: the public key as a secret."""
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"k","typ":"JWT"}').rstrip(b"=")
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=")
    return (head + b"." + body + b"." + base64.urlsafe_b64encode(b"x" * 32).rstrip(b"=")).decode()


SIGNED: dict[str, Callable[[dict[str, Any]], str]] = {
    "another key": lambda claims: jwt.encode(claims, OTHER_KEY, "RS256", headers={"kid": "k"}),
    "an unknown key": lambda claims: jwt.encode(claims, KEY, "RS256", headers={"kid": "other"}),
    "no signature": lambda claims: jwt.encode(claims, "", "none", headers={"kid": "k"}),
    "a symmetric key": _hmac_with_public_key,
    "nothing": lambda _: "",
    "no token": lambda _: "a.b.c",
}


@pytest.mark.parametrize("how", SIGNED)
async def test_a_token_that_the_provider_did_not_sign_opens_nothing(how: str, tmp_path: Path) -> None:
    async with provider_and_face(tmp_path) as (provider, face):
        provider.sign = SIGNED[how]
        assert (await come_back(face))[0] == 403


async def test_a_code_without_its_verifier_or_header_and_odd_bodies_open_nothing(tmp_path: Path) -> None:
    """PKCE: the provider refuses another verifier. Bodies that are none are refused in words."""
    async with provider_and_face(tmp_path) as (provider, face):
        provider.challenge = "of another verifier"
        assert (await come_back(face))[0] == 403
        provider.challenge = ""
        assert (await come_back(face, code="stolen"))[0] == 403
        assert (await come_back(face, redirect_uri="http://lab.example/"))[0] == 403
        for changes in ({"nonce": ""}, {"verifier": 3}, {"more": 1}, {"code": "x" * 5000}):
            assert (await come_back(face, **changes))[0] == 403
        bare = await face.client.post(PATH, json={"code": "good", "verifier": VERIFIER, "nonce": NONCE})
        assert bare.status == 403
        assert (await face.client.post(PATH, data=b"[" * 5000, headers=PAGE)).status == 403
        provider.status = 302
        assert (await come_back(face))[0] == 403


@pytest.mark.parametrize(
    "facts",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": "http://evil.example/"},
        {"jwks_uri": "file:///etc/passwd"},
    ],
)
async def test_a_provider_that_is_another_or_unsafe_is_refused(facts: dict[str, str], tmp_path: Path) -> None:
    async with provider_and_face(tmp_path) as (provider, face):
        provider.facts = facts
        assert (await face.client.get(PATH)).status == 403
        assert (await come_back(face))[0] == 403


@pytest.mark.parametrize("issuer", ["http://login.example", "ftp://x", "http://127.0.0.1.evil.example", ""])
def test_an_issuer_that_others_could_read_is_refused(issuer: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_model(ClusterConfig, {"pools": [POOL], "sign_in": {"issuer": issuer, "client_id": "w"}}, source="file")
    assert refused.value.field == "sign_in.issuer"


async def test_without_a_provider_there_is_none(tmp_path: Path) -> None:
    async with facing(tmp_path) as face:
        assert await (await face.client.get(PATH)).json() == {}
        assert await come_back(face) == (200, {})


@pytest.mark.timeout(120)
async def test_the_command_signs_in_through_loopback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What another page sends to its port is passed over; the token opens the server, in a file of its owner alone."""
    visits: list[threading.Thread] = []

    def browse(address: str) -> bool:
        back = parse_qs(urlsplit(address).query)["redirect_uri"][0]

        def visit() -> None:
            for page in (f"{back}?state=another&code=bad", address):
                urllib.request.urlopen(page, timeout=60).read()

        visits.append(threading.Thread(target=visit))
        visits[0].start()
        return True

    path = tmp_path / "below" / "token"
    monkeypatch.setattr(webbrowser, "open", browse)
    monkeypatch.setenv("WALRAS_TOKEN_FILE", str(path))
    async with provider_and_face(tmp_path) as (_, face):
        monkeypatch.setenv("WALRAS_SERVER", str(face.client.make_url("")))
        await asyncio.to_thread(sign_in)
        await asyncio.to_thread(visits[0].join)
        token = path.read_text().strip()
        assert (await face.got("/whoami", token=token))["user"] == "ada@example.org"
    assert path.stat().st_mode & 0o777 == 0o600


async def test_the_command_sends_nothing_where_others_could_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALRAS_SERVER", "http://walras.example:8080")
    with pytest.raises(UserError, match="TLS or loopback"):
        sign_in()
