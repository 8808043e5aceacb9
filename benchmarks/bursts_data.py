"""Puts measured bursts into the data set that the repository keeps, and writes what is in it.

    python -m benchmarks.bursts_data DIR        # DIR/runs.jsonl, from benchmarks.bursts_collect
    python -m benchmarks.bursts_data --ship     # names bundles that were fitted into the package

`benchmarks/data/bursts` then has all runs as they were measured (`runs.jsonl.gz`), and
`card.json` with counts, machine, dates and the noise of repeats; `README.md` there says what the
columns are. Runs that failed are counted and left out. Nothing here fits or measures.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from presage.foresee.bursts.bundles import BurstBundle
from presage.foresee.bursts.rows import noise_of, read_runs, settings_of
from presage.foresee.bursts.use import SHIPPED
from presage.foresee.graph import zoo
from presage.model.errors import PresageError, UserError
from presage.telemetry.bursts import TARGETS
from presage.telemetry.rows import objects

DATA = Path(__file__).parent / "data" / "bursts"
_MOST_BYTES = 10 << 20


def pack(source: Path, out: Path) -> dict[str, Any]:
    """Write the data set anew from a collector's directory; its card."""
    path = source / "runs.jsonl"
    if not path.is_file():
        raise UserError(f"{source} has no runs.jsonl: measure with benchmarks.bursts_collect")
    with path.open("rb") as file:
        runs = list(objects(file))
    kept = [run for run in runs if "labels" in run]
    text = "".join(json.dumps(run, separators=(",", ":")) + "\n" for run in kept)
    packed = gzip.compress(text.encode(), 9, mtime=0)
    if len(packed) > _MOST_BYTES:
        raise UserError(f"{len(packed) >> 20} MiB are more than the repository keeps (10)")
    out.mkdir(parents=True, exist_ok=True)
    (out / "runs.jsonl.gz").write_bytes(packed)
    card = _card(out, kept, len(runs) - len(kept))
    (out / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    return card


def _card(out: Path, runs: list[dict[str, Any]], failed: int) -> dict[str, Any]:
    works = {json.dumps(run["workload"], sort_keys=True) for run in runs}
    models = {run["workload"]["model"] for run in runs}
    days = sorted(run["at"][:10] for run in runs)
    return {
        "runs": len(runs),
        "failed": failed,
        "workloads": len(works),
        "models": len(models),
        "families": sorted({zoo.find(model).family for model in models}),
        "settings": dict(Counter(run["setting"] for run in runs)),
        "repeated": sum(run["repeat"] > 0 for run in runs),
        "measured": [days[0], days[-1]],
        "cores_of_all_tasks": sorted({run["machine"]["cores"] for run in runs}),
        "memory_counter": sorted({run["memory_counter"] for run in runs}),
        "noise": {str(setting): _noise(out, str(setting)) for setting in settings_of(out)},
    }


def _noise(out: Path, setting: str) -> dict[str, float] | None:
    found = noise_of(read_runs(out, setting))
    if found is None:
        return None
    return dict(zip(TARGETS, (round(float(each), 4) for each in found), strict=True))


def ship(directory: Path) -> int:
    """Say in the cards of fitted bundles that they are the project's; how many there are."""
    own = {
        "version": "2",
        "licence": "that of the project",
        "machine": "one core of a CPU for all tasks",
    }
    paths = sorted(directory.rglob("*W*.npz"))
    for path in paths:
        bundle = BurstBundle.load(path)
        replace(bundle, card=bundle.card | own).save(path)
    return len(paths)


def main() -> None:
    parser = argparse.ArgumentParser(description="Put measured bursts into the data set.")
    parser.add_argument("source", type=Path, metavar="DIR", nargs="?")
    parser.add_argument("--ship", action="store_true")
    options = parser.parse_args()
    if options.ship == (options.source is not None):
        parser.error("give either DIR or --ship")
    try:
        if options.ship:
            print(f"{ship(SHIPPED)} bundles are named as shipped")
            return
        card = pack(options.source, DATA)
    except PresageError as error:
        sys.exit(f"error: {error}")
    size = (DATA / "runs.jsonl.gz").stat().st_size
    print(f"{card['runs']} runs of {card['workloads']} workloads, {size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
