/* What this process holds of each device's memory, and whether it may have more. It must not call the
 * driver to allocate or free: hooks do, between reserving and holding.
 *
 * Each process writes what it holds to its slot of the page, and the quota is for the sum over all slots.
 * Who wants more says so first (pending), then looks at the sum: two that ask at once see each other. */
#define _GNU_SOURCE
#include "share.h"

#include <stdlib.h>
#include <unistd.h>

#define BUCKETS 16384
#define TRIES 400

struct entry {
    struct entry *next;
    struct seat *seat;
    void *owner; /* the context, or the pool it is from */
    struct pool *pool;
    uint64_t key, size;
    int kind, references, mappings;
};

struct mapping {
    struct mapping *next;
    uint64_t at, size, handle;
};

struct pool {
    struct pool *next;
    struct seat *seat;
    void *pool;
    uint64_t live;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *buckets[BUCKETS];
static struct mapping *mappings;
static struct pool *pools;

static struct entry **bucket(uint64_t key)
{
    return &buckets[(key ^ key >> 9 ^ key >> 21) * 0x9e3779b97f4a7c15ULL >> 50];
}

static struct entry **find(uint64_t key, int kind)
{
    struct entry **at = bucket(key);
    while (*at && ((*at)->key != key || (*at)->kind != kind))
        at = &(*at)->next;
    return at;
}

static uint64_t pool_reserved(struct pool *pool)
{
    uint64_t reserved = 0;
    if (!pool->pool || CALL((void *, int, void *), "cuMemPoolGetAttribute", pool->pool, 5, &reserved))
        reserved = 0;
    return reserved > pool->live ? reserved : pool->live;
}

/* What a pool keeps for later counts as well. Written to the slot; needs the lock. */
static void publish(struct seat *seat)
{
    uint64_t sum = seat->plain;
    for (struct pool *pool = pools; pool; pool = pool->next)
        if (pool->seat == seat)
            sum += pool_reserved(pool);
    atomic_store(&atomic_load(&seat->slot)->memory, sum);
}

static uint64_t sum_of(struct page *page, bool pending)
{
    uint64_t sum = 0;
    for (int i = 0; i < SLOTS; i++) {
        sum += atomic_load(&page->slots[i].memory);
        if (pending)
            sum += atomic_load(&page->slots[i].pending);
    }
    return sum;
}

static bool trim(struct seat *seat)
{
    bool any = false;
    for (struct pool *pool = pools; pool; pool = pool->next)
        if (pool->seat == seat && pool->pool && pool_reserved(pool) > pool->live) {
            CALL((void *, size_t), "cuMemPoolTrimTo", pool->pool, 0);
            any = true;
        }
    if (any)
        publish(seat);
    return any;
}

/* Whether so much more fits now: 1 yes, and it is pending; 0 no; -1 others are about to have or not have
 * what would decide it. Needs the lock. */
static int fits(struct seat *seat, uint64_t size)
{
    struct page *page = atomic_load(&seat->page);
    struct slot *slot = atomic_load(&seat->slot);
    uint64_t quota = atomic_load(&page->quota);
    atomic_fetch_add(&slot->pending, size);
    uint64_t all = sum_of(page, true);
    if (!quota || (size <= quota && all <= quota))
        return 1;
    atomic_fetch_sub(&slot->pending, size);
    return size > quota || sum_of(page, false) + size > quota ? 0 : -1;
}

static struct pool *pool_of(struct seat *seat, void *handle)
{
    struct pool *pool = pools;
    while (pool && pool->pool != handle)
        pool = pool->next;
    if (!pool && (pool = calloc(1, sizeof *pool))) {
        *pool = (struct pool){pools, seat, handle, 0};
        pools = pool;
    }
    return pool;
}

bool reserve(struct seat *seat, uint64_t size, void *from)
{
    for (int tries = 0; tries < TRIES; tries++) {
        pthread_mutex_lock(&lock);
        struct pool *pool = from ? pool_of(seat, from) : 0;
        uint64_t more = size;
        if (pool) {
            uint64_t has = pool_reserved(pool);
            more = pool->live + size > has ? pool->live + size - has : 0;
        }
        publish(seat);
        int answer = fits(seat, more);
        if (!answer && trim(seat)) {
            if (pool)
                more = size;
            answer = fits(seat, more);
        }
        if (answer == 1) {
            *(pool ? &pool->live : &seat->plain) += size;
            publish(seat);
            atomic_fetch_sub(&atomic_load(&seat->slot)->pending, more);
        }
        pthread_mutex_unlock(&lock);
        if (answer >= 0)
            return answer;
        usleep(50);
    }
    return false;
}

void hold(struct seat *seat, uint64_t key, uint64_t size, int kind, void *owner, void *from)
{
    struct entry *entry = calloc(1, sizeof *entry);
    if (!entry)
        return;
    pthread_mutex_lock(&lock);
    *entry = (struct entry){0, seat, owner, from ? pool_of(seat, from) : 0, key, size, kind, 1, 0};
    struct entry **at = bucket(key);
    entry->next = *at;
    *at = entry;
    publish(seat);
    pthread_mutex_unlock(&lock);
}

void give_back(struct seat *seat, uint64_t size, void *from)
{
    pthread_mutex_lock(&lock);
    *(from ? &pool_of(seat, from)->live : &seat->plain) -= size;
    publish(seat);
    pthread_mutex_unlock(&lock);
}

/* Forget pools that were destroyed and of which nothing is held. Needs the lock. */
static void drop_empty_pools(void)
{
    for (struct pool **at = &pools; *at;) {
        struct pool *pool = *at;
        if (pool->pool || pool->live) {
            at = &pool->next;
            continue;
        }
        *at = pool->next;
        free(pool);
    }
}

static void drop(struct entry **at)
{
    struct entry *entry = *at;
    *at = entry->next;
    *(entry->pool ? &entry->pool->live : &entry->seat->plain) -= entry->size;
    if (entry->pool && !entry->pool->pool)
        drop_empty_pools();
    publish(entry->seat);
    free(entry);
}

void let_go(uint64_t key, int kind)
{
    pthread_mutex_lock(&lock);
    struct entry **at = find(key, kind);
    if (*at)
        drop(at);
    pthread_mutex_unlock(&lock);
}

void drop_owned(struct seat *seat, void *context)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < BUCKETS; i++)
        for (struct entry **at = &buckets[i]; *at;)
            if ((*at)->seat == seat && (*at)->owner == context)
                drop(at);
            else
                at = &(*at)->next;
    pthread_mutex_unlock(&lock);
}

/* -- pools --------------------------------------------------------------------------------------- */

/* A pool is destroyed: what is still held of it stays, on the device and in the count, until it is freed. */
void pool_gone(void *handle)
{
    pthread_mutex_lock(&lock);
    for (struct pool *pool = pools; pool; pool = pool->next)
        if (pool->pool == handle) {
            pool->pool = 0; /* the driver may give another pool the same name */
            publish(pool->seat);
        }
    drop_empty_pools();
    pthread_mutex_unlock(&lock);
}

/* -- physical memory by handle: it is gone when it is released and mapped nowhere ----------------- */

static void settle(struct entry **at)
{
    if ((*at)->references <= 0 && (*at)->mappings <= 0)
        drop(at);
}

void handle_counts(uint64_t handle, int references, int mappings_more)
{
    pthread_mutex_lock(&lock);
    struct entry **at = find(handle, HANDLE);
    if (*at) {
        (*at)->references += references;
        (*at)->mappings += mappings_more;
        settle(at);
    }
    pthread_mutex_unlock(&lock);
}

void mapped(uint64_t handle, uint64_t place, uint64_t size)
{
    struct mapping *mapping = calloc(1, sizeof *mapping);
    if (!mapping)
        return;
    handle_counts(handle, 0, 1);
    pthread_mutex_lock(&lock);
    *mapping = (struct mapping){mappings, place, size, handle};
    mappings = mapping;
    pthread_mutex_unlock(&lock);
}

void unmapped(uint64_t place, uint64_t size)
{
    pthread_mutex_lock(&lock);
    for (struct mapping **at = &mappings; *at;) {
        struct mapping *mapping = *at;
        if (mapping->at < place || mapping->at + mapping->size > place + size) {
            at = &mapping->next;
            continue;
        }
        *at = mapping->next;
        struct entry **entry = find(mapping->handle, HANDLE);
        if (*entry) {
            (*entry)->mappings--;
            settle(entry);
        }
        free(mapping);
    }
    pthread_mutex_unlock(&lock);
}

/* -- what others ask ----------------------------------------------------------------------------- */

uint64_t quota_of(struct seat *seat) { return atomic_load(&atomic_load(&seat->page)->quota); }

uint64_t held_in_all(struct seat *seat)
{
    pthread_mutex_lock(&lock);
    publish(seat);
    pthread_mutex_unlock(&lock);
    return sum_of(atomic_load(&seat->page), false);
}

/* Go over to another slot, of another page maybe, with all that is held. */
void move(struct seat *seat, struct page *page, struct slot *slot)
{
    pthread_mutex_lock(&lock);
    struct slot *before = atomic_load(&seat->slot);
    if (before != slot) {
        atomic_store(&slot->used_ns, atomic_load(&before->used_ns));
        atomic_store(&slot->waited_ns, atomic_load(&before->waited_ns));
        atomic_store(&slot->launches, atomic_load(&before->launches));
        atomic_store(&slot->kernel_ns, atomic_load(&before->kernel_ns));
    }
    atomic_store(&slot->pending, 0);
    atomic_store(&seat->page, page);
    atomic_store(&seat->slot, slot);
    publish(seat);
    pthread_mutex_unlock(&lock);
}

/* A child of a fork has none of its parent's memory on the device. */
void ledger_forked(void)
{
    pthread_mutex_init(&lock, 0);
    for (int i = 0; i < BUCKETS; i++)
        buckets[i] = 0;
    mappings = 0;
    pools = 0;
}
