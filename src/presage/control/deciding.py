"""Which policy decides: the one that the server was started with, until an admin chooses another.

A choice is a fact in the journal (`RulesChanged.chosen`), so it holds after a restart and on the
server that takes over, whatever that one was started with, until it is taken back. Only pipelines
can be chosen, which are data: code comes from a server's own command line and from nowhere else.
Queues are always those of the server that decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pydantic import ValidationError

from presage.control.advisors.needs import predictor
from presage.core.ports import CountsHours, Policy, Predictor
from presage.model.cluster import Node
from presage.model.errors import ConfigError, UserError
from presage.model.event import RulesChanged
from presage.plugins import is_file
from presage.policy import registry
from presage.policy.config import ConfigFile, PolicyConfig
from presage.policy.learned.serve import refuse_bundles
from presage.policy.own import OwnPolicy

__all__ = ["Decider", "Deciders"]

log = logging.getLogger("presage.policy")


@dataclass(frozen=True, slots=True)
class Decider:
    """What decides, and how to make it."""

    name: str
    policy: PolicyConfig | OwnPolicy
    chosen: bool
    """Whether an admin chose it; else the server was started with it."""
    predict: Predictor
    """What it goes by."""
    make: Callable[[], Policy]
    """A new one, that has seen nothing yet."""

    def rules(self, lacks: tuple[str, ...] = ()) -> RulesChanged:
        """For the journal, with the decisions that the executor cannot carry out."""
        made, policy = self.make(), self.policy
        text = policy.described() if isinstance(policy, OwnPolicy) else policy.model_dump_json()
        counts = isinstance(made, CountsHours) and made.counts_hours
        name = self.name if self.chosen else ""
        return RulesChanged(text, self.predict.version, lacks, counts, name)


class Deciders:
    """The policies of one server. `raised` hears of a policy of one's own that did."""

    def __init__(
        self,
        name: str,
        policy: PolicyConfig,
        own: OwnPolicy | None = None,
        *,
        more: Mapping[str, PolicyConfig] | None = None,
        nodes: Sequence[Node] = (),
        raised: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`policy` is what the server was started with and decides where `own` raises; `more` are
        pipelines of its configuration."""
        self._pipelines = {**registry.NAMED, **(more or {})}
        self._queues, self._nodes = policy.queues, nodes
        if own is None:
            self.started = self._decider(name, policy)
        else:
            predict = predictor(nodes, shares=False)
            self.started = Decider(name, own, False, predict, lambda: own.made(raised))
        self.now = self.started
        """What decides, or did when this server last knew."""

    def names(self) -> list[str]:
        """What can be chosen, of what this server has."""
        return list(dict.fromkeys([self.started.name, *self._pipelines]))

    def choice(self, name: str, text: ConfigFile | None = None) -> Decider:
        """A policy that somebody asks for by name: of a file that came along, else of this
        server."""
        if is_file(name):
            raise ConfigError(
                f"{name}: code is loaded only by the server's own command line: presage serve "
                f"--policy {name}"
            )
        if text is None and name == self.started.name:
            policy = self.started.policy
            if isinstance(policy, OwnPolicy):  # its code is here and nowhere else: no choice
                return self.started
            return self._decider(name, policy, chosen=True)
        known = self._pipelines if text is None else text.policies
        refuse_bundles(name, None if text is None else text.policies.get(name))
        config = registry.policy_config(name, dict(known))
        if text is not None and name in self.names() and config != self._pipelines.get(name):
            raise ConfigError(f"this server has another policy called {name}; rename yours")
        if config.queues or (text is not None and text.queues):
            raise ConfigError(
                f"policy {name} comes with queues, which are part of how the server is started: "
                "leave them out here, or start the server with them (--config)"
            )
        return self._decider(name, config.model_copy(update={"queues": self._queues}), chosen=True)

    def begin(self, rules: RulesChanged | None) -> Decider:
        """As `follow`, when a server begins to decide: it says which policy counts."""
        decider = self.follow(rules)
        if decider.chosen and decider.name != self.started.name:
            log.warning(
                "policy %s decides: it was chosen with `presage policy set`. This server was "
                "started with %s, which counts again after `presage policy reset`",
                decider.name,
                self.started.name,
            )
        return decider

    def follow(self, rules: RulesChanged | None) -> Decider:
        """From now on it is decided by what the journal says last."""
        self.now = self.started
        if rules is not None and rules.chosen:
            try:
                config = PolicyConfig.model_validate_json(rules.policy)
                registry.build(config)
            except ValidationError:
                log.error(
                    "policy %s, which was chosen, is not known to this version: %s decides",
                    rules.chosen,
                    self.started.name,
                )
            except UserError as error:  # its bundle is gone
                log.error(
                    "%s, which was chosen: %s: %s decides", rules.chosen, error, self.started.name
                )
            else:
                config = config.model_copy(update={"queues": self._queues})
                self.now = self._decider(rules.chosen, config, chosen=True)
        return self.now

    def _decider(self, name: str, config: PolicyConfig, *, chosen: bool = False) -> Decider:
        config = registry.live(name, config)
        predict = predictor(self._nodes, config.colocate)
        return Decider(name, config, chosen, predict, partial(registry.build, config))
