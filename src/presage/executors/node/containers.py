"""Workers in containers: the command that runs one, and what its engine (podman or docker) knows.

Guardians import this: standard library only, and what starts processes where it is used.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from presage.model.errors import RunSpecError

if TYPE_CHECKING:
    from presage.executors.node.messages import RunPlan, UnixUser
    from presage.executors.node.runspec import RoleSpec

__all__ = [
    "ask_to_stop",
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
    if plan.image.startswith("-"):
        raise RunSpecError(f"{plan.image!r} cannot be the name of an image")
    command = [plan.engine, "run", "--name", container, "--network", "host"]
    command += ["--stop-timeout", "0"]  # whoever has to go was asked before
    command += ["--interactive"] * bool(console) + ["--tty"] * (console == "tty")
    if not console and Path(plan.engine).name == "podman":
        # It writes to our log itself: output that podman copied was missing on a busy machine.
        command += ["--log-driver", "passthrough"]
    command += _as_this_user(plan.engine, plan.user)
    if plan.isolated:
        command += ["--cap-drop", "all", "--security-opt", "no-new-privileges"]
        command += ["--shm-size", f"{role.memory_mib // 2 or 1024}m"]
    else:
        command += ["--ipc", "host"]
    own = [plan.work, plan.data_dir, plan.result_dir, plan.progress_dir]
    for path in (*own, _checkpoints(plan)):
        command += ["--volume", f"{path}:{path}"]
    for name, url in plan.data.items():
        if url.startswith(("/", "file:///")):
            command += ["--volume", _local_data(plan, name, url.removeprefix("file://"))]
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


def _checkpoints(plan: RunPlan) -> Path:
    """Where checkpoints are; beside the job's results unless the manifest says otherwise."""
    if plan.checkpoint_dir.parent != plan.result_dir.parent:
        _refuse_data_directory(plan, plan.checkpoint_dir, "checkpoint.dir")
        if plan.isolated:
            raise RunSpecError(
                "checkpoint.dir: a container here sees no directory of the machine; write one "
                "without a leading /"
            )
    return plan.checkpoint_dir


def _local_data(plan: RunPlan, name: str, path: str) -> str:
    """How data of this machine gets into a container: never the server's own directory; where
    users are kept apart, only from where an operator allows, and to be read."""
    real = Path(path).resolve()
    _refuse_data_directory(plan, real, f"data '{name}'")
    if not plan.isolated:
        return f"{path}:{path}"
    if not any(Path(root) in (real, *real.parents) for root in plan.mounts):
        raise RunSpecError(
            f"data '{name}': {path} is not below what containers may see here "
            f"({', '.join(plan.mounts) or 'nothing'}; data_roots in the server's configuration)"
        )
    return f"{real}:{path}:ro"


def _refuse_data_directory(plan: RunPlan, path: Path, what: str) -> None:
    server, real = plan.wake.parent.resolve(), path.resolve()
    if server in (real, *real.parents) or real in server.parents:
        raise RunSpecError(f"{what}: {path} is or holds what the server keeps of all jobs")


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


def _as_this_user(engine: str, user: UnixUser | None) -> list[str]:
    """Files that a worker writes belong to its Unix user, if it has one, else to whoever runs the
    server; and the program is not the first process of its container, where a SIGTERM that it
    does not handle would be ignored."""
    if user is not None:
        groups = [word for group in user.groups for word in ("--group-add", str(group))]
        return ["--user", f"{user.uid}:{user.gid}", *groups, *_init(engine)]
    if Path(engine).name != "podman":
        return ["--user", f"{os.getuid()}:{os.getgid()}", *_init(engine)]
    rootless = os.getuid() != 0
    # Without ids of its own to give away, the container's root is whoever runs the server.
    return ["--userns", "keep-id"] * (rootless and _has_more_ids()) + _init(engine)


def _init(engine: str) -> list[str]:
    return ["--init"] * (Path(engine).name != "podman" or any(map(os.path.exists, _INIT)))


def _has_more_ids(files: Sequence[str] = ("/etc/subuid", "/etc/subgid")) -> bool:
    """Whether podman may give the user of this process more ids in a container than one."""
    import pwd

    names = [str(os.getuid())]
    with suppress(KeyError):
        names.append(pwd.getpwuid(os.getuid()).pw_name)
    try:
        lines = [Path(file).read_text().splitlines() for file in files]
    except OSError:
        return False
    return all(any(line.partition(":")[0] in names for line in part) for part in lines)


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


def ask_to_stop(engine: str, container: str) -> bool:
    """SIGTERM to the program of a container; whether it runs. The engine's client, which would
    pass one on, does not do so yet when the program has just begun."""
    return bool(_ask(engine, "kill", "--signal", "TERM", container).strip())


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
