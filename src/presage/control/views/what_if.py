"""What other policies would have done with the jobs of the journal, asked of a process of its
own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from presage.control.site.service import Service
from presage.model.errors import ConfigError, Conflict
from presage.plugins import is_file
from presage.policy import registry
from presage.policy.config import ConfigFile, PolicyConfig
from presage.policy.learned.serve import refuse_bundles
from presage.policy.own import OwnPolicy, find_own

__all__ = ["ask_policies", "policy_names", "replay_journal"]


async def replay_journal(service: Service, *, since_s: float | None, **question: Any) -> Any:
    """Ask the process that replays the journal; one question at a time."""
    if service.what_if.locked():
        raise Conflict("a what-if is being worked out; ask again when it is done")
    from presage.control import replay  # what it imports, the process that replays needs

    async with service.what_if:
        return await replay.ask(
            {
                "db": service.settings.database,
                "since": None if since_s is None else time.time() - since_s,
                **question,
            }
        )


def _chosen(
    service: Service, names: Sequence[str], file: ConfigFile
) -> dict[str, PolicyConfig | OwnPolicy]:
    """The policies by name, with the queues of the server unless the configuration has its own."""
    known = _known(service, file)
    pipelines = {name: one for name, one in known.items() if isinstance(one, PolicyConfig)}
    chosen: dict[str, PolicyConfig | OwnPolicy] = {}
    for name, one in file.policies.items():
        refuse_bundles(name, one)
    for name in dict.fromkeys(names):
        policy = known.get(name)
        if policy is None and not is_file(name):  # code of the machine that asks stays there
            policy = find_own(name, pipelines, service.settings.queues, file.guard)
        if policy is None and "@" in name:
            refuse_bundles(name)
            policy = registry.policy_config(name, pipelines, section=file.guard)
        if policy is None:
            raise ConfigError(f"unknown policy {name!r}; there are: {', '.join(known)}")
        chosen[name] = policy
    return chosen


def _known(service: Service, file: ConfigFile) -> dict[str, PolicyConfig | OwnPolicy]:
    """Policies by name: those there always are, the server's own, and those of a file."""
    queues = {**service.settings.queues, **file.queues}
    pipelines = registry.pipelines(file.model_copy(update={"queues": queues}))
    known: dict[str, PolicyConfig | OwnPolicy] = dict(pipelines)
    for decider in (service.deciders.started, service.deciders.now):
        if decider.name and decider.name not in file.policies:
            known[decider.name] = decider.policy
    return known


def _own(service: Service, known: Mapping[str, PolicyConfig | OwnPolicy]) -> list[str]:
    """Which of these decides here."""
    decides = service.deciders.now.policy
    return [name for name, policy in known.items() if policy == decides]


def _packed(policy: PolicyConfig | OwnPolicy) -> dict[str, Any]:
    """For the process that replays."""
    if isinstance(policy, OwnPolicy):
        return {"own": policy.packed()}
    return policy.model_dump(mode="json")


def policy_names(service: Service) -> dict[str, Any]:
    """The policies there are by name, and those that are what this server decides by."""
    known = _known(service, ConfigFile())
    return {"policies": list(known), "own": _own(service, known)}


async def ask_policies(
    service: Service,
    names: Sequence[str],
    file: ConfigFile,
    *,
    since_s: float | None,
    foreseen: bool,
) -> Any:
    """What these policies would have done; those of `file` are known by name as well."""
    chosen = _chosen(service, names, file)
    return await replay_journal(
        service,
        since_s=since_s,
        policies={name: _packed(policy) for name, policy in chosen.items()},
        own=_packed(service.deciders.started.policy),
        own_names=_own(service, chosen),
        foreseen=foreseen,
    )
