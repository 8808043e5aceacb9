"""A driver for GPUs that do not exist: NVML's library, as far as Presage asks it, made with a C
compiler. Processes say in a file what they use of which device."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

__all__ = ["SAY", "build"]

SAY = 'echo "$CUDA_VISIBLE_DEVICES $$ {mib} {busy_pct}" >> "$FAKE_GPUS"'
"""A line for a shell that is on its device from then on. A line "DEVICE XID" in the file FAKE_XIDS
is an error of that device."""

_SOURCE = r"""
void *fopen(const char *, const char *);
int fscanf(void *, const char *, ...), fclose(void *);
char *getenv(const char *), *strcpy(char *, const char *);

typedef unsigned long long bytes;
struct process { unsigned pid; bytes used; unsigned instance, compute; };

static const bytes total = 40ULL << 30;

/* Those on a device; how busy it is by the last line, and what they use in all. */
static unsigned look(
    long device, struct process *found, unsigned most, unsigned *busy, bytes *used)
{
    unsigned count = 0, number, pid, percent;
    bytes mib;
    void *file = fopen(getenv("FAKE_GPUS"), "r");
    *busy = 0;
    *used = 0;
    while (file && fscanf(file, "%u %u %llu %u", &number, &pid, &mib, &percent) == 4) {
        if (number + 1 != device)
            continue;
        *busy = percent;
        *used += mib << 20;
        if (found && count < most)
            found[count] = (struct process){pid, mib << 20, 0, 0};
        count++;
    }
    if (file)
        fclose(file);
    return count;
}

int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{ *device = (void *)(index + 1L); return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned size)
{ strcpy(name, "NVIDIA A100-SXM4-40GB"); return 0; }
int nvmlDeviceGetUUID(void *device, char *name, unsigned size)
{ strcpy(name, device == (void *)1 ? "GPU-aaaa" : "GPU-bbbb"); return 0; }
int nvmlSystemGetDriverVersion(char *name, unsigned size) { strcpy(name, "0.fake"); return 0; }
int nvmlDeviceGetMemoryInfo(void *device, bytes *memory)
{
    unsigned busy;
    look((long)device, 0, 0, &busy, &memory[2]);
    memory[0] = total;
    memory[1] = total - memory[2];
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates)
{ bytes used; look((long)device, 0, 0, &rates[0], &used); rates[1] = 0; return 0; }

/* Errors: lines of "device xid" in the file FAKE_XIDS; each process is told of each once. */
static unsigned told, registered;
struct event { void *device; bytes type, data; unsigned gpu, compute; };
int nvmlEventSetCreate(void **set) { *set = (void *)1; return 0; }
int nvmlDeviceRegisterEvents(void *device, bytes types, void *set)
{ registered |= 1u << (long)device; return 0; }
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout)
{
    unsigned number, xid, line = 0, found = 0;
    void *file = getenv("FAKE_XIDS") ? fopen(getenv("FAKE_XIDS"), "r") : 0;
    while (file && !found && fscanf(file, "%u %u", &number, &xid) == 2)
        if (line++ == told) {
            told++;
            found = registered >> (number + 1) & 1;
            *event = (struct event){(void *)(number + 1L), 8, xid, 0, 0};
        }
    if (file)
        fclose(file);
    return found ? 0 : 10; /* 10: timeout */
}
int nvmlDeviceGetTotalEccErrors(void *device, unsigned type, unsigned counter, bytes *count)
{ *count = 0; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *found)
{
    unsigned busy, there, most = *count;
    bytes used;
    there = look((long)device, found, most, &busy, &used);
    *count = there;
    return there > most ? 7 : 0; /* 7: too small */
}
"""


def build(home: Path, program: Callable[..., str]) -> dict[str, str]:
    """Make it there. What it returns belongs into the environment of a process that shall have it
    before that starts; no process is on a GPU yet."""
    source, users, errors = home / "nvml.c", home / "gpus", home / "xids"
    source.write_text(_SOURCE)
    users.write_text("")
    errors.write_text("")
    library = str(home / "libnvidia-ml.so.1")
    # Without the C library's own files, which are not on every machine that has a compiler.
    command = [program("gcc", "cc"), "-shared", "-fPIC", "-nostdlib", "-w", "-o", library]
    subprocess.run([*command, str(source)], check=True)
    names = {"FAKE_GPUS": str(users), "FAKE_XIDS": str(errors)}
    return {"LD_LIBRARY_PATH": str(home), **names}
