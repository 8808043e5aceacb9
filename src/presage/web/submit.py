"""Submit a manifest."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response
from nicegui import ui

from presage.model.errors import ApiError
from presage.web.backend import HOME, part
from presage.web.elements import ManifestForm
from presage.web.frame import Tag, begin, go, notice

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
async def submit(request: Request) -> Response | None:
    """A form for a manifest."""
    visit = await begin(request)
    if isinstance(visit, Response):
        return visit
    with visit.page("Submit a job", "/submit"):
        if not visit.may_submit():
            notice(f"{visit.me['name']} is a viewer and may not submit jobs.")
            return None
        with ui.element("section").classes("card"):
            problem = Tag("p", "", "banner", role="alert")

            async def submitted(text: str) -> None:
                kind = "json" if text.lstrip().startswith("{") else "yaml"
                try:
                    made = await visit.post(
                        "/jobs",
                        content=text.encode(),
                        headers={"Content-Type": f"application/{kind}"},
                    )
                except ApiError as error:
                    problem.say(str(error))
                    return
                problem.say("")
                go(f"{HOME}/jobs/{part(made['id'])}")

            ManifestForm(EXAMPLE, submitted)
    return None
