/* How a program comes to call us instead of the driver: our exported names come first (LD_PRELOAD), and
 * dlsym and cuGetProcAddress answer with them. Each hook calls the driver's own function; what may run and
 * what may be had is decided in seat.c and ledger.c. The answers of the driver are passed on unchanged; the
 * only one that is ours is its own for "out of memory". */
#define _GNU_SOURCE
#include "share.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN __attribute__((visibility("default")))

typedef void *(*finder)(void *, const char *);
typedef void *(*finder_v)(void *, const char *, const char *);

static finder own_dlsym(void)
{
    static _Atomic(finder) found;
    finder known = atomic_load_explicit(&found, memory_order_relaxed);
    if (!known) {
        static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.0"};
        for (int i = 0; i < 4 && !known; i++)
            known = (finder)dlvsym(RTLD_NEXT, "dlsym", versions[i]);
        atomic_store(&found, known);
    }
    return known;
}

void *driver(const char *name)
{
    static _Atomic(void *) cuda, nvml;
    bool is_cuda = name[0] == 'c';
    _Atomic(void *) *library = is_cuda ? &cuda : &nvml;
    const char *file = is_cuda ? "libcuda.so.1" : "libnvidia-ml.so.1";
    if (!atomic_load(library)) {
        void *handle = dlopen(file, RTLD_LAZY | RTLD_NOLOAD);
        atomic_store(library, handle ? handle : dlopen(file, RTLD_LAZY));
    }
    return atomic_load(library) ? own_dlsym()(atomic_load(library), name) : 0;
}

/* -- work ---------------------------------------------------------------------------------------- */

/* The seat whose turn it takes to launch on a stream, once it has come; none where nothing is enforced. */
static struct seat *turn(void *stream)
{
    struct seat *seat = seat_here();
    int status = 0;
    if (!seat)
        return 0;
    if (atomic_load_explicit(&capturing, memory_order_relaxed)
        && !CALL((void *, int *), "cuStreamIsCapturing", stream, &status) && status)
        return 0;
    uint64_t until = atomic_load_explicit(&atomic_load_explicit(&seat->slot, memory_order_acquire)->until_ns, memory_order_acquire);
    if (!LIKELY((until == FOREVER || now_ns() < until)
            && atomic_load_explicit(&seat->launched, memory_order_relaxed)
                < atomic_load_explicit(&seat->may_launch, memory_order_relaxed)))
        wait_for_turn(seat);
    atomic_fetch_add_explicit(&seat->launched, 1, memory_order_seq_cst);
    return seat;
}

static result launched(struct seat *seat, void *stream, result answer)
{
    if (seat) {
        touch(seat, stream);
        atomic_fetch_add_explicit(&seat->issued, 1, memory_order_release);
        if (atomic_load_explicit(&seat->idle, memory_order_relaxed))
            wake_keeper(seat);
    }
    return answer;
}

#define PER_THREAD(stream) ((stream) ? (stream) : (void *)2)

/* A launch: its name, parameters, how they are passed on, and its stream, also as the per-thread form. */
#define LAUNCH(name, parameters, arguments, stream) \
    SHOWN result name parameters \
    { \
        struct seat *seat = turn(stream); \
        return launched(seat, stream, CALL(parameters, #name, arguments)); \
    } \
    SHOWN result name##_ptsz parameters \
    { \
        struct seat *seat = turn(PER_THREAD(stream)); \
        return launched(seat, PER_THREAD(stream), CALL(parameters, #name "_ptsz", arguments)); \
    }
#define LIST(...) __VA_ARGS__

struct launch_config { unsigned sizes[7]; void *stream; };

LAUNCH(cuLaunchKernel,
    (void *f, unsigned a, unsigned b, unsigned c, unsigned x, unsigned y, unsigned z, unsigned shared, void *s, void **p, void **extra),
    LIST(f, a, b, c, x, y, z, shared, s, p, extra), s)
LAUNCH(cuLaunchKernelEx, (const struct launch_config *config, void *f, void **p, void **extra),
    LIST(config, f, p, extra), config->stream)
LAUNCH(cuLaunchCooperativeKernel,
    (void *f, unsigned a, unsigned b, unsigned c, unsigned x, unsigned y, unsigned z, unsigned shared, void *s, void **p),
    LIST(f, a, b, c, x, y, z, shared, s, p), s)
LAUNCH(cuGraphLaunch, (void *graph, void *s), LIST(graph, s), s)

SHOWN result cuLaunch(void *f)
{
    struct seat *seat = turn(0);
    return launched(seat, 0, CALL((void *), "cuLaunch", f));
}
SHOWN result cuLaunchGrid(void *f, int w, int h)
{
    struct seat *seat = turn(0);
    return launched(seat, 0, CALL((void *, int, int), "cuLaunchGrid", f, w, h));
}
SHOWN result cuLaunchGridAsync(void *f, int w, int h, void *s)
{
    struct seat *seat = turn(s);
    return launched(seat, s, CALL((void *, int, int, void *), "cuLaunchGridAsync", f, w, h, s));
}

struct cooperative { void *f; unsigned sizes[7]; void *stream; void **p; };
SHOWN result cuLaunchCooperativeKernelMultiDevice(struct cooperative *list, unsigned count, unsigned flags)
{
    struct seat *seat = count ? turn(list[0].stream) : 0;
    return launched(seat, count ? list[0].stream : 0,
        CALL((void *, unsigned, unsigned), "cuLaunchCooperativeKernelMultiDevice", list, count, flags));
}

/* -- what makes a launch wait for nothing, or forget ---------------------------------------------- */

static result began(result answer)
{
    if (!answer)
        atomic_fetch_add(&capturing, 1);
    return answer;
}
static result ended(result answer)
{
    uint32_t count = atomic_load(&capturing);
    while (count && !atomic_compare_exchange_weak(&capturing, &count, count - 1)) { }
    return answer;
}
#define CAPTURE(name, how, parameters, arguments) \
    SHOWN result name parameters { return how(CALL(parameters, #name, arguments)); } \
    SHOWN result name##_ptsz parameters { return how(CALL(parameters, #name "_ptsz", arguments)); }
CAPTURE(cuStreamBeginCapture, began, (void *s), LIST(s))
CAPTURE(cuStreamBeginCapture_v2, began, (void *s, int mode), LIST(s, mode))
CAPTURE(cuStreamBeginCaptureToGraph, began,
    (void *s, void *graph, const void *nodes, const void *edges, size_t count, int mode),
    LIST(s, graph, nodes, edges, count, mode))
CAPTURE(cuStreamEndCapture, ended, (void *s, void **graph), LIST(s, graph))

SHOWN result cuStreamDestroy_v2(void *s)
{
    if (sharing())
        forget_stream(s);
    return CALL((void *), "cuStreamDestroy_v2", s);
}

SHOWN result cuCtxDestroy_v2(void *context)
{
    for (int i = 0; sharing() && i < DEVICES; i++) {
        struct seat *seat = seat_known(i);
        if (seat) {
            forget_context(seat, context);
            drop_owned(seat, context);
        }
    }
    return CALL((void *), "cuCtxDestroy_v2", context);
}

static void *primary_of(int device)
{
    void *context = 0;
    if (!seat_known(device) || CALL((void **, int), "cuDevicePrimaryCtxRetain", &context, device))
        return 0;
    CALL((int), "cuDevicePrimaryCtxRelease_v2", device);
    return context;
}

SHOWN result cuDevicePrimaryCtxReset_v2(int device)
{
    void *context = primary_of(device);
    if (context) {
        forget_context(seat_known(device), context);
        drop_owned(seat_known(device), context);
    }
    return CALL((int), "cuDevicePrimaryCtxReset_v2", device);
}

SHOWN result cuDevicePrimaryCtxRelease_v2(int device)
{
    unsigned flags;
    int active = 1;
    void *context = primary_of(device);
    result answer = CALL((int), "cuDevicePrimaryCtxRelease_v2", device);
    if (context && !answer && !CALL((int, unsigned *, int *), "cuDevicePrimaryCtxGetState", device, &flags, &active) && !active) {
        forget_context(seat_known(device), context);
        drop_owned(seat_known(device), context);
    }
    return answer;
}

/* -- memory -------------------------------------------------------------------------------------- */

static void *context_here(void)
{
    void *context = 0;
    CALL((void **), "cuCtxGetCurrent", &context);
    return context;
}

/* Ask the driver for what was found to fit, and note it. */
#define ALLOCATE(size, key, kind, call) \
    do { \
        struct seat *seat = seat_here(); \
        uint64_t wanted = (size); \
        if (!seat || !wanted) \
            return call; \
        if (!reserve(seat, wanted, 0)) \
            return OUT_OF_MEMORY; \
        result answer = call; \
        if (answer) \
            give_back(seat, wanted, 0); \
        else \
            hold(seat, (uint64_t)(key), wanted, kind, context_here(), 0); \
        return answer; \
    } while (0)

SHOWN result cuMemAlloc_v2(pointer *at, size_t size)
{
    ALLOCATE(size, *at, PLAIN, CALL((pointer *, size_t), "cuMemAlloc_v2", at, size));
}

SHOWN result cuMemAllocManaged(pointer *at, size_t size, unsigned flags)
{
    ALLOCATE(size, *at, PLAIN, CALL((pointer *, size_t, unsigned), "cuMemAllocManaged", at, size, flags));
}

/* The driver says how wide a row is only afterwards; 512 bytes is the widest alignment it uses. */
SHOWN result cuMemAllocPitch_v2(pointer *at, size_t *pitch, size_t width, size_t height, unsigned element)
{
    ALLOCATE(((width + 511) & ~(size_t)511) * height, *at, PLAIN,
        CALL((pointer *, size_t *, size_t, size_t, unsigned), "cuMemAllocPitch_v2", at, pitch, width, height, element));
}

SHOWN result cuMemFree_v2(pointer at)
{
    result answer = CALL((pointer), "cuMemFree_v2", at);
    if (!answer && sharing())
        let_go(at, PLAIN);
    return answer;
}

static result from_pool(pointer *at, size_t size, void *pool, void *stream, const char *name, result (*call)(pointer *, size_t, void *, void *))
{
    struct seat *seat = seat_here();
    (void)name;
    if (!seat || !size)
        return call(at, size, pool, stream);
    if (!pool) {
        int device;
        if (CALL((int *), "cuCtxGetDevice", &device) || CALL((void **, int), "cuDeviceGetMemPool", &pool, device))
            pool = 0;
    }
    if (!reserve(seat, size, pool))
        return OUT_OF_MEMORY;
    result answer = call(at, size, pool, stream);
    if (answer)
        give_back(seat, size, pool);
    else
        hold(seat, *at, size, PLAIN, 0, pool);
    return answer;
}

#define POOLED(suffix) \
    static result async##suffix(pointer *at, size_t size, void *pool, void *stream) \
    { \
        (void)pool; \
        return CALL((pointer *, size_t, void *), "cuMemAllocAsync" #suffix, at, size, stream); \
    } \
    SHOWN result cuMemAllocAsync##suffix(pointer *at, size_t size, void *stream) \
    { \
        return from_pool(at, size, 0, stream, "", async##suffix); \
    } \
    static result pooled##suffix(pointer *at, size_t size, void *pool, void *stream) \
    { \
        return CALL((pointer *, size_t, void *, void *), "cuMemAllocFromPoolAsync" #suffix, at, size, pool, stream); \
    } \
    SHOWN result cuMemAllocFromPoolAsync##suffix(pointer *at, size_t size, void *pool, void *stream) \
    { \
        return from_pool(at, size, pool, stream, "", pooled##suffix); \
    } \
    SHOWN result cuMemFreeAsync##suffix(pointer at, void *stream) \
    { \
        result answer = CALL((pointer, void *), "cuMemFreeAsync" #suffix, at, stream); \
        if (!answer && sharing()) \
            let_go(at, PLAIN); \
        return answer; \
    }
POOLED()
POOLED(_ptsz)

SHOWN result cuMemPoolDestroy(void *pool)
{
    if (sharing()) { /* first what nobody holds: else it would be free in the count, and not on the device */
        CALL((void *, size_t), "cuMemPoolTrimTo", pool, 0);
        pool_gone(pool);
    }
    return CALL((void *), "cuMemPoolDestroy", pool);
}

struct location { int type, id; };
struct allocation { int type, handles; struct location location; };

SHOWN result cuMemCreate(pointer *handle, size_t size, const struct allocation *what, unsigned long long flags)
{
    typedef pointer *out;
    bool here = what && what->location.type == 1; /* a device, not the host */
    struct seat *seat = here ? seat_of(what->location.id) : 0;
    if (seat && !reserve(seat, size, 0))
        return OUT_OF_MEMORY;
    result answer = CALL((out, size_t, const void *, unsigned long long), "cuMemCreate", handle, size, what, flags);
    if (seat && answer)
        give_back(seat, size, 0);
    else if (seat)
        hold(seat, *handle, size, HANDLE, 0, 0);
    return answer;
}

SHOWN result cuMemRelease(pointer handle)
{
    result answer = CALL((pointer), "cuMemRelease", handle);
    if (!answer && sharing())
        handle_counts(handle, -1, 0);
    return answer;
}

SHOWN result cuMemRetainAllocationHandle(pointer *handle, void *at)
{
    result answer = CALL((pointer *, void *), "cuMemRetainAllocationHandle", handle, at);
    if (!answer && sharing())
        handle_counts(*handle, 1, 0);
    return answer;
}

SHOWN result cuMemMap(pointer at, size_t size, size_t offset, pointer handle, unsigned long long flags)
{
    result answer = CALL((pointer, size_t, size_t, pointer, unsigned long long), "cuMemMap", at, size, offset, handle, flags);
    if (!answer && sharing())
        mapped(handle, at, size);
    return answer;
}

SHOWN result cuMemUnmap(pointer at, size_t size)
{
    result answer = CALL((pointer, size_t), "cuMemUnmap", at, size);
    if (!answer && sharing())
        unmapped(at, size);
    return answer;
}

struct array2 { size_t width, height; int format; unsigned channels; };
struct array3 { size_t width, height, depth; int format; unsigned channels, flags; };

static uint64_t element(int format)
{
    switch (format) {
    case 0x01: case 0x08: return 1; /* 8 bits, unsigned and signed */
    case 0x02: case 0x09: case 0x10: return 2; /* 16 bits, half */
    default: return 4;
    }
}

static uint64_t texels(size_t w, size_t h, size_t d) { return w * (h ? h : 1) * (d ? d : 1); }

/* Of one level. Arrays that are sparse, or mapped later, hold nothing of their own (flags 0x40, 0x80). */
static uint64_t array_size(const struct array3 *what, unsigned level)
{
    size_t w = what->width >> level, h = what->height >> level, d = what->depth >> level;
    if (what->flags & 0xc0)
        return 0;
    return texels(w ? w : 1, h, d) * element(what->format) * what->channels;
}

SHOWN result cuArrayCreate_v2(void **made, const struct array2 *what)
{
    ALLOCATE(texels(what->width, what->height, 1) * element(what->format) * what->channels, *made, ARRAY,
        CALL((void **, const void *), "cuArrayCreate_v2", made, what));
}

SHOWN result cuArray3DCreate_v2(void **made, const struct array3 *what)
{
    ALLOCATE(array_size(what, 0), *made, ARRAY, CALL((void **, const void *), "cuArray3DCreate_v2", made, what));
}

SHOWN result cuMipmappedArrayCreate(void **made, const struct array3 *what, unsigned levels)
{
    uint64_t size = 0;
    for (unsigned i = 0; i < levels; i++)
        size += array_size(what, i);
    ALLOCATE(size, *made, ARRAY, CALL((void **, const void *, unsigned), "cuMipmappedArrayCreate", made, what, levels));
}

#define ARRAY_GONE(name) \
    SHOWN result name(void *array) \
    { \
        result answer = CALL((void *), #name, array); \
        if (!answer && sharing()) \
            let_go((uint64_t)array, ARRAY); \
        return answer; \
    }
ARRAY_GONE(cuArrayDestroy)
ARRAY_GONE(cuMipmappedArrayDestroy)

/* -- what a program is told of the memory ---------------------------------------------------------- */

static void within_quota(struct seat *seat, uint64_t *unused, uint64_t *total, uint64_t *used)
{
    uint64_t quota = seat ? quota_of(seat) : 0;
    if (!quota)
        return;
    uint64_t held = held_in_all(seat), left = held < quota ? quota - held : 0;
    if (*total > quota)
        *total = quota;
    if (*unused > left)
        *unused = left;
    if (used)
        *used = *total - *unused;
}

SHOWN result cuMemGetInfo_v2(size_t *unused, size_t *total)
{
    result answer = CALL((size_t *, size_t *), "cuMemGetInfo_v2", unused, total);
    if (!answer)
        within_quota(seat_here(), unused, total, 0);
    return answer;
}

SHOWN result cuDeviceTotalMem_v2(size_t *total, int device)
{
    uint64_t unused = 0;
    result answer = CALL((size_t *, int), "cuDeviceTotalMem_v2", total, device);
    if (!answer)
        within_quota(seat_of(device), &unused, total, 0);
    return answer;
}

static struct seat *seat_of_nvml(void *device)
{
    char text[96];
    unsigned char uuid[16];
    int count = 0;
    if (!sharing() || CALL((void *, char *, unsigned), "nvmlDeviceGetUUID", device, text, sizeof text))
        return 0;
    const char *at = strchr(text, '-');
    for (; at && *at && count < 16; at++)
        if (*at != '-' && at[1]) {
            char pair[3] = {at[0], at[1], 0};
            uuid[count++] = (unsigned char)strtoul(pair, 0, 16);
            at++;
        }
    return count == 16 ? seat_by_uuid(uuid) : 0;
}

struct nvml_memory { uint64_t total, unused, used; };
struct nvml_memory_v2 { unsigned version; uint64_t total, reserved, unused, used; };

SHOWN result nvmlDeviceGetMemoryInfo(void *device, struct nvml_memory *memory)
{
    result answer = CALL((void *, void *), "nvmlDeviceGetMemoryInfo", device, memory);
    if (!answer)
        within_quota(seat_of_nvml(device), &memory->unused, &memory->total, &memory->used);
    return answer;
}

SHOWN result nvmlDeviceGetMemoryInfo_v2(void *device, struct nvml_memory_v2 *memory)
{
    result answer = CALL((void *, void *), "nvmlDeviceGetMemoryInfo_v2", device, memory);
    if (!answer)
        within_quota(seat_of_nvml(device), &memory->unused, &memory->total, &memory->used);
    return answer;
}

/* -- how functions are found ------------------------------------------------------------------------ */

SHOWN result cuGetProcAddress(const char *name, void **found, int version, uint64_t flags);
SHOWN result cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status);

/* By exported name; `since` is the driver's version from which on cuGetProcAddress gives this form for the
 * name without an ending. */
static const struct hook { const char *name; void *function; int since; } hooks[] = {
#define HOOK(name, since) {#name, (void *)name, since}
#define BOTH(name, since) HOOK(name, since), HOOK(name##_ptsz, since)
    BOTH(cuLaunchKernel, 0), BOTH(cuLaunchKernelEx, 0), BOTH(cuLaunchCooperativeKernel, 0),
    BOTH(cuGraphLaunch, 0), HOOK(cuLaunch, 0), HOOK(cuLaunchGrid, 0), HOOK(cuLaunchGridAsync, 0),
    HOOK(cuLaunchCooperativeKernelMultiDevice, 0), BOTH(cuStreamBeginCapture, 0),
    BOTH(cuStreamBeginCapture_v2, 10010), BOTH(cuStreamBeginCaptureToGraph, 0), BOTH(cuStreamEndCapture, 0),
    HOOK(cuStreamDestroy_v2, 4000), HOOK(cuCtxDestroy_v2, 4000), HOOK(cuDevicePrimaryCtxReset_v2, 11000),
    HOOK(cuDevicePrimaryCtxRelease_v2, 11000), HOOK(cuMemAlloc_v2, 3020), HOOK(cuMemAllocManaged, 0),
    HOOK(cuMemAllocPitch_v2, 3020), HOOK(cuMemFree_v2, 3020), BOTH(cuMemAllocAsync, 0),
    BOTH(cuMemAllocFromPoolAsync, 0), BOTH(cuMemFreeAsync, 0), HOOK(cuMemPoolDestroy, 0), HOOK(cuMemCreate, 0),
    HOOK(cuMemRelease, 0), HOOK(cuMemRetainAllocationHandle, 0), HOOK(cuMemMap, 0), HOOK(cuMemUnmap, 0),
    HOOK(cuArrayCreate_v2, 3020), HOOK(cuArray3DCreate_v2, 3020), HOOK(cuArrayDestroy, 0),
    HOOK(cuMipmappedArrayCreate, 0), HOOK(cuMipmappedArrayDestroy, 0), HOOK(cuMemGetInfo_v2, 3020),
    HOOK(cuDeviceTotalMem_v2, 3020), HOOK(nvmlDeviceGetMemoryInfo, 0), HOOK(nvmlDeviceGetMemoryInfo_v2, 0),
    HOOK(cuGetProcAddress, 0), HOOK(cuGetProcAddress_v2, 12000),
};

static void *by_name(const char *name)
{
    for (unsigned i = 0; i < sizeof hooks / sizeof *hooks; i++)
        if (!strcmp(hooks[i].name, name))
            return hooks[i].function;
    return 0;
}

/* The hook for what cuGetProcAddress gave for a name: the newest form that the version has. */
static void *by_version(const char *name, int version, bool per_thread)
{
    static const char *const endings[2][4] = {{"_v2", "", 0}, {"_v2_ptsz", "_ptsz", "_v2", ""}};
    for (int i = 0; i < 4 && endings[per_thread][i]; i++)
        for (unsigned j = 0; j < sizeof hooks / sizeof *hooks; j++) {
            size_t length = strlen(name);
            if (!strncmp(hooks[j].name, name, length) && !strcmp(hooks[j].name + length, endings[per_thread][i])
                && version >= hooks[j].since)
                return hooks[j].function;
        }
    return 0;
}

static result hooked(const char *name, void **found, int version, uint64_t flags, result answer)
{
    void *ours = !answer && found && *found && sharing() ? by_version(name, version, flags & 2) : 0;
    if (ours)
        *found = ours;
    return answer;
}

result cuGetProcAddress(const char *name, void **found, int version, uint64_t flags)
{
    result answer = CALL((const char *, void **, int, uint64_t), "cuGetProcAddress", name, found, version, flags);
    return hooked(name, found, version, flags, answer);
}

result cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status)
{
    result answer = CALL((const char *, void **, int, uint64_t, int *), "cuGetProcAddress_v2", name, found, version, flags, status);
    return hooked(name, found, version, flags, answer);
}

/* Both return by a jump: the dynamic linker looks at who called, and must see the program. */
SHOWN void *dlsym(void *handle, const char *name)
{
    finder real = own_dlsym();
    if (LIKELY((name[0] != 'c' || name[1] != 'u') && strncmp(name, "nvml", 4)))
        return real(handle, name);
    void *ours = sharing() ? by_name(name) : 0;
    if (!ours || handle == RTLD_NEXT)
        return real(handle, name);
    return real(handle, name) ? ours : 0;
}

SHOWN void *dlopen(const char *file, int flags)
{
    static _Atomic(void *) found;
    void *(*real)(const char *, int) = (void *(*)(const char *, int))atomic_load(&found);
    if (!real) {
        real = (void *(*)(const char *, int))own_dlsym()(RTLD_NEXT, "dlopen");
        atomic_store(&found, (void *)real);
    }
    if (sharing())
        flags &= ~RTLD_DEEPBIND; /* else a library would find the driver before us */
    return real(file, flags);
}
