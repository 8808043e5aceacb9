"""`presage graph`: what a model computes, operator by operator, before it ever runs.

The command composes; `foresee.graph` does the work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from presage.cli._output import check_file, print_json, say
from presage.cli._setup_options import MOST
from presage.foresee.graph.load import load_graph
from presage.foresee.graph.picture import page
from presage.foresee.graph.summary import short, summarize
from presage.model.errors import UserError

__all__ = ["graph"]

Target = Annotated[
    str,
    typer.Argument(
        help="zoo:resnet50, file.py:function, package.module:function, model.onnx or config.json."
    ),
]
Inputs = Annotated[
    str | None,
    typer.Option(
        "--input", help="One sample without the batch: 3x224x224, or 128:int64,128:int64."
    ),
]
Batch = Annotated[int, typer.Option(min=1, max=MOST, help="Samples in a step.")]
Inference = Annotated[bool, typer.Option("--inference", help="The forward pass alone.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
HtmlPath = Annotated[Path | None, typer.Option(help="Write a picture as an HTML page.")]


def graph(
    target: Target,
    input: Inputs = None,
    batch: Batch = 1,
    inference: Inference = False,
    json: AsJson = False,
    html: HtmlPath = None,
) -> None:
    """Show what a model computes: operators, MACs, parameters and activations."""
    if html is not None:
        check_file(html, "--html")
    opgraph = load_graph(target, inputs=input, inference=inference)
    facts = summarize(opgraph, batch)
    for note in facts["notes"]:
        say(f"note: {note}")
    if html is not None:
        try:
            html.write_text(page(opgraph, batch), encoding="utf-8")
        except OSError as error:
            raise UserError(f"--html {html} cannot be written: {error.strerror}") from None
        say(f"picture written to {html}")
    if json:
        print_json(facts)
    else:
        _show(facts)


def _show(facts: dict[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    each = facts["per_sample"]
    what = "inference" if facts["options"].get("inference") else "training step"
    rows = {
        "one sample": ", ".join(facts["inputs"]),
        "parameters": f"{facts['params']:,}",
        "MACs": f"{short(each['macs'])}, forward, one sample",
        "FLOPs": f"{short(each['flops'])} (two for each MAC)",
        "activations": f"{short(each['activations'])}, forward, one sample",
        what: f"{facts['operators']:,} operators, {short(facts['macs'])} MACs, "
        f"{short(facts['bytes'], 'B')} moved at batch {facts['batch']:,}",
    }
    console.print(facts["name"], markup=False, style="bold")
    for name, value in rows.items():
        console.print(f"  {name:<13} {value}", markup=False)
    console.print()
    table = Table(box=None, pad_edge=False)
    table.add_column("kind")
    for title in ("operators", "MACs", "share", "moved"):
        table.add_column(title, justify="right")
    for row in facts["kinds"]:
        table.add_row(
            row["kind"],
            f"{row['operators']:,}",
            short(row["macs"]) if row["macs"] else "–",
            f"{row['macs_share']:.1%}" if row["macs"] else "–",
            short(row["bytes"], "B"),
        )
    console.print(table)
