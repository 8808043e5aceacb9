"""A Slurm of its own for tests: real daemons on loopback, nodes with GPUs that are only files.

    with SlurmCluster("26.05", tmp_path, nodes=4, gpus=4) as slurm:
        slurm.run("sbatch", "--wrap", "hostname")

The programs come from the cache that `tools/engine-slurm` fills. Ports are free ones, all files
are below one directory, and every process has the path of the configuration in its environment:
several clusters of both versions run side by side, and `stop` ends those of this one alone. It
needs no systemd, no chroot and not even root: elsewhere jobs run as whoever starts it.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self

from tests.waiting import eventually

__all__ = ["VERSIONS", "SlurmCluster", "engine_home", "missing_engine"]

VERSIONS = ("22.05", "26.05")
_CALL_S = 120.0
_PDEATHSIG = 1
_NEWNS = 0x20000
_BIND, _REC, _PRIVATE = 1 << 12, 1 << 14, 1 << 18
_SIGNS_AT = {name: f"/run/{name}" for name in ("slurmctld", "slurmdbd")} | {"slurmd": "/run/slurm"}
_CRED = "\nCredType=cred/slurm"


def engine_home(version: str) -> Path:
    """Where the programs of a version are, or would be."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    engines = os.environ.get("PRESAGE_ENGINES") or f"{cache}/presage/engines"
    return Path(engines) / f"slurm-{version}"


def missing_engine(version: str) -> str | None:
    """Why there is no Slurm of a version here; None if there is."""
    if (engine_home(version) / "bin" / "slurmctld").exists():
        return None
    return f"there is no Slurm {version} in {engine_home(version).parent}: run tools/engines"


class SlurmCluster:
    """A controller, nodes and, if wanted, a database for accounting."""

    def __init__(
        self,
        version: str,
        directory: Path,
        *,
        nodes: int = 2,
        gpus: int = 4,
        gpu_type: str = "v100",
        cpus: int = 16,
        memory_mib: int = 64_000,
        accounting: bool = False,
        partitions: str = "",
        extra: str = "",
    ) -> None:
        """`partitions` are lines of slurm.conf in place of the one partition `main`, which has no
        limits; `extra` are more lines of it."""
        self.version = version
        self.home = engine_home(version)
        self.bin = self.home / "bin"
        self.directory = Path(directory).resolve()
        self.conf = self.directory / "slurm.conf"
        self.name = f"test-{secrets.token_hex(3)}"
        self.nodes = tuple(f"n{number}" for number in range(1, nodes + 1))
        self._gpus, self._gpu_type, self._cpus, self._memory_mib = gpus, gpu_type, cpus, memory_mib
        self._accounting, self._partitions, self._extra = accounting, partitions, extra
        self._munge = version < "23.11"
        """Whether it needs munge; later versions have their own keys."""
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        # The commands of Slurm find everything by these. Nobody kills the database.
        signer = "slurmdbd" if accounting else "slurmctld"
        self.env = {
            **os.environ,
            "SLURM_CONF": str(self.conf),
            "PATH": f"{self.bin}:{os.environ.get('PATH', os.defpath)}",
            "SLURM_SACK_SOCKET": str(self.directory / f"run-{signer}" / "sack.socket"),
        }

    # -- life -----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Write the configuration and bring all daemons up; every node is idle when it returns."""
        self._write_files()
        try:
            if self._munge:
                self._start_munge()
            if self._accounting:
                self._start_accounting()
            self.start_controller()
            for node in self.nodes:
                self.start_node(node)
            eventually(self._all_idle)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process of this cluster, jobs too. Its files stay."""
        for daemon in self._daemons.values():
            daemon.kill()
        for daemon in self._daemons.values():
            daemon.wait()
        self._daemons.clear()
        mark = f"SLURM_CONF={self.conf}".encode()
        while pids := _of_cluster(mark, self.directory):
            for pid in pids:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def start_controller(self) -> None:
        """Start slurmctld, or start it again; it answers when this returns."""
        # With accounting, one that is killed young has not written all its files: hence -i.
        self._daemon("slurmctld", "slurmctld", "-D", "-i")
        eventually(lambda: self.call("scontrol", "ping").returncode == 0)

    def kill_controller(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Kill slurmctld; nothing answers until it is started again."""
        self._kill("slurmctld", how)

    def start_node(self, node: str) -> None:
        """Start the slurmd of a node, or start it again."""
        # Without -d it would start the steps of whatever Slurm the machine has installed.
        self._daemon(node, "slurmd", "-D", "-N", node, "-d", str(self.bin / "slurmstepd"))

    def kill_node(self, node: str, how: signal.Signals = signal.SIGKILL) -> None:
        """Kill the slurmd of a node; its jobs go on, as they do on a real node."""
        self._kill(node, how)

    # -- commands -------------------------------------------------------------------------------

    def call(self, *argv: str, timeout_s: float = _CALL_S) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm; one that hangs counts as failed."""
        program = [str(self.bin / argv[0]), *argv[1:]]
        try:
            return subprocess.run(
                program, env=self.env, capture_output=True, text=True, timeout=timeout_s
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(program, 124, "", "timed out")

    def run(self, *argv: str) -> str:
        """What a command prints; it must end well."""
        done = self.call(*argv)
        assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
        return done.stdout.strip()

    def logs(self) -> str:
        """The last words of all daemons, for a test that failed."""
        parts = (
            f"== {path.name}\n{path.read_text(errors='replace')[-2000:]}"
            for path in sorted(self.directory.glob("*.out"))
        )
        return "\n".join(parts)

    # -- daemons --------------------------------------------------------------------------------

    def _daemon(self, name: str, program: str, *argv: str, **env: str) -> None:
        runtime = self.directory / f"run-{name}"
        runtime.mkdir(exist_ok=True)
        out = (self.directory / f"{name}.out").open("ab")
        self._daemons[name] = subprocess.Popen(
            [str(self.bin / program), *argv],
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=self.directory,
            preexec_fn=partial(_begin_daemon, str(runtime), _SIGNS_AT.get(program)),
        )
        out.close()

    def _kill(self, name: str, how: signal.Signals) -> None:
        daemon = self._daemons.pop(name)
        daemon.send_signal(how)
        daemon.wait()

    def _start_munge(self) -> None:
        place = self.directory
        (place / "munge.key").write_bytes(secrets.token_bytes(1024))
        (place / "munge.key").chmod(0o400)
        # What it checks of directories suits /run and /etc, not those of tests: hence --force.
        options = ["key-file=munge.key", "log-file=munge.log", "pid-file=munge.pid"]
        options += ["seed-file=munge.seed", "socket=munge.socket"]
        paths = [f"--{option.replace('=', f'={place}/', 1)}" for option in options]
        self._daemon("munged", "munged", "--foreground", "--force", *paths)
        eventually((place / "munge.socket").exists)

    def _start_accounting(self) -> None:
        place = self.directory
        (place / "db").mkdir(exist_ok=True)
        database = engine_home("26.05")
        # Without grants it needs no tables of its own, and is up in a second.
        options = ["--no-defaults", f"--datadir={place}/db", f"--socket={place}/db.socket"]
        options += ["--skip-grant-tables", "--skip-networking", f"--pid-file={place}/db.pid"]
        options += [
            "--innodb-buffer-pool-size=16M",
            "--innodb-log-file-size=8M",
            "--key-buffer-size=1M",
        ]
        options += [
            f"--lc-messages-dir={database}/usr/share/mysql",
            "--innodb-lock-wait-timeout=900",
        ]
        options += [f"--plugin-dir={place}", f"--user={pwd.getpwuid(os.getuid()).pw_name}"]
        options += ["--innodb-flush-log-at-trx-commit=0", "--performance-schema=OFF"]
        self._daemon("mariadbd", str(database / "bin" / "mariadbd"), *options)
        eventually((place / "db.socket").exists)
        # The client of sid (11.8.9) refuses every result: it allows for no columns at all.
        client = next(engine_home("22.05").glob("usr/lib/*-linux-gnu/libmariadb.so.3"))
        env = {"MYSQL_UNIX_PORT": str(place / "db.socket"), "LD_PRELOAD": str(client)}
        self._daemon("slurmdbd", "slurmdbd", "-D", **env)
        eventually(lambda: self.call("sacctmgr", "-n", "list", "cluster").returncode == 0)

    def _all_idle(self) -> bool:
        states = self.call("sinfo", "-h", "-N", "-o", "%N %T").stdout.split("\n")
        return {line for line in states if line} >= {f"{node} idle" for node in self.nodes}

    # -- files ----------------------------------------------------------------------------------

    def _write_files(self) -> None:
        place, user = self.directory, pwd.getpwuid(os.getuid()).pw_name
        shutil.rmtree(place / "state", ignore_errors=True)
        for name in ("state", "gpus"):
            (place / name).mkdir(parents=True, exist_ok=True)
        ports = _free_ports(len(self.nodes) + 2)
        auth = self._auth()
        gres = f"Gres=gpu:{self._gpu_type}:{self._gpus}" if self._gpus else ""
        nodes = "\n".join(
            f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} "
            f"CPUs={self._cpus} RealMemory={self._memory_mib} {gres} State=UNKNOWN"
            for node, port in zip(self.nodes, ports[2:], strict=True)
        )
        partitions = self._partitions or (
            "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=60 State=UP"
        )
        storage = "accounting_storage/none"
        if self._accounting:
            passed = f"AccountingStoragePass={place}/munge.socket\n" if self._munge else ""
            storage = (
                "accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n"
                f"AccountingStoragePort={ports[1]}\nAccountingStorageTRES=gres/gpu\n"
                f"{passed}JobAcctGatherType=jobacct_gather/linux\nJobAcctGatherFrequency=5"
            )
            self._write_private(
                "slurmdbd.conf",
                f"{auth.removesuffix(_CRED)}\nDbdHost=localhost\nDbdAddr=127.0.0.1\nDbdPort={ports[1]}\n"
                f"SlurmUser={user}\nLogFile={place}/slurmdbd.log\nPidFile={place}/slurmdbd.pid\n"
                "StorageType=accounting_storage/mysql\nStorageHost=localhost\nStorageUser=root\n"
                f"StorageLoc=slurm\nPluginDir={self._plugins()}\nCommunicationParameters=NoInAddrAny\n",
            )
        self.conf.write_text(
            _CONF.format(
                name=self.name,
                user=user,
                auth=auth,
                place=place,
                port=ports[0],
                plugins=self._plugins(),
                storage=storage,
                gres="GresTypes=gpu" if self._gpus else "",
                extra=self._extra,
                nodes=nodes,
                partitions=partitions,
            )
        )
        # Any device does: Slurm hands out their numbers.
        for number in range(self._gpus):
            with suppress(FileExistsError):
                (place / "gpus" / f"nvidia{number}").symlink_to("/dev/null")
        gpus = (
            f"NodeName={','.join(self.nodes)} Name=gpu Type={self._gpu_type} "
            f"File={place}/gpus/nvidia[0-{self._gpus - 1}] Flags=nvidia_gpu_env\n"
        )
        (place / "gres.conf").write_text(gpus if self._gpus else "")
        (place / "cgroup.conf").write_text("" if self._munge else "CgroupPlugin=disabled\n")

    def _plugins(self) -> Path:
        return next(self.home.glob("usr/lib/*-linux-gnu/slurm-wlm"))

    def _auth(self) -> str:
        if self._munge:
            socket_path = self.directory / "munge.socket"
            return f"AuthType=auth/munge\nAuthInfo=socket={socket_path}"
        self._write_private("slurm.key", secrets.token_bytes(1024))
        return f"AuthType=auth/slurm{_CRED}"

    def _write_private(self, name: str, content: str | bytes) -> None:
        path = self.directory / name
        path.unlink(missing_ok=True)
        path.touch(0o600)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


_CONF = """\
ClusterName={name}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
{auth}
PluginDir={plugins}
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool-%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd-%n.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd-%n.log
AccountingStorageType={storage}
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,sched_min_interval=20000,batch_sched_delay=0
DefMemPerCPU=100
KillWait=5
SlurmctldTimeout=30
SlurmdTimeout=30
MessageTimeout=10
ReturnToService=2
JobRequeue=1
{gres}
{extra}
{nodes}
{partitions}
"""


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has at this moment."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _of_cluster(mark: bytes, directory: Path) -> list[int]:
    """The processes whose environment has an entry, and the steps that run in a directory: a
    slurmstepd writes its title over its environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            is_step = (entry / "comm").read_text().startswith("slurmstepd")
            within = is_step and (entry / "cwd").readlink().is_relative_to(directory)
            if within or mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def _begin_daemon(own: str, shared: str | None) -> None:
    """Die with the parent. Where it signs for commands is a fixed place below /run, which the
    daemons of every cluster on this machine would share: it sees one of its own there."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PDEATHSIG, signal.SIGKILL)
    if shared is None or os.geteuid() != 0:
        return
    Path(shared).mkdir(exist_ok=True)
    for call in (
        libc.unshare(_NEWNS),
        libc.mount(None, b"/", None, _REC | _PRIVATE, None),
        libc.mount(own.encode(), shared.encode(), None, _BIND, None),
    ):
        if call != 0:
            raise OSError(ctypes.get_errno(), "a daemon of Slurm needs a place of its own")
