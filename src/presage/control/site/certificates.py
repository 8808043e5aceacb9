"""Certificates: checked before anything is opened, and read again when somebody renewed them."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from presage.model.errors import UserError

__all__ = ["check_certificate", "reloader"]

log = logging.getLogger("presage.server")


def check_certificate(cert: Path, key: Path) -> None:
    """Refuse files that are no certificate and its key."""
    for name, path in (("--tls-cert", cert), ("--tls-key", key)):
        try:
            path.read_bytes()
        except OSError as error:
            raise UserError(f"{name} {path} cannot be read: {error.strerror or error}") from None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, _no_password)
    except (ssl.SSLError, ValueError, UserError) as error:
        says = str(error) if isinstance(error, UserError) else _says(error)
        raise UserError(
            f"--tls-cert {cert} and --tls-key {key} are no certificate and its key in PEM: {says}"
        ) from None


def reloader(context: ssl.SSLContext, cert: Path, key: Path) -> Callable[[], None]:
    """What reads both files again: new connections get the new certificate, old ones go on. Files
    that are broken change nothing."""

    def reload() -> None:
        try:
            check_certificate(cert, key)
            context.load_cert_chain(cert, key, _no_password)
        except (UserError, ssl.SSLError, OSError) as error:
            log.error("the certificate was not read again: %s", error)
        else:
            log.info("read %s again", cert)

    return reload


def _no_password() -> str:
    raise UserError("the key has a password; store it without one, readable by the server alone")


def _says(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error) or type(error).__name__
