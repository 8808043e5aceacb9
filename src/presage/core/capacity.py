"""What is free on each node, kept so that the common questions are lookups.

Three views of the same numbers:
- lists of integers, the truth, changed only by `take` and `give`;
- bit masks over nodes (bit i is node i): nodes by wholly free GPUs, by GPU type, by label, and
those open
  for new work, so that best fit is "the lowest bit of the first non-empty mask";
- NumPy arrays over all nodes for scores that look at the whole cluster, refreshed on demand.

Free may be negative: a reservation takes its room at once, and the part that is still being
released shows up as negative until it is given back. Nothing that is negative can be taken by
anybody else.

Knows nothing of jobs, queues or policies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from presage.model.cluster import (
    ANY_GPU,
    ANYWHERE,
    UNLIMITED,
    WHOLE_GPU,
    Node,
    Resources,
    Where,
)

__all__ = ["Arrays", "Capacity", "bits", "lowest"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class Arrays:
    """Free capacity of all nodes as arrays; a device that does not exist has -1 everywhere."""

    cpu: Ints
    memory: Ints
    gpu: Ints
    """Milli-GPU free, nodes × devices."""
    gpu_memory: Ints
    sharers: Ints
    """Workers on each device."""
    whole: Ints
    """Wholly free devices of each node."""
    version: Ints
    """Rises whenever a node's row changes; starts over with new arrays, when a node joins."""


class Capacity:
    """Free and total capacity of every node."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.index: dict[str, int] = {}
        self.free_cpu: list[int] = []
        self.free_memory: list[int] = []
        self.free_gpu: list[list[int]] = []
        self.free_gpu_memory: list[list[int]] = []
        self.sharers: list[list[int]] = []
        self.tenants: list[defaultdict[int, int]] = []
        """How many workers of each GPU request (in milli) a node holds."""
        self.whole: list[int] = []
        self.by_whole: list[int] = [0]
        """Mask of the nodes with exactly that many wholly free GPUs."""
        self._bit: list[int] = []
        self.open = 0
        """Mask of the nodes that take new work."""
        self.types: dict[str, int] = {}
        self.labels: dict[str, dict[str, int]] = {}
        """Label name → value → mask of the nodes that carry it."""
        self.tainted = False
        """Whether some node is not for everybody."""
        self.described = 0
        """Rises whenever a node is another than before; what others hold there does not count."""
        self._where: dict[Where, int] = {}
        self.plain = True
        """No node limits CPU, memory or GPU memory: only GPUs have to be looked at."""
        self.total_milli = 0
        self.open_milli = 0
        """Milli-GPUs of the nodes that take new work."""
        self.free_milli = 0
        """Milli-GPUs not held and not promised to anybody, on all nodes."""
        self.released = 0
        """Rises whenever room appears; what did not fit before it rose does not fit now."""
        self._touched: set[int] = set()
        self._arrays: Arrays | None = None
        self._last_mask: tuple[int, Bools] = (-1, np.zeros(0, dtype=np.bool_))

    def add(self, node: Node) -> int:
        """Append a node, closed; returns its index."""
        i = len(self.nodes)
        count = len(node.devices)
        self.nodes.append(node)
        self.index[node.name] = i
        self.free_cpu.append(node.cpu_milli - node.taken.cpu_milli)
        self.free_memory.append(node.memory_mib - node.taken.memory_mib)
        self.free_gpu.append([WHOLE_GPU] * count)
        self.free_gpu_memory.append([device.memory_mib for device in node.devices])
        self.sharers.append([0] * count)
        self.tenants.append(defaultdict(int))
        self.whole.append(count)
        self._bit.append(1 << i)
        while len(self.by_whole) <= count:
            self.by_whole.append(0)
        self.by_whole[count] |= 1 << i
        self._describe(i, node)
        self.total_milli += count * WHOLE_GPU
        self.free_milli += count * WHOLE_GPU
        self._arrays = None
        self.described += 1
        for d in node.taken.devices:
            self.shift(i, _ALONE, (d,), -1)
        return i

    def change(self, node: Node) -> None:
        """Another description of a node that is there, with as many devices; who is on it
        stays."""
        i = self.index.get(node.name)
        if i is None or len(node.devices) != len(self.nodes[i].devices):
            return
        before = self.nodes[i]
        self.nodes[i] = node
        had, has = before.taken, node.taken
        if before != replace(node, taken=had):
            self._describe_anew(i, before, node)
        elif not has.covers(had):  # room appeared
            self.released += 1
        self.free_cpu[i] += had.cpu_milli - has.cpu_milli
        self.free_memory[i] += had.memory_mib - has.memory_mib
        for d in set(had.devices) ^ set(has.devices):
            self.shift(i, _ALONE, (d,), -1 if d in has.devices else 1)
        self._touched.add(i)

    def _describe_anew(self, i: int, before: Node, node: Node) -> None:
        """A node is another than before, whoever is on it."""
        self.described += 1
        self.released += 1
        for name, value in before.labels.items():
            self.labels[name][value] &= ~(1 << i)
        for device in before.devices:
            self.types[device.type] &= ~(1 << i)
        self._describe(i, node)
        self.free_cpu[i] += node.cpu_milli - before.cpu_milli
        self.free_memory[i] += node.memory_mib - before.memory_mib
        for d, (was, now) in enumerate(zip(before.devices, node.devices, strict=True)):
            self.free_gpu_memory[i][d] += now.memory_mib - was.memory_mib

    def _describe(self, i: int, node: Node) -> None:
        """Find a node by what it says of itself."""
        for device in node.devices:
            self.types[device.type] = self.types.get(device.type, 0) | 1 << i
        for name, value in node.labels.items():
            values = self.labels.setdefault(name, {})
            values[value] = values.get(value, 0) | 1 << i
        limits = [node.cpu_milli, node.memory_mib, *(d.memory_mib for d in node.devices)]
        self.plain = self.plain and min(limits) >= UNLIMITED
        self.tainted = self.tainted or bool(node.taints)
        self._where = {}

    def copy(self) -> Capacity:
        """One of its own, equal to this one; what only saves time is made anew."""
        copy = Capacity()
        copy.nodes, copy.index = self.nodes.copy(), self.index.copy()
        copy.free_cpu, copy.free_memory = self.free_cpu.copy(), self.free_memory.copy()
        copy.free_gpu = [free.copy() for free in self.free_gpu]
        copy.free_gpu_memory = [free.copy() for free in self.free_gpu_memory]
        copy.sharers = [sharers.copy() for sharers in self.sharers]
        copy.tenants = [tenants.copy() for tenants in self.tenants]
        copy.whole, copy.by_whole = self.whole.copy(), self.by_whole.copy()
        copy._bit, copy.open, copy.types = self._bit.copy(), self.open, self.types.copy()
        copy.labels = {name: values.copy() for name, values in self.labels.items()}
        copy.tainted, copy.described = self.tainted, self.described
        copy.plain, copy.released = self.plain, self.released
        copy.total_milli, copy.open_milli = self.total_milli, self.open_milli
        copy.free_milli = self.free_milli
        return copy

    def idle(self, i: int) -> bool:
        """Whether nothing is held or promised on a node."""
        node = self.nodes[i]
        return (
            self.whole[i] == len(node.devices) - len(node.taken.devices)
            and self.free_cpu[i] == node.cpu_milli - node.taken.cpu_milli
            and self.free_memory[i] == node.memory_mib - node.taken.memory_mib
        )

    def retire(self, i: int) -> None:
        """Forget an idle node: its index stays, closed for ever, and its name is free again."""
        node = self.nodes[i]
        self.set_open(i, False)
        self.total_milli -= len(node.devices) * WHOLE_GPU
        self.free_milli -= (len(node.devices) - len(node.taken.devices)) * WHOLE_GPU
        del self.index[node.name]

    def set_open(self, i: int, is_open: bool) -> None:
        """Say whether a node takes new work."""
        milli = len(self.nodes[i].devices) * WHOLE_GPU
        self.open_milli += milli * (int(is_open) - (self.open >> i & 1))
        self.open = self.open | 1 << i if is_open else self.open & ~(1 << i)
        self.released += 1

    def take(self, i: int, ask: Resources, devices: tuple[int, ...]) -> None:
        """Take what one worker asks for from a node and these devices of it."""
        self.shift(i, ask, devices, -1)

    def give(self, i: int, ask: Resources, devices: tuple[int, ...]) -> None:
        """Give back what `take` took."""
        self.shift(i, ask, devices, 1)
        self.released += 1

    def lend(self, i: int, ask: Resources, devices: tuple[int, ...]) -> None:
        """Give for a moment, or take back a `take` of the same moment: no room appears by it."""
        self.shift(i, ask, devices, 1)

    def shift(self, i: int, ask: Resources, devices: tuple[int, ...], sign: int) -> None:
        """Take (-1) or give (1) without saying that room appeared."""
        if self._arrays is not None:
            self._touched.add(i)
        gpu_milli = ask.gpu_milli
        self.tenants[i][gpu_milli] -= sign
        if ask.cpu_milli:
            self.free_cpu[i] += sign * ask.cpu_milli
        if ask.memory_mib:
            self.free_memory[i] += sign * ask.memory_mib
        if ask.gpu_memory_mib:
            for d in devices:
                self.free_gpu_memory[i][d] += sign * ask.gpu_memory_mib
        if not devices:
            return
        if gpu_milli < WHOLE_GPU:
            milli, alone, then, users = sign * gpu_milli, None, 0, 0
        else:
            milli, alone, then, users = _TAKEN if sign < 0 else _GIVEN
        free, sharers = self.free_gpu[i], self.sharers[i]
        whole = before = self.whole[i]
        self.free_milli += milli * len(devices)
        for d in devices:
            was = free[d]
            if was == alone:  # the usual case: nobody else has to do with this device
                free[d] = then
                sharers[d] = users
                whole += sign
                continue
            free[d] = now = was + milli
            sharers[d] -= sign
            if was == WHOLE_GPU:
                whole -= 1
            elif now == WHOLE_GPU:
                whole += 1
            elif was < 0 or now < 0:  # what is promised counts as nothing, not as less
                self.free_milli += max(0, now) - max(0, was) - milli
        if whole != before:
            bit, by_whole = self._bit[i], self.by_whole
            by_whole[before] ^= bit
            by_whole[whole] |= bit
            self.whole[i] = whole

    def accepts(self, types: tuple[str, ...], where: Where = ANYWHERE) -> int:
        """Mask of the open nodes that have one of these GPU types, or any when none is named, and
        where a worker may be."""
        nodes = self.open
        if self.tainted or where.any_of:
            nodes &= self._may_be(where)
        if not types:
            return nodes
        mask = self.types.get(ANY_GPU, 0)
        for name in types:
            mask |= self.types.get(name, 0)
        return mask & nodes

    def _may_be(self, where: Where) -> int:
        """Mask of the nodes, open or not, where a worker may be; worked out once."""
        mask = self._where.get(where)
        if mask is None:
            mask = sum(1 << i for i, node in enumerate(self.nodes) if where.accepts(node))
            self._where[where] = mask
        return mask

    def has_whole(self, count: int) -> bool:
        """Whether any node, open or not, has so many wholly free GPUs: a bound at a glance."""
        return any(self.by_whole[count:])

    def most_whole(self) -> int:
        """The most wholly free GPUs that any node, open or not, has: a bound at a glance."""
        by_whole = self.by_whole
        most = len(by_whole) - 1
        while most and not by_whole[most]:
            most -= 1
        return most

    def fits(self, i: int, ask: Resources, most: int | None = None) -> bool:
        """Whether one worker fits on this node now; `most` bounds the jobs on a shared device."""
        if self.free_cpu[i] < ask.cpu_milli or self.free_memory[i] < ask.memory_mib:
            return False
        if not ask.gpu_milli:
            return True
        if not ask.shared and not ask.gpu_memory_mib:
            return self.whole[i] >= ask.gpu_milli // WHOLE_GPU
        return len(self.usable(i, ask, most)) >= ask.devices

    def usable(self, i: int, ask: Resources, most: int | None = None) -> list[int]:
        """Devices of a node that could serve this request, least room first, then by number."""
        free, memory, sharers = self.free_gpu[i], self.free_gpu_memory[i], self.sharers[i]
        need = ask.gpu_milli if ask.shared else WHOLE_GPU
        devices = [
            d
            for d, milli in enumerate(free)
            if milli >= need
            and memory[d] >= ask.gpu_memory_mib
            and (most is None or sharers[d] < most)
        ]
        if ask.shared and len(devices) > 1:
            devices.sort(key=free.__getitem__)
        return devices

    def devices(self, i: int, ask: Resources, most: int | None = None) -> tuple[int, ...]:
        """The devices of a node to take for a request that fits: least room first, then by
        number."""
        gpu_milli = ask.gpu_milli
        if not gpu_milli:
            return ()
        if gpu_milli < WHOLE_GPU or ask.gpu_memory_mib:
            return tuple(self.usable(i, ask, most)[: ask.devices])
        count, free = gpu_milli // WHOLE_GPU, self.free_gpu[i]
        if count == 1:
            return (free.index(WHOLE_GPU),)
        if count == len(free):
            return _all_devices(count)
        return tuple([d for d, milli in enumerate(free) if milli == WHOLE_GPU][:count])

    def arrays(self) -> Arrays:
        """The NumPy view, brought up to date. Read it; never write it."""
        if self._arrays is None:
            self._arrays = self._fresh_arrays()
            self._touched.update(range(len(self.nodes)))
        arrays = self._arrays
        for i in self._touched:
            arrays.cpu[i] = self.free_cpu[i]
            arrays.memory[i] = self.free_memory[i]
            count = len(self.free_gpu[i])
            arrays.gpu[i, :count] = self.free_gpu[i]
            arrays.gpu_memory[i, :count] = self.free_gpu_memory[i]
            arrays.sharers[i, :count] = self.sharers[i]
            arrays.whole[i] = self.whole[i]
            arrays.version[i] += 1
        self._touched.clear()
        return arrays

    def _fresh_arrays(self) -> Arrays:
        n, width = len(self.nodes), max(1, len(self.by_whole) - 1)

        def grid() -> Ints:
            return np.full((n, width), -1, dtype=np.int64)

        def column() -> Ints:
            return np.zeros(n, dtype=np.int64)

        return Arrays(column(), column(), grid(), grid(), grid(), column(), column())

    def mask_array(self, mask: int) -> Bools:
        """A node mask as a boolean array, the caller's to change."""
        n = len(self.nodes)
        if self._last_mask[0] == mask and len(self._last_mask[1]) == n:
            return self._last_mask[1].copy()
        raw = np.frombuffer(mask.to_bytes((n + 7) // 8, "little"), dtype=np.uint8)
        made = np.unpackbits(raw, count=n, bitorder="little").astype(np.bool_)
        self._last_mask = mask, made
        return made.copy()


def bits(mask: int) -> Iterator[int]:
    """The node indices in a mask, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def lowest(mask: int) -> int:
    """The lowest node index in a non-empty mask."""
    return (mask & -mask).bit_length() - 1


_ALONE = Resources(gpu_milli=WHOLE_GPU)
_TAKEN = -WHOLE_GPU, WHOLE_GPU, 0, 1
_GIVEN = WHOLE_GPU, 0, WHOLE_GPU, 0
"""Of a device for a worker alone: the change, free before it, free after it, workers after it."""


@cache
def _all_devices(count: int) -> tuple[int, ...]:
    return tuple(range(count))
