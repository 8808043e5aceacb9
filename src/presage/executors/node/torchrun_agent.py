"""One torchrun agent of an elastic job: PyTorch's own, told by the guardian who takes part.

The guardian puts a copy of this file into the run and starts it with the Python of the job, so it
imports PyTorch and nothing of Presage. Membership is not discovered by timeouts but read from
`members.json` there, and a worker that is a Python script is forked from the agent, which has
PyTorch loaded already. So a change of size takes a second or two instead of ten. Stopping,
starting and ranking workers is torchrun's own.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.pop(0)  # the directory of this file, which is no place to import from

from torch.distributed import FileStore
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

_LOOK_S = 0.05


class GuardianRendezvous(RendezvousHandler):  # type: ignore[misc]  # PyTorch is not looked into
    """A rendezvous of those whom the guardian named, under a number that grows with each
    change."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        self._place = Path(parameters.endpoint)
        self._id = parameters.run_id
        self._local = parameters.local_addr
        self._member: str = parameters.get("member")
        self._joined = -1

    def get_backend(self) -> str:
        """The name of this rendezvous."""
        return "presage"

    def get_run_id(self) -> str:
        """Job and attempt."""
        return str(self._id)

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait to be named in a newer list than the last one, then for the others on it."""
        self._say("ready", self._joined)
        named = self._read()
        while named["number"] <= self._joined or self._member not in named["members"]:
            time.sleep(_LOOK_S)
            named = self._read()
        number, members = named["number"], named["members"]
        rank, size = members.index(self._member), len(members)
        store = FileStore(str(self._place / named["store"]), size)
        meeting_point = RendezvousStoreInfo.build(rank, store, self._local)
        os.environ["PRESAGE_RANK"], os.environ["PRESAGE_WORKERS"] = str(rank), str(size)
        self._joined = number
        self._say("joined", number)
        return RendezvousInfo(store, rank, size, meeting_point)

    def num_nodes_waiting(self) -> int:
        """More than 0 when there is a newer list: the agent then stops its worker and comes to the
        next rendezvous."""
        return max(0, int(self._read()["number"]) - self._joined)

    def is_closed(self) -> bool:
        """Never: the guardian ends agents."""
        return False

    def set_closed(self) -> None:
        """Nothing to do."""

    def shutdown(self) -> bool:
        """Nothing is held."""
        return True

    def _read(self) -> dict[str, Any]:
        named: dict[str, Any] = json.loads((self._place / "members.json").read_bytes())
        return named

    def _say(self, what: str, number: int) -> None:
        new = self._place / f"{what}-{self._member}.new"
        new.write_text(json.dumps({"number": number}))
        new.replace(self._place / f"{what}-{self._member}")


def python_script(command: str, arguments: list[str]) -> list[str] | None:
    """The script, or `-m` and the module, and its arguments; None if a command is anything but a
    plain call of Python."""
    if not re.fullmatch(r"python[\d.]*", Path(command).name):
        return None
    rest = arguments[1:] if arguments[:1] == ["-u"] else arguments
    if rest[:1] == ["-m"]:
        return rest if len(rest) > 1 else None
    return rest if rest and not rest[0].startswith("-") else None


def run_python(*command: str) -> None:
    """Be a worker: run a script or module as `python` would. In a process that was just forked."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    logging.disable(logging.NOTSET)
    try:
        if command[0] == "-m":
            sys.argv, sys.path[0:0] = list(command[1:]), [str(Path.cwd())]
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0:0] = list(command), [str(Path(command[0]).resolve().parent)]
            runpy.run_path(command[0], run_name="__main__")
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()  # a forked process leaves them out


def main(arguments: list[str]) -> None:
    """Be the agent, and end as the worker ended."""
    logging.disable(logging.ERROR)  # the log is the worker's
    rendezvous_handler_registry.register("presage", GuardianRendezvous)
    config, command, words = config_from_args(parse_args(arguments))
    script = python_script(command, words)
    if script is not None:
        config.start_method = "fork"
        command, words = run_python, script
    try:
        elastic_launch(config, command)(*words)
    except SignalException as stopped:
        sys.exit(128 + stopped.sigval)
    except ChildFailedError as failed:
        code: int = failed.get_first_failure()[1].exitcode
        if code >= 0:
            sys.exit(code)
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main(sys.argv[1:])
