/* The short names of the Mnemosyne paper, for the declarations of <selvedge.h>. They are macros and
 * functions, and some are common words that a program may use otherwise. */
#ifndef SELVEDGE_SHORT_H
#define SELVEDGE_SHORT_H

#include <selvedge.h>

#define patomic SELVEDGE_ATOMIC
#define pstatic SELVEDGE_STATIC
#define persistent SELVEDGE_PERSISTENT

#define pmalloc(size, pointer) selvedge_pmalloc((size), (pointer))
#define pmalloc_set(size, pointer, value) selvedge_pmalloc_set((size), (pointer), (value))
#define pcalloc(count, size, pointer) selvedge_pcalloc((count), (size), (pointer))
#define prealloc(size, pointer) selvedge_prealloc((size), (pointer))
#define pfree(pointer) selvedge_pfree((pointer))
#define pmalloc_usable_size(block) selvedge_pmalloc_usable_size((block))

#define pmap(pointer, length, protection, flags) \
    selvedge_pmap((pointer), (length), (protection), (flags))
#define punmap(pointer, length) selvedge_punmap((pointer), (length))

#define log_create(pointer, length, kind) selvedge_log_create((pointer), (length), (kind))
#define log_open(region) selvedge_log_open((region))
#define log_append(log, record, size) selvedge_log_append((log), (record), (size))
#define log_flush(log) selvedge_log_flush((log))
#define log_read(log, buffer, size) selvedge_log_read((log), (buffer), (size))
#define log_truncate(log) selvedge_log_truncate((log))
#define log_drop_read(log) selvedge_log_drop_read((log))
#define log_close(log) selvedge_log_close((log))

#ifdef __cplusplus

/* Stores, in one instruction if it is a word or less. */
template <class T, class U> static inline void store(T *address, U value)
{
    *const_cast<volatile T *>(address) = static_cast<T>(value);
}

/* Stores around the cache. */
template <class T, class U> static inline void wtstore(T *address, U value)
{
    T stored = static_cast<T>(value);
    selvedge_write_through(address, &stored, sizeof stored);
}

#else

#define store(address, value) \
    ((void)(*(volatile __typeof__(*(address)) *)(address) = (value)))

#define wtstore(address, value)                                            \
    do {                                                                   \
        __typeof__(*(address)) selvedge_stored = (value);                  \
        selvedge_write_through((address), &selvedge_stored, sizeof selvedge_stored); \
    } while (0)

#endif

/* Starts to write back the line of `address`. */
static inline void flush(const void *address) { selvedge_flush(address, 1); }

/* As selvedge_fence. */
static inline int fence(void) { return selvedge_fence(); }

#endif
