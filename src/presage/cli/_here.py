"""Policies of one's own beside what a server answers to `what-if`: their code and their bundles
never leave this machine, so the jobs of the journal come here and are simulated here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from presage.cli._output import progress
from presage.client import Client
from presage.model.codec import decode
from presage.model.errors import ConfigError, UserError
from presage.model.server_answers import ExportedTrace, WhatIf

if TYPE_CHECKING:
    from presage.core.ports import Predictor
    from presage.policy.config import PolicyConfig
    from presage.policy.own import OwnPolicy

__all__ = ["LEARNED", "beside", "decides_there", "own_policies"]


LEARNED = "learned:"
"""How names begin that stand for bundles; said here so that asking a server imports no policy."""


def own_policies(names: Sequence[str]) -> dict[str, OwnPolicy | PolicyConfig]:
    """What each `file.py:name` and `learned:FILE` stands for, by its title in the answer."""
    from presage.policy import registry
    from presage.policy.own import find_own

    mine: dict[str, OwnPolicy | PolicyConfig] = {}
    for name in names:
        if name.startswith(LEARNED):
            mine[name] = registry.policy_config(name)
            continue
        own = find_own(name, {}, {})
        assert own is not None
        if own.name in mine:
            raise ConfigError(f"two policies are called {own.name}; compare them one at a time")
        mine[own.name] = own
    return mine


def decides_there(client: Client) -> list[str]:
    """The name of the policy that the server decides by: something to compare with."""
    names: list[str] = client.call("GET", "/policies")["own"]
    return names[:1] or ["fifo"]


def beside(
    answer: WhatIf,
    exported: ExportedTrace,
    mine: Mapping[str, OwnPolicy | PolicyConfig],
    foreseen: bool,
) -> WhatIf:
    """The server's answer, and these policies simulated here."""
    import polars as pl

    from presage.control.advisors.needs import predictor
    from presage.policy import registry
    from presage.policy.config import PolicyConfig
    from presage.sim.traces import COLUMNS, Trace
    from presage.sim.whatif import Extras, figures

    if exported.journal is None:
        raise UserError("this server is too old to compare it with a policy of your own")
    extras: Extras = decode(Extras, exported.journal)
    trace = Trace("journal", "native", pl.DataFrame(exported.jobs, schema=COLUMNS))

    def as_there(truth: Predictor) -> Predictor:
        return predictor(extras.nodes, shares=False)

    told = dict(answer.policies)
    for name, own in mine.items():
        if name in told:
            raise ConfigError(f"the server has a policy called {name}, too; rename yours")
        with progress(name) as shown:
            try:
                foresee = as_there if foreseen else None
                made = registry.build(own) if isinstance(own, PolicyConfig) else own.make()
                result = extras.run(trace, made, name, foresee, shown)
            except UserError:
                raise
            except Exception as error:
                if isinstance(own, PolicyConfig):
                    raise
                raise ConfigError(own.went_wrong(error)) from error
        told[name] = figures(result, trace)
    return replace(answer, policies=told)
