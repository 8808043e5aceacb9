"""The paths of a data directory: the one file that knows them.

A server and the runs it started share one directory. Whoever needs a path of it asks here; nobody
else puts one together (a test looks). What is inside the directory of a run is between those who
run it (`executors.node`). Standard library only; nothing here reads a file.
"""

from __future__ import annotations

from contextlib import suppress
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
    def shares(self) -> Path:
        """Shares of this machine's GPUs, their daemon's socket and pages."""
        return self.data / "shares"

    @property
    def folders(self) -> Path:
        """Uploaded work folders."""
        return self.data / "folders"

    def folder(self, digest: str) -> Path:
        """One uploaded work folder."""
        return self.folders / f"{digest}.tar.gz"

    @property
    def trash(self) -> Path:
        """What is being removed."""
        return self.data / "trash"

    @property
    def secrets(self) -> Path:
        """Contents of secrets: those of operators, which every job may use, and below, by owner,
        those of users and teams."""
        return self.data / "secrets"

    def secret(self, name: str) -> Path:
        """The content of a secret that every job may use."""
        return self.secrets / name

    def secrets_of_user(self, user: str) -> Path:
        """A user's own secrets. The dot keeps it apart from names of secrets."""
        return self.secrets / ".users" / user

    def secrets_of_team(self, team: str) -> Path:
        """The secrets of a team."""
        return self.secrets / ".teams" / team

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

    def all_logs(self, job: str) -> Path:
        """The logs of all runs of a job."""
        return self.job(job) / "logs"

    def all_telemetry(self, job: str) -> Path:
        """What the workers of all its runs used."""
        return self.job(job) / "telemetry"

    def checkpoints(self, job: str) -> Path:
        """Kept over the runs of a job."""
        return self.job(job) / "checkpoints"

    def results(self, job: str) -> Path:
        """What a job made."""
        return self.job(job) / "results"

    def results_note(self, job: str) -> Path:
        """How much of it there is, and what was left out."""
        return self.job(job) / "results.json"

    def track_note(self, job: str) -> Path:
        """What a tracking server calls its run."""
        return self.job(job) / "track.json"

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

    # -- a Slurm ----------------------------------------------------------------------------------

    @property
    def slurm(self) -> Path:
        """What agents under Slurm say of themselves, by reservation; every node must see it."""
        return self.data / "slurm"

    def slurm_agents(self, reservation: str) -> Path:
        """The same of one reservation."""
        return self.slurm / reservation

    @property
    def slurm_secrets(self) -> Path:
        """Secrets on their way to agents, each for a moment."""
        return self.slurm / "secrets"

    @property
    def slurm_driver_log(self) -> Path:
        """What the process that talks to Slurm printed."""
        return self.data / "slurm-driver.log"

    def passing(self, name: str) -> bool:
        """Whether a thing of this directory is of this machine and moment alone, or the database:
        a copy of the directory leaves it out."""
        if name.startswith((self.database.name, "ray-")):
            return name != self.ray_owner.name
        here = (self.lock, self.wake, self.runs, self.slurm, self.slurm_driver_log)
        return name in {path.name for path in here}

    @property
    def uids(self) -> Path:
        """Which Unix user of a range each owner of jobs was given."""
        return self.data / "uids.json"

    def prepare(self, *, ways_through: bool = False) -> None:
        """Make the directories that must be there, for their owner alone; with `ways_through`,
        others may pass (not look) on their way to what is theirs in a job or a run."""
        self.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in (self.folders, self.jobs, self.runs, self.secrets):
            path.mkdir(exist_ok=True, mode=0o700)
        # Below the work folder of a job, it is neither sent along nor committed.
        with suppress(FileExistsError), (self.data / ".gitignore").open("x") as file:
            file.write("*\n")
        if not ways_through:
            return
        for path in self.data.iterdir():
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & 0o700)
        for path in (self.data, self.jobs, self.runs):
            path.chmod(0o711)
