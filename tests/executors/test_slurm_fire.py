"""Gangs while slurmctld and slurmd are killed: nothing half, twice, lost or left."""

from __future__ import annotations

import pytest

from tests.executors.slurm_fire import gangs_under_fire
from tests.executors.slurm_kit import SlurmWorld, need_slurm
from tests.slurm_cluster import VERSIONS
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def test_gangs_survive_kills_of_the_daemons() -> None:
    need_slurm("26.05")
    _burn("26.05", "jobs", gangs=4, kills=4, within_s=PATIENCE_S)


@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", ["jobs", "pilot"])
def test_gangs_survive_fifty_kills(version: str, mode: str) -> None:
    need_slurm(version)
    _burn(version, mode, gangs=40, kills=50, within_s=1200.0)


def _burn(version: str, mode: str, *, gangs: int, kills: int, within_s: float) -> None:
    world = SlurmWorld(version, mode)
    try:
        fire = gangs_under_fire(world, gangs=gangs, kills=kills, seed=1, within_s=within_s)
        assert fire.good, fire
        assert sum(fire.kills.values()) >= min(kills, 2), fire
    finally:
        world.close()
