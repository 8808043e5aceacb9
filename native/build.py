"""Builds the interposer with the compiler of the machine; the hook of the wheel that does so.

`python native/build.py` builds it into the source tree. Without a compiler the wheel has none:
Presage works, and says what to do when somebody asks for enforced shares. It must not decide what
is enforced.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LIBRARY = "libpresage-share.so.1"
TARGET = HERE.parent / "src/presage/executors/node/shares" / LIBRARY
FLAGS = (
    *("-std=gnu11", "-O2", "-fPIC", "-shared", "-pthread"),
    *("-fvisibility=hidden", "-Wall", "-Wextra"),
)


def compile_library(target: Path) -> str | None:
    """Build it there; what is wrong if that is not possible."""
    if not sys.platform.startswith("linux"):
        return "it is for Linux"
    compiler = shlex.split(os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc") or "")
    if not compiler:
        return "there is no C compiler: install gcc and libc6-dev"
    sources = [str(path) for path in sorted(HERE.glob("*.c"))]
    fresh = target.with_suffix(f".{os.getpid()}")
    command = [*compiler, *FLAGS, *sources, "-o", str(fresh), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        first = next(
            (line for line in done.stderr.splitlines() if "error" in line), "no reason given"
        )
        return f"{compiler[0]} failed: {first}"
    fresh.replace(target)
    return None


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # not part of a build
    pass
else:

    class NativeHook(BuildHookInterface):
        """Puts the library into the wheel."""

        PLUGIN_NAME = "custom"

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Build it before the wheel is put together."""
            if self.target_name != "wheel":
                return
            problem = compile_library(TARGET)
            if problem:
                self.app.display_warning(
                    f"GPU shares cannot be enforced with this wheel: {problem}"
                )
                return
            build_data["artifacts"].append(str(TARGET.relative_to(HERE.parent)))
            if version != "editable":
                platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
                build_data["pure_python"] = False
                build_data["tag"] = f"py3-none-{platform}"


if __name__ == "__main__":
    sys.exit(compile_library(TARGET))
