"""Results of a run on several nodes, brought to the server: each file whole or not at all.

Nodes are asked in the order of their ranks. A file that a node before had under the same path with
another content goes below `from-NODE/`; the same content is kept once. Doing it again after a
crash finds what is there, and goes on.
"""

from __future__ import annotations

import asyncio
import filecmp
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from presage import beneath
from presage.executors.fleet import files
from presage.executors.fleet.cluster import AgentGone, AgentSilent
from presage.executors.node import messages as msg
from presage.executors.node import wire

__all__ = ["collect", "tree"]

Tree: TypeAlias = dict[str, tuple[int, int]]
"""Size and time of change (ns) of each file, by its path."""


def tree(root: Path) -> Tree:
    """Every regular file below a directory."""
    return {path: (known.st_size, known.st_mtime_ns) for path, known in beneath.walk(root)}


async def collect(
    nodes: Sequence[tuple[str, files.AgentCall]], results: Path, staged: Path, most: int
) -> list[msg.LeftOut]:
    """Bring what every node has to the results of the job; what was left out."""
    results.mkdir(parents=True, exist_ok=True)
    left_out: list[msg.LeftOut] = []
    taken: set[str] = set()
    for node, ask in nodes:
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir()
        try:
            if note := await ask("kept"):
                left_out += wire.unpack(msg.ResultsNote, note).left_out
            there = wire.decode(Tree, await ask("tree"))
            taking = _Taking(node, ask, results, staged, most, taken)
            for path in sorted(there, key=lambda path: (-there[path][1], path)):
                if (why := await taking.take(path, *there[path])) is not None:
                    left_out.append(msg.LeftOut(path=path, bytes=there[path][0], why=why))
            taken |= there.keys()
        except (AgentSilent, AgentGone) as gone:
            every = f"what node {node} still had"
            left_out.append(msg.LeftOut(path=every, bytes=0, why=str(gone)))
    shutil.rmtree(staged, ignore_errors=True)
    return left_out


class _Taking:
    """Files of one node on their way."""

    def __init__(
        self,
        node: str,
        ask: files.AgentCall,
        results: Path,
        staged: Path,
        most: int,
        taken: set[str],
    ) -> None:
        self._node, self._ask, self._most, self._taken = node, ask, most, taken
        self._results, self._staged = results, staged
        self._here = tree(results)

    async def take(self, path: str, size: int, changed_ns: int) -> str | None:
        """Bring a file unless it is here; why it is left out if it is."""
        mark, target = (size, changed_ns), path
        if path in self._taken:
            target = f"from-{self._node}/{path}"
        if self._here.get(target) == mark:
            return None
        held = sum(known for known, _ in self._here.values())
        if self._most and held - self._here.get(target, (0, 0))[0] + size > self._most:
            return "limit"
        await files.fetch(self._ask, "results", path, size, changed_ns, self._staged)
        draft = self._staged / path
        try:
            if not draft.exists():
                return "it was gone when it was fetched"
            if target != path and filecmp.cmp(draft, self._results / path, shallow=False):
                return None
            await asyncio.to_thread(_place, self._results, target, draft)
        except OSError as error:
            return error.strerror or str(error)
        self._here[target] = mark
        return None


def _place(results: Path, target: str, draft: Path) -> None:
    *homes, name = beneath.parts_of(target)
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    with beneath.directory(results, homes, make=True) as home:
        os.rename(draft, name, dst_dir_fd=home)
