/* Durable memory for C (C11) and C++ (C++17), with gcc -fgnu-tm on x86-64 Linux.
 *
 *   gcc -O2 -fgnu-tm $(pkg-config --cflags selvedge) -c program.c
 *   gcc program.o $(pkg-config --libs selvedge) -o program
 *
 * Programs with persistent variables (SELVEDGE_STATIC) are linked with a script, too:
 *
 *   -Wl,-T,$(pkg-config --variable=ldscript selvedge)
 *
 * Link without -fgnu-tm, which would only add gcc's own library, libitm. -Wextra warns of
 * variables that might be clobbered: they are not (-Wno-clobbered).
 *
 * Guarantees
 * ----------
 * - An *atomic block*, SELVEDGE_ATOMIC { ... }, that returned is there as a whole after every
 *   crash; one that did not is there as a whole, or not at all. The durability in force (see
 *   below) decides if that includes crashes of the machine, or of the process only.
 * - Blocks are strictly serializable. Memory that is not durable takes part, but is not kept.
 * - Durable memory is at the same addresses in every run: pointers into it stay valid.
 *
 * Durable memory is opened at the first call that needs it, or before main if there are
 * persistent variables. One process at a time can use a directory. Where nothing else can be
 * done (the memory fails, a block writes more than a log takes to memory that was there before
 * it), the process ends with one line on standard error, and abort(), unless the program has
 * asked for an error (selvedge_try). Data that a block writes to memory it has allocated take no
 * room in a log. Directories and files are made for their owner only
 * (modes 0700 and 0600).
 *
 * A child made by fork has no durable memory, which stays its parent's: it ends with a message
 * if it touches it, and can run another program. So a program forks, and makes itself a daemon,
 * before durable memory is opened; one with persistent variables cannot, and is started as a
 * daemon by others. Arguments of exec in a child must not be durable.
 *
 * Nothing of the library can be used in a signal handler, nor an atomic block: the thread may
 * be inside one, or inside a call.
 *
 * Structures that are ready to use (tables, trees, queues, ...) are in <selvedge/structures.h>.
 *
 * Environment
 * -----------
 *   SELVEDGE_REGION_PATH  the directory of the files; "." if not set
 *   SELVEDGE_BASE         the first address, as 0x...; if not set that of an earlier run, or of a
 *                         new directory 0x200000000000. A directory keeps its first address
 *   SELVEDGE_BYTES        bytes of addresses to reserve, which all of durable memory fits in:
 *                         1099511627776 if not set. Fewer where addresses are limited (ulimit -v),
 *                         and under valgrind, which keeps account of each page of them
 *   SELVEDGE_LOG_BYTES    bytes of each of the eight logs of a new directory: 2097152 if not set. A
 *                         block that writes more to memory that was there before it takes room
 *                         from the heap, and commits more slowly
 *   SELVEDGE_DURABILITY   what a commit is to survive: auto (default), dax, msync, process
 *   SELVEDGE_ACCEPT_LOSS  1: start although the machine went down while the memory was in use
 *                         with durability process
 *   SELVEDGE_FORCE_FLUSH  1: flush and fence also where durability does not need it. For
 *                         measurements on memory that stands in for persistent memory
 *   SELVEDGE_POOL_PATH    a directory on persistent memory, for a pool of pages: the files may
 *                         then be larger than persistent memory, and lie on a disk (see below)
 *   SELVEDGE_POOL_BYTES   bytes of a new pool; 268435456 if not set
 *   SELVEDGE_STATICS      discard: persistent variables begin anew
 *   SELVEDGE_STATICS_NAME  the name of the program by which its persistent variables are
 *                         known
 *   SELVEDGE_SIMULATE_POWER_CUT  1: a process that is killed leaves what a power failure would
 *                         leave in persistent memory, what was flushed and fenced and by chance
 *                         some of the rest. For tests
 *
 * Durability
 * ----------
 * A block that returned survives every end of the process. SELVEDGE_DURABILITY selects the other
 * crashes that it survives:
 *
 *   dax      a power failure; the files must be on persistent memory (MAP_SYNC)
 *   msync    a power failure; each commit waits for the disk: 4 ms on a virtual disk where
 *            process takes 0.5 us
 *   process  nothing else. If the machine goes down before the program has ended in an orderly
 *            way, the next start is refused: pages reach the disk in any order, so that anything
 *            may be missing. `selvedge heap check` says what it can; SELVEDGE_ACCEPT_LOSS=1
 *            starts all the same, once
 *
 * auto is dax where the system grants it, and msync elsewhere. In a file system in memory (tmpfs)
 * it is process: a crash of the machine takes the files with it.
 *
 * More than persistent memory
 * --------------------------
 * With a pool, pages of the heap and of regions move between it and the files: at most
 * SELVEDGE_POOL_BYTES of them are in persistent memory at a time, and a touch of another page
 * waits for the disk. Durable data stay durable wherever their page is. Logs
 * and persistent variables do not move; they are in the pool's directory, too. A pool is chosen
 * when a directory is made, which records it; the two belong together, and neither can be used
 * without the other. It needs userfaultfd: root, access to /dev/userfaultfd, or
 * vm.unprivileged_userfaultfd=1. A child made by fork has none of this memory. Since pages move,
 * no direct I/O (O_DIRECT), and no mutex of several processes, may be in it.
 *
 * Names
 * -----
 * All names begin with selvedge_ or SELVEDGE_. The short names of the paper (patomic, pstatic,
 * pmalloc, store, flush, fence, ...) are in <selvedge/short.h>.
 *
 * Calls that fail return NULL, 0 or -1 as each says, set errno, and leave a text
 * (selvedge_message). They have changed nothing then. */
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

/* Can be called inside an atomic block, and is a part of it then. */
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

/* A block that happens as a whole, durably: SELVEDGE_ATOMIC { ... }. It may be run several
 * times. `__transaction_cancel` in it undoes it. An exception that leaves it commits it, and goes
 * on after that. longjmp must not leave it: gcc refuses such a call. One that a transaction_pure
 * function hides leaves the block open, and nothing of it or of later blocks is kept; the process
 * ends when the next block, or selvedge_try, begins further out or at the same place. Not all
 * calls are possible in it, and those that are must be declared transaction_safe (SELVEDGE_SAFE;
 * gcc finds out by itself where it sees the function), or transaction_pure if they have nothing
 * to do with memory that blocks write to. Stores of a block are not in place before its end:
 * a transaction_pure function must not look for them there.
 *
 * When a block has returned, memory that it took away from others is the thread's own. That is
 * why its end waits for blocks of other threads that have read what it changed: do not wait in
 * one for a thread that is about to leave its own.
 *
 * A block that others got in the way of some ten times gets its turn: their blocks wait until it
 * is over. So a block must not lock a mutex that another thread holds around a block: the block
 * with the turn waits for the mutex, the owner of the mutex waits for the turn, and neither goes
 * on. The same holds for a condition, a pipe or anything else that another thread's block
 * precedes. Lock the mutex before the block, in all threads.
 *
 * Relaxed transactions (__transaction_relaxed) work while they call nothing that cannot
 * be undone, and end the process when they do.
 *
 * A block changes the bytes that it stores to, and no others: another thread may change a
 * variable beside them without a block, in the same word too. After a crash a block that was
 * over may be done once more: it puts its bytes back over what was stored there since by other
 * means, unless that was flushed and fenced. */
#if defined(__CHECKER__)
#define SELVEDGE_ATOMIC
#elif defined(__clang__) /* It looks at pointers (-fsyntax-only), and makes no program. */
__attribute__((error("SELVEDGE_ATOMIC needs gcc, with -fgnu-tm"))) int selvedge_needs_gcc(void);
#define SELVEDGE_ATOMIC if (selvedge_needs_gcc())
#else
#define SELVEDGE_ATOMIC __transaction_atomic
#endif

/* Inside a block, these functions of <string.h> are done by the library: strlen, strnlen, strcmp,
 * strncmp, memcmp, strcpy, strncpy, strcat, strdup, strndup, and in C memchr. Memory that strdup and
 * strndup allocate there is freed if the block fails. (gcc makes memcpy, memmove, memset, malloc,
 * calloc and free parts of a block by itself.) */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CHECKER__)
#ifdef __cplusplus
#define SELVEDGE_NOTHROW noexcept
#else
#define SELVEDGE_NOTHROW
#endif
/* The second one is for what gcc makes of calls with constants, and of _FORTIFY_SOURCE. */
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
#ifdef __USE_XOPEN2K8 /* where <string.h> has them */
SELVEDGE_IN_BLOCK(size_t, strnlen, (const char *text, size_t most));
SELVEDGE_IN_BLOCK(char *, strdup, (const char *text));
SELVEDGE_IN_BLOCK(char *, strndup, (const char *text, size_t most));
#endif
#undef SELVEDGE_IN_BLOCK
#undef SELVEDGE_NOTHROW
#endif

/* A variable that outlives the program: `SELVEDGE_STATIC int runs = 0;`, at file scope. It
 * has its initial value at the first run only, and is known by its name and size afterwards.
 * In C++ the initial value must be a constant. Not for variables of shared libraries, and
 * not with -flto. If the size is to change, so must the name. (A program is refused that has a
 * library with such variables; in one that is loaded later, by dlopen, nothing is kept.)
 *
 * Its address is that of the executable, which is another one in each run: a block that stores it
 * in durable memory fails. Do not store it there by other means either. With -no-pie it stays
 * until the executable is built again. */
#define SELVEDGE_STATIC __attribute__((section(".persistent")))

/* The name by which the variables of this program are known, once in a program, at file scope:
 * SELVEDGE_PROGRAM("visits"). Without it that is the name of its file, so that a program which is
 * renamed begins anew (and says so); SELVEDGE_STATICS_NAME comes before both. A program with such
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

/* Links the library into each program that includes this, also if only its constructor is needed. */
extern const unsigned char selvedge_anchor;
static const unsigned char *const selvedge_keep __attribute__((used)) = &selvedge_anchor;

/* --- The program --------------------------------------------------------------------- */

/* Opens durable memory now. 0, or -1: then it can be tried again. */
int selvedge_start(void);

/* Has a block that cannot be done fail, and not end the process. Returns 0; and once more, -1, if
 * until selvedge_try_end a block of this thread cannot be done: errno and selvedge_message say why,
 * and what selvedge_try began is over. The block has left nothing in memory then. If the commit
 * itself failed (EIO: its record could not be made durable), recovery at the next start decides
 * whether all of the block is there or nothing.
 *
 *     if (selvedge_try() == 0) {
 *         SELVEDGE_ATOMIC { ... }
 *         selvedge_try_end();
 *     } else {
 *         fprintf(stderr, "%s\n", selvedge_message());
 *     }
 *
 * As with setjmp, the function that calls it must not have returned by then, variables of it that
 * were changed in between have any value unless they are volatile, and destructors of C++ do not
 * run. An exception that passes through does not end what selvedge_try began: the handler calls
 * selvedge_try_end, or a destructor does. If the block that it leaves cannot be committed, the
 * exception does not arrive, and is deleted; selvedge_try returns -1. A handler that fails must
 * have begun before selvedge_try, since it is not ended either. ENOMEM: the block wrote more than a log takes to memory that was there before it, and the
 * heap has no room for the rest. EIO: it
 * used an address of durable memory at which there is nothing, what it read is damaged, or the
 * memory failed.
 * Not inside a block (EINVAL). */
int selvedge_try(void) SELVEDGE_RETURNS_TWICE;
void selvedge_try_end(void);

/* Why the last call of this thread failed: text, until the next one that fails. */
const char *selvedge_message(void);

/* Has `hook` called with each such text, on the thread in question; NULL: nobody. Inside
 * an atomic block that may be more than once. */
void selvedge_set_message_hook(void (*hook)(const char *message, void *argument), void *argument);

/* Whether a block, or a fence, that is over survives a power failure (1), or a crash of the
 * process only (0). */
int selvedge_survives_power_failure(void);

/* Whether `address` is durable memory, and something is there. */
SELVEDGE_SAFE int selvedge_is_persistent(const void *address);

/* Whether this thread is inside an atomic block. */
SELVEDGE_PURE int selvedge_in_transaction(void);

/* --- Heap ---------------------------------------------------------------------------- */

/* Each call is a part of the block around it, or happens as a whole by itself. `pointer` is
 * the address of a pointer, of whatever type, which is set together with the allocation: if
 * it is durable, no crash leaks the block. It may be NULL for those that allocate, inside a
 * block that keeps what they return.
 *
 * Blocks are at multiples of 16, and of 64 if `size` is one. ENOMEM: no room, and the files
 * cannot grow. EINVAL: the block to be freed is not allocated. */

/* A new block, which holds anything. */
SELVEDGE_SAFE void *selvedge_pmalloc(size_t size, void *pointer);

/* A new block whose bytes are all `value`. It may be larger than a log. */
SELVEDGE_SAFE void *selvedge_pmalloc_set(size_t size, void *pointer, int value);

/* A new array of zeros. */
SELVEDGE_SAFE void *selvedge_pcalloc(size_t count, size_t size, void *pointer);

/* Makes the block at *pointer larger or smaller; *pointer becomes where it is then. */
SELVEDGE_SAFE void *selvedge_prealloc(size_t size, void *pointer);

/* Frees the block at *pointer, and sets *pointer to NULL. 0, or -1. NULL is not a block. */
SELVEDGE_SAFE int selvedge_pfree(void *pointer);

/* Bytes of a block: at least as many as were asked for. 0: it is none. */
SELVEDGE_SAFE size_t selvedge_pmalloc_usable_size(const void *block);

/* The durable object of this name (up to 104 bytes, which do not begin with "selvedge."),
 * `size` bytes of zeros when it is asked for the first time. EINVAL: it has another size. ENOSPC:
 * there are too many. With size 0 the object as it is, or NULL if there is none. */
SELVEDGE_SAFE void *selvedge_root(const char *name, size_t size);

/* Frees it. 0, or -1; ENOENT: there is none. */
SELVEDGE_SAFE int selvedge_root_remove(const char *name);

/* --- Regions, not inside atomic blocks ----------------------------------------------- */

/* Makes a region of `length` bytes, zeros, in a file of its own, and stores its address at
 * `pointer`, the address of a durable pointer (EINVAL: it is not in durable memory).
 * `protection` is PROT_READ | PROT_WRITE, and `flags` 0. */
void *selvedge_pmap(void *pointer, size_t length, int protection, int flags);

/* Removes the region at *pointer, and sets *pointer to NULL. `length` is its length, or 0.
 * 0, or -1; EBUSY: a log in it is open. */
int selvedge_punmap(void *pointer, size_t length);

/* --- Logs, not inside atomic blocks -------------------------------------------------- */

/* Records of bytes, appended in a region of their own. One thread may append while another
 * reads and truncates. A thread that has appended flushes before another one appends or flushes
 * (EBUSY): a fence is for the stores of its own thread. */
typedef struct selvedge_log selvedge_log;

#define SELVEDGE_LOG_TORNBIT 0 /* one fence for each flush */
#define SELVEDGE_LOG_BASE 1    /* two, and less work for long records */

/* Makes a log of `length` bytes in a new region, whose address is stored at `pointer` as by
 * selvedge_pmap, and opens it. */
selvedge_log *selvedge_log_create(void *pointer, size_t length, int kind);

/* Opens a log that there was, by the address of its region. Once at a time (EBUSY). All records
 * that were flushed, and not dropped, can be read. */
selvedge_log *selvedge_log_open(const void *region);

/* Appends a record. It is durable after the next flush; a crash before may leave it, and the
 * records before it. ENOSPC: there is no room until some are dropped. */
int selvedge_log_append(selvedge_log *log, const void *record, size_t size);

/* Waits until all that was appended is durable. */
int selvedge_log_flush(selvedge_log *log);

/* Puts the next flushed record into `buffer`. Its size, or -1; ENOMSG: there is none;
 * EMSGSIZE: it is larger than the buffer, and still the next one. */
ssize_t selvedge_log_read(selvedge_log *log, void *buffer, size_t size);

/* Drops all flushed records, durably; or those that were read. */
int selvedge_log_truncate(selvedge_log *log);
int selvedge_log_drop_read(selvedge_log *log);

/* Closes the log, which stays. To remove it, selvedge_punmap its region after that. */
void selvedge_log_close(selvedge_log *log);

/* --- Primitives ---------------------------------------------------------------------- */

/* For data whose order the program keeps itself, outside of atomic blocks. An aligned store of 1,
 * 2, 4 or 8 bytes is there after a crash as a whole or not at all, and any time after it was
 * issued. It is durable once its line was flushed, or it was written through, and then a
 * fence returned. Until then a crash may also bring back what a block wrote there before. An
 * orderly end of the process (exit, return from main) keeps all stores.
 *
 * The first flush of a line that a block wrote not long ago takes longer: the logs are
 * truncated. Addresses at which there is nothing are left alone: EINVAL, and a text.
 *
 * These are calls, not instructions, since what has to be done depends on the durability in
 * force: nothing, instructions that differ between processors, or msync. */

/* Stores around the cache. */
void selvedge_write_through(void *to, const void *from, size_t size);

/* Starts to write back the lines of `size` bytes. */
void selvedge_flush(const void *address, size_t size);

/* Waits until what this thread wrote through or flushed is durable. 0, or -1: it is not, and
 * will not be (EIO). */
int selvedge_fence(void);

#ifdef __cplusplus
}
#endif

#endif
