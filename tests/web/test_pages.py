"""The pages in a real browser: sign in, submit, watch, read, stop, and what is not allowed."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.server.kit import PATIENCE_S, Server, eventually

pytestmark = [pytest.mark.engine, pytest.mark.slow]
Visitor = Callable[..., Page]

MANIFEST = """\
name: browsed
command: for i in $(seq 3000); do echo "<u> line $i"; sleep 0.2; done
workers: 2
resources: {gpus: 1, cpus: 1, memory: 64Mi}
"""


def submit(server: Server, token: str, command: str = "sleep 600", name: str = "job") -> str:
    """A job of somebody's."""
    body = {"name": name, "command": command, "resources": {"gpus": 1}}
    headers = {"Authorization": f"Bearer {token}"}
    answer = server.http.post("/api/v1/jobs", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    made: str = answer.json()["id"]
    return made


def test_a_job_from_its_manifest_to_its_end(visit: Visitor, guarded: Server) -> None:
    page = visit("/ui/submit")
    page.get_by_label("Manifest").fill(MANIFEST)
    page.get_by_role("button", name="Submit the job").click()
    page.wait_for_url(re.compile(r":\d+/ui/jobs/browsed-"))
    status = page.get_by_test_id("status")
    expect(status).to_have_text("PROCESSING")
    output = page.get_by_role("log")
    expect(output).to_contain_text("<u> line 2\n")  # it comes without a reload
    page.get_by_role("combobox", name="Worker").select_option(label="worker-1, attempt 1")
    expect(output).to_contain_text("line 3\n")
    chart = page.get_by_role("img", name=re.compile("Memory in use"))
    expect(chart).to_have_attribute("aria-label", re.compile("worker-1: now"))

    page.get_by_role("button", name="Stop", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Leave it as it is").click()
    expect(dialog).to_have_count(0)
    assert guarded.job(page.url.rpartition("/")[2])["status"] == "PROCESSING"
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Stop it").click()
    expect(status).to_have_text("CANCELLED")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    expect(page.locator(".timeline li")).to_have_count(4)


def test_halt_and_resume(visit: Visitor, guarded: Server, tokens: dict[str, str]) -> None:
    job = submit(guarded, tokens["ada"])
    guarded.wait(job, "PROCESSING")
    page = visit(f"/ui/jobs/{job}")
    page.get_by_role("button", name="Halt").click()
    expect(page.get_by_test_id("at-risk")).to_contain_text("declares no checkpoint and took none")
    page.get_by_role("button", name="Halt it").click()
    expect(page.get_by_test_id("status")).to_have_text("HALTED")
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Resume it").click()
    expect(page.get_by_test_id("status")).to_have_text("PROCESSING")
    guarded.tell(job, "stop")
    guarded.wait(job)


def test_scale(visit: Visitor, guarded: Server) -> None:
    job = guarded.submit("sleep 600", workers="1..3", resources={"gpus": 1}, grace="1s")
    guarded.wait(job, "PROCESSING")
    page = visit(f"/ui/jobs/{job}", "admin")
    size = page.locator("dl.facts div").filter(has_text="Workers").locator("dd")
    before = int(size.inner_text())
    wanted = 2 if before != 2 else 1
    page.get_by_role("spinbutton", name="Workers").fill("9")
    page.get_by_role("button", name="Scale").click()
    page.get_by_role("button", name="Scale it").click()
    expect(page.get_by_text("1 to 3 workers, not 9")).to_be_visible()
    page.get_by_role("button", name="Close").click()
    page.get_by_role("spinbutton", name="Workers").fill(str(wanted))
    page.get_by_role("button", name="Scale").click()
    page.get_by_role("button", name="Scale it").click()
    expect(size).to_have_text(str(wanted))
    guarded.tell(job, "stop")
    guarded.wait(job)
    fixed = guarded.submit("sleep 600")
    page.goto(f"{guarded.url}/ui/jobs/{fixed}")
    expect(page.get_by_role("button", name="Halt")).to_be_visible()
    expect(page.get_by_role("button", name="Scale")).to_have_count(0)
    guarded.tell(fixed, "stop")
    guarded.wait(fixed)


def test_a_waiting_job_says_when_it_starts_and_what_would_help(
    visit: Visitor, guarded: Server
) -> None:
    full = {"resources": {"gpus": 4}, "grace": "1s"}
    taken = [guarded.submit("sleep 600", **full) for _ in range(2)]
    taken.append(guarded.submit("sleep 600", resources={"gpus": 2}, grace="1s"))
    for job in taken:
        guarded.wait(job, "PROCESSING")
    waits = guarded.submit("true", **full)
    page = visit("/ui/queue?show=waiting", "admin")
    row = page.get_by_role("row").filter(has_text=waits)
    expect(row).to_contain_text(re.compile(r"\d (s|min|h) \(.* to .*\)"))
    expect(row).to_contain_text("needs 4 GPUs")
    page.goto(f"{guarded.url}/ui/jobs/{waits}")
    expect(page.get_by_text(re.compile(r"starts in .*, estimated \d+ s ago"))).to_be_visible()
    page.get_by_role("button", name="Find out").click()
    expect(page.get_by_text("with 2 instead of 4 GPUs for each worker")).to_be_visible()
    for job in (waits, *taken):
        guarded.tell(job, "stop")
        guarded.wait(job)
    expect(page.get_by_role("button", name="Find out")).to_have_count(0)


def test_policies_are_compared_by_operators(visit: Visitor, guarded: Server) -> None:
    guarded.wait(guarded.submit("sleep 0.1", resources={"gpus": 4}))
    page = visit("/ui/policies", "admin")
    expect(page.get_by_role("checkbox", name="fifo (decides here)")).to_be_checked()
    for name in ("srtf", "tiresias"):
        page.get_by_role("checkbox", name=name).check()
    page.get_by_role("checkbox", name="srtf").uncheck()
    page.get_by_role("combobox").last.select_option(label="all of it")
    page.get_by_role("button", name="Compare", exact=True).click()
    table = page.get_by_role("table")
    expect(table.get_by_role("row")).to_have_count(5)  # two of the first three, and tiresias
    expect(table.get_by_role("row").nth(1)).to_contain_text("as it happened")
    chart = page.get_by_role("img", name=re.compile("Mean wait and mean time to completion"))
    expect(chart).to_have_attribute("aria-label", re.compile("tiresias: "))
    expect(page.get_by_text("come out the same again")).to_be_visible()
    user = visit("/ui/policies", "ada")
    expect(user.get_by_text("needs the role operator")).to_be_visible()
    expect(user.get_by_role("button", name="Compare")).to_have_count(0)


def test_what_an_admin_clicks_is_done(visit: Visitor, guarded: Server) -> None:
    over = guarded.submit("true", name="once", resources={"gpus": 1})
    guarded.wait(over)
    page = visit("/ui/", "admin")
    name = guarded.http.get("/api/v1/nodes").json()["nodes"][0]["name"]
    page.get_by_label("Find a node, job or owner").fill(name)
    page.locator(".node").click()
    node = page.locator(".details")
    for button, question, yes, state in (
        ("Drain …", f"Drain {name}?", "Drain it", "draining"),
        ("Undrain", f"Let {name} take work again?", "Undrain it", "up"),
    ):
        node.get_by_role("button", name=button).click()
        asked = page.get_by_role("dialog", name=question)
        asked.get_by_role("button", name="Leave it as it is").click()
        expect(asked).to_have_count(0)
        node.get_by_role("button", name=button).click()
        page.get_by_role("dialog", name=question).get_by_role("button", name=yes).click()
        eventually(partial(is_node, guarded, name, state))

    page.goto(guarded.url + "/ui/users")
    page.get_by_label("Name").fill("grace")
    page.get_by_label("Team").fill("navy")
    page.get_by_role("button", name="Add").click()
    expect(page.get_by_role("heading", name="grace can sign in")).to_be_visible()
    row = page.get_by_role("row").filter(has_text="grace")
    row.get_by_role("button", name="Change").click()
    sheet = page.get_by_role("dialog", name="Change grace")
    sheet.get_by_label("Role").select_option("operator")
    sheet.get_by_role("button", name="Change").click()
    expect(row).to_contain_text("operator")
    row.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(row).to_have_count(0)

    page.goto(guarded.url + "/ui/usage")
    link = page.get_by_role("link", name="Download as CSV")
    expect(link).to_have_attribute("href", re.compile("usage.csv"))
    with page.expect_download() as download:
        link.click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines[0].startswith("day,")
    assert any(",admin," in line for line in lines[1:])

    page.goto(f"{guarded.url}/ui/jobs/{over}")
    page.get_by_text("Manifest: what was asked for").click()
    page.get_by_role("link", name="Change it and submit it as a new job").click()
    page.get_by_role("button", name="Submit the job").click()
    page.wait_for_url(re.compile("/ui/jobs/once-"))
    again = page.url.rpartition("/")[2]
    assert again != over
    assert guarded.wait(again)["status"] == "COMPLETED"


def test_an_admin_switches_the_policy_with_a_forecast_beside_it(
    visit: Visitor, guarded: Server
) -> None:
    guarded.wait(guarded.submit("sleep 0.1", resources={"gpus": 4}))
    page = visit("/ui/policies", "admin")
    expect(page.get_by_role("heading", name="This server decides by fifo")).to_be_visible()
    page.get_by_label("Another one").select_option("sjf")
    page.get_by_role("button", name="Compare and switch").click()
    asked = page.get_by_role("dialog", name="Decide by sjf instead of fifo?")
    expect(asked.get_by_role("columnheader")).to_have_text(["", "fifo", "sjf"])
    expect(asked.get_by_role("row")).to_have_count(8)
    asked.get_by_role("button", name="Decide by sjf").click()
    expect(page.get_by_role("heading", name="This server decides by sjf")).to_be_visible()
    expect(page.get_by_text("Chosen by admin")).to_be_visible()
    user = visit("/ui/policies", "ada")
    expect(user.get_by_role("heading", name="This server decides by sjf")).to_be_visible()
    expect(user.get_by_role("button", name="Compare and switch")).to_have_count(0)
    page.get_by_role("button", name="Back to fifo").click()
    page.get_by_role("dialog").get_by_role("button", name="Decide by fifo").click()
    expect(page.get_by_role("heading", name="This server decides by fifo")).to_be_visible()
    assert guarded.http.get("/api/v1/policy").json()["chosen"] is False


def is_node(server: Server, name: str, state: str) -> bool:
    """Whether a server says so of a node."""
    nodes = server.http.get("/api/v1/nodes").json()["nodes"]
    return (name, state) in [(node["name"], node["state"]) for node in nodes]


def test_a_bad_manifest_is_explained(visit: Visitor) -> None:
    page = visit("/ui/submit")
    page.get_by_label("Manifest").fill("name: a\ncomand: x\n")
    page.get_by_role("button", name="Submit the job").click()
    expect(page.get_by_role("alert")).to_contain_text("line 2")
    assert page.url.endswith("/ui/submit")


def test_who_may_not(visit: Visitor, guarded: Server, tokens: dict[str, str]) -> None:
    job = submit(guarded, tokens["ada"], name="secret")
    guarded.wait(job, "PROCESSING")
    viewer = visit(f"/ui/jobs/{job}", "victor")
    expect(viewer.get_by_text("you may look at it only")).to_be_visible()
    expect(viewer.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    viewer.goto(f"{guarded.url}/ui/submit")
    expect(viewer.get_by_text("may not submit")).to_be_visible()
    expect(viewer.get_by_role("button", name="Submit the job")).to_have_count(0)

    other = visit(f"/ui/jobs/{job}", "eve")
    expect(other.get_by_role("alert")).to_contain_text("There is no job")
    other.goto(f"{guarded.url}/ui/queue")
    expect(other.get_by_text("No job fits.")).to_be_visible()
    other.goto(f"{guarded.url}/ui/")
    expect(other.get_by_text("jobs you may not see")).to_be_visible()
    assert job not in other.content()
    guarded.tell(job, "stop")
    guarded.wait(job)


def test_a_token_is_asked_for_and_never_shown(
    visit: Visitor, guarded: Server, tokens: dict[str, str]
) -> None:
    page = visit("/ui/queue?show=failed", None)
    assert "/ui/sign-in?next=" in page.url
    page.get_by_label("Token").fill("presage_nonsense")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not known")

    page.goto(f"{guarded.url}/ui/queue?show=failed")
    page.get_by_label("Token").fill(tokens["ada"])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{guarded.url}/ui/queue?show=failed")
    expect(page.get_by_label("Show")).to_have_value("failed")
    (cookie,) = [item for item in page.context.cookies() if item["name"] == "presage_token"]
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Lax"
    assert tokens["ada"] not in page.content()
    assert tokens["ada"] not in page.url
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url(re.compile(r":\d+/ui/sign-in"))
    assert "presage_token" not in {item["name"] for item in page.context.cookies()}


@pytest.mark.parametrize("next", ["//evil.example/x", "https://evil.example", "/ui//evil.example"])
def test_signing_in_leads_nowhere_else(guarded: Server, tokens: dict[str, str], next: str) -> None:
    form = {"token": tokens["ada"], "next": next}
    answer = guarded.http.post("/ui/session", data=form, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/")


def test_other_pages_cannot_sign_somebody_in(guarded: Server, tokens: dict[str, str]) -> None:
    answer = guarded.http.post(
        "/ui/session", data={"token": tokens["eve"]}, headers={"Origin": "https://evil.example"}
    )
    assert answer.status_code == 403


def test_a_revoked_token_ends_the_visit(visit: Visitor, guarded: Server) -> None:
    with guarded.client() as client:
        token = client.add_user("short", "viewer").token
        page = visit("/ui/", None)
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="Cluster")).to_be_visible()
        client.remove_user("short")
    page.wait_for_url(re.compile(r":\d+/ui/sign-in\?next="), timeout=1000 * PATIENCE_S)
    expect(page.get_by_label("Token")).to_be_visible()


def test_the_map_follows_the_cluster_and_the_keyboard(
    visit: Visitor, guarded: Server, tokens: dict[str, str]
) -> None:
    page = visit("/ui/", "admin")
    held = page.locator(".tiles dd").first
    expect(held).to_have_text("0 of 12")
    job = submit(guarded, tokens["ada"], name="mapped")
    expect(held).to_have_text("1 of 12")  # without a reload
    nodes = page.get_by_role("listbox", name="Nodes")
    nodes.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(nodes.get_by_role("option", selected=True)).to_have_attribute(
        "aria-label", re.compile("of 4 GPUs held")
    )
    page.get_by_label("Find a node, job or owner").fill("mapped")
    expect(page.locator(".node")).to_have_count(1)
    page.locator(".node").click()
    page.locator(".details").get_by_role("link", name=job).click()
    page.wait_for_url(re.compile(f"/ui/jobs/{job}"))
    guarded.tell(job, "stop")
    guarded.wait(job)


def test_estimates_that_are_far_off_are_an_alert(visit: Visitor) -> None:
    alert = visit("/ui/").get_by_role("alert")
    expect(alert).to_contain_text("Estimates of memory are off by 150% on average on the latest 6")


def test_jobs_come_in_pages(visit: Visitor, guarded: Server, tokens: dict[str, str]) -> None:
    guarded.submit("sleep 600", workers=3, resources={"gpus": 4})
    for number in range(52):
        submit(guarded, tokens["ada"], name=f"many-{number}")
    page = visit("/ui/queue?show=waiting&owner=ada")
    rows = page.locator("table.list tbody tr")
    expect(rows).to_have_count(50)
    expect(rows.first).to_contain_text("many-51")
    expect(rows.first).to_contain_text("0 GPUs free")
    page.get_by_role("button", name="Older").click()
    expect(rows.last).to_contain_text("many-0-")
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="Newer").click()
    expect(rows).to_have_count(50)
    page.get_by_label("Show").select_option("halted")
    expect(page.get_by_text("No job fits.")).to_be_visible()
    expect(page).to_have_url(re.compile("show=halted"))
    guarded.stop_everything()


def test_the_first_stop_of_the_tab_key_skips_the_links(visit: Visitor) -> None:
    page = visit("/ui/queue")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"


def test_what_is_not_there_is_said(visit: Visitor, guarded: Server) -> None:
    page = visit("/ui/jobs/none")
    expect(page.get_by_role("alert")).to_contain_text("There is no job none")
    assert guarded.http.get("/", follow_redirects=False).headers["location"] == "/ui/"
