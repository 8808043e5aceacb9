/* Turns on a device: a process launches while its slot says so. A thread of our own, the keeper, one for
 * each device that is used, asks the daemon, measures, and gives the turn back. Memory is the ledger's. */
#define _GNU_SOURCE
#include "share.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define US 1000ULL
#define MS 1000000ULL
#define AHEAD_NS (40 * MS)   /* how much work may be queued while nobody else wants the device */
#define PACE_NS (5 * MS)     /* between two looks at a device that nobody else wants */
#define LOOK_NS (200 * US)   /* between two looks in a turn that ends */
#define GRACE_NS (300 * US)  /* a turn without a launch for so long is given back */
#define CHOSEN_NS (2 * MS)   /* so long before its end the daemon chooses the next turn */
#define TYPICAL_NS (10 * MS) /* a turn, before its end is known */
#define FIRST_FD 200         /* above what programs expect for their own files */

_Atomic uint32_t capturing;
static struct seat seats[2 * DEVICES]; /* the second half: devices that only NVML was asked about */
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000ULL), (long)(ns % 1000000000ULL)};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &t, 0, 0);
}

static void futex_wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, 0, 0, 0); }

static const char *share; /* its name; none: nothing is enforced */

__attribute__((constructor)) static void look_up(void)
{
    share = getenv("PRESAGE_SHARE");
    if (share && !*share)
        share = 0;
}

bool sharing(void) { return share != 0; }

/* Whether to go on without a daemon; else its processes wait for one. */
static bool goes_on(void)
{
    const char *wish = getenv("PRESAGE_SHARE_ALONE");
    return !wish || strcmp(wish, "wait") != 0;
}

/* -- launching threads --------------------------------------------------------------------------- */

static void say(struct seat *seat, uint32_t kind, uint32_t value)
{
    struct message message = {kind, value, 0};
    send(seat->socket, &message, sizeof message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void ring(struct seat *seat)
{
    uint64_t one = 1;
    if (write(seat->bell, &one, sizeof one) < 0)
        return; /* full: it is awake */
}

void wait_for_turn(struct seat *seat)
{
    uint64_t waited = 0;
    struct slot *slot = atomic_load(&seat->slot);
    atomic_fetch_add(&slot->waiting, 1);
    for (;;) {
        struct slot *at = atomic_load(&seat->slot);
        if (at != slot) { /* another daemon, another page */
            atomic_fetch_add(&at->waiting, 1);
            slot = at;
        }
        uint32_t round = atomic_load(&seat->rounds), grant = atomic_load(&slot->grants);
        uint64_t start = now_ns(), until = atomic_load(&slot->until_ns);
        if (start >= until) {
            say(seat, WANT, 1);
            futex_wait(&slot->grants, grant, 50 * MS);
            waited += now_ns() - start;
        } else if (atomic_load(&seat->launched) >= atomic_load(&seat->may_launch)) {
            ring(seat);
            futex_wait(&seat->rounds, round, 10 * MS);
        } else {
            break;
        }
    }
    atomic_fetch_sub(&slot->waiting, 1);
    if (waited)
        atomic_fetch_add(&slot->waited_ns, waited);
}

void wake_keeper(struct seat *seat)
{
    if (atomic_exchange(&seat->idle, 0))
        ring(seat);
}

static struct lane *new_lane(struct seat *seat, uintptr_t key, void *context, void *stream)
{
    struct lane *found = 0;
    pthread_mutex_lock(&seat->lanes_lock);
    for (unsigned i = 0; i < STREAMS && !found; i++) {
        struct lane *lane = &seat->lanes[(key + i) % STREAMS];
        uintptr_t there = atomic_load(&lane->key);
        if (there == key || there <= 1) {
            if (there != key && lane->context != context)
                lane->event = 0; /* of a context that is gone, or still is: then this is a small leak */
            lane->context = context;
            lane->stream = stream;
            atomic_store(&lane->key, key);
            found = lane;
        }
    }
    pthread_mutex_unlock(&seat->lanes_lock);
    return found;
}

/* Note that there is work on a stream. */
void touch(struct seat *seat, void *stream)
{
    void *context = 0;
    CALL((void **), "cuCtxGetCurrent", &context);
    struct lane *lane = 0;
    if (stream != (void *)2) {
        uintptr_t key = ((uintptr_t)stream * 31 ^ (uintptr_t)context) * 0x9e3779b97f4a7c15ULL | 2;
        key = key >> 7 | 2;
        for (unsigned i = 0; i < 8 && !lane; i++) {
            struct lane *one = &seat->lanes[(key + i) % STREAMS];
            if (atomic_load_explicit(&one->key, memory_order_acquire) == key)
                lane = one;
        }
        if (!lane)
            lane = new_lane(seat, key, context, stream);
    }
    if (lane) {
        if (!atomic_load_explicit(&lane->touched, memory_order_relaxed))
            atomic_store(&lane->touched, 1);
    } else { /* a stream that only its own thread can name, or too many streams */
        seat->context = context;
        atomic_store(&seat->whole, 1);
    }
}

void forget_stream(void *stream)
{
    for (int i = 0; i < DEVICES; i++) {
        struct seat *seat = &seats[i];
        if (atomic_load(&seat->state) != 2)
            continue;
        pthread_mutex_lock(&seat->lanes_lock);
        for (int j = 0; j < STREAMS; j++)
            if (atomic_load(&seat->lanes[j].key) > 1 && seat->lanes[j].stream == stream) {
                atomic_store(&seat->lanes[j].touched, 0);
                atomic_store(&seat->lanes[j].key, 1);
            }
        pthread_mutex_unlock(&seat->lanes_lock);
    }
}

/* Before a context goes: nothing of it may be waited for. */
void forget_context(struct seat *seat, void *context)
{
    pthread_mutex_lock(&seat->drain_lock);
    pthread_mutex_lock(&seat->lanes_lock);
    for (int j = 0; j < STREAMS; j++)
        if (atomic_load(&seat->lanes[j].key) > 1 && seat->lanes[j].context == context) {
            atomic_store(&seat->lanes[j].touched, 0);
            seat->lanes[j].event = 0;
            atomic_store(&seat->lanes[j].key, 1);
        }
    if (seat->context == context)
        seat->context = 0;
    pthread_mutex_unlock(&seat->lanes_lock);
    pthread_mutex_unlock(&seat->drain_lock);
}

/* -- the keeper: measuring ----------------------------------------------------------------------- */

/* Wait until all that was launched so far is done. */
static void drain(struct seat *seat)
{
    void *events[STREAMS], *context = 0, *gone;
    int count = 0;
    if (atomic_load(&capturing)) { /* an event now would become part of somebody's graph */
        usleep(LOOK_NS / US);
        return;
    }
    pthread_mutex_lock(&seat->drain_lock);
    pthread_mutex_lock(&seat->lanes_lock);
    for (int i = 0; i < STREAMS; i++) {
        struct lane *lane = &seat->lanes[i];
        if (atomic_load(&lane->key) <= 1 || !atomic_exchange(&lane->touched, 0))
            continue;
        if (context != lane->context) {
            if (context)
                CALL((void **), "cuCtxPopCurrent_v2", &gone);
            context = lane->context;
            CALL((void *), "cuCtxPushCurrent_v2", context);
        }
        if (!lane->event && CALL((void **, unsigned), "cuEventCreate", &lane->event, 3))
            lane->event = 0; /* 3: wait without spinning, no times */
        if (lane->event && !CALL((void *, void *), "cuEventRecord", lane->event, lane->stream))
            events[count++] = lane->event;
    }
    pthread_mutex_unlock(&seat->lanes_lock);
    for (int i = 0; i < count; i++)
        CALL((void *), "cuEventSynchronize", events[i]);
    if (context)
        CALL((void **), "cuCtxPopCurrent_v2", &gone);
    if (atomic_exchange(&seat->whole, 0) && seat->context) {
        CALL((void *), "cuCtxPushCurrent_v2", seat->context);
        CALL((void), "cuCtxSynchronize");
        CALL((void **), "cuCtxPopCurrent_v2", &gone);
    }
    pthread_mutex_unlock(&seat->drain_lock);
}

static void learn_length(struct slot *slot, uint64_t ns, uint64_t launches)
{
    uint64_t known = atomic_load(&slot->kernel_ns), sample = launches ? ns / launches : 0;
    /* The first of a turn may have waited for the last of somebody else's: then it says little. */
    if (!launches || (launches < 3 && known && sample > 2 * known && ns < 2 * TYPICAL_NS))
        return;
    /* Idle time makes it longer, never shorter, so less is believed sooner; but we may have seen the one
     * before end late, and of few launches that takes a large part. */
    uint64_t weight = sample > known ? 2 : launches < 8 ? launches : 8;
    atomic_store(&slot->kernel_ns, known ? (known * (8 - weight) + sample * weight) / 8 : sample);
}

/* Let threads launch what fits into a time, but no less than so many. */
static void allow(struct seat *seat, uint64_t ns, uint64_t least)
{
    uint64_t length = atomic_load(&atomic_load(&seat->slot)->kernel_ns);
    uint64_t count = length ? ns / length : 4;
    atomic_store(&seat->may_launch, atomic_load(&seat->completed) + (count > least ? count : least));
    atomic_fetch_add(&seat->rounds, 1);
    if (atomic_load(&atomic_load(&seat->slot)->waiting))
        futex_wake(&seat->rounds);
}

/* -- the keeper: its socket ---------------------------------------------------------------------- */

/* Wait for a message, the bell or a time; whether the daemon is there still. */
static bool hear(struct seat *seat, uint64_t ns, bool bell)
{
    struct pollfd files[2] = {{seat->socket, POLLIN, 0}, {bell ? seat->bell : -1, POLLIN, 0}};
    struct timespec t = {(time_t)(ns / 1000000000ULL), (long)(ns % 1000000000ULL)};
    if (ppoll(files, 2, ns == FOREVER ? 0 : &t, 0) <= 0)
        return true;
    if (files[1].revents) {
        uint64_t count;
        if (read(seat->bell, &count, sizeof count) < 0)
            return true;
    }
    if (!files[0].revents)
        return true;
    struct message message;
    ssize_t size = recv(seat->socket, &message, sizeof message, MSG_DONTWAIT);
    return size > 0 || (size < 0 && (errno == EAGAIN || errno == EINTR));
}

static int connected(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof at.sun_path)
        return -1;
    strcpy(at.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* The answer to a hello: the page as a file, and the slot in it. */
static int welcomed(int fd, struct message *message)
{
    char room[CMSG_SPACE(sizeof(int))];
    struct iovec vector = {message, sizeof *message};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (recvmsg(fd, &header, MSG_CMSG_CLOEXEC) < (ssize_t)sizeof *message || message->kind != WELCOME)
        return -1;
    struct cmsghdr *control = CMSG_FIRSTHDR(&header);
    int file = -1;
    if (control && control->cmsg_type == SCM_RIGHTS)
        memcpy(&file, CMSG_DATA(control), sizeof file);
    return file;
}

static bool attach(struct seat *seat)
{
    const char *path = getenv("PRESAGE_SHARE_SOCKET");
    struct hello hello = {.kind = HELLO, .version = PAGE_VERSION};
    struct message answer = {0};
    struct timeval patience = {1, 0};
    int fd = path ? connected(path) : -1, file = -1;
    struct page *page = MAP_FAILED;
    if (fd < 0)
        return false;
    memcpy(hello.uuid, seat->uuid, sizeof hello.uuid);
    snprintf(hello.share, sizeof hello.share, "%s", share);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (send(fd, &hello, sizeof hello, MSG_NOSIGNAL) == (ssize_t)sizeof hello)
        file = welcomed(fd, &answer);
    if (file >= 0) {
        page = mmap(0, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
    }
    if (page == MAP_FAILED || page->magic != PAGE_MAGIC || page->version != PAGE_VERSION || answer.value >= SLOTS) {
        static _Atomic int said;
        if (answer.kind == REFUSED && !atomic_exchange(&said, 1))
            fprintf(stderr, "presage: the share daemon knows no share %s: this process %s\n", share,
                goes_on() ? "runs without one" : "waits for it");
        close(fd);
        return false;
    }
    dup3(fd, seat->socket, O_CLOEXEC); /* the number stays: other threads send to it */
    close(fd);
    struct slot *before = atomic_load(&seat->slot);
    move(seat, page, &page->slots[answer.value]); /* pages of daemons before stay mapped: threads may look */
    if (before != atomic_load(&seat->slot)) {
        atomic_fetch_add(&before->grants, 1);
        futex_wake(&before->grants);
    }
    atomic_store(&seat->may_launch, atomic_load(&seat->completed));
    allow(seat, TYPICAL_NS, 4);
    if (before->waiting)
        say(seat, WANT, 1);
    return seat->attached = true;
}

static void detach(struct seat *seat)
{
    struct slot *slot = atomic_load(&seat->slot);
    seat->attached = false;
    atomic_store(&slot->until_ns, goes_on() ? FOREVER : 0);
    atomic_store(&seat->may_launch, FOREVER);
    atomic_fetch_add(&seat->rounds, 1);
    futex_wake(&seat->rounds);
    atomic_fetch_add(&slot->grants, 1);
    futex_wake(&slot->grants);
}

/* -- the keeper: turns --------------------------------------------------------------------------- */

/* Wait for all that was launched; how long a launch took is learned if the device was busy throughout. */
static void catch_up(struct seat *seat, uint64_t *since)
{
    struct slot *slot = atomic_load(&seat->slot);
    uint64_t count = atomic_load(&seat->issued), before = atomic_load(&seat->completed);
    uint64_t start = now_ns();
    if (count == before) { /* a thread is on its way to the driver, or waits there for room in its queue */
        usleep(LOOK_NS / US);
        return;
    }
    drain(seat);
    uint64_t end = now_ns();
    if (end - start > 30 * US || start - *since < 2 * LOOK_NS)
        learn_length(slot, end - *since, count - before);
    *since = end;
    atomic_store(&seat->completed, count);
    atomic_store(&slot->launches, count);
}

/* Nobody else wants the device: look now and then, so that little is queued when somebody does. */
static bool run_free(struct seat *seat)
{
    struct slot *slot = atomic_load(&seat->slot);
    uint64_t since = now_ns();
    if (atomic_load(&seat->launched) == atomic_load(&seat->completed)) {
        allow(seat, AHEAD_NS, atomic_load(&slot->kernel_ns) ? 2 : 64);
        atomic_store(&seat->idle, 1);
        if (atomic_load(&seat->launched) == atomic_load(&seat->completed))
            return hear(seat, FOREVER, true);
        atomic_store(&seat->idle, 0);
    }
    if (!hear(seat, PACE_NS, true))
        return false;
    uint64_t began = since, start = now_ns();
    catch_up(seat, &since);
    if (since - start > 30 * US) /* it was busy when we looked, and so most of the time before */
        atomic_fetch_add(&slot->used_ns, since - began);
    allow(seat, AHEAD_NS, atomic_load(&slot->kernel_ns) ? 2 : 64);
    return true;
}

/* No further launch fits into a turn, and the next is not chosen yet: a thread that is about to ask gets the
 * time to say so, or it would be chosen among those that ask already. */
static void hear_wishes(struct seat *seat, uint64_t until)
{
    struct slot *slot = atomic_load(&seat->slot);
    atomic_store(&seat->may_launch, atomic_load(&seat->completed));
    while (!atomic_load(&slot->waiting) && now_ns() < until)
        usleep(20);
}

/* One look at a turn that ends: whether it is over. */
static bool turn_over(struct seat *seat, uint64_t until, uint64_t *since, uint64_t *active, bool *there)
{
    struct slot *slot = atomic_load(&seat->slot);
    uint64_t time = now_ns(), count = atomic_load(&seat->launched);
    if (time >= until)
        return true;
    if (count == atomic_load(&seat->completed)) {
        if (time - *active > GRACE_NS)
            return true;
        *there = hear(seat, LOOK_NS, false);
        if (count == atomic_load(&seat->launched))
            *since = now_ns();
        return false;
    }
    catch_up(seat, since);
    *active = *since;
    uint64_t length = atomic_load(&slot->kernel_ns), end = atomic_load(&slot->until_ns);
    if (*since + length / 2 >= end) {
        if (*since + CHOSEN_NS < end)
            hear_wishes(seat, *since + GRACE_NS);
        return true;
    }
    allow(seat, end - *since, 1);
    if (*since - time < LOOK_NS)
        *there = hear(seat, LOOK_NS, false);
    return false;
}

/* A turn that ends. What it is charged for is the time from its grant until its last launch is done. The
 * daemon may move its end meanwhile. */
static bool take_turn(struct seat *seat)
{
    struct slot *slot = atomic_load(&seat->slot);
    uint64_t began = now_ns(), since = began, active = began, until;
    bool there = true;
    do {
        do
            until = atomic_load(&slot->until_ns);
        while (until && until != FOREVER && there && !turn_over(seat, until, &since, &active, &there));
        if (until == FOREVER) {
            atomic_fetch_add(&slot->used_ns, now_ns() - began);
            return there;
        }
    } while (until && there && !atomic_compare_exchange_strong(&slot->until_ns, &until, 0));
    while (there && atomic_load(&seat->launched) != atomic_load(&seat->completed))
        catch_up(seat, &since), active = since;
    atomic_fetch_add(&slot->used_ns, active - began);
    atomic_store(&seat->may_launch, atomic_load(&seat->completed));
    allow(seat, TYPICAL_NS, 1);
    struct message message = {DONE, atomic_load(&slot->waiting), active};
    send(seat->socket, &message, sizeof message, MSG_DONTWAIT | MSG_NOSIGNAL);
    return there;
}

static void *keep(void *argument)
{
    struct seat *seat = argument;
    int relaxed = 2;
    CALL((int *), "cuThreadExchangeStreamCaptureMode", &relaxed);
    for (;;) {
        bool there = true;
        if (!seat->attached && !attach(seat)) {
            usleep(50000);
            continue;
        }
        uint64_t until = atomic_load(&atomic_load(&seat->slot)->until_ns);
        if (!until)
            there = hear(seat, FOREVER, false);
        else if (until == FOREVER)
            there = run_free(seat);
        else
            there = take_turn(seat);
        if (!there)
            detach(seat);
    }
    return 0;
}

/* -- seats --------------------------------------------------------------------------------------- */

static void forked(void)
{
    for (int i = 0; i < 2 * DEVICES; i++)
        if (atomic_load(&seats[i].state)) {
            close(seats[i].socket);
            close(seats[i].bell);
            memset(&seats[i], 0, sizeof seats[i]);
        }
    pthread_mutex_init(&making, 0);
    atomic_store(&capturing, 0);
    ledger_forked();
}

static void start(struct seat *seat)
{
    static bool registered;
    pthread_t thread;
    sigset_t all, before;
    const char *quota = getenv("PRESAGE_SHARE_MEMORY");
    if (!registered)
        registered = !pthread_atfork(0, 0, forked);
    pthread_mutex_init(&seat->lanes_lock, 0);
    pthread_mutex_init(&seat->drain_lock, 0);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    seat->socket = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_FD);
    seat->bell = fcntl(bell, F_DUPFD_CLOEXEC, FIRST_FD);
    close(fd);
    close(bell);
    atomic_store(&seat->alone_page.quota, quota ? strtoull(quota, 0, 10) : 0);
    atomic_store(&seat->page, &seat->alone_page);
    atomic_store(&seat->slot, &seat->alone_page.slots[0]);
    detach(seat);
    attach(seat);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (!pthread_create(&thread, 0, keep, seat))
        pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, 0);
}

static struct seat *made(struct seat *seat, int device, const unsigned char *uuid)
{
    pthread_mutex_lock(&making);
    if (atomic_load(&seat->state) != 2) {
        seat->device = device;
        memcpy(seat->uuid, uuid, sizeof seat->uuid);
        atomic_store(&seat->state, 1);
        start(seat);
        atomic_store(&seat->state, 2);
    }
    pthread_mutex_unlock(&making);
    return seat;
}

struct seat *seat_of(int device)
{
    unsigned char uuid[16] = {0};
    if (device < 0 || device >= DEVICES || !sharing())
        return 0;
    if (LIKELY(atomic_load_explicit(&seats[device].state, memory_order_acquire) == 2))
        return &seats[device];
    if (CALL((unsigned char *, int), "cuDeviceGetUuid_v2", uuid, device)
        && CALL((unsigned char *, int), "cuDeviceGetUuid", uuid, device))
        return 0;
    return made(&seats[device], device, uuid);
}

struct seat *seat_here(void)
{
    int device;
    if (!sharing() || CALL((int *), "cuCtxGetDevice", &device))
        return 0;
    return seat_of(device);
}

struct seat *seat_by_uuid(const unsigned char *uuid)
{
    if (!sharing())
        return 0;
    for (int i = 0; i < 2 * DEVICES; i++)
        if (atomic_load(&seats[i].state) == 2 && !memcmp(seats[i].uuid, uuid, 16))
            return &seats[i];
    for (int i = DEVICES; i < 2 * DEVICES; i++)
        if (!atomic_load(&seats[i].state))
            return made(&seats[i], -1, uuid);
    return 0;
}

/* The seat on a device, if anything was done there. */
struct seat *seat_known(int device)
{
    bool there = device >= 0 && device < DEVICES && atomic_load(&seats[device].state) == 2;
    return there ? &seats[device] : 0;
}
