"""`presage profile`: run a command, and keep what it used.

The command's own output and exit code stay as they are, so the report goes to stderr, as that of
`time` does. Thin: measuring and keeping are `observe`'s work.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from presage.cli._output import check_file, print_json, say
from presage.model.errors import UserError
from presage.model.profile import Distribution, Profile, profile_to_json
from presage.telemetry.bursts import RESOURCES, TARGETS, TaskBursts
from presage.telemetry.profiler import HIGHEST_HZ, Columns, profile_command
from presage.telemetry.store import ProfileStore

__all__ = ["profile"]

_MIB = 1 << 20
_STDERR = 2


def profile(
    command: Annotated[list[str], typer.Argument(help="The command, after the options and --.")],
    hz: Annotated[float, typer.Option(min=0.1, max=HIGHEST_HZ, help="Samples a second.")] = 20.0,
    out: Annotated[
        Path | None, typer.Option(help="Write the samples to this file, as Parquet.")
    ] = None,
    bursts: Annotated[
        bool,
        typer.Option("--bursts", help="Tell how each worker's device and network pulse, too."),
    ] = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print JSON and nothing else; the command's output goes to stderr."
        ),
    ] = False,
) -> None:
    """Run COMMAND, measure what it and its children use, and keep the profile.

    The exit code is the command's own."""
    if out is not None:
        check_file(out, "--out")
    store = ProfileStore()
    store.check()
    sys.stdout.flush()
    run = profile_command(command, hz=hz, stdout=_STDERR if json else None, bursts=bursts)
    known = store.history(run.profile.signature)
    kept = store.add(run.profile)
    if out is not None:
        _write_samples(run.samples, out)
    if json:
        told = {"bursts": _told(run.bursts)} if run.bursts is not None else {}
        story = told | {"kept_in": str(kept), "runs_before": len(known), "notes": list(run.notes)}
        print_json({"profile": profile_to_json(run.profile), **story})
    else:
        _show(run.profile, known, kept, run.notes)
        _show_bursts(run.bursts)
    raise typer.Exit(run.profile.exit_code)


def _write_samples(samples: Columns, path: Path) -> None:
    import polars as pl

    draft = path.with_name(f".{path.name}.part")
    try:
        pl.DataFrame(samples).write_parquet(draft)
        draft.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)


def _show(run: Profile, known: list[Profile], kept: Path, notes: tuple[str, ...]) -> None:
    last = known[-1] if known else None
    drawn = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    drawn.add_column(f"{run.duration_s:.2f} s, exit {run.exit_code}", no_wrap=True)
    heads = ("mean", "p50", "p95", "max", *(["last mean"] if last else []))
    for head in heads:
        drawn.add_column(head, justify="right", no_wrap=True)
    for name, now, before in _rows(run, last):
        cells = [now.mean, now.p50, now.p95, now.max]
        drawn.add_row(
            name, *map(_number, cells), *([_number(before.mean) if before else ""] if last else [])
        )
    Console(stderr=True).print(drawn)
    for note in notes:
        say(f"note: {note}")
    if not run.alone:
        say(f"note: not alone: {run.other_cores:.1f} cores were busy with other work")
    if last is not None:
        change = 100 * (run.duration_s / last.duration_s - 1) if last.duration_s else 0.0
        times = "once" if len(known) == 1 else f"{len(known)} times"
        say(f"seen {times} before; the last run took {last.duration_s:.2f} s ({change:+.0f} %)")
    say(f"{run.samples:,} samples at {run.hz:.1f} Hz, signature {run.signature}, kept in {kept}")


def _told(tasks: list[TaskBursts]) -> list[dict[str, Any]]:
    """Each worker with its twelve numbers and patterns, for JSON."""
    out = []
    for task in tasks:
        patterns = {name: str(bursts.pattern) for name, bursts in task.by_resource.items()}
        numbers = {n: round(v, 3) for n, v in zip(TARGETS, task.numbers, strict=True)}
        out.append({"task": task.task, "hz": task.hz, "patterns": patterns, **numbers})
    return out


def _show_bursts(tasks: list[TaskBursts] | None) -> None:
    if not tasks:
        return
    drawn = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    for name in ("worker", "bursts of", "pattern"):
        drawn.add_column(name, no_wrap=True)
    for name in ("height", "burst ms", "idle ms", "bursts"):
        drawn.add_column(name, justify="right", no_wrap=True)
    for task in tasks:
        for resource, bursts in task.by_resource.items():
            unit = "%" if RESOURCES[resource] == "pct" else "MiB/s"
            numbers = (_number(bursts.burst_ms), _number(bursts.idle_ms), str(bursts.count))
            height = f"{_number(bursts.burst)} {unit}"
            drawn.add_row(task.task, resource, str(bursts.pattern), height, *numbers)
    Console(stderr=True).print(drawn)


def _rows(
    run: Profile, last: Profile | None
) -> list[tuple[str, Distribution, Distribution | None]]:
    """The quantities to show: those that most jobs have, and those that this one has."""

    def row(
        title: str, name: str, unit: float = 1.0
    ) -> tuple[str, Distribution, Distribution | None] | None:
        now = getattr(run, name)
        before = getattr(last, name) if last is not None else None
        return (title, _scaled(now, unit), before and _scaled(before, unit)) if now else None

    rows = [
        row("CPU, cores", "cpu_cores"),
        row("memory, MiB", "rss_mib"),
        row("disk read, MiB/s", "read_bytes_s", _MIB),
        row("disk written, MiB/s", "write_bytes_s", _MIB),
        row("network sent, MiB/s", "net_sent_bytes_s", _MIB),
        row("network received, MiB/s", "net_received_bytes_s", _MIB),
        row("GPU, %", "gpu_util_pct"),
        row("GPU memory, MiB", "gpu_memory_mib"),
        row("step, ms", "step_ms"),
    ]
    return [item for item in rows if item is not None]


def _scaled(spread: Distribution, unit: float) -> Distribution:
    return Distribution(
        spread.mean / unit, spread.p50 / unit, spread.p95 / unit, spread.max / unit
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
