/* Items in durable memory, for memcached: `build` describes the design.
 *
 * memcached writes to slab pages as before, without transactions: a new item belongs to one thread,
 * and the contents of a free one are never read. Transactions write only the tables of linked items,
 * which are separate. Recovery may apply a transaction again, and must not overwrite memory that was
 * reused meanwhile. */
#include "memcached.h"
#include "durable.h"

#include <selvedge/short.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Items begin at multiples of 8 bytes, and are at least this far from each other. */
#define GRAIN 32
#define WORD_BITS 64
#define CLASSES MAX_NUMBER_OF_SLAB_CLASSES
/* Every class may get one page more than the limit of memory. */
#define EXTRA_PAGES CLASSES
#define RUN_SHIFT 40
/* The flags of an item that are kept. */
#define KEPT_FLAGS (ITEM_LINKED | ITEM_CAS | ITEM_FETCHED | ITEM_CHUNKED | ITEM_CFLAGS | \
                    ITEM_TOKEN_SENT | ITEM_STALE | ITEM_KEY_BINARY)

/* All that is durable, but for the region. */
struct root {
    void *region;
    uint64_t pages, page_size; /* how many there can be, and their bytes */
    uint64_t runs;
    uint64_t started;          /* seconds of the epoch; relative times count from here */
    uint64_t oldest_live, oldest_cas;
    uint32_t sizes[CLASSES];   /* bytes of items, by class */
};

static struct root *root;
/* The region: the class of each page, a bit for each GRAIN of them (an item begins here, and
 * is linked), and the pages. */
static uint8_t *classes;
static uint64_t *linked;
static char *pages;
static size_t used;

static _Thread_local const item *replaced;

static _Noreturn __attribute__((format(printf, 1, 2))) void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("memcached: ", stderr);
    vfprintf(stderr, format, arguments);
    fputs("\n", stderr);
    va_end(arguments);
    exit(EXIT_FAILURE);
}

static double seconds(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static size_t table_bytes(void)
{
    return round_up(root->pages, 4096) + root->pages * (root->page_size / GRAIN / 8);
}

static uint64_t grain(const void *at) { return ((const char *)at - pages) / GRAIN; }
static uint64_t *word(const void *at) { return &linked[grain(at) / WORD_BITS]; }
static uint64_t bit(const void *at) { return UINT64_C(1) << grain(at) % WORD_BITS; }

/* --- At start -------------------------------------------------------------------------- */

void durable_open(void)
{
    if (settings.memory_file != NULL)
        fail("-e is of no use: items are in $SELVEDGE_REGION_PATH, and stay");
    double began = seconds();
    root = selvedge_root("memcached", sizeof *root);
    if (root == NULL)
        fail("%s", selvedge_message());
    if (settings.verbose > 0)
        fprintf(stderr, "memcached: memory opened and recovered in %.2f s\n", seconds() - began);
    size_t page_size = settings.slab_page_size;
    size_t wanted = round_up(settings.maxbytes, page_size) / page_size + EXTRA_PAGES;
    if (root->region == NULL) {
        patomic {
            root->pages = wanted;
            root->page_size = page_size;
        }
        size_t length = round_up(table_bytes(), 4096) + wanted * page_size;
        if (selvedge_pmap(&root->region, length, PROT_READ | PROT_WRITE, 0) == NULL)
            fail("%s", selvedge_message());
    }
    if (root->page_size != page_size)
        fail("slab pages have %llu bytes here, not %zu: start with the slab_ options that were used at first",
             (unsigned long long)root->page_size, page_size);
    if (root->pages < wanted)
        fprintf(stderr, "memcached: there is room for -m %llu only, as was asked for at first\n",
                (unsigned long long)((root->pages - EXTRA_PAGES) * page_size >> 20));
    classes = root->region;
    linked = (uint64_t *)(classes + round_up(root->pages, 4096));
    pages = (char *)classes + round_up(table_bytes(), 4096);
    for (size_t n = 0; n < root->pages; n++)
        if (classes[n] != 0)
            used = (n + 1) * page_size;

    /* A hash table that need not grow at once. */
    uint64_t items = 0;
    for (const uint64_t *at = linked; at < word(pages + used); at++)
        items += __builtin_popcountll(*at);
    int power = settings.hashpower_init ? settings.hashpower_init : HASHPOWER_DEFAULT;
    while (power < HASHPOWER_MAX && items > UINT64_C(3) << power >> 1)
        power++;
    settings.hashpower_init = power;
}

void *durable_pages(void) { return pages; }
size_t durable_used(void) { return used; }
size_t durable_capacity(void) { return root->pages * root->page_size; }

/* The class of the slot that `at` is the begin of, or 0. */
static unsigned int class_at(const void *at)
{
    size_t offset = (const char *)at - pages;
    if ((const char *)at < pages || offset >= used)
        return 0;
    unsigned int class = classes[offset / root->page_size];
    size_t size = class ? root->sizes[class] : 0;
    size_t inside = offset % root->page_size;
    return size != 0 && inside % size == 0 && inside + size <= root->page_size ? class : 0;
}

static bool is_linked(const void *at) { return *word(at) & bit(at); }

/* Makes the chunks of an item know each other, and notes that they are in use. */
static void restore_chunks(item *it, uint64_t *chunks)
{
    item_chunk *before = (item_chunk *)ITEM_schunk(it);
    int64_t left = it->nbytes;
    before->prev = NULL;
    before->head = it;
    before->orig_clsid = class_at(it);
    left -= before->used;
    for (item_chunk *chunk = before->next; chunk != NULL; chunk = chunk->next) {
        unsigned int class = class_at(chunk);
        if (class == 0 || is_linked(chunk) || chunk->used < 0
            || chunk->used + sizeof *chunk > root->sizes[class])
            fail("the item at %p has a chunk that is none, at %p", (void *)it, (void *)chunk);
        chunk->prev = before;
        chunk->head = it;
        chunk->refcount = 1;
        chunk->it_flags = ITEM_CHUNK;
        chunk->slabs_clsid = class;
        chunks[grain(chunk) / WORD_BITS] |= bit(chunk);
        left -= chunk->used;
        before = chunk;
    }
    if (left != 0)
        fail("the item at %p has chunks that are not its own", (void *)it);
}

/* Checks an item, and resets the fields that only a running memcached has. */
static void restore_item(item *it, uint64_t *chunks)
{
    unsigned int class = class_at(it);
    unsigned int lru = settings.lru_segmented ? ITEM_lruid(it) : COLD_LRU;
    it->it_flags = (it->it_flags & KEPT_FLAGS) | ITEM_LINKED;
    it->refcount = 1;
    it->next = it->prev = it->h_next = NULL;
    bool is_chunked = it->it_flags & ITEM_CHUNKED;
    if (class == 0 || it->nkey == 0 || it->nbytes < 2
        || (!is_chunked && ITEM_ntotal(it) > root->sizes[class]))
        fail("the object at %p is not an item", (void *)it);
    if (is_chunked) { /* as if it was of the largest class */
        size_t size = ITEM_ntotal(it), most = settings.item_size_max;
        class = slabs_clsid(size < most ? size : most);
    }
    it->slabs_clsid = class | lru;
    if (is_chunked)
        restore_chunks(it, chunks);
}

static int by_time(const void *a, const void *b)
{
    rel_time_t one = (*(item *const *)a)->time, other = (*(item *const *)b)->time;
    return (one > other) - (one < other);
}

/* Links the items into the lists of their classes, in the order of their last use. */
static void link_items(item **items, size_t count)
{
    qsort(items, count, sizeof *items, by_time);
    item *newest[256] = {NULL};
    for (size_t n = 0; n < count; n++) {
        item *it = items[n], **head = &newest[it->slabs_clsid];
        it->next = *head;
        if (*head != NULL)
            (*head)->prev = it;
        *head = it;
    }
    for (size_t n = 0; n < count; n++)
        do_item_link_fixup(items[n]);
}

/* Frees every slot that is neither an item nor a chunk of one. */
static void free_slots(const uint64_t *chunks)
{
    for (char *page = pages; page < pages + used; page += root->page_size) {
        unsigned int class = classes[(page - pages) / root->page_size];
        size_t size = root->sizes[class];
        if (class == 0) {
            memset(page, 0, sizeof(item));
            slabs_fixup(page, 0);
            continue;
        }
        for (char *slot = page; slot + size <= page + root->page_size; slot += size) {
            item *it = (item *)slot;
            if (is_linked(it)) {
                uint8_t clsid = it->slabs_clsid;
                it->slabs_clsid = class;
                slabs_fixup(slot, slot - page);
                it->slabs_clsid = clsid;
            } else {
                if (!(chunks[grain(slot) / WORD_BITS] & bit(slot))) {
                    it->it_flags = ITEM_SLABBED;
                    it->refcount = 0;
                    it->slabs_clsid = class;
                }
                slabs_fixup(slot, slot - page);
            }
        }
    }
}

static void restore_items(void)
{
    double began = seconds();
    uint64_t *end = word(pages + used);
    size_t count = 0, found = 0;
    for (const uint64_t *at = linked; at < end; at++)
        count += __builtin_popcountll(*at);
    item **items = malloc((count + 1) * sizeof *items);
    uint64_t *chunks = calloc(end - linked + 1, sizeof *chunks);
    if (items == NULL || chunks == NULL)
        fail("no memory to start with");

    for (char *page = pages; page < pages + used; page += root->page_size) {
        size_t size = root->sizes[classes[(page - pages) / root->page_size]];
        for (char *slot = page; size && slot + size <= page + root->page_size; slot += size)
            if (is_linked(slot)) {
                items[found++] = (item *)slot;
                restore_item((item *)slot, chunks);
            }
    }
    if (found != count)
        fail("%zu items are where none can be", count - found);

    link_items(items, count);
    free_slots(chunks);
    uint64_t now = time(NULL);
    rel_time_t latest = count ? items[count - 1]->time : 0;
    /* The clock was set back: time stands still meanwhile, but does not run backwards. */
    if (now < root->started + latest) {
        uint64_t started = now - latest;
        patomic { root->started = started; }
    }
    free(items);
    free(chunks);
    if (settings.verbose > 0)
        fprintf(stderr, "memcached: %zu items linked in %.2f s\n", count, seconds() - began);
}

bool durable_restore(void)
{
    uint32_t sizes[CLASSES] = {0};
    for (int class = POWER_SMALLEST; class < CLASSES; class++)
        sizes[class] = slabs_size(class);
    bool is_first = root->runs == 0;
    if (is_first) {
        uint64_t started = process_started;
        patomic {
            memcpy(root->sizes, sizes, sizeof sizes);
            root->started = started;
            root->runs = 1;
        }
        return false;
    }
    if (memcmp(root->sizes, sizes, sizeof sizes) != 0)
        fail("sizes of items are others here: start with the -f, -n and slab_ options that were "
             "used at first");
    restore_items();
    /* No number is given out twice, and nothing has to be written for each. */
    set_cas_id(root->runs << RUN_SHIFT);
    patomic { root->runs++; }
    settings.oldest_live = root->oldest_live;
    settings.oldest_cas = root->oldest_cas;
    process_started = root->started;
    return true;
}

/* --- In use ---------------------------------------------------------------------------- */

void durable_page(const void *page, unsigned int class)
{
    uint8_t *at = &classes[((const char *)page - pages) / root->page_size];
    patomic { *at = class; }
}

static void must_fence(void)
{
    if (selvedge_fence() != 0)
        fail("%s", selvedge_message());
}

static void flush_item(const item *it)
{
    if (!(it->it_flags & ITEM_CHUNKED)) {
        selvedge_flush(it, ITEM_ntotal(it));
        return;
    }
    const item_chunk *chunk = (const item_chunk *)ITEM_schunk((item *)it);
    selvedge_flush(it, (const char *)(chunk + 1) - (const char *)it);
    while ((chunk = chunk->next) != NULL)
        selvedge_flush(chunk, sizeof *chunk + chunk->used);
}

void durable_replace(const item *it) { replaced = it; }

void durable_link(item *it)
{
    const item *old = replaced;
    replaced = NULL;
    flush_item(it);
    must_fence();
    uint64_t *in = word(it), set = bit(it);
    if (old == NULL) {
        patomic { *in |= set; }
        return;
    }
    uint64_t *out = word(old), clear = ~bit(old);
    patomic {
        *in |= set;
        *out &= clear;
    }
}

void durable_unlink(const item *it)
{
    if (it == replaced)
        return;
    uint64_t *out = word(it), clear = ~bit(it);
    patomic { *out &= clear; }
}

void durable_changed(const item *it)
{
    selvedge_flush(it, sizeof *it + sizeof(uint64_t));
    must_fence();
}

void durable_copy(item_chunk *to, const item_chunk *from)
{
    memcpy(to, from, from->used + sizeof *from);
    selvedge_flush(to, from->used + sizeof *from);
    must_fence();
}

void durable_copied(const item_chunk *before)
{
    selvedge_flush(&before->next, sizeof before->next);
    must_fence();
}

void durable_flushed(void)
{
    uint64_t live = settings.oldest_live, cas = settings.oldest_cas;
    patomic {
        root->oldest_live = live;
        root->oldest_cas = cas;
    }
}
