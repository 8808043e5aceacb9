"""A small identity provider on loopback: real HTTP, real RSA keys, PKCE and secrets checked.

Whoever opens its page is signed in as `person`; `spoil` changes what it says in an ID token, so
that a test can see it refused.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import KeySet, OctKey, RSAKey

__all__ = ["CLIENT", "SECRET", "Provider"]

CLIENT, SECRET = "presage", "the-secret-of-the-client"


@cache
def _key() -> RSAKey:
    """One for all: to make one takes a while."""
    return RSAKey.generate_key(2048, {"kid": "1"})


class Provider:
    """One that runs until it is closed."""

    def __init__(self) -> None:
        self.keys: list[Any] = [_key()]
        self.signed_with: Any = self.keys[0]
        self.header = {"alg": "RS256", "kid": "1"}
        self.person: dict[str, Any] = {}
        self.spoil: Callable[[dict[str, Any]], object] = lambda claims: None
        self._codes: dict[str, dict[str, str]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.issuer = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()

    def get(self, path: str, query: dict[str, str]) -> tuple[int, Any]:
        """A page, or where to go."""
        if path == "/.well-known/openid-configuration":
            named = ("authorization_endpoint", "token_endpoint", "jwks_uri")
            ends = zip(named, ("authorize", "token", "keys"), strict=True)
            return 200, {"issuer": self.issuer, **{n: f"{self.issuer}/{e}" for n, e in ends}}
        if path == "/keys":
            return 200, KeySet(self.keys).as_dict(private=False)
        assert path == "/authorize", path
        assert (query["client_id"], query["response_type"]) == (CLIENT, "code")
        assert query["code_challenge_method"] == "S256"
        assert "openid" in query["scope"].split()
        code = secrets.token_urlsafe(16)
        self._codes[code] = query
        answer = urlencode({"code": code, "state": query["state"]})
        return 302, f"{query['redirect_uri']}?{answer}"

    def post(self, path: str, form: dict[str, str], authorization: str) -> tuple[int, Any]:
        """A token for a code, once."""
        assert path == "/token", path
        known = "Basic " + base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if authorization != known:
            return 401, {"error": "invalid_client"}
        asked = self._codes.pop(form["code"], None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if (
            asked is None
            or asked["redirect_uri"] != form["redirect_uri"]
            or asked["code_challenge"] != challenge
        ):
            return 400, {"error": "invalid_grant"}
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 300}
        claims |= {"nonce": asked["nonce"], **self.person}
        self.spoil(claims)
        token = jwt.encode(dict(self.header), claims, self.signed_with)
        body = {"access_token": "x", "token_type": "Bearer", "id_token": token}
        return 200, body

    def shared_secret(self) -> None:
        """Sign with a secret, not with a key pair."""
        self.signed_with = OctKey.import_key(SECRET * 2)
        self.header = {"alg": "HS256", "kid": "1"}


def _handler(provider: Provider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            self._answer(*provider.get(parts.path, query))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            authorization = self.headers.get("Authorization", "")
            self._answer(*provider.post(self.path, form, authorization))

        def _answer(self, status: int, said: Any) -> None:
            text = b"" if status == 302 else json.dumps(said).encode()
            self.send_response(status)
            if status == 302:
                self.send_header("Location", said)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

    return Handler
