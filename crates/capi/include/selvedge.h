/* Durable memory for C (C11) and C++ (C++17), with gcc -fgnu-tm on x86-64 Linux.
 *
 *   gcc -O2 -fgnu-tm $(pkg-config --cflags selvedge) -c program.c
 *   gcc program.o $(pkg-config --libs selvedge) -o program
 *
 * Programs with persistent variables (SELVEDGE_STATIC) are linked with a script, too:
 *
 *   -Wl,-T,$(pkg-config --variable=ldscript selvedge)
 *
 * Link without -fgnu-tm, which would only add gcc's own library, libitm. -Wextra warns that
 * variables might be clobbered. The warning is wrong (-Wno-clobbered).
 *
 * Guarantees
 * ----------
 * - An *atomic block*, SELVEDGE_ATOMIC { ... }, is atomic in every crash: all of its stores
 *   survive, or none. A block that has returned survives. The durability in force (see below) may
 *   exclude crashes of the machine.
 * - Blocks are strictly serializable. Ordinary memory takes part, but is not kept.
 * - Durable memory is at the same addresses in every run: pointers into it stay valid.
 *
 * Durable memory is opened at the first call that needs it, or before main if there are
 * persistent variables. One process at a time can use a directory. If a block fails (the memory
 * fails, or the heap has no room for a long block), the process ends by abort(), with one line on
 * standard error. selvedge_try returns an error instead. Stores of a block to memory that it has
 * allocated take no room in a log. Directories and files are made for their owner only (modes 0700
 * and 0600).
 *
 * A child made by fork has no durable memory, which stays its parent's. It may run another program,
 * and ends with a message if it accesses durable memory. So a program forks, and becomes a daemon,
 * before it opens durable memory. A program with persistent variables cannot; another program must
 * start it as a daemon. Arguments of exec in a child must not be in durable memory.
 *
 * A signal handler must neither call the library nor have an atomic block: the thread may be
 * inside of one.
 *
 * Structures that are ready to use (tables, trees, queues, ...) are in <selvedge/structures.h>.
 *
 * Environment
 * -----------
 *   SELVEDGE_REGION_PATH  the directory of the files; "." if not set
 *   SELVEDGE_BASE         the first address of a new directory, as 0x...; 0x200000000000 if not
 *                         set. A directory keeps its first address: another
 *                         value is refused
 *   SELVEDGE_BYTES        bytes of addresses to reserve, a limit of the size of durable memory;
 *                         1099511627776 if not set. Use fewer if addresses are limited (ulimit -v),
 *                         and under valgrind, which is slow with many
 *   SELVEDGE_LOG_BYTES    bytes of each of the eight logs of a new directory; 2097152 if not set.
 *                         A block that writes more than that to older memory takes room from the
 *                         heap, and its commit is slower
 *   SELVEDGE_DURABILITY   the crashes that a commit survives: auto (default), dax, msync, process
 *   SELVEDGE_ACCEPT_LOSS  1: start although the machine went down while the memory was in use
 *                         with durability process
 *   SELVEDGE_FORCE_FLUSH  1: flush and fence also where the durability does not need it, for
 *                         measurements on ordinary memory in place of persistent memory
 *   SELVEDGE_POOL_PATH    a directory on persistent memory for a pool of pages. The files may then
 *                         be larger than persistent memory, and be on a disk (see below)
 *   SELVEDGE_POOL_BYTES   bytes of a new pool; 268435456 if not set
 *   SELVEDGE_STATICS      discard: persistent variables begin anew
 *   SELVEDGE_STATICS_NAME  the name of the program, for its persistent variables
 *   SELVEDGE_SIMULATE_POWER_CUT  1: a killed process leaves a state that a power failure could
 *                         leave: all that was flushed and fenced, and a random part of the other
 *                         stores. For tests
 *
 * Durability
 * ----------
 * A block that returned survives every end of the process. SELVEDGE_DURABILITY selects the other
 * crashes that it survives:
 *
 *   dax      a power failure; the files must be on persistent memory (MAP_SYNC)
 *   msync    a power failure; each commit waits for the disk: 4 ms on a virtual disk on which
 *            process takes 0.5 us
 *   process  nothing else. If the machine goes down before an orderly end of the program, the next
 *            start is refused: pages reach the disk in any order, so that any data may be missing.
 *            `selvedge heap check` reports the damage that it finds; SELVEDGE_ACCEPT_LOSS=1
 *            allows one start
 *
 * auto is dax if the system supports it, and otherwise msync. In a file system in memory (tmpfs)
 * it is process: a crash of the machine removes the files.
 *
 * More than persistent memory
 * --------------------------
 * With a pool, pages of the heap and of regions move between it and the files. At most
 * SELVEDGE_POOL_BYTES of them are in persistent memory at a time. An access to another page waits
 * for the disk. Data stay durable in either place. Logs and persistent variables do not move; they
 * are in the pool's directory too. A new directory records its pool, and the two can only be used
 * together. A pool needs userfaultfd: root, access to /dev/userfaultfd, or
 * vm.unprivileged_userfaultfd=1. A child made by fork has none of this memory. Since pages move,
 * direct I/O (O_DIRECT) must not use it, and mutexes of several processes must not be in it.
 *
 * Names
 * -----
 * All names begin with selvedge_ or SELVEDGE_. The short names of the paper (patomic, pstatic,
 * pmalloc, store, flush, fence, ...) are in <selvedge/short.h>.
 *
 * A call that fails returns NULL, 0 or -1 as stated, sets errno and a text (selvedge_message), and
 * changes nothing. */
#ifndef SELVEDGE_H
#define SELVEDGE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- Attributes for the compiler ----------------------------------------------------- */

/* Marks a function that an atomic block may call. Inside a block it is a part of it. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CHECKER__)
#define SELVEDGE_SAFE __attribute__((transaction_safe))
#define SELVEDGE_PURE __attribute__((transaction_pure))
#else
#define SELVEDGE_SAFE
#define SELVEDGE_PURE
#endif

#if defined(__GNUC__)
#define SELVEDGE_RETURNS_TWICE __attribute__((returns_twice))
#else
#define SELVEDGE_RETURNS_TWICE
#endif

/* An atomic, durable block: SELVEDGE_ATOMIC { ... }. It may run several times.
 * `__transaction_cancel` in it undoes it.
 *
 * A block can call functions that are declared transaction_safe (SELVEDGE_SAFE). gcc finds out by
 * itself if it sees the definition. It can also call transaction_pure functions, which must not
 * access memory that blocks write to: stores of a block are not in place before its end.
 *
 * An exception that leaves a block commits it, and then continues. longjmp must not leave a block:
 * gcc refuses such a call. If a transaction_pure function hides the call, the block stays open, and
 * neither it nor a later block is kept. The process ends at the next block or selvedge_try in an
 * outer frame or at the same place.
 *
 * When a block has returned, memory that it has unlinked belongs to this thread alone. Therefore
 * the end of a block waits for blocks of other threads that have read the old data. A block must
 * not wait for a thread that is about to leave a block.
 *
 * After some ten conflicts a block gets its turn: all other blocks wait until it is over. So a block
 * must not lock a mutex that another thread holds around a block. That would be a deadlock between
 * the mutex and the turn. The same holds for a condition, a pipe or anything else for which another
 * thread's block comes first. Lock the mutex before the block, in all threads.
 *
 * A relaxed transaction (__transaction_relaxed) works until it calls a function that cannot be
 * undone. That ends the process.
 *
 * A block changes only the bytes to which it stores. Another thread may change a variable beside
 * them without a block, even in the same word. After a crash, recovery may apply a finished block
 * again. It then overwrites plain stores to the same bytes, unless they were flushed and fenced.
 *
 * gcc 12 fails with an internal compiler error if one function has both selvedge_try and
 * __transaction_cancel. Put the block into a function of its own. */
#if defined(__CHECKER__)
#define SELVEDGE_ATOMIC
#elif defined(__clang__) /* It looks at pointers (-fsyntax-only), and makes no program. */
__attribute__((error("SELVEDGE_ATOMIC needs gcc, with -fgnu-tm"))) int selvedge_needs_gcc(void);
#define SELVEDGE_ATOMIC if (selvedge_needs_gcc())
#else
#define SELVEDGE_ATOMIC __transaction_atomic
#endif

/* The library replaces these functions of <string.h> inside a block: strlen, strnlen, strcmp,
 * strncmp, memcmp, strcpy, strncpy, strcat, strdup, strndup, and in C memchr. Memory of strdup and
 * strndup is freed if the block fails. (gcc makes memcpy, memmove, memset, malloc, calloc and free
 * parts of a block by itself; with _FORTIFY_SOURCE the library replaces the first three.) */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CHECKER__)
#ifdef __cplusplus
#define SELVEDGE_NOTHROW noexcept
#else
#define SELVEDGE_NOTHROW
#endif
/* The second one is for the builtins that gcc uses with constants and _FORTIFY_SOURCE. */
#define SELVEDGE_IN_BLOCK(result, name, arguments)                               \
    __attribute__((transaction_pure, transaction_wrap(name)))                    \
    result selvedge_tx_##name arguments SELVEDGE_NOTHROW;                        \
    __attribute__((transaction_pure, transaction_wrap(__builtin_##name)))        \
    result selvedge_tx_builtin_##name arguments __asm__("selvedge_tx_" #name)
SELVEDGE_IN_BLOCK(size_t, strlen, (const char *text));
SELVEDGE_IN_BLOCK(int, strcmp, (const char *one, const char *other));
SELVEDGE_IN_BLOCK(int, strncmp, (const char *one, const char *other, size_t most));
SELVEDGE_IN_BLOCK(int, memcmp, (const void *one, const void *other, size_t size));
SELVEDGE_IN_BLOCK(char *, strcpy, (char *to, const char *from));
SELVEDGE_IN_BLOCK(char *, strncpy, (char *to, const char *from, size_t most));
SELVEDGE_IN_BLOCK(char *, strcat, (char *to, const char *from));
#ifndef __cplusplus /* where it is two functions */
SELVEDGE_IN_BLOCK(void *, memchr, (const void *bytes, int byte, size_t most));
#endif
#if __USE_FORTIFY_LEVEL > 0 /* where they are functions with checks of sizes */
SELVEDGE_IN_BLOCK(void *, memcpy, (void *to, const void *from, size_t size));
SELVEDGE_IN_BLOCK(void *, memmove, (void *to, const void *from, size_t size));
SELVEDGE_IN_BLOCK(void *, memset, (void *to, int byte, size_t size));
#endif
#ifdef __USE_XOPEN2K8 /* where <string.h> has them */
SELVEDGE_IN_BLOCK(size_t, strnlen, (const char *text, size_t most));
SELVEDGE_IN_BLOCK(char *, strdup, (const char *text));
SELVEDGE_IN_BLOCK(char *, strndup, (const char *text, size_t most));
#endif
#undef SELVEDGE_IN_BLOCK
#undef SELVEDGE_NOTHROW
#endif

/* A variable that keeps its value between runs: `SELVEDGE_STATIC int runs = 0;`, at file scope. It
 * has its initial value in the first run only. Later runs find it by its name and size, so a
 * variable of another size needs another name. In C++ the initial value must be a constant. Such
 * variables need a program without -flto. A program with a shared library that has such variables
 * is refused; those of a library that dlopen loads are not kept.
 *
 * The address of a variable changes in each run: a block that stores it in durable memory fails.
 * Plain stores must not store it there either. Strings for structures, and copies to addresses that are
 * no multiple of 8, must not contain it: nothing detects it there. With -no-pie the address stays until
 * the program is built again. */
#define SELVEDGE_STATIC __attribute__((section(".persistent")))

/* The name of the program, for its persistent variables: SELVEDGE_PROGRAM("visits"), once, at file
 * scope. The default is the name of its file: the variables of a renamed program begin anew, and it
 * prints a note. The environment variable SELVEDGE_STATICS_NAME overrides both. A program with such
 * variables is refused if it is started through the dynamic loader. */
#ifdef __cplusplus
#define SELVEDGE_PROGRAM(name) \
    extern "C" __attribute__((used, visibility("default"))) const char selvedge_program_name[] = name
#else
#define SELVEDGE_PROGRAM(name) \
    __attribute__((used, visibility("default"))) const char selvedge_program_name[] = name
#endif

/* Marks a pointer to durable memory: `struct node SELVEDGE_PERSISTENT *p`.
 * sparse and clang then warn if pointers of both kinds are mixed. */
#if defined(__CHECKER__) || defined(__clang__)
#define SELVEDGE_PERSISTENT __attribute__((address_space(1)))
#else
#define SELVEDGE_PERSISTENT
#endif

/* Links the library into each program that includes this, even if it calls no function. */
extern const unsigned char selvedge_anchor;
static const unsigned char *const selvedge_keep __attribute__((used)) = &selvedge_anchor;

/* --- The program --------------------------------------------------------------------- */

/* Opens durable memory now. Returns 0, or -1; then the program may call it again. */
int selvedge_start(void);

/* Makes a failed block return an error and not end the process. selvedge_try returns 0. If a block
 * of this thread fails before selvedge_try_end, it returns a second time, -1: errno and
 * selvedge_message give the reason, and the block is undone. selvedge_try_end is not needed then.
 * If the commit failed (EIO: its record could not be made durable), recovery at the next start
 * decides whether all of the block is kept or nothing.
 *
 *     if (selvedge_try() == 0) {
 *         SELVEDGE_ATOMIC { ... }
 *         selvedge_try_end();
 *     } else {
 *         fprintf(stderr, "%s\n", selvedge_message());
 *     }
 *
 * As with setjmp, the calling function must not have returned by then. Its variables that changed in
 * between are undefined unless they are volatile. Destructors of C++ do not run.
 *
 * An exception does not end selvedge_try: a handler or a destructor calls selvedge_try_end. If the
 * block that the exception leaves cannot be committed, the exception is deleted and selvedge_try
 * returns -1. A block in a handler may fail only if the handler began before selvedge_try, since
 * the handler is not ended.
 *
 * errno is ENOMEM if the block wrote more than a log holds to older memory, and the heap has no room
 * for the rest. It is EIO if the block used an unmapped address of durable memory, read damaged
 * data, or the memory failed. It is EINVAL if selvedge_try is called inside a block. */
int selvedge_try(void) SELVEDGE_RETURNS_TWICE;
void selvedge_try_end(void);

/* The reason why the last call of this thread failed: a text, valid until the next one fails. */
const char *selvedge_message(void);

/* Sets a hook, which each failing thread calls with the text; NULL removes it. A block that runs
 * several times may call it several times. */
void selvedge_set_message_hook(void (*hook)(const char *message, void *argument), void *argument);

/* Whether a finished block or fence survives a power failure (1), or a crash of the process only
 * (0). */
int selvedge_survives_power_failure(void);

/* Whether `address` is in a region of durable memory. */
SELVEDGE_SAFE int selvedge_is_persistent(const void *address);

/* Whether this thread is inside an atomic block. */
SELVEDGE_PURE int selvedge_in_transaction(void);

/* --- Heap ---------------------------------------------------------------------------- */

/* Each call is a part of the atomic block around it, or atomic by itself. `pointer` is the address
 * of a pointer of any type. The same transaction allocates the block and sets the pointer, so no
 * crash leaks the block if the pointer is durable. To allocate, `pointer` may be NULL inside an
 * atomic block that stores the result.
 *
 * Addresses of blocks are multiples of 16, and of 64 if `size` is such a multiple. ENOMEM: no room,
 * and the files cannot grow. EINVAL: the block to free is not allocated. */

/* Allocates a block with any contents. */
SELVEDGE_SAFE void *selvedge_pmalloc(size_t size, void *pointer);

/* Allocates a block whose bytes are all `value`. It may be larger than a log. */
SELVEDGE_SAFE void *selvedge_pmalloc_set(size_t size, void *pointer, int value);

/* Allocates an array of zeros. */
SELVEDGE_SAFE void *selvedge_pcalloc(size_t count, size_t size, void *pointer);

/* Resizes the block at *pointer, and sets *pointer to its new address. */
SELVEDGE_SAFE void *selvedge_prealloc(size_t size, void *pointer);

/* Frees the block at *pointer, and sets *pointer to NULL. Returns 0 or -1. If *pointer is NULL,
 * there is nothing to free, and it returns 0. */
SELVEDGE_SAFE int selvedge_pfree(void *pointer);

/* The bytes of a block, at least as many as were asked for; 0 if there is no such block. */
SELVEDGE_SAFE size_t selvedge_pmalloc_usable_size(const void *block);

/* The durable object of this name, a root. The first call makes it, of `size` zeros. The name has up
 * to 104 bytes and does not begin with "selvedge.". With size 0 the call makes no object: it returns
 * NULL if there is none. EINVAL: the object has another size. ENOSPC: all roots are in use. */
SELVEDGE_SAFE void *selvedge_root(const char *name, size_t size);

/* Frees the object of this name. Returns 0 or -1. ENOENT: there is none. */
SELVEDGE_SAFE int selvedge_root_remove(const char *name);

/* --- Regions, not inside atomic blocks ----------------------------------------------- */

/* Makes a region of `length` zeros in a file of its own, and stores its address at `pointer`. This
 * is the address of a durable pointer (EINVAL: it is not in durable memory). `protection` is
 * PROT_READ | PROT_WRITE, and `flags` 0. */
void *selvedge_pmap(void *pointer, size_t length, int protection, int flags);

/* Removes the region at *pointer, and sets *pointer to NULL. `length` is its length, or 0. Returns 0
 * or -1. EBUSY: a log in it is open. */
int selvedge_punmap(void *pointer, size_t length);

/* --- Logs, not inside atomic blocks -------------------------------------------------- */

/* A log of byte records in a region of its own. One thread may append while another reads and
 * truncates. A thread that has appended must flush before another one appends or flushes (EBUSY):
 * a fence covers the stores of its own thread only. */
typedef struct selvedge_log selvedge_log;

#define SELVEDGE_LOG_TORNBIT 0 /* one fence for each flush */
#define SELVEDGE_LOG_BASE 1    /* two fences, and less work for long records */

/* Makes a log of `length` bytes in a new region, whose address is stored at `pointer` as by
 * selvedge_pmap, and opens it. EINVAL: the length is below 4096, or the kind is unknown. If only the open
 * fails, the region stays. */
selvedge_log *selvedge_log_create(void *pointer, size_t length, int kind);

/* Opens an existing log, by the address of its region. A log can be open once at a time (EBUSY). All
 * records that were flushed and not dropped can be read. */
selvedge_log *selvedge_log_open(const void *region);

/* Appends a record. It is durable after the next flush. A crash before that may keep it, with the
 * records before it. ENOSPC: there is no room until records are dropped. E2BIG: there never is, since the record
 * is too long for the log. */
int selvedge_log_append(selvedge_log *log, const void *record, size_t size);

/* Waits until all appended records are durable. */
int selvedge_log_flush(selvedge_log *log);

/* Copies the next flushed record to `buffer`. Returns its size, or -1. ENOMSG: no record is left;
 * the call sets no text. EMSGSIZE: it is larger than the buffer, and stays the next one. */
ssize_t selvedge_log_read(selvedge_log *log, void *buffer, size_t size);

/* Drops all flushed records, durably; or only the records that were read. */
int selvedge_log_truncate(selvedge_log *log);
int selvedge_log_drop_read(selvedge_log *log);

/* Closes the log, and keeps it. To remove it, close it and selvedge_punmap its region. */
void selvedge_log_close(selvedge_log *log);

/* --- Primitives ---------------------------------------------------------------------- */

/* For data whose order of writes the program controls itself, outside of atomic blocks. An aligned
 * store of 1, 2, 4 or 8 bytes is atomic in a crash, and may reach memory at any time after it. It is
 * durable when a fence returns after its line was flushed, or after it was written through. Until
 * then, recovery may also restore the bytes that an earlier block wrote there. An orderly end of the
 * process (exit, return from main) keeps all stores.
 *
 * The first flush of a line that a recent block wrote takes longer: it truncates the logs. A flush of other memory
 * has no effect; of an address of durable memory that is in no region, an error (EINVAL).
 *
 * These are calls, since the durability in force selects the work: none, instructions that differ
 * between processors, or msync. */

/* Stores around the cache. */
void selvedge_write_through(void *to, const void *from, size_t size);

/* Starts to write back the cache lines of `size` bytes. */
void selvedge_flush(const void *address, size_t size);

/* Waits until all that this thread wrote through or flushed is durable. Returns 0, or -1 if it is
 * not and will not be (EIO). */
int selvedge_fence(void);

#ifdef __cplusplus
}
#endif

#endif
