"""Tables on a terminal and in a pipe."""

from __future__ import annotations

import pytest

from presage.cli._job_words import JOB_COLUMNS, job_row
from presage.cli._tables import Column, plain_lines, table_lines
from presage.model.answers import Eta, JobSummary, Status
from presage.model.job import Reason, ReasonCode

LONG = "resnet-training-of-the-vision-team-5b619c6d48324a38"
LONGEST = "n" * 63 + "-5b619c6d48324a38"
WHY = "needs 2 workers × 0.2 cores; the freest node has 0 cores, 23.5 GiB free; 1 job ahead"


def job(job_id: str = LONG, status: str = "QUEUED", **other: object) -> JobSummary:
    known: dict[str, object] = {
        "id": job_id,
        "name": "resnet",
        "owner": "ada",
        "queue": "default",
        "status": Status(status),
        "stage": "",
        "reason": Reason(ReasonCode.NO_ROOM, WHY if status == "QUEUED" else ""),
        "attempt": 1,
        "workers": 0,
        "nodes": (),
        "submitted_at": 0.0,
        "started_at": None,
        "ended_at": None,
        "exit_code": None,
        "progress": None,
        "eta_s": Eta(240.0, 300.0, 720.0, 1.0) if status == "QUEUED" else None,
    }
    return JobSummary(**{**known, **other})  # type: ignore[arg-type]


RUNS = job(
    "b-2", "PROCESSING", workers=2, nodes=("n1", "n2"), progress={"done": 0.4, "loss": 0.31}
)


def drawn(width: int, *jobs: JobSummary) -> list[str]:
    rows = [job_row(each, now=90.0) for each in jobs]
    return [line.plain for line in table_lines(JOB_COLUMNS, rows, width)]


@pytest.mark.parametrize("width", [40, 80, 100, 200])
@pytest.mark.parametrize("name", [LONG, LONGEST, "a-1"])
def test_ids_and_statuses_are_whole_at_any_width(width: int, name: str) -> None:
    lines = drawn(width, job(name), job("b-2", "DOWNLOADING"))
    text = "\n".join(lines)
    assert name in text
    assert "DOWNLOADING" in text
    assert " ".join(text.split()).count("1 job ahead") == 1
    assert max(map(len, lines)) <= max(width, len(name))


def test_eighty_columns() -> None:
    assert drawn(80, job(), RUNS) == [
        "ID                                                   STATUS       AGE  STARTS",
        f"{LONG}  QUEUED      1.5m  4m–12m",
        "    needs 2 workers × 0.2 cores; the freest node has 0 cores, 23.5 GiB free; 1",
        "    job ahead",
        "b-2                                                  PROCESSING  1.5m        ",
        "    40 % (loss 0.31); on n1, n2",
    ]


def test_short_ids_leave_room_for_everything() -> None:
    first, second, *rest = drawn(80, RUNS, job("a-1"))
    assert first.split() == [column.name for column in JOB_COLUMNS]
    assert second.split()[:6] == ["b-2", "PROCESSING", "ada", "default", "2", "1.5m"]
    assert next(line for line in rest if line.startswith("a-1")).split()[5] == "4m–12m"


def test_a_pipe_gets_every_column_as_a_word() -> None:
    head, *rows = plain_lines(JOB_COLUMNS, [job_row(each, now=90.0) for each in (job(), RUNS)])
    assert head.split() == [column.name for column in JOB_COLUMNS]
    first, second = (row.split(maxsplit=7) for row in rows)
    assert first == [LONG, "QUEUED", "ada", "default", "-", "1.5m", "4m–12m", WHY]
    assert second[:7] == ["b-2", "PROCESSING", "ada", "default", "2", "1.5m", "-"]
    assert "\t" not in head + "".join(rows)


def test_a_list_in_the_last_column_is_wrapped_between_its_words() -> None:
    columns = [Column("NODE"), Column("STATE", spare=1), Column("JOBS")]
    rows = [["node-0", "up", f"{LONG}, {LONG[:-1]}9"]]
    wide = [line.plain for line in table_lines(columns, rows, 80)]
    assert wide[1] == f"node-0  up     {LONG},"
    assert wide[2].strip() == f"{LONG[:-1]}9"
    narrow = [line.plain for line in table_lines(columns, rows, 50)]
    assert narrow == ["NODE    STATE", "node-0  up   ", f"    {LONG},", f"    {LONG[:-1]}9"]


def test_a_table_without_rows_has_its_heads() -> None:
    assert plain_lines([Column("A"), Column("B")], []) == ["A  B"]
    assert [line.plain for line in table_lines([Column("A"), Column("B")], [], 80)] == ["A"]
