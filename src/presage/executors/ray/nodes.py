"""What Ray says of nodes: a pure function, Ray is not imported here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from presage.executors.fleet.place import FleetNode

__all__ = ["name_nodes"]


def name_nodes(rows: Iterable[Mapping[str, Any]], known: Mapping[str, str]) -> list[FleetNode]:
    """The nodes that are alive, each with a name of its own: the one Ray has for it, with a part
    of its id where several have the same. A node that is `known` (name by id) keeps its name."""
    alive = [row for row in rows if row["Alive"]]
    same = Counter(row["NodeName"] for row in alive)
    nodes = []
    for row in alive:
        plain, number = row["NodeName"], row["NodeID"]
        name = known.get(number) or (plain if same[plain] == 1 else f"{plain}-{number[:6]}")
        labels = dict(row.get("Labels") or {})
        nodes.append(FleetNode(number, name, row["NodeManagerAddress"], row["Resources"], labels))
    return sorted(nodes, key=lambda node: node.name)
