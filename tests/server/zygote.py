"""A process that has imported everything and forks a `presage` command when it is told to.

The commands are processes of their own, with their own environment, output and signals; only their
second of imports is saved. Run as a script: JSON lines in, PIDs out.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn


def _be(wanted: dict[str, Any]) -> NoReturn:
    """Become the command; its exit code goes to a file, since this is not its reader's child."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.environ.clear()
    os.environ.update(wanted["env"])
    os.chdir(wanted["cwd"])
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for number, name in ((0, os.devnull), (1, wanted["out"]), (2, wanted["err"])):
        file = os.open(name, os.O_RDONLY if number == 0 else flags, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.argv = ["presage", *wanted["argv"]]
    code = 1
    try:
        from presage.cli.main import main

        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    Path(wanted["out"] + ".code").write_text(str(code))
    os._exit(code)


def main() -> None:
    import httptools
    import psycopg
    import uvicorn.lifespan.on
    import uvicorn.loops.uvloop
    import uvicorn.protocols.http.httptools_impl
    import uvloop

    import presage.cli.main
    import presage.server.app
    import presage.web.pages

    assert all((httptools, psycopg, uvicorn, uvloop, presage))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _be(json.loads(line))
        print(child, flush=True)


if __name__ == "__main__":
    main()
