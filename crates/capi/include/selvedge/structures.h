/* Ready-made structures in durable memory, for C and C++: hash table, B+ tree, vector, queue
 * and journal, all of byte strings.
 *
 * Guarantees
 * ----------
 * - Each call is a part of the atomic block around it, or atomic by itself.
 * - A structure grows and shrinks with its contents, in small steps. After a clear it has only its
 *   own block in the heap.
 * - The format is that of the Rust crate persist::structures: HashMap<Bytes, Bytes>,
 *   BTree<Bytes, Bytes>, Vector<Bytes>, Queue<Bytes> and Journal. A Rust program opens a named
 *   structure of a C program by session.root, and vice versa.
 *
 * How to use it
 * -------------
 * The address of a structure is the same in every run, and can be stored in durable memory.
 * Several threads may use a structure at once.
 *
 *   selvedge_table *names = selvedge_table_root("names");
 *   SELVEDGE_ATOMIC {
 *       selvedge_table_put(names, "spider", 6, "Arachne", 8);
 *       selvedge_queue_push(waiting, "spider", 6);
 *   }
 *
 * A byte string is a pointer and a size of up to 4 GiB - 1; NULL with size 0 is the empty string.
 * The structure has a copy: up to 12 bytes inside, more in a block of the heap. A vector of
 * numbers or pointers is a vector of strings of the same size.
 *
 * Calls that return a string copy it to `buffer`, which has room for `size` bytes, and return the
 * size of the string. A longer string is cut to its first `size` bytes, so a call with NULL and 0
 * returns the size only. After a failed call the contents of `buffer` are undefined. A buffer in
 * durable memory is written by the same transaction.
 *
 * A call returns -1 with ENOENT, and without a message, if there is no such key, number or next
 * element. The other errors are
 *   ENOMEM    no room, and the files cannot grow;
 *   EINVAL    an argument is wrong, such as an address that is not in durable memory;
 *   EIO       the structure is damaged. Inside a block this ends the process.
 * A call that returns -1 has changed nothing, but perhaps the key of a cursor whose value did not fit.
 * Inside a block, the block continues. */
#ifndef SELVEDGE_STRUCTURES_H
#define SELVEDGE_STRUCTURES_H

#include <selvedge.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Values by key, in no order. */
typedef struct selvedge_table selvedge_table;
/* Values by key, in the order of the keys, byte by byte (as memcmp, a prefix first). */
typedef struct selvedge_tree selvedge_tree;
/* Strings by number, from 0 on. */
typedef struct selvedge_vector selvedge_vector;
/* First in, first out. */
typedef struct selvedge_queue selvedge_queue;
/* Records with fixed numbers; truncation removes old ones. (A selvedge_log of selvedge.h has a region
 * and a durability of its own, and is not part of blocks.) */
typedef struct selvedge_journal selvedge_journal;

/* --- All structures -------------------------------------------------------------------- */

/* The structure of this name. The first call makes it, empty. NULL with EINVAL: the name belongs to
 * an object of another type. To remove a structure, clear it, and then call selvedge_root_remove. */
SELVEDGE_SAFE selvedge_table *selvedge_table_root(const char *name);
SELVEDGE_SAFE selvedge_tree *selvedge_tree_root(const char *name);
SELVEDGE_SAFE selvedge_vector *selvedge_vector_root(const char *name);
SELVEDGE_SAFE selvedge_queue *selvedge_queue_root(const char *name);
SELVEDGE_SAFE selvedge_journal *selvedge_journal_root(const char *name);

/* Makes an empty structure. As with selvedge_pmalloc, `pointer` is NULL, or the address of the
 * pointer that is set to the structure. */
SELVEDGE_SAFE selvedge_table *selvedge_table_create(void *pointer);
SELVEDGE_SAFE selvedge_tree *selvedge_tree_create(void *pointer);
SELVEDGE_SAFE selvedge_vector *selvedge_vector_create(void *pointer);
SELVEDGE_SAFE selvedge_queue *selvedge_queue_create(void *pointer);
SELVEDGE_SAFE selvedge_journal *selvedge_journal_create(void *pointer);

/* Clears and frees the structure at *pointer, and sets *pointer to NULL. Returns 0 or -1. Not for
 * structures with a name. */
SELVEDGE_SAFE int selvedge_table_free(void *pointer);
SELVEDGE_SAFE int selvedge_tree_free(void *pointer);
SELVEDGE_SAFE int selvedge_vector_free(void *pointer);
SELVEDGE_SAFE int selvedge_queue_free(void *pointer);
SELVEDGE_SAFE int selvedge_journal_free(void *pointer);

/* Removes up to `most` elements: any of a table, the first of a tree, a queue or a journal, the last
 * of a vector. Returns 1 if nothing is left, 0 if elements are left, or -1. Clear a structure with
 * millions of elements in pieces, since a transaction keeps its stores in memory until its commit:
 *   while (selvedge_tree_clear(tree, 1000) == 0)
 *       ; */
SELVEDGE_SAFE int selvedge_table_clear(selvedge_table *table, size_t most);
SELVEDGE_SAFE int selvedge_tree_clear(selvedge_tree *tree, size_t most);
SELVEDGE_SAFE int selvedge_vector_clear(selvedge_vector *vector, size_t most);
SELVEDGE_SAFE int selvedge_queue_clear(selvedge_queue *queue, size_t most);
SELVEDGE_SAFE int selvedge_journal_clear(selvedge_journal *journal, size_t most);

/* The number of elements, or -1. */
SELVEDGE_SAFE ssize_t selvedge_table_count(selvedge_table *table);
SELVEDGE_SAFE ssize_t selvedge_tree_count(selvedge_tree *tree);
SELVEDGE_SAFE ssize_t selvedge_vector_count(selvedge_vector *vector);
SELVEDGE_SAFE ssize_t selvedge_queue_count(selvedge_queue *queue);
SELVEDGE_SAFE ssize_t selvedge_journal_count(selvedge_journal *journal);

/* --- Hash table and B+ tree ------------------------------------------------------------ */

/* Sets the value of a key, which may be new. Returns 0 or -1. */
SELVEDGE_SAFE int selvedge_table_put(selvedge_table *table, const void *key, size_t key_size,
                                     const void *value, size_t value_size);
SELVEDGE_SAFE int selvedge_tree_put(selvedge_tree *tree, const void *key, size_t key_size,
                                    const void *value, size_t value_size);

/* Copies the value of a key. Returns its size, or -1. */
SELVEDGE_SAFE ssize_t selvedge_table_get(selvedge_table *table, const void *key,
                                         size_t key_size, void *buffer, size_t size);
SELVEDGE_SAFE ssize_t selvedge_tree_get(selvedge_tree *tree, const void *key, size_t key_size,
                                        void *buffer, size_t size);

/* Removes a key. Returns 0 or -1. */
SELVEDGE_SAFE int selvedge_table_remove(selvedge_table *table, const void *key,
                                        size_t key_size);
SELVEDGE_SAFE int selvedge_tree_remove(selvedge_tree *tree, const void *key, size_t key_size);

/* A cursor: a place among the entries, with buffers for the entry there. The caller sets the buffers
 * and the room in them (NULL and 0 for a part that is not needed). The calls below set the sizes,
 * and fill the buffers as far as there is room. The cursor is in the caller's memory, and needs no
 * release. */
typedef struct selvedge_entry {
    void *key;
    size_t key_room;
    size_t key_size;
    void *value;
    size_t value_room;
    size_t value_size;
} selvedge_entry;

/* Move a cursor to an entry, and copy the entry. They return 1, 0 if there is no entry, or -1. `next`
 * continues after the key in the buffer, which must be complete (EMSGSIZE):
 *
 *   char key[64], value[256];
 *   selvedge_entry at = {key, sizeof key, 0, value, sizeof value, 0};
 *   for (int is = selvedge_tree_seek(tree, "a", 1, &at); is == 1;
 *        is = selvedge_tree_next(tree, &at))
 *       ...
 *
 * `first` moves to the smallest key, `last` to the largest, and `seek` to the smallest key that is
 * not smaller than `key`. `next` moves to the smallest key that is larger than the cursor's, even if
 * that was removed. Each takes O(log n) steps. Between two calls the tree may change, unless one
 * block has both. */
SELVEDGE_SAFE int selvedge_tree_first(selvedge_tree *tree, selvedge_entry *entry);
SELVEDGE_SAFE int selvedge_tree_last(selvedge_tree *tree, selvedge_entry *entry);
SELVEDGE_SAFE int selvedge_tree_seek(selvedge_tree *tree, const void *key, size_t key_size,
                                     selvedge_entry *entry);
SELVEDGE_SAFE int selvedge_tree_next(selvedge_tree *tree, selvedge_entry *entry);

/* A table has no order, and inserts and removals change it. Unless one block has the whole walk, the
 * walk may return entries twice, or miss some. -1 with ENOENT: the entry of the cursor was
 * removed. */
SELVEDGE_SAFE int selvedge_table_first(selvedge_table *table, selvedge_entry *entry);
SELVEDGE_SAFE int selvedge_table_next(selvedge_table *table, selvedge_entry *entry);

/* --- Vector ---------------------------------------------------------------------------- */

/* Appends an element. Returns its number, or -1. */
SELVEDGE_SAFE ssize_t selvedge_vector_push(selvedge_vector *vector, const void *element,
                                           size_t size);

/* Copies an element. Returns its size, or -1. */
SELVEDGE_SAFE ssize_t selvedge_vector_get(selvedge_vector *vector, size_t number, void *buffer,
                                          size_t size);

/* Replaces an element. Returns 0 or -1. */
SELVEDGE_SAFE int selvedge_vector_set(selvedge_vector *vector, size_t number,
                                      const void *element, size_t size);

/* Removes the last element, and copies it if `buffer` is not NULL. Returns its size, or -1.
 * EMSGSIZE: it is larger than the buffer, and is not removed. */
SELVEDGE_SAFE ssize_t selvedge_vector_pop(selvedge_vector *vector, void *buffer, size_t size);

/* Removes the elements from number `count` on. Returns 0 or -1. */
SELVEDGE_SAFE int selvedge_vector_truncate(selvedge_vector *vector, size_t count);

/* --- Queue ----------------------------------------------------------------------------- */

/* Appends an element. Returns 0 or -1. */
SELVEDGE_SAFE int selvedge_queue_push(selvedge_queue *queue, const void *element, size_t size);

/* Copies the first element. Returns its size, or -1. */
SELVEDGE_SAFE ssize_t selvedge_queue_peek(selvedge_queue *queue, void *buffer, size_t size);

/* Removes the first element, as selvedge_vector_pop removes the last. */
SELVEDGE_SAFE ssize_t selvedge_queue_pop(selvedge_queue *queue, void *buffer, size_t size);

/* --- Journal --------------------------------------------------------------------------- */

/* Appends a record. Returns its number, or -1. Numbers begin with 0, and are never used again, even
 * after a clear. */
SELVEDGE_SAFE int64_t selvedge_journal_append(selvedge_journal *journal, const void *record,
                                              size_t size);

/* The place of a reader, before the record `number`. A cursor of zeros is before the first record. It
 * is in the caller's memory, and needs no release. */
typedef struct selvedge_journal_cursor {
    uint64_t number;
    uint64_t inner[2]; /* private */
} selvedge_journal_cursor;

/* Copies the record at a cursor, and moves the cursor to the next one. Returns its size, or -1. The
 * number of the record is then cursor->number - 1. If the record was removed, the first record that
 * is left is read. A cursor at the end can read later records. */
SELVEDGE_SAFE ssize_t selvedge_journal_read(selvedge_journal *journal,
                                            selvedge_journal_cursor *cursor, void *buffer,
                                            size_t size);

/* Removes all records before the record `number`. Returns 0 or -1. */
SELVEDGE_SAFE int selvedge_journal_truncate(selvedge_journal *journal, uint64_t number);

#ifdef __cplusplus
}
#endif
#endif
