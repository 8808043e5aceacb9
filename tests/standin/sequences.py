"""A program that allocates and frees memory of a GPU at random, by every call there is, and looks
after each step at what the device itself says. It knows its quota, and nothing of who holds it.

    python sequences.py QUOTA SEED SEQUENCES [beside]

`beside` says that other processes have the same quota: then only the sum is looked at.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

cuda = ctypes.CDLL("libcuda.so.1")
_NEXT = c_void_p(-1).value
_RELEASE_THRESHOLD = 4
_OUT_OF_MEMORY = 2
_LARGEST = 24 << 20


class Where(ctypes.Structure):
    """What cuMemCreate asks for: pinned memory of device 0."""

    _fields_ = (("type", c_int), ("handles", c_int), ("kind", c_int), ("id", c_int))


class Flat(ctypes.Structure):
    """An array of two dimensions."""

    _fields_ = (("w", c_size_t), ("h", c_size_t), ("format", c_int), ("channels", c_uint))


class Solid(ctypes.Structure):
    """An array of three dimensions."""

    _fields_ = (
        *(("w", c_size_t), ("h", c_size_t), ("d", c_size_t)),
        *(("format", c_int), ("channels", c_uint), ("flags", c_uint)),
    )


def _past_the_interposer(name: bytes) -> Callable[..., int]:
    """The driver's own function, whoever was loaded before it."""
    table = ctypes.CDLL(None)
    table.dlvsym.restype = c_void_p
    table.dlvsym.argtypes = [c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    versions = (b"GLIBC_2.34", b"GLIBC_2.2.5", b"GLIBC_2.17")
    found = next(filter(None, (table.dlvsym(_NEXT, b"dlsym", one) for one in versions)))
    find = ctypes.CFUNCTYPE(c_void_p, c_void_p, ctypes.c_char_p)(found)
    address = find(cuda._handle, name)
    assert address
    return ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)(address)


class Program:
    """What it holds, and how it asks for more."""

    def __init__(self) -> None:
        context, pool = c_void_p(), c_void_p()
        cuda.cuInit(0)
        cuda.cuDevicePrimaryCtxRetain(byref(context), 0)
        cuda.cuCtxSetCurrent(context)
        cuda.cuDeviceGetDefaultMemPool(byref(pool), 0)
        self.pools: list[c_void_p | None] = [pool, None]
        self.held: list[tuple[str, Any]] = []
        self._truth = _past_the_interposer(b"cuMemGetInfo_v2")
        found = c_void_p()
        cuda.cuGetProcAddress_v2(b"cuMemAlloc", byref(found), 12040, c_uint64(0), None)
        assert found.value
        self._found = ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t)(found.value)
        self.ways: dict[str, Callable[[c_uint64, int], int]] = {
            "alloc": lambda at, n: cuda.cuMemAlloc_v2(byref(at), c_size_t(n)),
            "looked up": lambda at, n: self._found(ctypes.addressof(at), n),
            "managed": lambda at, n: cuda.cuMemAllocManaged(byref(at), c_size_t(n), 1),
            "pitch": self._pitch,
            "async": lambda at, n: cuda.cuMemAllocAsync(byref(at), c_size_t(n), None),
            "pool": self._from_own_pool,
            "create": self._create,
            "mapped": self._create,
            "flat": lambda at, n: cuda.cuArrayCreate_v2(
                byref(at), byref(Flat(_edge(n), _edge(n), 0x20, 1))
            ),
            "solid": lambda at, n: cuda.cuArray3DCreate_v2(
                byref(at), byref(Solid(_edge(n), _edge(n) // 2 + 1, 2, 0x10, 2, 0))
            ),
            "mipmapped": lambda at, n: cuda.cuMipmappedArrayCreate(
                byref(at), byref(Solid(_edge(n), _edge(n), 0, 0x20, 1, 0)), 3
            ),
        }

    def _pitch(self, at: c_uint64, size: int) -> int:
        pitch, width = c_size_t(), c_size_t(size // 64 + 1)
        return int(cuda.cuMemAllocPitch_v2(byref(at), byref(pitch), width, c_size_t(64), 4))

    def _from_own_pool(self, at: c_uint64, size: int) -> int:
        pool = self.pools[1]
        if pool is None:
            pool = self.pools[1] = c_void_p()
            assert cuda.cuMemPoolCreate(byref(pool), byref(Where(1, 0, 1, 0))) == 0
        return int(cuda.cuMemAllocFromPoolAsync(byref(at), c_size_t(size), pool, None))

    def _create(self, at: c_uint64, size: int) -> int:
        where = Where(1, 0, 1, 0)
        return int(cuda.cuMemCreate(byref(at), c_size_t(size), byref(where), c_uint64(0)))

    def take(self, way: str, size: int) -> bool:
        """Ask for memory; whether it was given."""
        at = c_uint64()
        answer = self.ways[way](at, size)
        assert answer in (0, _OUT_OF_MEMORY), (way, answer)
        if answer:
            return False
        got: Any = at.value
        if way == "mapped":  # it stays after its handle is released, until it is unmapped
            place, again = c_uint64(), c_uint64()
            cuda.cuMemAddressReserve(
                byref(place), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0)
            )
            at = c_uint64(got)
            assert cuda.cuMemMap(place, c_size_t(size), c_size_t(0), at, c_uint64(0)) == 0
            assert cuda.cuMemRelease(at) == 0
            if random.random() < 0.3:
                assert cuda.cuMemRetainAllocationHandle(byref(again), place) == 0
            got = place.value, size, again.value
        self.held.append((way, got))
        return True

    def free(self, way: str, what: Any) -> None:
        """Give something back as it was taken."""
        if way == "mapped":
            place, size, again = what
            assert cuda.cuMemUnmap(c_uint64(place), c_size_t(size)) == 0
            assert not again or cuda.cuMemRelease(c_uint64(again)) == 0
            return
        at = c_uint64(what)
        if way in ("async", "pool"):
            answer = cuda.cuMemFreeAsync(at, None)
        elif way == "create":
            answer = cuda.cuMemRelease(at)
        elif way in ("flat", "solid"):
            answer = cuda.cuArrayDestroy(at)
        elif way == "mipmapped":
            answer = cuda.cuMipmappedArrayDestroy(at)
        else:
            answer = cuda.cuMemFree_v2(at)
        assert answer == 0, (way, answer)

    def change_pools(self) -> None:
        """Let pools keep more or less; give one up, with what is from it or without."""
        for pool in self.pools:
            if pool is not None:
                kept = c_uint64(random.choice((0, 8 << 20, 1 << 40)))
                cuda.cuMemPoolSetAttribute(pool, _RELEASE_THRESHOLD, byref(kept))
        if self.pools[1] is not None and random.random() < 0.3:
            assert cuda.cuMemPoolDestroy(self.pools[1]) == 0
            self.pools[1] = None

    def told(self) -> tuple[int, int]:
        """What the program is told that is in use, and of how much."""
        unused, total = c_size_t(), c_size_t()
        assert cuda.cuMemGetInfo_v2(byref(unused), byref(total)) == 0
        return total.value - unused.value, total.value

    def real(self) -> int:
        """What is in use on the device."""
        unused, total = c_size_t(), c_size_t()
        assert self._truth(ctypes.addressof(unused), ctypes.addressof(total)) == 0
        assert total.value == 16 << 30
        return total.value - unused.value


def _edge(size: int) -> int:
    return max(1, int((size // 4) ** 0.5))


def main() -> None:
    """Run them, and say what was asked for, refused, and held at most."""
    quota, seed, sequences = (int(word) for word in sys.argv[1:4])
    beside = sys.argv[4:] == ["beside"]
    random.seed(seed)
    one, asked, refused, peak = Program(), Counter[str](), 0, 0
    names = list(one.ways)
    for sequence in range(sequences):
        one.change_pools()
        for step in range(random.randint(3, 12)):
            if one.held and random.random() < 0.4:
                one.free(*one.held.pop(random.randrange(len(one.held))))
            else:
                way = random.choice(names)
                asked[way] += 1
                refused += not one.take(way, random.randint(1, _LARGEST))
            used = one.real()
            assert used <= quota, (sequence, step, used)
            assert beside or one.told() == (used, quota), (sequence, step, one.told(), used)
            peak = max(peak, used)
        if random.random() < 0.5:
            while one.held:
                one.free(*one.held.pop())
    while one.held:
        one.free(*one.held.pop())
    for pool in filter(None, one.pools):
        cuda.cuMemPoolTrimTo(pool, c_size_t(0))
    assert beside or one.told() == (0, quota), one.told()
    print(json.dumps({"asked": asked, "refused": refused, "peak": peak, "left": one.real()}))


if __name__ == "__main__":
    main()
