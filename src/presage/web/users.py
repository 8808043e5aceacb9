"""For admins: who may use this server. Every rule is the API's; a no of it is shown as it is."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response
from nicegui import ui
from nicegui.events import GenericEventArguments

from presage.web.backend import part
from presage.web.elements import CopyBox, DataTable
from presage.web.frame import VALUE, Tag, Visit, begin, choice, confirm, notice, tell
from presage.web.words import clock

__all__: list[str] = []

ROLES = {"user": "user", "viewer": "viewer", "operator": "operator", "admin": "admin"}
_COLUMNS = {
    "name": ("Name", ""),
    "role": ("Role", ""),
    "team": ("Team", ""),
    "since": ("Since", ""),
    "actions": ("", "actions"),
}


@ui.page("/users")
async def users(request: Request) -> Response | None:
    """The list, and a form for somebody new."""
    visit = await begin(request)
    if isinstance(visit, Response):
        return visit
    with visit.page("Users", "/users"):
        if not visit.is_admin():
            notice(f"{visit.me['name']} is a {visit.me['role']}; users are for admins.")
            return None
        desk = _UsersPage(visit)
        desk.build()
        await desk.update()
    visit.every(10.0, desk.update)
    return None


class _UsersPage:
    """Everybody, and what can be done about them."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._new = {"name": "", "role": "user", "team": ""}
        self._known: dict[str, dict[str, Any]] = {}

    def build(self) -> None:
        """Draw everything."""
        self._token = ui.element("div").props("role=status")
        with ui.element("section").classes("card"):
            self._table = DataTable("Users", _COLUMNS, empty="Nobody yet.", act=self._act)
        with ui.element("section").classes("card"):
            Tag("h2", "Let somebody in")
            with ui.element("div").classes("tools"):
                self._field("Name", "name")
                role = choice("Role", ROLES, "user")
                role.on("change", self._typed("role"), js_handler=VALUE)
                self._field("Team", "team")
                Tag("button", "Add", "primary", type="button").on("click", self._add)
            Tag(
                "p",
                "A viewer looks, a user submits and changes the own jobs, an operator changes "
                "every job and drains nodes, an admin also manages users. Users of one team see "
                "each other's jobs.",
                "soft",
            )

    def _field(self, label: str, key: str) -> None:
        with Tag("label", label):
            field = Tag(
                "input", type="text", maxlength="63", autocomplete="off", spellcheck="false"
            )
        field.on("input", self._typed(key), js_handler=VALUE)

    def _typed(self, key: str) -> Any:
        def typed(event: GenericEventArguments) -> None:
            self._new[key] = str(event.args).strip()

        return typed

    async def update(self) -> None:
        """Ask again and show it."""
        body = await self._visit.get("/users", max_age_s=0.5)
        self._known = {user["name"]: user for user in body["users"]}
        self._table.show(
            [
                {
                    "id": user["name"],
                    "name": user["name"],
                    "role": user["role"],
                    "team": user["team"] or "–",
                    "since": clock(user["created_at"])[:16],
                    "actions": ["Change", "New token", "Remove"],
                }
                for user in body["users"]
            ]
        )

    async def _add(self) -> None:
        made = await tell(self._visit.post("/users", json=self._new))
        if made is not None:
            self._show_token(made, "can sign in")
            await self.update()

    async def _act(self, what: str, name: str) -> None:
        path = f"/users/{part(name)}"
        if name not in self._known:
            return
        if what == "Remove":
            lines = ["The token stops working at once; jobs stay."]
            if await confirm(f"Remove {name}?", lines, "Remove", danger=True):
                await tell(self._visit.send("DELETE", path))
        elif what == "New token":
            lines = ["Tokens that were made before stop working."]
            if await confirm(f"Make a new token for {name}?", lines, "Make it"):
                made = await tell(self._visit.post(f"{path}/token"))
                if made is not None:
                    self._show_token(made, "has a new token")
        elif what == "Change":
            await self._change(path, self._known[name])
        await self.update()

    async def _change(self, path: str, user: dict[str, Any]) -> None:
        wanted = {"role": user["role"], "team": user["team"]}
        with ui.dialog() as dialog, ui.element("div").classes("sheet"):
            Tag("h2", f"Change {user['name']}", id="change")
            with ui.element("div").classes("tools"):
                role = choice("Role", ROLES, user["role"])
                role.on("change", lambda e: wanted.update(role=str(e.args)), js_handler=VALUE)
                with Tag("label", "Team"):
                    team = Tag("input", type="text", maxlength="63", value=user["team"])
                team.on(
                    "input", lambda e: wanted.update(team=str(e.args).strip()), js_handler=VALUE
                )
            with ui.element("div").classes("row-of-buttons"):
                Tag("button", "Change", "primary", type="button").on(
                    "click", lambda: dialog.submit(True)
                )
                Tag("button", "Leave it as it is", type="button").on(
                    "click", lambda: dialog.submit(False)
                )
        dialog.props("aria-labelledby=change")
        if await dialog:
            await tell(self._visit.send("PATCH", path, json=wanted))
        dialog.delete()

    def _show_token(self, made: dict[str, Any], words: str) -> None:
        self._token.clear()
        with self._token, ui.element("section").classes("card"):
            Tag("h2", f"{made['name']} {words}: this is shown once")
            CopyBox(made["token"], "Copy the token")
