"""`presage login` and `logout`: a token for a server, kept in the user's configuration.

With an identity provider, a browser is sent there and comes back to a listener on loopback that
lives for this one sign-in. Else a token is read and kept.
"""

from __future__ import annotations

import sys
import time
import webbrowser
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Annotated
from urllib.parse import parse_qs, urlsplit

import typer

from presage.cli._output import print_json, say
from presage.client import Client
from presage.client._tokens import keep_token, stored_token, tokens_file
from presage.model.errors import ApiError, UserError

__all__ = ["login", "logout"]

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
_PATIENCE_S = 600.0


def login(
    with_token: Annotated[
        bool, typer.Option("--with-token", help="Read a token (stdin) instead of signing in.")
    ] = False,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open a browser, or print the address.")
    ] = True,
    json: Json = False,
) -> None:
    """Sign in to the server of PRESAGE_URL; what lets you in is kept for later commands."""
    with Client() as client:
        url = client.url
        if with_token or not client.sign_in_offer().oidc:
            token = _ask_for_token()
        else:
            token = _sign_in(client, browser)
    with Client(url, token) as client:
        me = client.me()
    keep_token(url, token)
    if json:
        print_json({"url": url, "name": me.name, "role": me.role, "team": me.team})
        return
    typer.echo(f"{me.name} ({me.role}) at {url}")
    say(f"kept in {tokens_file()}; PRESAGE_TOKEN, where it is set, comes first")


def logout(json: Json = False) -> None:
    """Forget the token for the server of PRESAGE_URL, here and there."""
    with Client() as client:
        url = client.url
    token = stored_token(url)
    if token is None:
        raise UserError(f"no token is kept for {url}")
    revoked = True
    try:
        with Client(url, token) as client:
            client.sign_out()
    except ApiError as error:
        if error.status != 401:
            raise
        revoked = False  # it was not good any more
    keep_token(url, None)
    if json:
        print_json({"url": url, "revoked": revoked})
    else:
        typer.echo(f"logged out of {url}")


def _ask_for_token() -> str:
    if sys.stdin.isatty():
        token: str = typer.prompt("Token", hide_input=True, err=True)
    else:
        token = sys.stdin.readline()
    if not token.strip():
        raise UserError("no token was given: an admin makes one with `presage users token NAME`")
    return token.strip()


class _Listener(HTTPServer):
    """Waits for the browser to come back."""

    answer: dict[str, list[str]] | None = None


class _BackFromProvider(BaseHTTPRequestHandler):
    server: _Listener

    def do_GET(self) -> None:
        """The browser is back with the provider's answer."""
        parts = urlsplit(self.path)
        is_callback = parts.path == "/callback"
        if is_callback:
            self.server.answer = parse_qs(parts.query, max_num_fields=20)
        text = b"You can close this window and go back to the terminal." if is_callback else b""
        self.send_response(200 if is_callback else 404)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: the address holds a code."""


def _sign_in(client: Client, browser: bool) -> str:
    with _Listener(("127.0.0.1", 0), _BackFromProvider) as listener:
        begun = client.begin_sign_in(f"http://127.0.0.1:{listener.server_port}/callback")
        if not (browser and webbrowser.open(begun.url)):
            say(f"open this address in a browser on this machine:\n{begun.url}")
        until = time.monotonic() + _PATIENCE_S
        while listener.answer is None and (left := until - time.monotonic()) > 0:
            listener.timeout = left
            listener.handle_request()
        answer = listener.answer
    if answer is None:
        raise UserError("nobody signed in within ten minutes: begin again")
    if "error" in answer:
        raise UserError(f"the identity provider refused: {answer['error'][0][:200]}")
    state, code = (answer.get(name, [""])[0] for name in ("state", "code"))
    if not state or not code:
        raise UserError("the identity provider sent no code: begin again")
    return client.finish_sign_in(begun.ticket, state, code).token
