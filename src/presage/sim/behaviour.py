"""How the simulated world behaves, from the `world:` section of a configuration file."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from presage.sim.speed import SpeedModel
from presage.sim.world import WorldRules

__all__ = ["WorldConfig", "world_rules"]

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class WorldConfig(BaseModel):
    """The keys of the section; all are optional."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    restart_cost_s: Seconds = 0.0
    launch_delay_s: Seconds = 0.0
    resize_cost_s: Seconds = 0.0
    checkpoint_every_s: Seconds = 0.0
    node_mtbf_h: Seconds = 0.0
    node_repair_h: Seconds = 1.0
    sync_share: Seconds = 0.05
    sharing_cost: Seconds = 0.05
    turn_cost: Annotated[float, Field(ge=0, lt=1)] = 0.05


def world_rules(
    config: WorldConfig, *, restart_cost_s: float | None = None, seed: int = 0
) -> WorldRules:
    """The section as rules; `restart_cost_s` wins over what it says."""
    cost = config.restart_cost_s if restart_cost_s is None else restart_cost_s
    return WorldRules(
        restart_cost_s=cost,
        launch_delay_s=config.launch_delay_s,
        resize_cost_s=config.resize_cost_s,
        checkpoint_every_s=config.checkpoint_every_s,
        node_mtbf_s=3600 * config.node_mtbf_h,
        node_repair_s=3600 * config.node_repair_h,
        speed=SpeedModel(config.sync_share, config.sharing_cost),
        turn_cost=config.turn_cost,
        seed=seed,
    )
