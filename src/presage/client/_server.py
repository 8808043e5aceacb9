"""What a server can be asked, by method; what comes back are values."""

from __future__ import annotations

import codecs
import hashlib
import json
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Self

from presage.client._answers import value_of, values_of
from presage.client._arrays import ArrayCalls
from presage.client._folder import pack_folder
from presage.client._http import path_of
from presage.client._logs import log_pieces
from presage.client._results import Told, download
from presage.model.answers import (
    Accepted,
    DryRun,
    Explanation,
    JobStatus,
    JobSummary,
    LogPiece,
    Removal,
    ResultFile,
    ResultsPage,
    ScaleAccepted,
    Status,
    StatusChange,
    Submitted,
    WaitingJob,
)
from presage.model.errors import ApiError, UserError
from presage.model.job import Reason
from presage.model.server_answers import (
    Diagnosis,
    ExportedTrace,
    NewUser,
    NodeStatus,
    PolicyStatus,
    QueueStatus,
    SecretInfo,
    ShareStatus,
    SignInOffer,
    SignInStart,
    UsageReport,
    UserInfo,
    WhatIf,
)

__all__ = ["Client", "JobHandle"]

_REPLAY_S = 660.0
"""A journal is replayed for ten minutes at most."""


class JobHandle:
    """A job of a server: what was last heard of it, and what can be asked for.

    `status`, `reason` and `info` are as of the last answer; `refresh` asks again.
    """

    __slots__ = ("_client", "_heard")

    def __init__(self, client: Client, heard: Accepted | JobSummary) -> None:
        self._client, self._heard = client, heard

    @property
    def id(self) -> str:
        """Its name on the server."""
        return self._heard.id

    @property
    def status(self) -> Status:
        """Where it is."""
        return self._heard.status

    @property
    def reason(self) -> Reason:
        """Why it is there."""
        return self.summary.reason

    @property
    def summary(self) -> JobSummary:
        """What a list of jobs says about it; asked for if nothing did yet."""
        return self._heard if isinstance(self._heard, JobSummary) else self.info

    @property
    def info(self) -> JobStatus:
        """Everything about it; asked for if only a list was seen."""
        if not isinstance(self._heard, JobStatus):
            self.refresh()
        assert isinstance(self._heard, JobStatus)
        return self._heard

    def refresh(self, *, wait_eta_s: float = 0.0) -> Self:
        """Ask the server; with `wait_eta_s`, it may take so long until a job that was just
        submitted has been foreseen."""
        query = {"wait_eta_s": wait_eta_s} if wait_eta_s else {}
        self._heard = self._client.get(JobStatus, f"/jobs/{path_of(self.id)}", query)
        return self

    def wait(self, timeout: float | None = None) -> Self:
        """Block until it is over or halted, or so many seconds passed."""
        until = None if timeout is None else time.monotonic() + timeout
        pause = 0.1
        while self.refresh().info.ended_at is None and self.status != "HALTED":
            left = pause if until is None else min(pause, until - time.monotonic())
            if left <= 0:
                break
            time.sleep(left)
            pause = min(1.0, pause * 1.3)
        return self

    def logs(
        self, follow: bool = False, *, worker: str = "0", attempt: int | None = None
    ) -> Iterator[str]:
        """The lines that a worker wrote; with `follow`, until the job is over."""
        decoder, rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
        for chunk in self._client.logs(self.id, worker, follow=follow, attempt=attempt):
            *lines, rest = (rest + decoder.decode(chunk)).split("\n")
            yield from lines
        if rest:
            yield rest

    def stop(self) -> Self:
        """End it, after a checkpoint where it can take one."""
        return self._tell("stop")

    def halt(self) -> Self:
        """Stop it with a checkpoint; `resume` has it go on."""
        return self._tell("halt")

    def resume(self) -> Self:
        """Have it go on from its checkpoint."""
        return self._tell("resume")

    def scale(self, workers: int, role: str | None = None) -> Self:
        """Give it so many workers, of its first role unless one is named, within the range of its
        manifest, as there is room."""
        self._heard = self._client.scale(self.id, workers, role)
        return self

    def results(self, *paths: str) -> list[ResultFile]:
        """The files it made; or those that are named, by path, directory or pattern."""
        return list(self._client.results(self.id, paths).files)

    def download(
        self, to: str | PathLike[str] = ".", *paths: str, told: Told | None = None
    ) -> list[Path]:
        """Bring results into a directory; what was brought before is not brought again, and what
        was interrupted continues. `told` hears of each file with the bytes that came."""
        return download(self._client, self.id, Path(to), paths, told)

    def explain(self) -> Explanation:
        """Why it is where it is, when it starts, and what would help."""
        return self._client.explain(self.id)

    def _tell(self, what: str) -> Self:
        self._heard = self._client.tell(self.id, what)
        return self

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r}, {self.status})"

    def _repr_html_(self) -> str:
        from presage.page import html_table

        seen = self.summary
        where = ", ".join(seen.nodes)
        cells = [seen.status, seen.reason.text, seen.queue, seen.workers or "", where]
        heads = ["job", "status", "because", "queue", "workers", "nodes"]
        return html_table("", heads, [(seen.id, cells)])


class Client(ArrayCalls):
    """One server, by its address: what can be asked of it."""

    # -- jobs -----------------------------------------------------------------------------------

    def submit(
        self,
        manifest: str | PathLike[str],
        *,
        changes: Sequence[str] = (),
        folder: bool = True,
        include: Sequence[str] = (),
    ) -> JobHandle:
        """Submit a manifest file, and with it a copy of the folder it is in, unless it names a
        git source; `changes` are such as `resources.gpus=2`. `include` has patterns of files that
        are sent although they are ignored or look like secrets."""
        from presage.manifest import read_submission

        path = Path(manifest)
        asked = read_submission(path, changes)  # a mistake raises before anything is sent
        if asked.sweep is not None:
            raise UserError(f"{manifest} has a sweep; Client.submit_array takes it")
        return JobHandle(self, self.submit_read(asked, path, folder=folder, include=include))

    def submit_text(
        self,
        manifest: bytes | str,
        content_type: str = "application/yaml",
        *,
        folder: str | None = None,
    ) -> JobHandle:
        """Submit a manifest that is YAML, or JSON; `folder` is what `upload` returned."""
        headers = {"Content-Type": content_type, "Idempotency-Key": uuid.uuid4().hex}
        query = {"folder": folder} if folder else {}
        body = self.call("POST", "/jobs", content=manifest, params=query, headers=headers)
        return JobHandle(self, value_of(Submitted, body))

    def upload(self, folder: Path, include: Sequence[str] = ()) -> str:
        """Send a work folder unless the server has it; returns its name there."""
        packed = pack_folder(folder, include)
        name = hashlib.sha256(packed).hexdigest()
        try:
            self.call("HEAD", f"/folders/{name}")
        except ApiError as error:
            if error.status != 404:
                raise
            self.call("PUT", f"/folders/{name}", content=packed)
        return name

    def jobs(
        self,
        *,
        status: Sequence[str] = (),
        queue: str | None = None,
        owner: str | None = None,
        array: str | None = None,
        limit: int | None = None,
    ) -> Iterator[JobHandle]:
        """Jobs, newest first, page by page; `array` for those of one, "" for those of none."""
        asked = {"status": list(status), "queue": queue, "owner": owner}
        wanted = {key: value for key, value in asked.items() if value}
        if array is not None:
            wanted["array"] = array
        shown, after = 0, None
        while True:
            size = 1000 if limit is None else min(1000, limit - shown)
            page = {"limit": size, **({"after": after} if after is not None else {})}
            body = self.call("GET", "/jobs", params={**wanted, **page})
            yield from (JobHandle(self, each) for each in values_of(JobSummary, body["jobs"]))
            shown += len(body["jobs"])
            after = body["next"]
            if after is None or (limit is not None and shown >= limit):
                return

    def job(self, job_id: str) -> JobHandle:
        """A job by its name."""
        return JobHandle(self, self.get(JobStatus, f"/jobs/{path_of(job_id)}"))

    def dry_run(self, manifest: bytes | str) -> DryRun:
        """What would become of a YAML manifest if it was submitted; nothing is kept."""
        headers = {"Content-Type": "application/yaml"}
        body = self.call("POST", "/jobs/dry-run", content=manifest, headers=headers)
        return value_of(DryRun, body)

    def explain(self, job_id: str) -> Explanation:
        """Why a job is where it is."""
        return self.get(Explanation, f"/jobs/{path_of(job_id)}/explain")

    def diagnose(self, subject: str) -> Diagnosis:
        """What is wrong with a job, a node, or everything (`cluster`)."""
        return self.get(Diagnosis, f"/diagnosis/{path_of(subject)}")

    def tell(self, job_id: str, what: str) -> Accepted:
        """`stop`, `halt` or `resume` a job."""
        return value_of(Accepted, self.call("POST", f"/jobs/{path_of(job_id)}/{what}"))

    def scale(self, job_id: str, workers: int, role: str | None = None) -> ScaleAccepted:
        """Give an elastic job so many workers, of its first role unless one is named."""
        asked = {"workers": workers} | ({"role": role} if role is not None else {})
        body = self.call("POST", f"/jobs/{path_of(job_id)}/scale", json=asked)
        return value_of(ScaleAccepted, body)

    def limit_shares(
        self, job_id: str, *, limit: float | None = None, memory: str | None = None
    ) -> ScaleAccepted:
        """Hold the enforced shares of GPUs of a running job to other limits."""
        asked = {"gpu_limit": limit, "gpu_memory": memory}
        said = {key: value for key, value in asked.items() if value is not None}
        return value_of(
            ScaleAccepted, self.call("POST", f"/jobs/{path_of(job_id)}/scale", json=said)
        )

    def logs(
        self, job_id: str, worker: str = "0", *, follow: bool = False, attempt: int | None = None
    ) -> Iterator[bytes]:
        """The output of a worker, in pieces, as it was written."""
        for piece in self.log_pieces(job_id, worker, follow=follow, attempt=attempt):
            yield piece.text.encode("utf-8", "surrogateescape")

    def log_pieces(
        self,
        job_id: str,
        worker: str | None = None,
        *,
        follow: bool = False,
        attempt: int | None = None,
        tail: int | None = None,
    ) -> Iterator[LogPiece]:
        """The output of all workers or of one, with times; `tail` gives the last lines of each.
        Somebody who follows does not notice when the server restarts."""
        return log_pieces(self, job_id, worker, follow=follow, attempt=attempt, tail=tail)

    def results(self, job_id: str, paths: Sequence[str] = ()) -> ResultsPage:
        """The results of a job; of many, all pages."""
        query: dict[str, Any] = {"path": list(paths)} if paths else {}
        place = f"/jobs/{path_of(job_id)}/results"
        page = self.get(ResultsPage, place, query)
        files, after = list(page.files), page.next
        while after is not None:
            more = self.get(ResultsPage, place, {**query, "after": after})
            files += more.files
            after = more.next
        return replace(page, files=tuple(files), next=None)

    def remove(
        self, jobs: Sequence[str] = (), *, older_than_s: float | None = None, dry_run: bool = False
    ) -> Removal:
        """Remove what is kept of jobs that are over: of these, or of all that are older."""
        asked = {"jobs": list(jobs), "older_than_s": older_than_s, "dry_run": dry_run}
        return value_of(Removal, self.call("POST", "/jobs/remove", json=asked, timeout=600.0))

    def events(self, job_id: str | None = None) -> Iterator[StatusChange]:
        """Status changes as they happen."""
        with self.stream("/events", {"job": job_id} if job_id else {}) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    yield value_of(StatusChange, json.loads(line.removeprefix("data: ")))

    # -- the cluster ----------------------------------------------------------------------------

    def nodes(self) -> list[NodeStatus]:
        """The nodes."""
        return values_of(NodeStatus, self.call("GET", "/nodes")["nodes"])

    def drain(self, node: str, *, back: bool = False) -> NodeStatus:
        """Give a node no new work; or, with `back`, let it take work again."""
        what = "undrain" if back else "drain"
        return value_of(NodeStatus, self.call("POST", f"/nodes/{path_of(node)}/{what}"))

    def waiting(self, jobs: Sequence[str]) -> list[WaitingJob]:
        """What jobs wait for, a hundred at a time."""
        body = self.call("GET", "/waiting", params={"job": list(jobs)})
        return values_of(WaitingJob, body["waiting"])

    def what_if(
        self,
        policies: Sequence[str],
        since_s: float | None = None,
        config: str | None = None,
        *,
        foreseen: bool = False,
    ) -> WhatIf:
        """What other policies would have done with the jobs of the journal; with `foreseen` they
        go by what was foreseen of jobs, and not by the run times they had."""
        asked = {"policies": list(policies), "since_s": since_s, "config": config}
        asked |= {"foreseen": True} if foreseen else {}
        return value_of(WhatIf, self.call("POST", "/what-if", json=asked, timeout=_REPLAY_S))

    def policy(self) -> PolicyStatus:
        """The policy that decides."""
        return self.get(PolicyStatus, "/policy")

    def set_policy(self, name: str | None, config: str | None = None) -> PolicyStatus:
        """Have another policy decide: one that the server knows by name, or one of a YAML file's
        text; None for the one that it was started with."""
        body = self.call("PUT", "/policy", json={"name": name, "config": config})
        return value_of(PolicyStatus, body)

    def journal_trace(self, since_s: float | None = None, *, whole: bool = False) -> ExportedTrace:
        """The journal as a trace, and its nodes; with `whole`, also what a trace cannot tell."""
        asked: dict[str, Any] = {"since_s": since_s}
        asked |= {"whole": True} if whole else {}
        body = self.call("POST", "/what-if/trace", json=asked, timeout=_REPLAY_S)
        return value_of(ExportedTrace, body)

    def shares(self) -> list[ShareStatus]:
        """The enforced shares of GPUs."""
        return values_of(ShareStatus, self.call("GET", "/shares")["shares"])

    def queues(self) -> list[QueueStatus]:
        """The queues."""
        return values_of(QueueStatus, self.call("GET", "/queues")["queues"])

    def usage(self, **query: str) -> UsageReport:
        """What was used: `by` user, team or queue, `since` a day, `until` a day."""
        return self.get(UsageReport, "/usage", query)

    def usage_csv(self, **query: str) -> str:
        """The same by day, as CSV."""
        with self.stream("/usage", {**query, "format": "csv"}) as answer:
            return answer.read().decode("utf-8")

    def users(self) -> list[UserInfo]:
        """The users."""
        return values_of(UserInfo, self.call("GET", "/users")["users"])

    def add_user(self, name: str, role: str, team: str = "") -> NewUser:
        """Let somebody in; the answer has the token."""
        asked = {"name": name, "role": role, "team": team}
        return value_of(NewUser, self.call("POST", "/users", json=asked))

    def set_user(self, name: str, *, role: str | None = None, team: str | None = None) -> UserInfo:
        """Give somebody another role or team."""
        asked = {"role": role, "team": team}
        wanted = {key: value for key, value in asked.items() if value is not None}
        return value_of(UserInfo, self.call("PATCH", f"/users/{path_of(name)}", json=wanted))

    def new_token(self, name: str, *, keep: bool = False) -> NewUser:
        """A new token for somebody; those before stop working unless they are kept."""
        query = {"keep": "true"} if keep else {}
        body = self.call("POST", f"/users/{path_of(name)}/token", params=query)
        return value_of(NewUser, body)

    def remove_user(self, name: str) -> UserInfo:
        """Take somebody's access away."""
        return value_of(UserInfo, self.call("DELETE", f"/users/{path_of(name)}"))

    def me(self) -> UserInfo:
        """Who one is to the server."""
        return self.get(UserInfo, "/me")

    def sign_in_offer(self) -> SignInOffer:
        """How one signs in."""
        return self.get(SignInOffer, "/sign-in")

    def begin_sign_in(self, redirect_uri: str) -> SignInStart:
        """Begin a sign-in with the server's identity provider."""
        body = self.call("POST", "/sign-in", json={"redirect_uri": redirect_uri})
        return value_of(SignInStart, body)

    def finish_sign_in(self, ticket: str, state: str, code: str) -> NewUser:
        """End it: the answer has the token."""
        asked = {"ticket": ticket, "state": state, "code": code}
        return value_of(NewUser, self.call("POST", "/sign-in/finish", json=asked))

    def sign_out(self) -> None:
        """Revoke the token that this client uses."""
        self.call("POST", "/sign-out")

    def secrets(self) -> list[SecretInfo]:
        """The secrets that one's jobs may use, by name."""
        return values_of(SecretInfo, self.call("GET", "/secrets")["secrets"])

    def set_secret(self, name: str, content: bytes, team: str | None = None) -> SecretInfo:
        """Keep a secret of one's own, or of a team."""
        query = {"team": team} if team is not None else {}
        body = self.call("PUT", f"/secrets/{path_of(name)}", content=content, params=query)
        return value_of(SecretInfo, body)

    def remove_secret(self, name: str, team: str | None = None) -> SecretInfo:
        """Take a secret away."""
        query = {"team": team} if team is not None else {}
        return value_of(SecretInfo, self.call("DELETE", f"/secrets/{path_of(name)}", params=query))
