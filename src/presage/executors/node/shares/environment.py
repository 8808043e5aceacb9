"""What a worker's environment needs so that its share is enforced, and the daemon that does it.

Nothing here decides or measures; it finds the library, says what is missing, and starts a process.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from presage.executors.node.runspec import RoleSpec, RunSpec
from presage.executors.node.shares.methods import (
    EnforcementMethod,
    ShareSetup,
    check_guarantees,
    pick_slice,
)
from presage.executors.node.shares.terms import (
    call,
    read_terms,
    remove_terms,
    shares_of,
    socket_path,
    write_terms,
)
from presage.executors.node.shares.turns import ShareTerms
from presage.model.cluster import Worker
from presage.model.errors import RunSpecError

__all__ = ["ShareService", "library", "share_environment"]

Variables: TypeAlias = dict[str, str]

_LIBRARY = Path(__file__).with_name("libpresage-share.so.1")
_STARTED = "daemon.pid"
"""In the directory of shares: the daemon that an executor started."""


def library() -> Path:
    """The interposer; raises RunSpecError where it was not built."""
    path = Path(os.environ.get("PRESAGE_SHARE_LIBRARY") or _LIBRARY)
    if not path.is_file():
        raise RunSpecError(
            "GPU shares cannot be enforced here: Presage was installed without a C compiler; "
            "install gcc and libc6-dev and reinstall it, or ask for gpus: instead of gpu:"
        )
    return path


def share_environment(home: Path, name: str, terms: ShareTerms, preload: str | None) -> Variables:
    """What makes a worker's programs take turns from Presage's own daemon."""
    return {
        "LD_PRELOAD": f"{library()} {preload}" if preload else str(library()),
        "PRESAGE_SHARE": name,
        "PRESAGE_SHARE_SOCKET": str(socket_path(home)),
        "PRESAGE_SHARE_MEMORY": str(terms.memory),
    }


class ShareService:
    """The shares of a machine, as its executor sees them; the daemon is there when needed."""

    def __init__(self, home: Path, python: str, setup: ShareSetup | None = None) -> None:
        self.home, self._python = home, python
        self.setup = setup or ShareSetup()
        self._process: subprocess.Popen[bytes] | None = None
        self._earlier = self._started()
        self._slices: dict[str, str] = {}
        """MIG slices in use, by the share that has each."""

    @property
    def own(self) -> bool:
        """Whether Presage's own daemon enforces shares."""
        return self.setup.method is EnforcementMethod.PRESAGE

    def has_room(self, spec: RunSpec, workers: Sequence[Worker]) -> bool:
        """Whether there is a slice now for each worker that is to get one."""
        taken = set(self._slices.values())
        for worker in workers if self.setup.method is EnforcementMethod.MIG else ():
            terms = spec.roles[worker.role].share
            if terms is not None and worker.devices and self.setup.slices:
                chosen = pick_slice(self.setup.slices, taken, worker.devices[0], terms)
                if chosen is None:
                    return False
                taken.add(chosen.uuid)
        return True

    def open(
        self, name: str, role: RoleSpec, spec: RunSpec, devices: Sequence[int], uid: int | None
    ) -> Variables:
        """Say what the share of a worker is worth before anybody uses it; the environment that
        its programs need. Raises RunSpecError where that cannot be enforced."""
        assert role.share is not None
        check_guarantees(role.guarantees, self.setup.gives, f"shares by {self.setup.method}")
        if spec.image:
            raise RunSpecError(
                "GPU shares are not enforced in containers: name an environment instead of an "
                "image, or ask for gpus: instead of gpu:"
            )
        terms, preload = replace(role.share, uid=uid), spec.env.get("LD_PRELOAD")
        if self.own:
            variables = share_environment(self.home, name, terms, preload)
            if read_terms(self.home, name) is None:  # else it may have been changed since
                write_terms(self.home, name, terms)
            self.ensure()
            return variables
        taken = {uuid for share, uuid in self._slices.items() if share != name}
        variables = self.setup.environment(name, terms, devices, preload, taken, self.home)
        self.known(name, variables)
        self.home.mkdir(parents=True, exist_ok=True)
        return variables

    def known(self, name: str, env: Mapping[str, str]) -> None:
        """A worker that runs has a share in this environment."""
        if self.setup.method is EnforcementMethod.MIG:
            self._slices[name] = env["CUDA_VISIBLE_DEVICES"]

    def change(self, name: str, limit: float | None, memory: int | None) -> None:
        """Hold a share to another limit, or to other memory, from now on; None as before."""
        terms = read_terms(self.home, name)
        if terms is None:
            return
        limit = terms.limit if limit is None else max(limit, terms.request)
        memory = terms.memory if memory is None else memory
        changed = replace(terms, limit=limit, memory=memory)
        if changed != terms:
            write_terms(self.home, name, changed)
            call(self.home, {"ask": "reload"}, 0.5)

    def end(self, prefix: str) -> None:
        """Shares whose names begin so are over."""
        for name in shares_of(self.home, prefix):
            remove_terms(self.home, name)
        for name in [name for name in self._slices if name.startswith(prefix)]:
            del self._slices[name]
        for path in self.home.glob(f"{prefix}*.hami"):
            path.unlink(missing_ok=True)

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
        (self.home / _STARTED).write_text(str(self._process.pid))

    def revive(self) -> None:
        """Start it again if it died; that which an executor before us kept, if it has shares."""
        if self._process is not None:
            if self._process.poll() is not None:
                self.ensure()
        elif self._earlier is not None and not Path(f"/proc/{self._earlier}").exists():
            self._earlier = None
            if shares_of(self.home):
                self.ensure()

    def close(self, keep: bool) -> None:
        """Let go; end it unless jobs still use it."""
        if self._process is None:
            if not keep:
                self._end_earlier()
            return
        if keep:
            self._process.returncode = 0  # nobody waits for it: it outlives us
            return
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)

    def _end_earlier(self) -> None:
        status = call(self.home, {"ask": "status"}, 0.5) if self._earlier is not None else None
        if status is not None and status["pid"] == self._earlier:  # not one that people run
            with suppress(OSError):
                os.kill(status["pid"], signal.SIGTERM)

    def _started(self) -> int | None:
        with suppress(OSError, ValueError):
            return int((self.home / _STARTED).read_text())
        return None
