"""The paths of a data directory: the one file that knows them.

A server and the runs it started share one directory. Whoever needs a path of it asks here; nobody
else puts one together (a test looks). What is inside the directory of a run is between those who
run it (`executors.node`). Standard library only; nothing here opens a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Layout"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything is below one directory."""

    data: Path

    # -- the server -------------------------------------------------------------------------------

    @property
    def database(self) -> Path:
        """The journal, what users see and what was learned, unless another database is named."""
        return self.data / "presage.db"

    @property
    def lock(self) -> Path:
        """Held by the server that decides for this directory."""
        return self.data / "server.lock"

    @property
    def proxy_key(self) -> Path:
        """What signs the cookies of people who look at a port of a job."""
        return self.data / "proxy.key"

    @property
    def wake(self) -> Path:
        """A named pipe on which guardians call."""
        return self.data / "wake"

    @property
    def folders(self) -> Path:
        """Uploaded work folders."""
        return self.data / "folders"

    def folder(self, digest: str) -> Path:
        """One uploaded work folder."""
        return self.folders / f"{digest}.tar.gz"

    def secret(self, name: str) -> Path:
        """The content of a secret."""
        return self.data / "secrets" / name

    # -- jobs -------------------------------------------------------------------------------------

    @property
    def jobs(self) -> Path:
        """What is kept of jobs."""
        return self.data / "jobs"

    def job(self, job: str) -> Path:
        """What is kept of a job."""
        return self.jobs / job

    def job_file(self, job: str) -> Path:
        """What an executor must know of a job; read at each launch."""
        return self.job(job) / "job.json"

    def logs(self, job: str, attempt: int) -> Path:
        """The logs of one run; once this exists, the run was started."""
        return self.job(job) / "logs" / str(attempt)

    def log(self, job: str, attempt: int, worker: str) -> Path:
        """The output of one worker."""
        return self.logs(job, attempt) / f"{worker}.log"

    def telemetry(self, job: str, attempt: int) -> Path:
        """What the workers of one run used."""
        return self.job(job) / "telemetry" / f"{attempt}.jsonl"

    def checkpoints(self, job: str) -> Path:
        """Kept over the runs of a job."""
        return self.job(job) / "checkpoints"

    def results(self, job: str) -> Path:
        """What a job made."""
        return self.job(job) / "results"

    # -- runs -------------------------------------------------------------------------------------

    @property
    def runs(self) -> Path:
        """Directories of runs while they last."""
        return self.data / "runs"

    def run(self, job: str, attempt: int) -> Path:
        """The directory of one run while it lasts."""
        return self.runs / job / str(attempt)

    # -- a Ray cluster ----------------------------------------------------------------------------

    @property
    def ray_owner(self) -> Path:
        """By this name agents on the nodes know whose runs they hold."""
        return self.data / "ray-owner"

    @property
    def ray_head(self) -> Path:
        """How to find the head that was started here."""
        return self.data / "ray-head.json"

    @property
    def ray_head_log(self) -> Path:
        """What that head printed."""
        return self.data / "ray-head.log"

    @property
    def ray_driver_log(self) -> Path:
        """What the process that talks to Ray printed."""
        return self.data / "ray-driver.log"

    @property
    def ray_token(self) -> Path:
        """The token of the head that was started here."""
        return self.data / "ray-token"

    def prepare(self) -> None:
        """Make the directories that must be there, for their owner alone."""
        self.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in (self.folders, self.jobs, self.runs, self.data / "secrets"):
            path.mkdir(exist_ok=True, mode=0o700)
