"""`presage usage` and its route: who sees what, and in which form."""

from __future__ import annotations

import csv
from collections.abc import Iterator

import pytest

from presage.layout import Layout
from presage.store import open_store
from presage.store.usage import DayUsage, UsageKey
from tests.server.kit import Server, Zygote, eventually

pytestmark = [pytest.mark.engine, pytest.mark.slow]

LONG_AGO = 20_000
"""The day 2024-10-04, on which nothing else ran."""


@pytest.fixture(scope="module")
def busy(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with users, on which ada of the team vision ran a job for two seconds."""
    data = tmp_path_factory.mktemp("usage") / "data"
    Layout(data).prepare()
    store = open_store(f"sqlite:///{Layout(data).database}")
    rows = {
        UsageKey(LONG_AGO, who, team, queue): DayUsage(held_gpu_s=3600.0 * hours, runs=1)
        for who, team, queue, hours in (
            ("ada", "vision", "default", 1),
            ("bob", "vision", "default", 2),
            ("eve", "speech", "night", 4),
        )
    }
    store.usage.write(0, 0, {}, rows)
    store.close()
    server = Server(
        zygote, data, token="presage_root", env={"PRESAGE_TOKEN": "presage_root"}, nodes="1x4"
    )
    server.start()
    yield server
    server.close()


def test_what_ran_is_in_the_accounts(busy: Server) -> None:
    job = busy.submit("sleep 2", resources={"gpus": 2, "cpus": 1})
    busy.wait(job)

    def counted() -> bool:
        sums = busy.http.get("/api/v1/usage").json()["sums"]
        return bool(sums) and busy.processes(job) == [] and sums[0]["held_gpu_h"] > 3.9 / 3600

    eventually(counted)
    report = busy.http.get("/api/v1/usage", params={"by": "queue"}).json()
    (row,) = report["sums"]
    assert (row["key"], row["runs"]) == ("default", 1)
    assert row["held_gpu_h"] == row["asked_gpu_h"] == row["unpriced_gpu_h"]
    assert row["cpu_h"] == pytest.approx(row["held_gpu_h"] / 2, abs=1e-3)
    assert [day["key"] for day in report["days"]] == ["default"]
    assert report["total"]["held_gpu_h"] == row["held_gpu_h"]


def test_users_see_their_own_and_their_teams(busy: Server) -> None:
    root = busy.client()
    tokens = {
        name: root.add_user(name, role, team).token
        for name, role, team in (
            ("ada", "user", "vision"),
            ("eve", "user", ""),
            ("ops", "operator", ""),
        )
    }
    root.close()
    query = {"since": "2024-10-01", "until": "2024-10-31", "by": "user"}
    seen = {}
    for name, token in tokens.items():
        headers = {"Authorization": f"Bearer {token}"}
        answer = busy.stranger.get("/api/v1/usage", params=query, headers=headers)
        seen[name] = [row["key"] for row in answer.json()["sums"]]
    assert seen == {"ada": ["ada", "bob"], "eve": ["eve"], "ops": ["ada", "bob", "eve"]}
    assert busy.stranger.get("/api/v1/usage").status_code == 401


def test_the_command_in_all_forms(busy: Server) -> None:
    when = ("--since", "2024-10-01", "--until", "2024-10-31")
    table = busy.presage("usage", *when, "--by", "team")
    assert table.out.splitlines() == [
        "TEAM    ASKED  HELD  USED  IDLE  LOST  CPU H   USD",
        "speech    0.0   4.0     -     -   0.0    0.0  0.00",
        "vision    0.0   3.0     -     -   0.0    0.0  0.00",
        "total     0.0   7.0     -     -   0.0    0.0  0.00",
    ]
    daily = busy.presage("usage", *when, "--by", "queue", "--daily")
    assert daily.out.splitlines()[1].split()[:2] == ["2024-10-04", "default"]
    report = busy.presage("usage", *when, "--json").json
    assert [row["key"] for row in report["sums"]] == ["ada", "bob", "eve"]
    rows = list(csv.DictReader(busy.presage("usage", *when, "--csv").out.splitlines()))
    assert [(row["day"], row["key"], row["held_gpu_h"]) for row in rows] == [
        ("2024-10-04", "ada", "1.0"),
        ("2024-10-04", "bob", "2.0"),
        ("2024-10-04", "eve", "4.0"),
    ]
    empty = busy.presage("usage", "--since", "2020-01-01", "--until", "2020-01-02")
    assert (empty.out, empty.err) == ("", "nothing ran from 2020-01-01 to 2020-01-02\n")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("--by", "planet"), "error: --by planet: there are user, team, queue\n"),
        (
            ("--since", "soon"),
            "error: --since soon: write 30d, 12w, or a day such as 2026-11-01\n",
        ),
        (("--since", "2026-01-02", "--until", "2026-01-01"), "and not after until\n"),
    ],
)
def test_mistakes_are_one_line(busy: Server, argv: tuple[str, ...], says: str) -> None:
    done = busy.presage("usage", *argv)
    assert done.code == 2
    assert done.err.endswith(says)
    assert done.err.count("\n") == 1
