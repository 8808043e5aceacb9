/* What a process and the share daemon have in common: one page for each share of each device, and the
 * messages on their socket. The daemon's side is src/presage/executors/node/shares/page.py; a change here
 * raises VERSION and is made there as well. */
#ifndef PRESAGE_PAGE_H
#define PRESAGE_PAGE_H

#include <stdatomic.h>
#include <stdint.h>

#define PAGE_MAGIC 0x53475250u
#define PAGE_VERSION 1u
#define SLOTS 64
#define FOREVER UINT64_MAX

/* One process. Only it writes memory and what it measures; only the daemon grants. */
struct slot {
    _Atomic uint64_t until_ns;  /* it may launch until then (CLOCK_MONOTONIC); 0: it may not */
    _Atomic uint32_t grants;    /* a futex: moves whenever until_ns does */
    _Atomic uint32_t pid;       /* 0: free */
    _Atomic uint64_t memory;    /* bytes it holds */
    _Atomic uint64_t pending;   /* bytes it is about to ask the driver for */
    _Atomic uint64_t used_ns;   /* time it had the device busy */
    _Atomic uint64_t waited_ns; /* time its threads waited for their turn */
    _Atomic uint64_t launches;
    _Atomic uint64_t kernel_ns; /* how long a launch takes, of late */
    _Atomic uint32_t waiting;   /* threads that wait for their turn */
    _Atomic uint32_t pad;
    uint64_t spare[7];
};

struct page {
    uint32_t magic, version;
    _Atomic uint64_t quota;   /* bytes of device memory for all its processes; 0: no quota */
    uint64_t spare[14];
    struct slot slots[SLOTS];
};

_Static_assert(sizeof(struct slot) == 128 && sizeof(struct page) == 128 + 128 * SLOTS, "layout");

enum { HELLO = 1, WELCOME, REFUSED, WANT, GRANT, DONE, FORGET };

struct hello {
    uint32_t kind, version;
    unsigned char uuid[16];
    char share[104];
};

struct message {
    uint32_t kind, value; /* WELCOME: its slot; DONE: threads that wait */
    uint64_t until_ns;    /* GRANT */
};

#endif
