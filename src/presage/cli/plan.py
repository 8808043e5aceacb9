"""`presage plan`: how a training should be run, by time, money and the chance that it fits.

Thin: `presage.plan` does the work.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from presage._api import planning
from presage.cli._output import check_file, print_json, progress, say
from presage.cli._setup_options import MOST
from presage.foresee.planned import money_text
from presage.page import duration_text, render, write_page

if TYPE_CHECKING:
    from presage.foresee.planned import PlanOption, TrainingPlan

__all__ = ["plan"]

_WHAT = "Of the training"
_LIMITS = "Limits"
_SETUP = "What all ways have in common"

Amount = str | None


def plan(
    target: Annotated[
        str,
        typer.Argument(help="hf:NAME, zoo:resnet50, file.py:function, model.onnx or a config."),
    ],
    tokens: Annotated[
        Amount, typer.Option(help="To see in all: 2B, 300M.", rich_help_panel=_WHAT)
    ] = None,
    samples: Annotated[
        Amount, typer.Option(help="To see in all: 10M, 50k.", rich_help_panel=_WHAT)
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(help="With --samples-per-epoch.", rich_help_panel=_WHAT)
    ] = None,
    samples_per_epoch: Annotated[
        Amount, typer.Option(help="Samples of an epoch: 1.28M.", rich_help_panel=_WHAT)
    ] = None,
    seq: Annotated[
        int | None,
        typer.Option(min=1, max=MOST, help="Tokens of a sample.", rich_help_panel=_WHAT),
    ] = None,
    global_batch: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST, help="Samples of a step, of all GPUs.", rich_help_panel=_WHAT
        ),
    ] = None,
    input: Annotated[
        Amount,
        typer.Option("--input", help="One sample without the batch: 3x224x224."),
    ] = None,
    deadline: Annotated[
        Amount, typer.Option(help="Time it may take: 24h, 3d.", rich_help_panel=_LIMITS)
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="USD it may cost.", rich_help_panel=_LIMITS)
    ] = None,
    devices: Annotated[
        str,
        typer.Option(
            help="Kinds of GPUs with commas between; `presage gpus` lists them.",
            rich_help_panel=_LIMITS,
        ),
    ] = ",".join(planning.USUAL_GPUS),
    max_gpus: Annotated[
        int, typer.Option(min=1, help="The most of a kind.", rich_help_panel=_LIMITS)
    ] = 64,
    optimizer: Annotated[
        str, typer.Option(help="As `presage predict` takes it.", rich_help_panel=_SETUP)
    ] = "adamw",
    precision: Annotated[
        Amount,
        typer.Option(
            help="fp32, tf32, amp, amp-bf16, bf16, fp16 or fp8.",
            show_default="amp-bf16 for decoders, else amp",
            rich_help_panel=_SETUP,
        ),
    ] = None,
    lora: Annotated[
        Amount, typer.Option(help="Adapters: r=16:q,k,v,o.", rich_help_panel=_SETUP)
    ] = None,
    quant: Annotated[
        Amount, typer.Option(help="Of frozen weights: nf4 or int8.", rich_help_panel=_SETUP)
    ] = None,
    loss: Annotated[
        Amount, typer.Option(help="Logits: full or chunked.", rich_help_panel=_SETUP)
    ] = None,
    attention: Annotated[
        Amount, typer.Option(help="eager, sdpa or flash.", rich_help_panel=_SETUP)
    ] = None,
    offload: Annotated[
        Amount, typer.Option(help="To the host: optimizer or params.", rich_help_panel=_SETUP)
    ] = None,
    interconnect: Annotated[
        Amount,
        typer.Option(help="Between GPUs: nvlink, pcie, ib400 …", rich_help_panel=_SETUP),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write the plan as one HTML page with its plot.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Plan a training: GPUs, their number, sharding, checkpointing and micro-batch that no other
    way beats in time, money and the chance to fit."""
    if html is not None:
        check_file(html, "--html")
    with progress("asking") as report:
        made = planning.plan(
            target,
            input,
            tokens=tokens,
            samples=samples,
            epochs=epochs,
            samples_per_epoch=samples_per_epoch,
            seq=seq,
            global_batch=global_batch,
            deadline=deadline,
            budget=budget,
            devices=devices,
            max_gpus=max_gpus,
            optimizer=optimizer,
            precision=precision,
            lora=lora,
            quant=quant,
            loss=loss,
            attention=attention,
            offload=offload,
            interconnect=interconnect,
            progress=report,
        )
    if html is not None:
        write_page(html, plan_page(made))
        say(f"written to {html}")
    if json:
        print_json(made.to_dict())
    else:
        _show(made)


def _show(made: TrainingPlan) -> None:
    console = Console(highlight=False, soft_wrap=True)
    goal = made.goal
    console.print(f"{made.name}: {goal.amount:,} {goal.unit}, ways that no other beats")
    console.print(_table(made))
    for line in _choices(made):
        console.print(line)
    if made.left_out:
        say(f"left out: {sum(made.left_out.values()):,} ways")
    for why, count in made.left_out.items():
        say(f"  {count:,}: {why}")
    for line in made.assumptions:
        say(f"  {line}")


def _table(made: TrainingPlan) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    heads = ("GPUs", "spread", "ckpt", "batch", "fits", "time (10–90 %)", "USD (10–90 %)")
    for name in heads:
        left = name in ("GPUs", "spread", "ckpt")
        grid.add_column(name, justify="left" if left else "right", no_wrap=True)
    for name, (spread, checkpoint, *rest) in made.rows():
        short = {"none": "–", "selective": "sel", "full": "full"}[checkpoint]
        grid.add_row(name.replace(" × ", " "), spread, short, *rest)
    return grid


def _choices(made: TrainingPlan) -> list[str]:
    goal, said = made.goal, []
    in_time = "" if goal.deadline_s is None else f" within {duration_text(goal.deadline_s)}"
    in_money = "" if goal.budget_usd is None else f" for at most ${goal.budget_usd:,.0f}"
    for what, option in (
        (f"cheapest{in_time}", made.cheapest),
        (f"fastest{in_money}", made.fastest),
    ):
        if option is not None:
            said.append(f"{what}: {_words(option)}")
    if not said:
        said.append("none of these likely fits: look at fewer samples in one go, or larger GPUs")
    return said


def _words(option: PlanOption) -> str:
    money = "" if option.usd is None else f", {money_text(option.usd.p50)}"
    return f"{option.label}, batch {option.batch_text}: {duration_text(option.time_s.p50)}{money}"


def plan_page(made: TrainingPlan) -> str:
    """A plan as one HTML page."""
    goal = made.goal
    facts = {
        "to see": f"{goal.amount:,} {goal.unit}",
        "steps": f"{goal.steps:,} of {goal.global_batch:,} samples",
        **({} if goal.deadline_s is None else {"deadline": duration_text(goal.deadline_s)}),
        **({} if goal.budget_usd is None else {"budget": f"${goal.budget_usd:,.0f}"}),
    }
    return render(
        "plan.html",
        title=f"Plan of {made.name}",
        facts=facts,
        heads=made.heads,
        rows=made.rows(),
        choices=_choices(made),
        left_out=made.left_out,
        assumptions=made.assumptions,
        figures={"charts": {"front": made.chart()}, "choices": {}},
    )
