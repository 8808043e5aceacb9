"""Workers in containers: the command that runs one, and what its engine (podman or docker) knows.

Guardians import this: standard library only, and what starts processes where it is used.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from presage.executors.node.messages import RunPlan
    from presage.executors.node.runspec import RoleSpec

__all__ = [
    "beside",
    "fetch_image",
    "find_engine",
    "in_container",
    "inner_pid",
    "ran_out",
    "remove",
]

_ENGINE_S = 60.0
_INIT = ("/usr/libexec/podman/catatonit", "/usr/bin/catatonit", "/usr/lib/podman/catatonit")
"""Where podman looks for the program that is the first process of a container."""


def find_engine() -> str | None:
    """The program that runs containers on this machine."""
    import shutil

    return shutil.which("podman") or shutil.which("docker")


def in_container(
    plan: RunPlan,
    role: RoleSpec,
    container: str,
    variables: Sequence[str],
    argv: Sequence[str],
    devices: str,
    console: str = "",
) -> tuple[str, ...]:
    """The command that runs a worker in a container. Paths are the same inside and outside, and
    only the names of variables stand on the command line."""
    assert plan.engine is not None
    assert plan.image is not None
    command = [plan.engine, "run", "--name", container, "--network", "host", "--ipc", "host"]
    command += ["--stop-timeout", "0"]  # whoever has to go was asked before
    command += ["--interactive"] * bool(console) + ["--tty"] * (console == "tty")
    command += _as_this_user(plan.engine)
    own = (plan.work, plan.data_dir, plan.result_dir, plan.checkpoint_dir, plan.progress_dir)
    local = [url for url in plan.data.values() if url.startswith(("/", "file:///"))]
    for path in (*map(str, own), *(url.removeprefix("file://") for url in local)):
        command += ["--volume", f"{path}:{path}"]
    command += ["--workdir", str(plan.work)]
    if role.memory_mib:
        limit = f"{role.memory_mib}m"
        command += ["--memory", limit, "--memory-swap", limit]
    if role.cpus:
        command += ["--cpus", f"{role.cpus:g}"]
    if devices and Path("/dev/nvidiactl").exists():
        command += ["--gpus", f'"device={devices}"']
    for name in variables:
        command += ["--env", name]
    return (*command, plan.image, *argv)


def beside(
    engine: str,
    container: str,
    work: Path,
    variables: Sequence[str],
    argv: Sequence[str],
    *,
    tty: bool,
) -> tuple[str, ...]:
    """The command that runs another one in the container of a worker."""
    command = [engine, "exec", "--interactive", *(["--tty"] if tty else [])]
    command += ["--workdir", str(work)]
    for name in variables:
        command += ["--env", name]
    return (*command, container, *argv)


def _as_this_user(engine: str) -> list[str]:
    """Files that a worker writes belong to whoever runs the server; and the program is not the
    first process of its container, where a SIGTERM that it does not handle would be ignored."""
    if Path(engine).name != "podman":
        return ["--user", f"{os.getuid()}:{os.getgid()}", "--init"]
    has_init = any(map(os.path.exists, _INIT))
    return ["--userns", "keep-id"] * (os.getuid() != 0) + ["--init"] * has_init


def fetch_image(engine: str, image: str) -> str | None:
    """Have an image on this machine; the reason if that is not to be."""
    import subprocess

    have = subprocess.run([engine, "image", "inspect", image], capture_output=True, check=False)
    if have.returncode == 0:
        return None
    pull = subprocess.run([engine, "pull", image], capture_output=True, text=True, check=False)
    if pull.returncode == 0:
        return None
    said = pull.stderr.strip().splitlines() or ["no reason given"]
    return f"{Path(engine).name} cannot fetch image {image}: {said[-1]}"


def inner_pid(engine: str, container: str) -> int:
    """The first process of a container as this machine numbers it; 0 while there is none."""
    said = _ask(engine, "inspect", "--format", "{{.State.Pid}}", container).strip()
    return int(said) if said.isdigit() else 0


def ran_out(engine: str, container: str) -> bool:
    """Whether a container was ended because it needed more memory than it may use."""
    said = _ask(engine, "inspect", "--format", "{{.State.OOMKilled}}", container)
    return said.strip() == "true"


def remove(engine: str, containers: Sequence[str]) -> None:
    """End containers and free their names."""
    if containers:
        _ask(engine, "rm", "--force", *containers)


def _ask(engine: str, *arguments: str) -> str:
    import subprocess

    with suppress(OSError, subprocess.SubprocessError):
        command = [engine, *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ENGINE_S, check=False
        )
        return done.stdout
    return ""
