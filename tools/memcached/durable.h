/* The interface of durable.c. `build` adds calls of it to memcached, and includes it everywhere. */
#ifndef DURABLE_H
#define DURABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct _stritem;
struct _strchunk;

/* Called at start: durable_open before the hash table is made, and durable_restore when the slab
 * classes are set. durable_restore links the items of the last run, and returns whether there was
 * one. Then process_started is that of the first run, so that the clock continues. */
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
