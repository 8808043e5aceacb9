"""`presage health kinds`: what kind of fault it is, learned from labelled faults, by a decision
tree or a Bayesian network that people can read. Thin: `observe.health.kinds` decides."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import polars as pl
import typer

from presage.cli._health_input import AsJson, Id, Ignore, Telemetry, Time, read
from presage.cli._input import seconds
from presage.cli._output import check_file, print_json, progress, say
from presage.cli._tables import Column, show_table
from presage.model.errors import TelemetryError, UserError
from presage.observe.health.causes import Moved, changes_of, find_causes
from presage.observe.health.kinds import FaultKinds, Method
from presage.telemetry.readers import InputRows, read_moment, read_table

__all__ = ["kinds"]

kinds = typer.Typer(
    help="Say what kind of fault it is, from labelled faults.", no_args_is_help=True
)

_OF = ("series", "pod", "name", "service", "id", "inject_pod")
_KIND = ("kind", "fault", "type", "inject_type", "label")
_FROM, _TO = ("from", "begin", "start", "since", "inject_ts_utc"), ("to", "end", "until")
_WINDOW = "3m"

Bundle = Annotated[Path, typer.Option(help="What `presage health kinds fit` wrote.")]
By = Annotated[
    Method, typer.Option("--by", help="A decision tree, a Bayesian network (pgmpy), or both.")
]


@kinds.command()
def fit(
    telemetry: Telemetry,
    faults: Annotated[
        Path, typer.Option(help="A table of faults: series, from, to (or --window), kind.")
    ],
    out: Annotated[Path, typer.Option(help="The bundle to write.")],
    id: Id = None,
    time: Time = None,
    ignore: Ignore = None,
    window: Annotated[
        str, typer.Option(help="How long a fault is looked at where the table has no `to`.")
    ] = _WINDOW,
    by: By = "both",
    json: AsJson = False,
) -> None:
    """Learn from labelled FAULTS in TELEMETRY what each kind does to metrics."""
    check_file(out, "--out")
    window_s = seconds(window, "--window")
    rows = read(telemetry, id, time, ignore)
    listed = _Labelled(read_table(faults), faults, rows, window_s)
    with progress("learning") as report:
        moved = listed.moved(rows, report)
    model = FaultKinds(by).fit([moved[at] for at in sorted(moved)], listed.known(moved))
    groups = [listed.of[at] for at in sorted(moved)]
    right = model.right_on_others(groups) if len(set(groups)) > 1 else None
    data = f"{faults.name}: {len(moved):,} faults of {len(model.kinds_)} kinds"
    model.save(out, date=datetime.now(UTC).date().isoformat(), data=data)
    if left := len(listed.of) - len(moved):
        say(f"not learned from: {left:,} faults whose series was not measured then and before")
    if json:
        told = {"written": str(out), "faults": len(moved), "kinds": list(model.kinds_)}
        print_json({**told, "left_out": left, "right_on_series_left_out": right})
        return
    typer.echo(data)
    if right is not None:
        typer.echo(f"named right on series left out: {right:.0%}")
    say(f"written to {out}")


@kinds.command()
def show(bundle: Bundle, by: By = "both") -> None:
    """Print what was learned: the questions of the tree, and the tables of the network."""
    typer.echo(FaultKinds.load(bundle, by).text())


@kinds.command()
def score(
    telemetry: Telemetry,
    bundle: Bundle,
    since: Annotated[str, typer.Option("--from", help="When the trouble began.")],
    until: Annotated[str, typer.Option("--to", help="When it ended; not itself part of it.")],
    of: Annotated[
        str | None,
        typer.Option(help="The guilty series.", show_default="what `causes` names first"),
    ] = None,
    id: Id = None,
    time: Time = None,
    ignore: Ignore = None,
    by: By = "both",
    json: AsJson = False,
) -> None:
    """Say which kind of fault it was that TELEMETRY shows, the likeliest first."""
    model = FaultKinds.load(bundle, by)
    rows = read(telemetry, id, time, ignore)
    begin = read_moment(since, rows.time_column, "--from")
    end = read_moment(until, rows.time_column, "--to")
    named = [pod.pod for pod in rows.series]
    if of is None:
        causes = find_causes(rows.series, begin, end).causes
        if not causes:
            _tell(None, (), json)
            return
        of = causes[0].name
    elif of not in named:
        some = ", ".join(named[:5])
        raise UserError(f"--of: there is no series '{of}'; there are {some}")
    moved = changes_of(rows.series, begin, end)[named.index(of)]
    ranked = [(one.kind, one.probability) for one in model.rank(moved)]
    _tell(of, ranked, json)


def _tell(of: str | None, ranked: Sequence[tuple[str, float]], json: bool) -> None:
    if json:
        shown = [{"kind": kind, "probability": chance} for kind, chance in ranked]
        print_json({"of": of, "kinds": shown})
    elif of is None:
        typer.echo("nothing stands out")
    else:
        say(f"of {of}")
        body = [[kind, f"{chance:.0%}"] for kind, chance in ranked]
        show_table([Column("KIND"), Column("CHANCE", right=True)], body)


class _Labelled:
    """A table of faults."""

    def __init__(self, table: pl.DataFrame, file: Path, rows: InputRows, window_s: float) -> None:
        lower = {name.lower(): name for name in table.columns}

        def column(usual: Sequence[str], needed: bool = True) -> list[str]:
            header = next((lower[name] for name in usual if name in lower), None)
            if header is None and needed:
                has = ", ".join(table.columns) or "nothing"
                raise TelemetryError(f"{file} has no column '{usual[0]}'; it has {has}")
            return [] if header is None else table[header].cast(pl.String).to_list()

        self.of, self.kind = column(_OF), column(_KIND)
        begins, ends = column(_FROM), column(_TO, needed=False)
        if None in self.kind or None in begins:
            raise TelemetryError(f"{file}: each fault needs a kind and its beginning")
        self.begin = [read_moment(one, rows.time_column, f"{file}") for one in begins]
        self.end = [begin + window_s for begin in self.begin]
        if ends:
            self.end = [read_moment(one, rows.time_column, f"{file}") for one in ends]
        unknown = sorted(set(self.of) - {pod.pod for pod in rows.series})
        if unknown:
            say(f"no series has the name of: {', '.join(unknown[:5])}")

    def moved(self, rows: InputRows, report: object) -> dict[int, dict[str, Moved]]:
        """What the guilty series did in each fault, where it was measured."""
        moves: dict[int, dict[str, Moved]] = {}
        for at, name in enumerate(self.of):
            begin, end = self.begin[at], self.end[at]
            around = [
                pod
                for pod in rows.series
                if len(pod) and pod.times[0] < end and pod.times[-1] >= begin
            ]
            names = [pod.pod for pod in around]
            if name in names:
                try:
                    moves[at] = changes_of(around, begin, end)[names.index(name)]
                except TelemetryError:
                    continue
            if callable(report):
                report(at + 1, len(self.of))
        if not moves:
            raise TelemetryError("no fault is at a time and of a series that the telemetry has")
        return moves

    def known(self, moved: dict[int, dict[str, Moved]]) -> list[str]:
        """The kinds of those."""
        return [self.kind[at] for at in sorted(moved)]
