"""`presage rightsize --watch`: which pods of a watched cluster to ask Prometheus about, and what
each asked for beside what it should have.

It asks the journal of the watcher, never the cluster, and changes nothing there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from presage.cli._output import print_json
from presage.cli._tables import Column, show_table
from presage.cli.watch import watched
from presage.model.cluster import Resources
from presage.model.errors import UserError
from presage.page import readable_unit
from presage.provision.recommend import Recommendation

__all__ = ["asked_there", "select_pods", "show_beside"]


def asked_there(data: Path, job: str | None) -> dict[str, Resources]:
    """What the pods that run there asked for, by namespace/name; of one, if it is named."""
    with watched(data) as known:
        if known.kind != "kubernetes":
            raise UserError(
                "samples are found by the labels namespace and pod, which Slurm jobs do not have; "
                "without --watch, --select names the labels that your exporter gives them"
            )
        running = known.running(job)
    if not running:
        raise UserError(f"no pod runs in the cluster watched into {data}")
    return {seen.id.partition("@")[0]: seen.runs[-1].workers[0].resources for seen in running}


def select_pods(pods: Sequence[str]) -> str:
    """Label matchers for pods, by namespace/name."""
    spaces, names = zip(*(pod.split("/", 1) for pod in pods), strict=True)

    def one_of(values: Sequence[str]) -> str:
        return "|".join(re.escape(one).replace("\\", "\\\\") for one in sorted(set(values)))

    return f'namespace=~"{one_of(spaces)}",pod=~"{one_of(names)}"'


def show_beside(
    asked: dict[str, Resources], recommended: Sequence[Recommendation], as_json: bool
) -> None:
    """Asked beside recommended; None where nothing was asked for."""
    rows: list[dict[str, Any]] = [
        {
            **{"pod": one.pod, "resource": one.resource, "unit": one.unit},
            **{"asked": _asked(asked[one.pod], one), "recommended": one.amount},
            "reason": one.reason,
        }
        for one in recommended
        if one.pod in asked and one.resource in ("cpu", "memory")
    ]
    if as_json:
        print_json(rows)
        return
    heads = [Column("POD"), Column("RESOURCE"), Column("ASKED", right=True)]
    heads.append(Column("RECOMMENDED", right=True))
    texts = [
        (_text(row["asked"], row["unit"]), _text(row["recommended"], row["unit"])) for row in rows
    ]
    show_table(
        heads,
        [[row["pod"], row["resource"], *text] for row, text in zip(rows, texts, strict=True)],
    )


def _asked(ask: Resources, one: Recommendation) -> float | None:
    """In the unit of what is recommended."""
    if one.resource == "cpu":
        return ask.cpu_milli / 1000 or None
    return ask.memory_mib * 2.0**20 or None


def _text(amount: float | None, unit: str) -> str:
    if amount is None:
        return "nothing"
    size, shown = readable_unit(unit, amount)
    return f"{amount / size:.4g} {shown}".rstrip()
