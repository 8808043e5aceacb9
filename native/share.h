/* Between the parts of the interposer: seats (turns on a device), the ledger (memory), hooks (how a
 * program comes to call us). Nothing here is seen from outside but the hooks. */
#ifndef PRESAGE_SHARE_H
#define PRESAGE_SHARE_H

#include "page.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#define HIDDEN __attribute__((visibility("hidden")))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define DEVICES 16
#define STREAMS 256

typedef int result;          /* CUresult */
typedef uint64_t pointer;    /* CUdeviceptr and CUmemGenericAllocationHandle */
enum { SUCCESS = 0, OUT_OF_MEMORY = 2, NOT_FOUND = 500 };

/* A stream that was launched on, and the event that says when it is done. */
struct lane {
    _Atomic uintptr_t key; /* of context and stream; 0: free, 1: was used */
    void *context, *stream, *event;
    _Atomic uint32_t touched;
};

/* This process on one device. */
struct seat {
    _Atomic(struct slot *) slot; /* in the page, or `alone` without a daemon */
    _Atomic(struct page *) page;
    _Atomic uint64_t launched, issued, completed, may_launch; /* launches: begun, with the driver, done, allowed */
    _Atomic uint32_t idle;      /* whether the keeper has gone to sleep for want of launches */
    _Atomic uint32_t rounds;    /* a futex: moves when may_launch does */
    _Atomic uint32_t whole;     /* launches on streams that only their own thread can name */
    _Atomic uint32_t state;     /* 0 unused, 1 being made, 2 ready */
    int device, socket, bell;
    unsigned char uuid[16];
    struct page alone_page;
    struct lane lanes[STREAMS];
    pthread_mutex_t lanes_lock, drain_lock;
    void *context;
    uint64_t plain; /* bytes held but for pools; the ledger's */
    bool attached;
};

/* seat.c */
HIDDEN struct seat *seat_of(int device);
HIDDEN struct seat *seat_here(void);
HIDDEN struct seat *seat_known(int device);
HIDDEN struct seat *seat_by_uuid(const unsigned char *uuid);
HIDDEN bool sharing(void);
HIDDEN void wait_for_turn(struct seat *seat);
HIDDEN void touch(struct seat *seat, void *stream);
HIDDEN void forget_stream(void *stream);
HIDDEN void forget_context(struct seat *seat, void *context);
HIDDEN void wake_keeper(struct seat *seat);
HIDDEN uint64_t now_ns(void);
HIDDEN extern _Atomic uint32_t capturing;

/* ledger.c */
HIDDEN bool reserve(struct seat *seat, uint64_t size, void *pool);
HIDDEN void hold(struct seat *seat, uint64_t key, uint64_t size, int kind, void *owner, void *pool);
HIDDEN void give_back(struct seat *seat, uint64_t size, void *pool);
HIDDEN void let_go(uint64_t key, int kind);
HIDDEN void drop_owned(struct seat *seat, void *context);
HIDDEN void pool_gone(void *pool);
HIDDEN void handle_counts(uint64_t handle, int references, int mappings);
HIDDEN void mapped(uint64_t handle, uint64_t at, uint64_t size);
HIDDEN void unmapped(uint64_t at, uint64_t size);
HIDDEN uint64_t quota_of(struct seat *seat);
HIDDEN uint64_t held_in_all(struct seat *seat);
HIDDEN void move(struct seat *seat, struct page *page, struct slot *slot);
HIDDEN void ledger_forked(void);

enum { PLAIN, HANDLE, ARRAY };

/* hooks.c: the driver's own functions, by name */
HIDDEN void *driver(const char *name);

/* Call a function of the driver that may be missing: then 500. */
#define CALL(type, name, ...) \
    ({ \
        static result(*_Atomic function) type; \
        if (!function) \
            function = (result(*) type)driver(name); \
        function ? function(__VA_ARGS__) : NOT_FOUND; \
    })

#endif
