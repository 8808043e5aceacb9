"""What a worker's environment needs so that its share is enforced, and the daemon that does it.

Nothing here decides or measures; it finds the library, says what is missing, and starts a process.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from presage.executors.node.shares.terms import call, socket_path
from presage.executors.node.shares.turns import ShareTerms
from presage.model.errors import RunSpecError

__all__ = ["ShareService", "library", "share_environment"]

_LIBRARY = Path(__file__).with_name("libpresage-share.so.1")


def library() -> Path:
    """The interposer; raises RunSpecError where it was not built."""
    path = Path(os.environ.get("PRESAGE_SHARE_LIBRARY") or _LIBRARY)
    if not path.is_file():
        raise RunSpecError(
            "GPU shares cannot be enforced here: Presage was installed without a C compiler; "
            "install gcc and libc6-dev and reinstall it, or ask for gpus: instead of gpu:"
        )
    return path


def share_environment(
    home: Path | None, name: str, terms: ShareTerms, image: str | None, env: Mapping[str, str]
) -> dict[str, str]:
    """What makes a worker's programs take turns. Raises RunSpecError where that cannot be done."""
    if home is None:
        raise RunSpecError(
            "the manifest asks for gpu: with a limit, which only `--executor local` enforces; "
            "ask for gpus: instead"
        )
    if image:
        raise RunSpecError(
            "GPU shares are not enforced in containers: name an environment instead of an image, "
            "or ask for gpus: instead of gpu:"
        )
    before = env.get("LD_PRELOAD")
    return {
        "LD_PRELOAD": f"{library()} {before}" if before else str(library()),
        "PRESAGE_SHARE": name,
        "PRESAGE_SHARE_SOCKET": str(socket_path(home)),
        "PRESAGE_SHARE_MEMORY": str(terms.memory),
    }


class ShareService:
    """The share daemon of a directory, as its executor sees it: there when it is needed."""

    def __init__(self, home: Path, python: str) -> None:
        self.home, self._python = home, python
        self._process: subprocess.Popen[bytes] | None = None

    def ensure(self) -> None:
        """Start it unless it runs; one that another executor left is as good."""
        if self._process is not None and self._process.poll() is None:
            return
        if call(self.home, {"ask": "status"}, 0.5) is not None:
            return
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / "daemon.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._python, "-m", "presage", "share", "serve", "--home", str(self.home)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def revive(self) -> None:
        """Start it again if it died."""
        if self._process is not None and self._process.poll() is not None:
            self.ensure()

    def close(self, keep: bool) -> None:
        """Let go; end it unless jobs still use it."""
        if self._process is None:
            return
        if keep:
            self._process.returncode = 0  # nobody waits for it: it outlives us
            return
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
