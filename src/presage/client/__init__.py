"""A typed client of the HTTP API: what the command line uses, and scripts can.

    import presage

    with presage.Client() as server:                # PRESAGE_URL, PRESAGE_TOKEN
        job = server.submit("train/presage.yaml")
        print(job.wait().status)

Answers are the values of `presage.model.answers`. A server that is starting or changing over is
asked again for a while (retry with backoff; PRESAGE_WAIT_S, 10 seconds unless set); a request that
could have been done twice carries an idempotency key that makes it once.
"""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

from presage.client._answers import to_json
from presage.client._arrays import ArrayHandle
from presage.client._folder import FolderSurvey, pack_folder, survey_folder
from presage.client._http import DEFAULT_URL
from presage.client._server import Client, JobHandle

if TYPE_CHECKING:
    from presage.client._attach import Attached, Input, open_socket

__all__ = [
    "DEFAULT_URL",
    "ArrayHandle",
    "Attached",
    "Client",
    "FolderSurvey",
    "Input",
    "JobHandle",
    "open_socket",
    "pack_folder",
    "submit",
    "survey_folder",
    "to_json",
]


def submit(manifest: str | PathLike[str], *, folder: bool = True) -> JobHandle:
    """Submit a manifest, and with it a copy of the folder it is in, to the server of PRESAGE_URL
    with PRESAGE_TOKEN, as `presage submit` does."""
    return Client().submit(manifest, folder=folder)


def __getattr__(name: str) -> Any:
    """What attaches to jobs is imported when it is used."""
    if name in ("Attached", "Input", "open_socket"):
        from presage.client import _attach

        return getattr(_attach, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
