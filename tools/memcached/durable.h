/* The interface of durable.c, which `build` edits into memcached. Included everywhere. */
#ifndef DURABLE_H
#define DURABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct _stritem;
struct _strchunk;

/* At start, before the hash table is made, and after the slab classes are known. The latter
 * links what there was, and says whether there was a run before, whose process_started, from
 * which the clock goes on, is this run's too. */
void durable_open(void);
bool durable_restore(void);

/* Slab pages: where they are, bytes of those that were in use, and of all. */
void *durable_pages(void);
size_t durable_used(void);
size_t durable_capacity(void);

/* A page belongs to this class from now on; to none, if it is 0. Nothing in it is linked. */
void durable_page(const void *page, unsigned int class);

/* With the item's lock held. The item that durable_replace names is removed when the next one is
 * linked, in one step; somebody must hold a reference to it until then. */
void durable_link(struct _stritem *it);
void durable_unlink(const struct _stritem *it);
void durable_replace(const struct _stritem *it);

/* An item's header was changed in place. */
void durable_changed(const struct _stritem *it);

/* Copies a chunk of an item, before the item points to the copy, and after that. */
void durable_copy(struct _strchunk *to, const struct _strchunk *from);
void durable_copied(const struct _strchunk *before);

/* flush_all was called. */
void durable_flushed(void);

#endif
