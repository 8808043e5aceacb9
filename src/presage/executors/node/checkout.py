"""A Git repository as the work folder of a run, at a branch, tag or commit.

Runs `git` with nothing of what is configured here: no hooks, no helper programs, no questions. A
secret in the environment as GIT_TOKEN is the password for HTTPS; it is on no command line.
"""

from __future__ import annotations

import os
import subprocess
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path

__all__ = ["GitError", "check_out"]

_PROTOCOLS = "file:git:http:https:ssh"
"""`ext::` would run programs that a manifest names."""


class GitError(Exception):
    """The repository could not be brought; the text says why."""


def check_out(url: str, ref: str, work: Path, env: Mapping[str, str]) -> str:
    """Bring a repository into an empty directory; returns the commit."""
    env = _environment(env)

    def git(*arguments: str, check: bool = True) -> str | None:
        command = ["git", "-C", str(work), *arguments]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode == 0:
            return done.stdout.strip()
        if not check:
            return None
        words = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason given"]
        said = next((line for line in words if line.startswith(("fatal:", "error:"))), words[-1])
        raise GitError(said.strip()[:300])

    git("init", "--quiet", "--template=")
    if git("fetch", "--quiet", "--depth=1", "--", url, ref, check=False) is None:
        # A server may refuse to send one commit by its name; then it is in all of them.
        git("fetch", "--quiet", "--tags", "--", url, "+refs/heads/*:refs/remotes/origin/*")
        commit = git("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}", check=False)
        if commit is None:
            raise GitError(f"there is no branch, tag or commit {ref!r} in it")
        git("checkout", "--quiet", "--detach", commit)
    else:
        git("checkout", "--quiet", "--detach", "FETCH_HEAD")
    return git("rev-parse", "HEAD") or ""


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in env.items() if not name.startswith("GIT_")}
    own = {
        "GIT_ALLOW_PROTOCOL": _PROTOCOLS,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_SSH_COMMAND": env.get("GIT_SSH_COMMAND", "ssh -o BatchMode=yes"),
        "LC_ALL": "C",
    }
    if token := env.get("GIT_TOKEN"):
        basic = b64encode(f"x-access-token:{token}".encode()).decode()
        own |= {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "http.extraHeader",
            "GIT_CONFIG_VALUE_0": f"Authorization: Basic {basic}",
        }
    return {**kept, **own}
