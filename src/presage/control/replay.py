"""The journal under other policies, in a process of its own: `python -m presage.control.replay`.

A long replay must not hold up the server, so it gets its own interpreter at a low priority. The
question comes as JSON on stdin (an address of a database may hold a password, which has no place
among a command's words), the answer goes to stdout. It reads the journal and writes nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, TypeAlias

from pydantic import ValidationError

from presage.control.advisors.needs import predictor
from presage.core.ports import Policy, Predictor
from presage.model.cluster import UNLIMITED, Node
from presage.model.codec import encode
from presage.model.errors import Conflict, InternalError, PresageError, UserError
from presage.model.event import RulesChanged
from presage.policy import registry
from presage.policy.config import PolicyConfig
from presage.policy.own import OwnPolicy
from presage.sim.whatif import Export, Replay, Step, export_trace, figures, replay, what_if
from presage.store import open_store

__all__ = ["answer", "ask", "cluster_entry"]

_Policy: TypeAlias = PolicyConfig | OwnPolicy
_MOST_S = 600
_KNOWS_TRUTH = "policies that need run times know the true ones"


async def ask(question: Mapping[str, Any]) -> Any:
    """Have a question answered; raises what its answer says, and Conflict after ten minutes."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "presage.control.replay"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"},
    )
    try:
        talk = process.communicate(json.dumps(question).encode())
        out, _ = await asyncio.wait_for(talk, _MOST_S)
    except TimeoutError:
        raise Conflict("the replay took longer than ten minutes; look less far back") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode != 0:
        raise InternalError(f"the replay ended with exit code {process.returncode}")
    body = json.loads(out)
    if "error" in body:
        raise UserError(body["error"])
    return body


def answer(question: Mapping[str, Any], steps: Iterable[Step], again: Iterable[Step]) -> Any:
    """What the journal says; `again` are the same steps once more."""
    since = -inf if question["since"] is None else question["since"]
    export = export_trace(steps, since=since)
    if question["policies"] is None:
        return _trace(export, whole=question.get("whole", False))
    mistakes: Counter[str] = Counter()
    chosen = {name: _read(data) for name, data in question["policies"].items()}
    own = [name for name in question.get("own_names", ()) if name in chosen]
    knows_less = chosen.keys() if question.get("foreseen") else own

    def foresee(name: str, truth: Predictor) -> Predictor:
        return _foreseen(export, chosen[name]) if name in knows_less else truth

    makers = {name: partial(_build, policy, mistakes) for name, policy in chosen.items()}
    results = what_if(export, makers, foresee=foresee)
    audit, notes = _audit(again, _read(question["own"]), export.nodes)
    other = audit.difference
    notes += [f"{name}: {note}" for name, result in results.items() for note in result.notes]
    notes += [f"{text}: {count:,} times, each decided by fifo" for text, count in mistakes.items()]
    return {
        "since": export.since,
        "until": export.since + export.recorded.makespan_s,
        "recorded": figures(export.recorded, export.trace),
        "policies": {name: figures(result, export.trace) for name, result in results.items()},
        "audit": {
            "same": other is None,
            "decisions": audit.decisions,
            "first_difference_at": None if other is None else other.now,
        },
        "notes": [*export.notes, *_known(chosen, knows_less), *notes],
        "own": own,
    }


def _known(chosen: Mapping[str, _Policy], knows_less: Collection[str]) -> list[str]:
    """What policies went by, for those who compare them."""
    notes = []
    if len(knows_less) < len(chosen):
        notes.append(_KNOWS_TRUTH)
    if knows_less:
        notes.append(f"what was foreseen of jobs is all that is known to {', '.join(knows_less)}")
    return notes


def _read(data: Mapping[str, Any]) -> _Policy:
    """A policy of the question."""
    return OwnPolicy.unpacked(data["own"]) if "own" in data else PolicyConfig.model_validate(data)


def _build(policy: _Policy, mistakes: Counter[str]) -> Policy:
    if isinstance(policy, PolicyConfig):
        return registry.build(policy)

    def raised(text: str) -> None:
        mistakes[text] += 1

    return policy.made(raised)


def _foreseen(export: Export, policy: _Policy) -> Predictor:
    """What a server with this policy knows of jobs."""
    return predictor(export.nodes, isinstance(policy, PolicyConfig) and policy.colocate)


def _audit(steps: Iterable[Step], own: _Policy, nodes: Sequence[Node]) -> tuple[Replay, list[str]]:
    """Decide again by the rules that held at each time; `own` are those of a journal that does not
    say. With it, what may make a difference that is none of the rules'."""
    notes: dict[str, None] = {}

    def made(policy: _Policy) -> tuple[Policy, Predictor]:
        shares = isinstance(policy, PolicyConfig) and policy.colocate
        return _build(policy, Counter()), predictor(nodes, shares)

    def rules(fact: RulesChanged) -> tuple[Policy, Predictor]:
        try:
            policy = _decided_by(fact.policy, own)
            built, predict = made(policy)
        except (ValueError, UserError) as unknown:  # or its bundle is not there any more
            notes[str(unknown)] = None
            policy = own
            built, predict = made(policy)
        if predict.version != fact.predictor:
            notes[f"decided by what foresaw as {fact.predictor}; here is {predict.version}"] = None
        return built, predict

    return replay(steps, *made(own), rules=rules), list(notes)


def _decided_by(text: str, own: _Policy) -> _Policy:
    """The policy that a journal names; raises ValueError for one that cannot be had here."""
    if isinstance(own, OwnPolicy) and own.described() == text:
        return own
    try:
        return PolicyConfig.model_validate_json(text)
    except ValidationError:
        pass
    unknown = "the journal was decided by a policy that this version does not know"
    try:
        about = json.loads(text)["own"]
        name, origin, digest = about["name"], about["origin"], about["sha256"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(unknown) from None
    raise ValueError(
        f"decided by {name} of {origin} (sha256 {digest[:12]}…), which is not the policy of this "
        "server now: what it decided is compared with this one"
    )


def _trace(export: Export, *, whole: bool = False) -> dict[str, Any]:
    notes = list(export.notes)
    if export.extras.outages:
        notes.append("nodes came or went: presage simulate has all of them all the time")
    return {
        "journal": encode(export.extras) if whole else None,
        "jobs": export.trace.jobs.to_dict(as_series=False),
        "nodes": [cluster_entry(node) for node in export.nodes],
        "notes": notes,
    }


def cluster_entry(node: Node) -> dict[str, Any]:
    """A node as a cluster file has it; devices of one node are taken to be alike."""
    entry: dict[str, Any] = {"name": node.name, "gpus": len(node.devices)}
    if node.devices:
        device = node.devices[0]
        entry |= {"gpu_type": device.type, "speed": device.speed}
        if device.memory_mib < UNLIMITED:
            entry["gpu_memory_gib"] = device.memory_mib / 1024
    if node.cpu_milli < UNLIMITED:
        entry["cpus"] = node.cpu_milli / 1000
    if node.memory_mib < UNLIMITED:
        entry["memory_gib"] = node.memory_mib / 1024
    if node.labels:
        entry["labels"] = dict(node.labels)
    return entry


def _main() -> None:
    signal.alarm(_MOST_S + 30)  # also when the server is not there any more to end it
    os.nice(10)
    question = json.load(sys.stdin)
    try:
        store = open_store(question["db"])
        try:
            reply = answer(question, store.read_steps(), store.read_steps())
        finally:
            store.close()
    except PresageError as error:
        reply = {"error": str(error)}
    json.dump(reply, sys.stdout, allow_nan=False)


if __name__ == "__main__":
    _main()
