"""Policies of one's own beside what a server answers to `what-if`: their code never leaves this
machine, so the jobs of the journal come here and are simulated here."""

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
    from presage.policy.own import OwnPolicy

__all__ = ["beside", "decides_there", "own_policies"]


def own_policies(names: Sequence[str]) -> dict[str, OwnPolicy]:
    """What each `file.py:name` stands for, by its title in the answer."""
    from presage.policy.own import find_own

    mine: dict[str, OwnPolicy] = {}
    for name in names:
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
    answer: WhatIf, exported: ExportedTrace, mine: Mapping[str, OwnPolicy], foreseen: bool
) -> WhatIf:
    """The server's answer, and these policies simulated here."""
    import polars as pl

    from presage.control.advisors.needs import predictor
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
                result = extras.run(trace, own.make(), name, foresee, shown)
            except UserError:
                raise
            except Exception as error:
                raise ConfigError(own.went_wrong(error)) from error
        told[name] = figures(result, trace)
    return replace(answer, policies=told)
