"""Whose certificates are believed: those of the system, or of the CA that `PRESAGE_CA` names."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from presage.model.errors import UserError

__all__ = ["distrust", "trusted"]


def trusted() -> ssl.SSLContext | bool:
    """What httpx takes as `verify`. Without `PRESAGE_CA` it goes by `SSL_CERT_FILE` and the
    system."""
    named = os.environ.get("PRESAGE_CA")
    if not named:
        return True
    path = Path(named).expanduser()
    try:
        if path.is_dir():
            return ssl.create_default_context(capath=str(path))
        return ssl.create_default_context(cafile=str(path))
    except (OSError, ssl.SSLError) as error:
        says = getattr(error, "strerror", None) or str(error)
        raise UserError(f"PRESAGE_CA {named} is no file of certificates in PEM: {says}") from None


def distrust(error: BaseException) -> str:
    """What is wrong with a certificate, if that is what an error is about; else nothing."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause.verify_message or "certificate verify failed"
        cause = cause.__cause__ or cause.__context__
    return ""
