"""What an executor must know of a job to run it, read from the `job.json` that the server wrote.

This is the one place that knows how a manifest looks as JSON. It checks only what running depends
on: that a manifest makes sense was settled when the job was submitted.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from presage.executors.node.messages import JobFile
from presage.executors.node.shares.turns import ShareTerms
from presage.executors.node.wire import loads
from presage.model.errors import RunSpecError

__all__ = ["RoleSpec", "RunSpec", "argv_of"]

DEFAULT_GRACE_S = 30.0

_UNITS: dict[str, int] = {
    "": 1,
    **{letter: 1000**power for power, letter in enumerate("KMGTP", start=1)},
    **{f"{letter}I": 1024**power for power, letter in enumerate("KMGTP", start=1)},
}
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGTP]?i?)B?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)\s*")
_SHELL_SIGNS = re.compile(r"[|&;<>()$`\\*?\[\]{}~#!\n]")
_SHELL_WORD = re.compile(
    r"\.|:|case|cd|command|eval|exec|exit|export|for|if|set|source|trap|ulimit|umask|unset|until"
    r"|wait|while|\w+=.*"
)


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """One kind of worker: what to start, and what each may use."""

    name: str
    argv: tuple[str, ...]
    min: int
    max: int
    cpus: float = 0.0
    """0 when the job does not say."""
    memory_mib: int = 0
    """0 when the job does not say."""
    gpus: float = 0.0
    """Less than 1 for a share of one; whole ones if the job does not share."""
    share: ShareTerms | None = None
    """What of each GPU it uses is enforced."""
    guarantees: tuple[str, ...] = ()
    """What enforcing it must guarantee."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """All that it takes to run a job."""

    roles: tuple[RoleSpec, ...]
    owner: str = ""
    team: str = ""
    """Whose job it is, and so whose secrets it may use."""
    env: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    """Its point of a sweep."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Names of secrets by the environment variable that gets the content."""
    folder: str | None = None
    """Digest of the uploaded work folder."""
    git: tuple[str, str] | None = None
    """A repository that is the work folder instead, and what of it."""
    image: str | None = None
    environment: str | None = None
    """Prefix of a virtual or Conda environment whose programs come first on PATH."""
    launcher: str = "none"
    data: Mapping[str, str] = field(default_factory=dict)
    """Paths or URLs by the name they get in PRESAGE_DATA_DIR."""
    results: str | None = None
    """Where results are copied."""
    keep: tuple[str, ...] = ()
    """Patterns of the work files that are results; none for all that are new or changed."""
    ignore: tuple[str, ...] = ()
    most_results: int = 0
    """Bytes of results that the job may keep; 0 for any number."""
    checkpoint_dir: str | None = None
    checkpoint_every_s: float | None = None
    resume: tuple[str, ...] = ()
    """What to start instead of the job's command when there is a checkpoint."""
    time_limit_s: float | None = None
    grace_s: float = DEFAULT_GRACE_S
    ports: tuple[int, ...] = ()
    """Those that clients may reach."""
    console: str = ""
    """What its worker reads from: nothing, a `pipe` or a `tty`."""

    @property
    def has_agents(self) -> bool:
        """Whether each worker is a torchrun agent, since their number may change."""
        return self.launcher == "torchrun" and any(role.min < role.max for role in self.roles)

    @classmethod
    def load(cls, path: Path) -> RunSpec:
        """Read a `job.json`; raises RunSpecError when it cannot be used."""
        try:
            return _spec(loads(JobFile, path.read_bytes()))
        except OSError as error:
            why = f"cannot be read: {error.strerror}"
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            why = f"cannot be used ({error}); submit it again"
        raise RunSpecError(f"{path.name} of the job {why}")


def argv_of(command: str | Sequence[str]) -> tuple[str, ...]:
    """What to execute. A line that needs a shell gets one; any other is executed directly, so that
    signals reach the program itself and a mistyped name is found before anything runs."""
    if not isinstance(command, str):
        argv = tuple(str(word) for word in command)
    elif _SHELL_SIGNS.search(command):
        argv = ("/bin/sh", "-c", command)
    else:
        argv = tuple(shlex.split(command))
        if argv and _SHELL_WORD.fullmatch(argv[0]):
            argv = ("/bin/sh", "-c", command)
    if not argv or not argv[0]:
        raise ValueError("the command is empty")
    return argv


def _spec(job: JobFile) -> RunSpec:
    manifest = job.manifest
    checkpoint = manifest.get("checkpoint") or {}
    resume = checkpoint.get("resume")
    every = checkpoint.get("every")
    limit = manifest.get("time_limit")
    grace = manifest.get("grace")
    git = manifest.get("git")
    results = manifest.get("results") or {}
    if isinstance(results, str):
        results = {"url": results}
    return RunSpec(
        roles=_roles(manifest, job.memory_mib or {}, job),
        owner=job.owner or "",
        team=job.team or "",
        env={str(key): str(value) for key, value in (manifest.get("env") or {}).items()},
        params=dict(manifest.get("params") or {}),
        secrets=dict(manifest.get("secrets") or {}),
        folder=job.folder,
        git=(str(git["url"]), str(git.get("ref") or "HEAD")) if git else None,
        image=manifest.get("image"),
        environment=manifest.get("environment"),
        launcher=manifest.get("launcher") or "none",
        data=_named(manifest.get("data")),
        results=results.get("url"),
        keep=tuple(map(str, results.get("keep") or ())),
        ignore=tuple(map(str, results.get("ignore") or ())),
        most_results=_least(job.most_results, _mib(results.get("limit") or 0) << 20),
        checkpoint_dir=checkpoint.get("dir"),
        checkpoint_every_s=None if every is None else _seconds(every),
        resume=argv_of(resume) if resume else (),
        time_limit_s=None if limit is None else _seconds(limit),
        grace_s=DEFAULT_GRACE_S if grace is None else _seconds(grace),
        ports=tuple(int(port) for port in manifest.get("ports") or ()),
        console=manifest.get("console") or "",
    )


def _roles(
    manifest: Mapping[str, Any], memory_mib: Mapping[str, int], job: JobFile
) -> tuple[RoleSpec, ...]:
    roles = manifest.get("roles") or {"worker": {}}
    return tuple(
        _role(name, role, manifest, memory_mib.get(name), job) for name, role in roles.items()
    )


def _role(
    name: str,
    role: Mapping[str, Any],
    manifest: Mapping[str, Any],
    memory_mib: int | None,
    job: JobFile,
) -> RoleSpec:
    """A role; what it does not say is said at the top. Memory may have been raised since."""
    resources = role.get("resources") or manifest.get("resources") or {}
    workers = role.get("workers") or manifest.get("workers") or 1
    least, _, most = str(workers).partition("..")
    gpus = float(resources.get("gpus") or 0.0)
    return RoleSpec(
        name=name,
        argv=argv_of(role.get("command") or manifest["command"]),
        min=int(least),
        max=int(most or least),
        cpus=float(resources.get("cpus") or 0.0),
        gpus=gpus if manifest.get("share", True) else float(math.ceil(gpus)),
        memory_mib=memory_mib or _mib(resources.get("memory") or 0),
        share=_share(resources.get("gpu"), job),
        guarantees=tuple((resources.get("gpu") or {}).get("guarantee") or ()),
    )


def _share(asked: Mapping[str, Any] | None, job: JobFile) -> ShareTerms | None:
    if not asked:
        return None
    memory, limit = _mib(asked.get("memory") or 0) << 20, float(asked.get("limit") or 1.0)
    request, hard = float(asked["request"]), not job.soft_shares
    return ShareTerms(request, limit, memory, job.share_weight, hard)


def _least(*bounds: int) -> int:
    """The tightest of some bounds, where 0 is none."""
    return min(filter(None, bounds), default=0)


def _named(data: Any) -> dict[str, str]:
    if not data:
        return {}
    if isinstance(data, Mapping):
        return {str(name): str(url) for name, url in data.items()}
    urls = [data] if isinstance(data, str) else list(data)
    return {url.rstrip("/").rpartition("/")[2] or "data": url for url in urls}


def _mib(value: str | float) -> int:
    match = _MEMORY.fullmatch(str(value).strip())
    if not match:
        raise ValueError(f"memory {value!r}")
    size: float = float(match[1]) * _UNITS[match[2].upper()]
    return math.ceil(size / (1 << 20))


def _seconds(value: str | float) -> float:
    if isinstance(value, int | float):
        return float(value)
    parts = list(_TIME.finditer(value))
    if not parts or "".join(part[0] for part in parts) != value:
        raise ValueError(f"time {value!r}")
    return sum(float(part[1]) * _SECONDS[part[2]] for part in parts)
