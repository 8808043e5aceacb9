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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any

from pydantic import ValidationError

from presage.control.advisors.needs import predictor
from presage.core.ports import Policy, Predictor
from presage.model.cluster import UNLIMITED, Node
from presage.model.errors import Conflict, InternalError, PresageError, UserError
from presage.model.event import RulesChanged
from presage.policy import registry
from presage.policy.config import PolicyConfig
from presage.sim.whatif import Export, Replay, Step, export_trace, figures, replay, what_if
from presage.store import open_store

__all__ = ["answer", "ask", "cluster_entry"]

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
        return _trace(export)
    policies = {
        name: partial(registry.build, PolicyConfig.model_validate(config))
        for name, config in question["policies"].items()
    }
    results = what_if(export, policies)
    audit, notes = _audit(again, PolicyConfig.model_validate(question["own"]), export.nodes)
    other = audit.difference
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
        "notes": [*export.notes, _KNOWS_TRUTH, *notes],
    }


def _audit(
    steps: Iterable[Step], own: PolicyConfig, nodes: Sequence[Node]
) -> tuple[Replay, list[str]]:
    """Decide again by the rules that held at each time; `own` are those of a journal that does not
    say. With it, what may make a difference that is none of the rules'."""
    notes: dict[str, None] = {}

    def rules(fact: RulesChanged) -> tuple[Policy, Predictor]:
        try:
            config = PolicyConfig.model_validate_json(fact.policy)
        except ValidationError:
            notes["the journal was decided by a policy that this version does not know"] = None
            config = own
        predict = predictor(nodes, config.colocate)
        if predict.version != fact.predictor:
            notes[f"decided by what foresaw as {fact.predictor}; here is {predict.version}"] = None
        return registry.build(config), predict

    begin = registry.build(own), predictor(nodes, own.colocate)
    return replay(steps, *begin, rules=rules), list(notes)


def _trace(export: Export) -> dict[str, Any]:
    notes = list(export.notes)
    if export.rules.outages:
        notes.append("nodes came or went: presage simulate has all of them all the time")
    return {
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
