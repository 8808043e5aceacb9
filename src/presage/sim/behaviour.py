"""How the simulated world behaves, from the `world:` section of a configuration file."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from presage.sim.links import LinkPhase, LinkRules
from presage.sim.speed import SpeedModel
from presage.sim.world import WorldRules

__all__ = ["WorldConfig", "world_rules"]

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _gbit_s(text: str) -> str:
    match = _RATE.fullmatch(text)
    if match is None or not float(match[1]):
        raise ValueError("write the speed of a link as 10gbit or 100mbit")
    return text


_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)(m|g)bit")
Rate = Annotated[str, AfterValidator(_gbit_s)]


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
    link: Rate | None = None
    """The speed of the link of each node; without it, the network costs nothing."""
    link_measured: Rate | None = None
    """The speed of those on which durations and shares were measured, if not that of `link`."""
    link_phase: LinkPhase = LinkPhase.RANDOM
    link_share: Annotated[float, Field(ge=0, lt=1)] | Literal["measured"] = "measured"
    """Of jobs of which the trace does not say it; `measured`: drawn from those of a data set."""

    @model_validator(mode="after")
    def _links_go_together(self) -> WorldConfig:
        given = {"link_measured", "link_phase", "link_share"} & self.model_fields_set
        if given and self.link is None:
            raise ValueError(f"{min(given)} needs link, such as link: 10gbit")
        return self

    def links(self) -> LinkRules | None:
        """What is said of links, if there are any."""
        if self.link is None:
            return None
        unsaid = None if self.link_share == "measured" else self.link_share
        measured = _speed(self.link_measured or self.link)
        return LinkRules(_speed(self.link), measured, self.link_phase, unsaid)


def _speed(text: str) -> float:
    match = _RATE.fullmatch(text)
    assert match is not None
    return float(match[1]) * (1.0 if match[2] == "g" else 1e-3)


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
        links=config.links(),
        seed=seed,
    )
