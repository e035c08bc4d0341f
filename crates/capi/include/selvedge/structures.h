/* Ready-made structures in durable memory, for C and C++: hash table, B+ tree, vector, queue
 * and journal, all of byte strings.
 *
 * Guarantees
 * ----------
 * - Each call is a part of the atomic block around it, or happens as a whole by itself.
 * - A structure grows and shrinks with what it holds, a little at a time. Cleared, it has
 *   nothing in the heap but itself.
 * - The format is that of persist::structures: what a program in C makes by a name, one in
 *   Rust opens by session.root, and the other way round, as HashMap<Bytes, Bytes>,
 *   BTree<Bytes, Bytes>, Vector<Bytes>, Queue<Bytes> and Journal.
 *
 * How to use it
 * -------------
 * A structure is known by its address, which is the same in every run and can be kept in
 * durable memory. Any number of threads may use one at once.
 *
 *   selvedge_table *names = selvedge_table_root("names");
 *   SELVEDGE_ATOMIC {
 *       selvedge_table_put(names, "spider", 6, "Arachne", 8);
 *       selvedge_queue_push(waiting, "spider", 6);
 *   }
 *
 * A byte string is a pointer and a size, of up to 4 GiB - 1; NULL is one of size 0. The
 * structure has a copy of its own: up to 12 bytes in itself, more in a block of the heap. A
 * vector of numbers or pointers is one of strings that all have the same size.
 *
 * Calls that give a string copy it to `buffer`, which has room for `size` bytes, and return
 * the size of the string. A string longer than `size` is cut to its first `size` bytes,
 * so a first call with NULL and 0 asks for the size. `buffer` may hold anything after a
 * call that failed. It may be in durable memory: then it is written to as a part of the same
 * transaction.
 *
 * -1 with ENOENT is the answer where there is nothing: no such key, number or next element.
 * There is no message for that. Otherwise
 *   ENOMEM    no room, and the files cannot grow;
 *   EINVAL    an argument is wrong, such as an address that is not in durable memory;
 *   EIO       the structure is damaged. Inside a block this ends the process.
 * A call that returns -1 has changed nothing, also in the middle of a block, which goes on. */
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
/* Records by number, each of which keeps its number; old ones go by truncation. (The logs of
 * selvedge.h, selvedge_log, have a region and a durability of their own, and take no part in
 * blocks.) */
typedef struct selvedge_journal selvedge_journal;

/* --- What all of them have ------------------------------------------------------------- */

/* The structure of this name; an empty one, when it is asked for the first time. NULL, EINVAL:
 * the name is of something else. To remove one, clear it, and then selvedge_root_remove. */
SELVEDGE_SAFE selvedge_table *selvedge_table_root(const char *name);
SELVEDGE_SAFE selvedge_tree *selvedge_tree_root(const char *name);
SELVEDGE_SAFE selvedge_vector *selvedge_vector_root(const char *name);
SELVEDGE_SAFE selvedge_queue *selvedge_queue_root(const char *name);
SELVEDGE_SAFE selvedge_journal *selvedge_journal_root(const char *name);

/* A new one, which is empty. As with selvedge_pmalloc, its address is stored at `pointer`, the
 * address of a pointer, which is NULL or durable. */
SELVEDGE_SAFE selvedge_table *selvedge_table_create(void *pointer);
SELVEDGE_SAFE selvedge_tree *selvedge_tree_create(void *pointer);
SELVEDGE_SAFE selvedge_vector *selvedge_vector_create(void *pointer);
SELVEDGE_SAFE selvedge_queue *selvedge_queue_create(void *pointer);
SELVEDGE_SAFE selvedge_journal *selvedge_journal_create(void *pointer);

/* Clears and frees the one whose address is at `pointer`, and stores NULL there. 0, or -1.
 * Not for those that have a name. */
SELVEDGE_SAFE int selvedge_table_free(void *pointer);
SELVEDGE_SAFE int selvedge_tree_free(void *pointer);
SELVEDGE_SAFE int selvedge_vector_free(void *pointer);
SELVEDGE_SAFE int selvedge_queue_free(void *pointer);
SELVEDGE_SAFE int selvedge_journal_free(void *pointer);

/* Removes up to `most` elements: any of a table, the first of a tree, a queue or a
 * journal, the last of a vector. 1: nothing is left; 0: something is; or -1. A structure with
 * millions of elements is better cleared in pieces: a transaction keeps in memory, until it
 * commits, what it writes:
 *   while (selvedge_tree_clear(tree, 1000) == 0)
 *       ; */
SELVEDGE_SAFE int selvedge_table_clear(selvedge_table *table, size_t most);
SELVEDGE_SAFE int selvedge_tree_clear(selvedge_tree *tree, size_t most);
SELVEDGE_SAFE int selvedge_vector_clear(selvedge_vector *vector, size_t most);
SELVEDGE_SAFE int selvedge_queue_clear(selvedge_queue *queue, size_t most);
SELVEDGE_SAFE int selvedge_journal_clear(selvedge_journal *journal, size_t most);

/* How many elements there are, or -1. */
SELVEDGE_SAFE ssize_t selvedge_table_count(selvedge_table *table);
SELVEDGE_SAFE ssize_t selvedge_tree_count(selvedge_tree *tree);
SELVEDGE_SAFE ssize_t selvedge_vector_count(selvedge_vector *vector);
SELVEDGE_SAFE ssize_t selvedge_queue_count(selvedge_queue *queue);
SELVEDGE_SAFE ssize_t selvedge_journal_count(selvedge_journal *journal);

/* --- Hash table and B+ tree ------------------------------------------------------------ */

/* Sets the value of a key, anew or again. 0, or -1. */
SELVEDGE_SAFE int selvedge_table_put(selvedge_table *table, const void *key, size_t key_size,
                                     const void *value, size_t value_size);
SELVEDGE_SAFE int selvedge_tree_put(selvedge_tree *tree, const void *key, size_t key_size,
                                    const void *value, size_t value_size);

/* Copies the value of a key. Its size, or -1. */
SELVEDGE_SAFE ssize_t selvedge_table_get(selvedge_table *table, const void *key,
                                         size_t key_size, void *buffer, size_t size);
SELVEDGE_SAFE ssize_t selvedge_tree_get(selvedge_tree *tree, const void *key, size_t key_size,
                                        void *buffer, size_t size);

/* Removes a key. 0, or -1. */
SELVEDGE_SAFE int selvedge_table_remove(selvedge_table *table, const void *key,
                                        size_t key_size);
SELVEDGE_SAFE int selvedge_tree_remove(selvedge_tree *tree, const void *key, size_t key_size);

/* A place among the entries, and buffers for the one that is there. The caller sets the
 * buffers and the room in them (NULL and 0: what would go there is not wanted); the calls
 * below set the sizes, and fill the buffers as far as there is room. It is in the caller's
 * memory, and needs no end. */
typedef struct selvedge_entry {
    void *key;
    size_t key_room;
    size_t key_size;
    void *value;
    size_t value_room;
    size_t value_size;
} selvedge_entry;

/* Go to an entry, and copy it. 1; 0: there is none; or -1. `next` goes on from the key in the
 * buffer, which must be there as a whole (EMSGSIZE):
 *
 *   char key[64], value[256];
 *   selvedge_entry at = {key, sizeof key, 0, value, sizeof value, 0};
 *   for (int is = selvedge_tree_seek(tree, "a", 1, &at); is == 1;
 *        is = selvedge_tree_next(tree, &at))
 *       ...
 *
 * In a tree that is the entry with the smallest key; with the largest; with the smallest that
 * is not smaller than `key`; and with the smallest that is larger than the one at hand,
 * whether that is still there or not. Each takes O(log n) steps. Only inside one block it is
 * certain that nothing changes between two of them. */
SELVEDGE_SAFE int selvedge_tree_first(selvedge_tree *tree, selvedge_entry *entry);
SELVEDGE_SAFE int selvedge_tree_last(selvedge_tree *tree, selvedge_entry *entry);
SELVEDGE_SAFE int selvedge_tree_seek(selvedge_tree *tree, const void *key, size_t key_size,
                                     selvedge_entry *entry);
SELVEDGE_SAFE int selvedge_tree_next(selvedge_tree *tree, selvedge_entry *entry);

/* In a table the order is none, and changes with the entries: outside of one block, entries
 * may come twice, or not at all, while others come and go. -1, ENOENT: the entry from which
 * it was to go on is gone. */
SELVEDGE_SAFE int selvedge_table_first(selvedge_table *table, selvedge_entry *entry);
SELVEDGE_SAFE int selvedge_table_next(selvedge_table *table, selvedge_entry *entry);

/* --- Vector ---------------------------------------------------------------------------- */

/* Appends an element. Its number, or -1. */
SELVEDGE_SAFE ssize_t selvedge_vector_push(selvedge_vector *vector, const void *element,
                                           size_t size);

/* Copies an element. Its size, or -1. */
SELVEDGE_SAFE ssize_t selvedge_vector_get(selvedge_vector *vector, size_t number, void *buffer,
                                          size_t size);

/* Puts another in its place. 0, or -1. */
SELVEDGE_SAFE int selvedge_vector_set(selvedge_vector *vector, size_t number,
                                      const void *element, size_t size);

/* Removes the last element, and copies it if `buffer` is not NULL. Its size, or -1; EMSGSIZE:
 * it is larger than the buffer, and still there. */
SELVEDGE_SAFE ssize_t selvedge_vector_pop(selvedge_vector *vector, void *buffer, size_t size);

/* Removes the elements from `count` on. 0, or -1. */
SELVEDGE_SAFE int selvedge_vector_truncate(selvedge_vector *vector, size_t count);

/* --- Queue ----------------------------------------------------------------------------- */

/* Appends an element. 0, or -1. */
SELVEDGE_SAFE int selvedge_queue_push(selvedge_queue *queue, const void *element, size_t size);

/* Copies the first element. Its size, or -1. */
SELVEDGE_SAFE ssize_t selvedge_queue_peek(selvedge_queue *queue, void *buffer, size_t size);

/* Removes it, as selvedge_vector_pop. */
SELVEDGE_SAFE ssize_t selvedge_queue_pop(selvedge_queue *queue, void *buffer, size_t size);

/* --- Journal --------------------------------------------------------------------------- */

/* Appends a record. Its number, or -1. Numbers begin with 0; none is given twice, not even
 * after a clear. */
SELVEDGE_SAFE int64_t selvedge_journal_append(selvedge_journal *journal, const void *record,
                                              size_t size);

/* Where a reader is: in front of the record `number`. All zeros are in front of the first
 * record. It is in the caller's memory, and needs no end. */
typedef struct selvedge_journal_cursor {
    uint64_t number;
    uint64_t inner[2]; /* the library's */
} selvedge_journal_cursor;

/* Copies the record at a cursor, and moves the cursor to the next one. Its size, or -1; its number
 * is cursor->number - 1 then. If the record is gone, the first one that is there is read. A cursor
 * at the end is good for records that come later. */
SELVEDGE_SAFE ssize_t selvedge_journal_read(selvedge_journal *journal,
                                            selvedge_journal_cursor *cursor, void *buffer,
                                            size_t size);

/* Removes all records in front of the record `number`. 0, or -1. */
SELVEDGE_SAFE int selvedge_journal_truncate(selvedge_journal *journal, uint64_t number);

#ifdef __cplusplus
}
#endif
#endif
