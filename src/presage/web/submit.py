"""Submit a manifest."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response
from nicegui import ui

from presage.model.errors import ApiError
from presage.web.backend import HOME, part
from presage.web.elements import ManifestForm
from presage.web.frame import Tag, begin, go, notice
from presage.web.job_panels import manifest_yaml
from presage.web.missing import say_missing

__all__: list[str] = []

EXAMPLE = """\
name: hello
command: echo hello; sleep 30; echo done
workers: 1
resources:
  cpus: 1
  memory: 256Mi
  # gpus: 1
"""


@ui.page("/submit")
async def submit(request: Request, again: str = "") -> Response | None:
    """A form for a manifest; `again` is a job whose manifest, and whose work folder, it begins
    with."""
    visit = await begin(request)
    if isinstance(visit, Response):
        return visit
    with visit.page("Submit a job", "/submit"):
        if not visit.may_submit():
            notice(f"{visit.me['name']} is a viewer and may not submit jobs.")
            return None
        text, folder = EXAMPLE, None
        if again:
            try:
                former = await visit.get(f"/jobs/{part(again)}")
                text = manifest_yaml(await visit.get(f"/jobs/{part(again)}/manifest"))
            except ApiError as error:
                say_missing(str(error))
                return None
            folder = former.get("folder")
            notice(
                f"This is the manifest of {former['id']}. It becomes a new job"
                + (", with the same work folder." if folder else ".")
            )
        with ui.element("section").classes("card"):
            problem = Tag("p", "", "banner", role="alert")

            async def submitted(text: str) -> None:
                kind = "json" if text.lstrip().startswith("{") else "yaml"
                try:
                    made = await visit.post(
                        "/jobs",
                        content=text.encode(),
                        params={"folder": folder} if folder else {},
                        headers={"Content-Type": f"application/{kind}"},
                    )
                except ApiError as error:
                    problem.say(str(error))
                    return
                problem.say("")
                kind = "arrays" if made.get("jobs") else "jobs"
                go(f"{HOME}/{kind}/{part(made['id'])}")

            ManifestForm(text, submitted)
    return None
