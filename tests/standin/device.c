/* A stand-in for libcuda.so.1 and libnvidia-ml.so.1: GPUs that do not exist, shared by the processes of
 * a machine through one mapped file ($STANDIN_GPU). It must not decide who may run: it is the device.
 *
 * A device runs one kernel at a time, in the order in which kernels were launched. A kernel says how long
 * it takes (its first parameter, in ns). Nothing is computed: the device keeps the time at which it will
 * be free, a launch moves that time, and whoever synchronizes sleeps until then. So a kernel costs no CPU
 * and its length is exact. Memory is counted by process, and comes back when the process is gone. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DEVICES 4
#define PROCESSES 64
#define QUEUE 1024 /* launches that a process may be ahead, as with a real driver */

enum { OK, INVALID = 1, NO_MEMORY = 2, NOT_INITIALIZED = 3, NO_CONTEXT = 201, NOT_FOUND = 500, NOT_READY = 600 };

struct user {
    int pid;
    uint64_t born, memory, busy_ns, launches;
};

struct device {
    uint64_t total, free_at, busy_ns, idle_ns;
    struct user users[PROCESSES];
};

/* What the file holds; tests read it as well: see standin.py. */
struct machine {
    pthread_mutex_t lock;
    uint64_t ready, count;
    struct device devices[DEVICES];
};

typedef struct stream {
    uint64_t last;
    int device, capturing;
    uint64_t captured;
} stream;
typedef struct { uint64_t at; } event;
typedef struct { uint64_t ns; } graph;
typedef struct { int device; uint64_t reserved, live, threshold; } pool;
typedef struct context { int device, refs; stream zero; } context;

struct block { uint64_t at, size; int device, mapped, references; pool *from; };

static struct machine *machine;
static pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
static struct block blocks[1 << 16];
static context primary[DEVICES];
static pool pools[DEVICES];
static __thread context *current;
static uint64_t next_address = 1ULL << 40;
static uint64_t ends[QUEUE];
static unsigned end_at;
static stream *streams[256];

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

static void sleep_until(uint64_t when)
{
    struct timespec t = {(time_t)(when / 1000000000ULL), (long)(when % 1000000000ULL)};
    while (now() < when && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0) == EINTR) { }
}

static uint64_t born(int pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    if (size <= 0)
        return 0;
    text[size] = 0;
    char *at = strrchr(text, ')');
    if (!at || at[2] == 'Z' || at[2] == 'X')
        return 0;
    uint64_t start = 0;
    at += 2;
    for (int field = 3; field < 22 && at; field++)
        at = strchr(at, ' ') ? strchr(at, ' ') + 1 : 0;
    if (at)
        start = strtoull(at, 0, 10);
    return start;
}

static void lock(void)
{
    if (pthread_mutex_lock(&machine->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&machine->lock);
}

static void unlock(void) { pthread_mutex_unlock(&machine->lock); }

static int attach(void)
{
    if (machine)
        return OK;
    const char *path = getenv("STANDIN_GPU");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return 100; /* no device */
    struct machine *m = mmap(0, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (m == MAP_FAILED)
        return 100;
    uint64_t unready = 0;
    if (__atomic_compare_exchange_n(&m->ready, &unready, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        pthread_mutexattr_t attr;
        pthread_mutexattr_init(&attr);
        pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&m->lock, &attr);
        __atomic_store_n(&m->ready, 2, __ATOMIC_SEQ_CST);
    }
    while (__atomic_load_n(&m->ready, __ATOMIC_SEQ_CST) != 2)
        usleep(100);
    machine = m;
    return OK;
}

/* The entry of this process on a device; that of a process that is gone is free, and so is its memory. */
static struct user *mine(int device)
{
    static __thread struct user *known[DEVICES];
    static __thread int known_pid;
    int pid = getpid();
    if (known_pid == pid && known[device] && known[device]->pid == pid)
        return known[device];
    struct user *users = machine->devices[device].users, *free_one = 0;
    for (int i = 0; i < PROCESSES; i++) {
        if (users[i].pid == pid && users[i].born == born(pid)) {
            free_one = &users[i];
            break;
        }
        if (!free_one && (!users[i].pid || born(users[i].pid) != users[i].born))
            free_one = &users[i];
    }
    if (!free_one)
        abort();
    if (free_one->pid != pid || free_one->born != born(pid))
        *free_one = (struct user){pid, born(pid), 0, 0, 0};
    known_pid = pid;
    return known[device] = free_one;
}

static uint64_t used(int device)
{
    uint64_t sum = 0;
    for (int i = 0; i < PROCESSES; i++) {
        struct user *user = &machine->devices[device].users[i];
        if (user->pid && user->memory && born(user->pid) != user->born)
            *user = (struct user){0, 0, 0, 0, 0};
        sum += user->memory;
    }
    return sum;
}

/* -- the device, contexts ------------------------------------------------------------------------ */

int cuInit(unsigned flags) { (void)flags; return attach(); }
int cuDriverGetVersion(int *version) { *version = 12040; return OK; }
int cuDeviceGetCount(int *count)
{
    if (!machine)
        return NOT_INITIALIZED;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    *count = (int)machine->count;
    if (visible) {
        *count = *visible ? 1 : 0;
        for (; *visible; visible++)
            *count += *visible == ',';
    }
    return OK;
}

/* The device of the machine that this process calls by a number. */
static int physical(int number)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    for (; visible && number > 0 && visible; number--)
        visible = strchr(visible, ',') ? strchr(visible, ',') + 1 : 0;
    return visible ? atoi(visible) : number;
}

int cuDeviceGet(int *device, int number)
{
    int count;
    cuDeviceGetCount(&count);
    if (number < 0 || number >= count)
        return 101;
    *device = number;
    return OK;
}
int cuDeviceGetUuid(unsigned char *uuid, int device)
{
    memset(uuid, 0xa0, 16);
    uuid[15] = (unsigned char)physical(device);
    return OK;
}
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { return cuDeviceGetUuid(uuid, device); }
int cuDeviceGetName(char *name, int size, int device)
{ (void)device; snprintf(name, (size_t)size, "Stand-in GPU"); return OK; }
int cuDeviceTotalMem_v2(size_t *bytes, int device)
{ *bytes = machine->devices[physical(device)].total; return OK; }

static void own_context(context *c, int device)
{
    c->device = device;
    c->zero.device = device;
}

int cuDevicePrimaryCtxRetain(context **c, int device)
{
    own_context(*c = &primary[device], device);
    primary[device].refs++;
    return OK;
}
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{ *flags = 0; *active = primary[device].refs > 0; return OK; }
static void drop_blocks(int device);
int cuDevicePrimaryCtxRelease_v2(int device)
{
    if (primary[device].refs > 0 && --primary[device].refs == 0)
        drop_blocks(device);
    return OK;
}
int cuDevicePrimaryCtxReset_v2(int device) { drop_blocks(device); return OK; }
int cuCtxCreate_v2(context **c, unsigned flags, int device)
{
    (void)flags;
    if (!machine)
        return NOT_INITIALIZED;
    own_context(*c = calloc(1, sizeof **c), device);
    current = *c;
    return OK;
}
int cuCtxDestroy_v2(context *c)
{
    drop_blocks(c->device);
    if (current == c)
        current = 0;
    return OK;
}
static __thread context *stack[16];
static __thread int depth;
int cuCtxSetCurrent(context *c) { current = c; return OK; }
int cuCtxGetCurrent(context **c) { *c = current; return OK; }
int cuCtxPushCurrent_v2(context *c) { stack[depth++ & 15] = current; current = c; return OK; }
int cuCtxPopCurrent_v2(context **c)
{
    if (c)
        *c = current;
    current = stack[--depth & 15];
    return OK;
}
int cuCtxGetDevice(int *device)
{
    if (!current)
        return NO_CONTEXT;
    *device = current->device;
    return OK;
}
int cuThreadExchangeStreamCaptureMode(int *mode) { (void)mode; return OK; }

/* -- work ---------------------------------------------------------------------------------------- */

static stream *of(stream *s) { return (uintptr_t)s > 2 ? s : &current->zero; }

static int work(stream *s, uint64_t ns)
{
    if (!current)
        return NO_CONTEXT;
    s = of(s);
    if (s->capturing) {
        s->captured += ns;
        return OK;
    }
    struct device *d = &machine->devices[physical(s->device)];
    uint64_t full = ends[end_at % QUEUE];
    if (full > now())
        sleep_until(full);
    lock();
    uint64_t start = now();
    if (d->free_at > start)
        start = d->free_at;
    else
        d->idle_ns += d->free_at ? start - d->free_at : 0;
    if (s->last > start) { /* what came before it on its stream, or an event it waits for */
        d->idle_ns += s->last - start;
        start = s->last;
    }
    struct user *user = mine(physical(s->device));
    user->busy_ns += ns;
    user->launches++;
    d->busy_ns += ns;
    s->last = d->free_at = start + ns;
    unlock();
    ends[end_at++ % QUEUE] = s->last;
    return OK;
}

static uint64_t length(void **parameters)
{
    return parameters && parameters[0] ? *(uint64_t *)parameters[0] : 0;
}

int cuModuleLoadData(void **module, const void *image) { (void)image; *module = (void *)1; return OK; }
int cuModuleGetFunction(void **function, void *module, const char *name)
{ (void)module; (void)name; *function = (void *)1; return OK; }
int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned x, unsigned y, unsigned z,
    unsigned shared, stream *s, void **parameters, void **extra)
{
    (void)f, (void)a, (void)b, (void)c, (void)x, (void)y, (void)z, (void)shared, (void)extra;
    return work(s, length(parameters));
}
int cuLaunchKernel_ptsz(void *f, unsigned a, unsigned b, unsigned c, unsigned x, unsigned y, unsigned z,
    unsigned shared, stream *s, void **parameters, void **extra)
{ return cuLaunchKernel(f, a, b, c, x, y, z, shared, s, parameters, extra); }
int cuLaunchCooperativeKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned x, unsigned y,
    unsigned z, unsigned shared, stream *s, void **parameters)
{ return cuLaunchKernel(f, a, b, c, x, y, z, shared, s, parameters, 0); }
struct config { unsigned sizes[7]; stream *s; void *attributes; unsigned count; };
int cuLaunchKernelEx(const struct config *config, void *f, void **parameters, void **extra)
{ (void)f; (void)extra; return work(config->s, length(parameters)); }

int cuStreamCreate(stream **s, unsigned flags)
{
    (void)flags;
    if (!current)
        return NO_CONTEXT;
    *s = calloc(1, sizeof **s);
    (*s)->device = current->device;
    pthread_mutex_lock(&own);
    for (int i = 0; i < 256; i++)
        if (!streams[i]) {
            streams[i] = *s;
            break;
        }
    pthread_mutex_unlock(&own);
    return OK;
}
int cuStreamDestroy_v2(stream *s)
{
    pthread_mutex_lock(&own);
    for (int i = 0; i < 256; i++)
        if (streams[i] == s)
            streams[i] = 0;
    pthread_mutex_unlock(&own);
    return OK; /* not freed: who used it afterwards would be a fault worth seeing */
}
int cuStreamSynchronize(stream *s) { sleep_until(of(s)->last); return OK; }
int cuStreamQuery(stream *s) { return of(s)->last > now() ? NOT_READY : OK; }
int cuStreamIsCapturing(stream *s, int *status) { *status = of(s)->capturing; return OK; }
int cuCtxSynchronize(void)
{
    if (!current)
        return NO_CONTEXT;
    uint64_t last = current->zero.last;
    pthread_mutex_lock(&own);
    for (int i = 0; i < 256; i++)
        if (streams[i] && streams[i]->device == current->device && streams[i]->last > last)
            last = streams[i]->last;
    pthread_mutex_unlock(&own);
    sleep_until(last);
    return OK;
}
int cuEventCreate(event **e, unsigned flags) { (void)flags; *e = calloc(1, sizeof **e); return OK; }
int cuEventDestroy_v2(event *e) { free(e); return OK; }
int cuEventRecord(event *e, stream *s)
{
    if (of(s)->capturing)
        return 900;
    uint64_t t = now();
    e->at = of(s)->last > t ? of(s)->last : t;
    return OK;
}
int cuEventSynchronize(event *e) { sleep_until(e->at); return OK; }
int cuEventQuery(event *e) { return e->at > now() ? NOT_READY : OK; }
int cuEventElapsedTime(float *ms, event *a, event *b)
{ *ms = (float)((double)(int64_t)(b->at - a->at) / 1e6); return OK; }
int cuStreamWaitEvent(stream *s, event *e, unsigned flags)
{
    (void)flags;
    if (e->at > of(s)->last)
        of(s)->last = e->at;
    return OK;
}
int cuStreamBeginCapture_v2(stream *s, int mode)
{ (void)mode; of(s)->capturing = 1; of(s)->captured = 0; return OK; }
int cuStreamEndCapture(stream *s, graph **g)
{
    *g = calloc(1, sizeof **g);
    (*g)->ns = of(s)->captured;
    of(s)->capturing = 0;
    return OK;
}
int cuGraphInstantiateWithFlags(graph **made, graph *g, unsigned long long flags)
{ (void)flags; *made = calloc(1, sizeof **made); **made = *g; return OK; }
int cuGraphLaunch(graph *g, stream *s) { return work(s, g->ns); }
int cuGraphDestroy(graph *g) { free(g); return OK; }
int cuGraphExecDestroy(graph *g) { free(g); return OK; }

/* -- memory -------------------------------------------------------------------------------------- */

static int take(int device, uint64_t size)
{
    int p = physical(device), result = OK;
    lock();
    if (used(p) + size > machine->devices[p].total)
        result = NO_MEMORY;
    else
        mine(p)->memory += size;
    unlock();
    return result;
}

static void give(int device, uint64_t size)
{
    lock();
    mine(physical(device))->memory -= size;
    unlock();
}

static struct block *keep(uint64_t at, uint64_t size, int device, pool *from)
{
    struct block *found = 0;
    pthread_mutex_lock(&own);
    for (unsigned i = 0; i < sizeof blocks / sizeof *blocks && !found; i++)
        if (!blocks[i].at) {
            blocks[i] = (struct block){at, size, device, 0, 1, from};
            found = &blocks[i];
        }
    pthread_mutex_unlock(&own);
    return found;
}

static struct block *find(uint64_t at)
{
    for (unsigned i = 0; at && i < sizeof blocks / sizeof *blocks; i++)
        if (blocks[i].at == at)
            return &blocks[i];
    return 0;
}

static uint64_t address(uint64_t size)
{
    return __atomic_fetch_add(&next_address, (size + 0x1fffff) & ~0x1fffffULL, __ATOMIC_SEQ_CST);
}

static int allocate(uint64_t *at, uint64_t size)
{
    if (!current)
        return NO_CONTEXT;
    if (!size)
        return INVALID;
    int result = take(current->device, size);
    if (result)
        return result;
    *at = address(size);
    keep(*at, size, current->device, 0);
    return OK;
}

static int release(uint64_t at)
{
    struct block *block = find(at);
    if (!block)
        return at ? INVALID : OK;
    if (block->from) {
        pool *p = block->from;
        p->live -= block->size;
        uint64_t floor = p->live > p->threshold ? p->live : p->threshold;
        if (p->reserved > floor) {
            give(p->device, p->reserved - floor);
            p->reserved = floor;
        }
    } else {
        give(block->device, block->size);
    }
    block->at = 0;
    return OK;
}

static void drop_blocks(int device)
{
    for (unsigned i = 0; i < sizeof blocks / sizeof *blocks; i++)
        if (blocks[i].at && blocks[i].device == device)
            release(blocks[i].at);
}

int cuMemAlloc_v2(uint64_t *at, size_t size) { return allocate(at, size); }
int cuMemAllocPitch_v2(uint64_t *at, size_t *pitch, size_t width, size_t height, unsigned element)
{ (void)element; *pitch = (width + 511) & ~511ULL; return allocate(at, *pitch * height); }
int cuMemAllocManaged(uint64_t *at, size_t size, unsigned flags) { (void)flags; return allocate(at, size); }
int cuMemFree_v2(uint64_t at) { return release(at); }

static int from_pool(uint64_t *at, uint64_t size, pool *p)
{
    if (!size)
        return INVALID;
    if (p->live + size > p->reserved) {
        int result = take(p->device, p->live + size - p->reserved);
        if (result)
            return result;
        p->reserved = p->live + size;
    }
    p->live += size;
    *at = address(size);
    keep(*at, size, p->device, p);
    return OK;
}
int cuMemPoolCreate(pool **p, const void *properties)
{ (void)properties; *p = calloc(1, sizeof **p); (*p)->device = current->device; return OK; }
int cuMemPoolTrimTo(pool *p, size_t keep_bytes);
int cuMemPoolDestroy(pool *p) /* what is still held of it stays until it is freed */
{
    p->threshold = 0;
    return cuMemPoolTrimTo(p, 0);
}
int cuDeviceGetDefaultMemPool(pool **p, int device)
{ pools[device].device = device; *p = &pools[device]; return OK; }
int cuDeviceGetMemPool(pool **p, int device) { return cuDeviceGetDefaultMemPool(p, device); }
int cuMemPoolSetAttribute(pool *p, int attribute, void *value)
{
    if (attribute == 4)
        p->threshold = *(uint64_t *)value;
    return OK;
}
int cuMemPoolGetAttribute(pool *p, int attribute, void *value)
{
    if (attribute != 5 && attribute != 7)
        return INVALID;
    *(uint64_t *)value = attribute == 5 ? p->reserved : p->live;
    return OK;
}
int cuMemPoolTrimTo(pool *p, size_t keep_bytes)
{
    uint64_t floor = p->live > keep_bytes ? p->live : keep_bytes;
    if (p->reserved > floor) {
        give(p->device, p->reserved - floor);
        p->reserved = floor;
    }
    return OK;
}
int cuMemAllocAsync(uint64_t *at, size_t size, stream *s)
{ pool *p; cuDeviceGetDefaultMemPool(&p, of(s)->device); return from_pool(at, size, p); }
int cuMemAllocFromPoolAsync(uint64_t *at, size_t size, pool *p, stream *s)
{ (void)s; return from_pool(at, size, p); }
int cuMemFreeAsync(uint64_t at, stream *s) { (void)s; return release(at); }

struct location { int type, id; };
struct property { int type, handles; struct location location; };
int cuMemCreate(uint64_t *handle, size_t size, const struct property *property, unsigned long long flags)
{
    (void)flags;
    int device = property->location.id, result = take(device, size);
    if (result)
        return result;
    *handle = address(size);
    keep(*handle, size, device, 0);
    return OK;
}
static void settle(struct block *block)
{
    if (block->references <= 0 && !block->mapped)
        release(block->at);
}
int cuMemRelease(uint64_t handle)
{
    struct block *block = find(handle);
    if (!block)
        return INVALID;
    block->references--;
    settle(block);
    return OK;
}
static struct { uint64_t at, size, handle; } maps[4096];
int cuMemRetainAllocationHandle(uint64_t *handle, void *at)
{
    for (int i = 0; i < 4096; i++)
        if (maps[i].at && maps[i].at <= (uint64_t)at && (uint64_t)at < maps[i].at + maps[i].size) {
            find(*handle = maps[i].handle)->references++;
            return OK;
        }
    return INVALID;
}
int cuMemAddressReserve(uint64_t *at, size_t size, size_t alignment, uint64_t wish, unsigned long long flags)
{ (void)alignment; (void)wish; (void)flags; *at = address(size); return OK; }
int cuMemAddressFree(uint64_t at, size_t size) { (void)at; (void)size; return OK; }
int cuMemMap(uint64_t at, size_t size, size_t offset, uint64_t handle, unsigned long long flags)
{
    (void)offset; (void)flags;
    struct block *block = find(handle);
    if (!block)
        return INVALID;
    for (int i = 0; i < 4096; i++)
        if (!maps[i].at) {
            maps[i].at = at, maps[i].size = size, maps[i].handle = handle;
            block->mapped++;
            return OK;
        }
    return INVALID;
}
int cuMemUnmap(uint64_t at, size_t size)
{
    for (int i = 0; i < 4096; i++)
        if (maps[i].at && maps[i].at >= at && maps[i].at + maps[i].size <= at + size) {
            struct block *block = find(maps[i].handle);
            maps[i].at = 0;
            block->mapped--;
            settle(block);
        }
    return OK;
}

struct shape2 { size_t width, height; int format; unsigned channels; };
struct shape3 { size_t width, height, depth; int format; unsigned channels, flags; };
static uint64_t element(int format) { return format == 32 ? 4 : format == 16 || format == 2 || format == 9 ? 2 : format == 3 || format == 10 ? 4 : 1; }
static int array(void **made, size_t w, size_t h, size_t d, int format, unsigned channels)
{
    uint64_t at;
    int result = allocate(&at, w * (h ? h : 1) * (d ? d : 1) * element(format) * channels);
    if (!result)
        *made = (void *)at;
    return result;
}
int cuArrayCreate_v2(void **made, const struct shape2 *s)
{ return array(made, s->width, s->height, 1, s->format, s->channels); }
int cuArray3DCreate_v2(void **made, const struct shape3 *s)
{ return array(made, s->width, s->height, s->depth, s->format, s->channels); }
int cuArrayDestroy(void *at) { return release((uint64_t)at); }
int cuMipmappedArrayCreate(void **made, const struct shape3 *s, unsigned levels)
{
    uint64_t size = 0, at, w = s->width, h = s->height ? s->height : 1, d = s->depth ? s->depth : 1;
    for (unsigned i = 0; i < levels; i++) {
        size += w * h * d * element(s->format) * s->channels;
        w = w > 1 ? w / 2 : 1, h = h > 1 ? h / 2 : 1, d = d > 1 ? d / 2 : 1;
    }
    int result = allocate(&at, size);
    if (!result)
        *made = (void *)at;
    return result;
}
int cuMipmappedArrayDestroy(void *at) { return release((uint64_t)at); }

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    if (!current)
        return NO_CONTEXT;
    int p = physical(current->device);
    lock();
    *total = machine->devices[p].total;
    *free_bytes = *total - used(p);
    unlock();
    return OK;
}

/* -- how a runtime finds all that ---------------------------------------------------------------- */

#include <dlfcn.h>
int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status)
{
    static const char *const forms[] = {"%s_v2", "%s"};
    char full[128];
    static void *self;
    (void)version;
    if (!self)
        self = dlopen(getenv("STANDIN_LIBRARY") ? getenv("STANDIN_LIBRARY") : "libcuda.so.1", RTLD_LAZY);
    *found = 0;
    if (flags & 2) {
        snprintf(full, sizeof full, "%s_ptsz", name);
        *found = dlsym(self, full);
    }
    for (int i = 0; i < 2 && !*found; i++) {
        snprintf(full, sizeof full, forms[i], name);
        *found = dlsym(self, full);
    }
    if (status)
        *status = *found ? 0 : 1;
    return *found ? OK : NOT_FOUND;
}
int cuGetProcAddress(const char *name, void **found, int version, uint64_t flags)
{ return cuGetProcAddress_v2(name, found, version, flags, 0); }

int nvmlInit_v2(void) { return attach() ? 9 : 0; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)machine->count; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{ *device = (void *)(uintptr_t)(index + 1); return index < machine->count ? 0 : 2; }
int nvmlDeviceGetUUID(void *device, char *name, unsigned size)
{
    snprintf(name, size, "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0%02x", (unsigned)(uintptr_t)device - 1);
    return 0;
}
struct nvml_memory { unsigned long long total, free, used; };
struct nvml_memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo(void *device, struct nvml_memory *memory)
{
    int p = (int)(uintptr_t)device - 1;
    lock();
    memory->total = machine->devices[p].total;
    memory->used = used(p);
    memory->free = memory->total - memory->used;
    unlock();
    return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, struct nvml_memory_v2 *memory)
{
    struct nvml_memory plain;
    nvmlDeviceGetMemoryInfo(device, &plain);
    memory->total = plain.total, memory->free = plain.free, memory->used = plain.used;
    memory->reserved = 0;
    return 0;
}
