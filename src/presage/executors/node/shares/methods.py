"""How shares of GPUs are enforced here: by Presage's own daemon, or by what a site has already.

One table says which guarantees each method gives; the rest makes a worker's environment from what
it asked for. Nothing here decides who shares with whom, and nothing is installed or started.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from presage.executors.node.shares.turns import ShareTerms
from presage.model.errors import RunSpecError

__all__ = [
    "METHODS",
    "EnforcementMethod",
    "Guarantee",
    "MigSlice",
    "ShareMethod",
    "ShareSetup",
    "check_guarantees",
    "pick_slice",
]


class Guarantee(StrEnum):
    """What a worker with a share can rely on."""

    REQUEST = "request"
    """It gets its request whenever it wants it, whatever neighbours do."""
    LIMIT = "limit"
    """It never has more than its limit."""
    MEMORY = "memory"
    """Neighbours cannot take the memory it asked for, nor it theirs."""
    ISOLATION = "isolation"
    """A neighbour that fails or means harm does not reach it."""
    LIVE = "live"
    """Its limits can change while it runs."""


class EnforcementMethod(StrEnum):
    """By what shares are enforced."""

    PRESAGE = "presage"
    """Turns from the share daemon of the node."""
    MPS = "mps"
    """NVIDIA's Multi-Process Service: a part of the processors of a GPU, by environment."""
    MIG = "mig"
    """Slices that the hardware keeps apart; a worker gets one of its own."""
    TIME_SLICING = "time-slicing"
    """The driver's own turns, without any rule."""
    HAMI = "hami"
    """HAMi's library in each process."""


@dataclass(frozen=True, slots=True)
class ShareMethod:
    """What a method gives, and what to know of it."""

    gives: frozenset[Guarantee]
    text: str


METHODS: Mapping[EnforcementMethod, ShareMethod] = {
    EnforcementMethod.PRESAGE: ShareMethod(
        frozenset({Guarantee.REQUEST, Guarantee.LIMIT, Guarantee.MEMORY, Guarantee.LIVE}),
        "turns in time; a program that means harm can get round it",
    ),
    EnforcementMethod.MPS: ShareMethod(
        frozenset({Guarantee.LIMIT, Guarantee.MEMORY}),
        "each process for itself, in one server: a fault of one may end all",
    ),
    EnforcementMethod.MIG: ShareMethod(
        frozenset({Guarantee.REQUEST, Guarantee.LIMIT, Guarantee.MEMORY, Guarantee.ISOLATION}),
        "a whole slice, which may be more than was asked for; never above the limit",
    ),
    EnforcementMethod.TIME_SLICING: ShareMethod(
        frozenset(), "request, limit and memory are counted, and nobody holds anyone to them"
    ),
    EnforcementMethod.HAMI: ShareMethod(
        frozenset({Guarantee.LIMIT, Guarantee.MEMORY}), "limits hold on average, not at once"
    ),
}


@dataclass(frozen=True, slots=True)
class MigSlice:
    """A slice of a GPU, as `nvidia-smi -L` lists it."""

    gpu: int
    """The number of its GPU among those of this machine that are ours."""
    part: float
    """Its part of the GPU's processors: 3/7 of an A100 for `3g.20gb`."""
    memory_mib: int
    uuid: str


@dataclass(frozen=True, slots=True)
class ShareSetup:
    """The method of a server, and where its parts are."""

    method: EnforcementMethod = EnforcementMethod.PRESAGE
    mps_pipe: Path = Path("/tmp/nvidia-mps")
    """The directory through which processes reach the control daemon of MPS."""
    hami_library: Path = Path("/usr/local/vgpu/libvgpu.so")
    slices: tuple[MigSlice, ...] = ()

    @property
    def gives(self) -> frozenset[Guarantee]:
        """What it guarantees."""
        return METHODS[self.method].gives

    def missing(self) -> str | None:
        """What of the method is not on this machine, and what to do; None if all is there. Of
        Presage's own method `environment.library` says it."""
        match self.method:
            case EnforcementMethod.MPS if not (self.mps_pipe / "control").exists():
                return (
                    f"no MPS control daemon has its pipe in {self.mps_pipe}: start "
                    "nvidia-cuda-mps-control -d, or set executor.shares.mps_pipe"
                )
            case EnforcementMethod.HAMI if not self.hami_library.is_file():
                return (
                    f"HAMi's library is not at {self.hami_library}: install HAMi-core, or set "
                    "executor.shares.hami_library"
                )
            case EnforcementMethod.MIG if not self.slices:
                return "no MIG slice is known: list them in executor.shares.slices"
            case _:
                return None

    def environment(
        self,
        name: str,
        terms: ShareTerms,
        devices: Sequence[int],
        preload: str | None,
        taken: Collection[str],
        home: Path,
    ) -> dict[str, str]:
        """What holds the processes of a worker to its share, by a method that is not Presage's
        own; `taken` are slices that others have. Raises RunSpecError where it cannot."""
        problem = self.missing()
        if problem:
            raise RunSpecError(f"GPU shares cannot be enforced here: {problem}")
        mib = terms.memory >> 20
        match self.method:
            case EnforcementMethod.MPS:
                env = {
                    "CUDA_MPS_PIPE_DIRECTORY": str(self.mps_pipe),
                    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{100 * terms.limit:g}",
                }
                # Devices are counted as the process sees them: it sees one.
                return env | ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={mib}M"} if mib else {})
            case EnforcementMethod.HAMI:
                library = str(self.hami_library)
                env = {
                    "LD_PRELOAD": f"{library} {preload}" if preload else library,
                    "CUDA_DEVICE_SM_LIMIT": f"{max(1, round(100 * terms.limit))}",
                    # All processes of a share count together, in a file of its own.
                    "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(home / f"{name}.hami"),
                }
                return env | ({"CUDA_DEVICE_MEMORY_LIMIT": f"{mib}m"} if mib else {})
            case EnforcementMethod.MIG:
                gpu = devices[0] if devices else 0
                chosen = pick_slice(self.slices, taken, gpu, terms)
                if chosen is None:
                    raise RunSpecError(f"the MIG slices of GPU {gpu} that would do are in use")
                return {"CUDA_VISIBLE_DEVICES": chosen.uuid}
            case _:
                return {}


def pick_slice(
    slices: Sequence[MigSlice], taken: Collection[str], gpu: int, terms: ShareTerms
) -> MigSlice | None:
    """The smallest free slice of a GPU that has what was asked for and does not pass the limit;
    None while all of them are in use. Raises RunSpecError when there is none."""
    here = [one for one in slices if one.gpu == gpu]
    fit = [
        one
        for one in here
        if terms.request <= one.part + 1e-3
        and one.part <= terms.limit + 1e-3
        and terms.memory >> 20 <= one.memory_mib
    ]
    asked = f"{terms.request:g} to {terms.limit:g} of a GPU and {terms.memory >> 20} MiB"
    if not fit:
        has = ", ".join(f"{one.part:.2f} with {one.memory_mib} MiB" for one in here) or "none"
        raise RunSpecError(f"no MIG slice of GPU {gpu} has {asked}; its slices: {has}")
    free = [one for one in fit if one.uuid not in taken]
    return min(free, key=lambda one: (one.part, one.memory_mib, one.uuid), default=None)


def check_guarantees(wanted: Collection[str], given: Collection[str], by: str) -> None:
    """Refuse what is demanded and not given; `by` says by whom."""
    lacks = sorted(set(wanted) - set(given))
    if lacks:
        has = ", ".join(sorted(given)) or "nothing"
        who = [method.value for method, it in METHODS.items() if set(wanted) <= it.gives]
        hint = f"; ask for less, or use a server with shares by {' or '.join(who)}" if who else ""
        raise RunSpecError(
            f"gpu: guarantee: {', '.join(lacks)} cannot be given by {by}, which gives {has}{hint}"
        )
