"""How much memory a step holds at its peak: by tensors alone, and as PyTorch's allocator keeps it.

The caching allocator of PyTorch on CUDA is replayed on the graph's storages over two steps: sizes
are rounded to 512 bytes, small ones share 2 MiB segments, middle ones 20 MiB segments, large ones
get their own in steps of 2 MiB; the smallest free block that fits is taken and split, neighbours
are merged when freed. What it has reserved is what the driver shows as used. On a full card it
gives segments back that nothing is in and tries again, so a step needs less than it takes where
there is room: `least_bytes`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from presage.foresee.graph.opgraph import ROLES, OpGraph

__all__ = ["MIB", "Peak", "least_bytes", "live_peak", "reserved_bytes"]

MIB = 1 << 20
_GRAIN = 512
_SMALL = MIB
_SMALL_SEGMENT = 2 * MIB
_MIDDLE = 10 * MIB
_MIDDLE_SEGMENT = 20 * MIB
_LARGE_STEP = 2 * MIB


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment with the most bytes alive."""

    bytes: float
    operator: int
    """The operator that runs then; -1 before the first one."""
    by_role: dict[str, float]
    """Bytes of each role (ROLES) at that moment."""
    forward: float
    """The most bytes alive in the forward pass."""
    sizes: npt.NDArray[np.float64]
    """Rounded bytes of every storage."""
    alive: npt.NDArray[np.float64]
    """Bytes alive while each operator runs."""


def live_peak(graph: OpGraph, batch: float) -> Peak:
    """The peak of the tensors that are alive together."""
    tensors = graph.tensors
    sizes = _rounded(tensors.bytes(batch))
    line = np.zeros(2 * len(graph) + 4)
    np.add.at(line, 2 * tensors.born + 3, sizes)
    np.add.at(line, 2 * tensors.died + 2, -sizes)
    live = np.cumsum(line)
    top = int(live.argmax())
    here = (2 * tensors.born + 3 <= top) & (2 * tensors.died + 2 > top)
    by_role = np.bincount(tensors.role[here], sizes[here], minlength=len(ROLES))
    forward = live[: 2 * int((graph.phase == 0).sum()) + 2]
    return Peak(
        bytes=float(live[top]),
        operator=(top - 3) // 2,
        by_role={role: float(size) for role, size in zip(ROLES, by_role, strict=True)},
        forward=float(forward.max(initial=0.0)),
        sizes=sizes,
        alive=live[3 : 2 * len(graph) + 3 : 2],
    )


def reserved_bytes(graph: OpGraph, batch: float) -> int:
    """What the caching allocator holds after two steps where there is room."""
    return _replayed(graph, batch, _Allocator()).reserved


def least_bytes(graph: OpGraph, batch: float) -> int:
    """The most it holds in two steps on a card that is always full: before it takes a segment it
    gives those back that nothing is in."""
    return _replayed(graph, batch, _Allocator(full=True)).most


def _replayed(graph: OpGraph, batch: float, allocator: _Allocator) -> _Allocator:
    """Two steps."""
    tensors = graph.tensors
    count = len(graph)
    sizes = _rounded(tensors.bytes(batch)).astype(np.int64)
    lasting = np.flatnonzero(tensors.born < 0)
    made = np.flatnonzero((tensors.born >= 0) & (sizes > 0))
    for i in lasting.tolist():
        allocator.take(i, int(sizes[i]))
    dies = made[tensors.died[made] < count]
    when = np.concatenate([2 * tensors.born[made] + 1, 2 * tensors.died[dies]])
    what = np.concatenate([made + 1, -dies - 1])
    events = what[np.argsort(when, kind="stable")].tolist()
    amounts = sizes.tolist()
    for step in range(2):
        if step:  # gradients and the like are let go before the next step begins
            for i in made[tensors.died[made] >= count].tolist():
                allocator.give(i)
        for event in events:
            if event > 0:
                allocator.take(event - 1, amounts[event - 1])
            else:
                allocator.give(-event - 1)
    return allocator


def _rounded(sizes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    grains: npt.NDArray[np.float64] = np.ceil(sizes / _GRAIN) * _GRAIN
    return grains


class _Allocator:
    """Blocks of one address space, by their start; free ones in two lists sorted by size."""

    def __init__(self, *, full: bool = False) -> None:
        self.reserved = 0
        self.most = 0
        self._full = full
        self._end = 0
        self._size: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self._after: dict[int, int] = {}
        self._pool: dict[int, list[tuple[int, int]]] = {}
        self._is_free: set[int] = set()
        self._small: list[tuple[int, int]] = []
        self._large: list[tuple[int, int]] = []
        self._place: dict[int, int] = {}

    def take(self, tensor: int, size: int) -> None:
        if not size:
            return
        small = size <= _SMALL
        pool = self._small if small else self._large
        at = bisect_left(pool, (size, -1))
        if at < len(pool):
            have, block = pool.pop(at)
            self._is_free.discard(block)
        else:
            if self._full:
                self._give_back()
            have = _segment(size)
            block = self._end
            self._end += have + _GRAIN  # a gap: segments are never merged
            self.reserved += have
            self.most = max(self.most, self.reserved)
            self._pool[block] = pool
        rest = have - size
        if (rest >= _GRAIN) if small else (rest > _SMALL):
            tail = block + size
            self._size[tail] = rest
            self._pool[tail] = pool
            self._before[tail] = block
            after = self._after.get(block)
            if after is not None:
                self._before[after] = tail
                self._after[tail] = after
            self._after[block] = tail
            self._is_free.add(tail)
            insort(pool, (rest, tail))
            have = size
        self._size[block] = have
        self._place[tensor] = block

    def give(self, tensor: int) -> None:
        block = self._place.pop(tensor, None)
        if block is None:
            return
        pool = self._pool[block]
        after = self._after.get(block)
        if after is not None and after in self._is_free:
            self._absorb(block, after, pool)
        before = self._before.get(block)
        if before is not None and before in self._is_free:
            pool.pop(bisect_left(pool, (self._size[before], before)))
            self._join(before, block)
            block = before
        self._is_free.add(block)
        insort(pool, (self._size[block], block))

    def _give_back(self) -> None:
        """Return the segments that are free from end to end."""
        for pool in (self._small, self._large):
            kept = []
            for have, block in pool:
                if block in self._before or block in self._after:
                    kept.append((have, block))
                    continue
                self.reserved -= have
                self._is_free.discard(block)
                del self._size[block], self._pool[block]
            pool[:] = kept

    def _absorb(self, block: int, after: int, pool: list[tuple[int, int]]) -> None:
        pool.pop(bisect_left(pool, (self._size[after], after)))
        self._is_free.discard(after)
        self._join(block, after)

    def _join(self, block: int, after: int) -> None:
        """One block out of two neighbours."""
        self._size[block] += self._size.pop(after)
        del self._pool[after], self._before[after]
        beyond = self._after.pop(after, None)
        if beyond is None:
            del self._after[block]
        else:
            self._after[block] = beyond
            self._before[beyond] = block


def _segment(size: int) -> int:
    if size <= _SMALL:
        return _SMALL_SEGMENT
    if size < _MIDDLE:
        return _MIDDLE_SEGMENT
    return -(-size // _LARGE_STEP) * _LARGE_STEP
