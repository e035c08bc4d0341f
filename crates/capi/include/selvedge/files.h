/* Files, keys and values of a store that a service serves (selvedge serve), for C and C++.
 *
 * Guarantees
 * ----------
 * - A program reads the store in its own memory, and changes it there. The service applies the
 *   changes, with all checks of the file system, for the user of the process.
 * - Each call sees what calls of all programs have done that have returned.
 * - Changes become durable in their order: when selvedge_store_sync or selvedge_file_sync returns,
 *   and otherwise after about a second. After a crash, or if a signal or _exit ends the program, the last
 *   changes may be lost. A return from main and exit() send them, and wait at most 10 s for that.
 * - Any number of threads may use a store, a file and a directory of keys. A child made by fork may
 *   not: it connects again.
 * - A function that a call gets (`entry`, `reader`) must return: an exception of C++ that leaves it ends the
 *   process, and longjmp out of it leaves locks held.
 *
 * How to use it
 * -------------
 *   selvedge_store *store = selvedge_store_connect("/run/selvedge/store.socket");
 *   selvedge_file *file = selvedge_file_open(store, "letters/first", O_CREAT | O_WRONLY, 0644);
 *   selvedge_file_write(file, "Dear reader", 11);
 *   selvedge_file_close(file);
 *   selvedge_store_close(store);
 *
 * Paths start at the root of the store, with or without a slash. A symbolic link to an absolute path
 * leads there, too. The umask has no effect.
 *
 * A call that fails returns NULL or -1 and sets errno, as the system call of its name does.
 * selvedge_message returns a text. If the session with the service has ended, all calls fail with
 * ENODEV; what was not durable may be lost then, which a sync of the store reports once with EIO, and the
 * program connects again. ENOLCK: the service cannot give the locks that the call needs. */
#ifndef SELVEDGE_FILES_H
#define SELVEDGE_FILES_H

#include <fcntl.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- The store ------------------------------------------------------------------------- */

/* A connection to the service of a store. */
typedef struct selvedge_store selvedge_store;

/* Connects to the service at a socket. */
selvedge_store *selvedge_store_connect(const char *socket);

/* Waits until all changes that have returned are durable. Returns 0; -1 also if the service has refused
 * an earlier change, once. */
int selvedge_store_sync(selvedge_store *store);

/* As selvedge_store_sync. Then ends the connection, also if it returns -1. Its files and directories of
 * keys must have been closed. NULL has no effect. */
int selvedge_store_close(selvedge_store *store);

/* The reason why the last call of this thread failed: a text, valid until the next one fails. */
const char *selvedge_message(void);

/* --- Open files ------------------------------------------------------------------------ */

/* An open file or directory, with an offset. */
typedef struct selvedge_file selvedge_file;

/* Opens a file. `flags` as for open(2): the access, O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_DIRECTORY and
 * O_NOFOLLOW; others have no effect. Unlike there, a new file needs a mode that permits the access. */
selvedge_file *selvedge_file_open(selvedge_store *store, const char *path, int flags, mode_t mode);

/* Closes it. Nothing is made durable. */
void selvedge_file_close(selvedge_file *file);

ssize_t selvedge_file_read(selvedge_file *file, void *buffer, size_t size);
ssize_t selvedge_file_write(selvedge_file *file, const void *data, size_t size);
ssize_t selvedge_file_pread(selvedge_file *file, void *buffer, size_t size, off_t offset);
ssize_t selvedge_file_pwrite(selvedge_file *file, const void *data, size_t size, off_t offset);
/* `whence` is SEEK_SET, SEEK_CUR or SEEK_END. */
off_t selvedge_file_seek(selvedge_file *file, off_t offset, int whence);
int selvedge_file_truncate(selvedge_file *file, off_t size);
int selvedge_file_stat(selvedge_file *file, struct stat *attributes);
/* Makes the file durable, and all earlier changes of the program. */
int selvedge_file_sync(selvedge_file *file);

/* --- Paths ----------------------------------------------------------------------------- */

int selvedge_store_stat(selvedge_store *store, const char *path, struct stat *attributes);
int selvedge_store_lstat(selvedge_store *store, const char *path, struct stat *attributes);
int selvedge_store_mkdir(selvedge_store *store, const char *path, mode_t mode);
int selvedge_store_rmdir(selvedge_store *store, const char *path);
int selvedge_store_unlink(selvedge_store *store, const char *path);
int selvedge_store_rename(selvedge_store *store, const char *from, const char *to);
int selvedge_store_link(selvedge_store *store, const char *existing, const char *path);
int selvedge_store_symlink(selvedge_store *store, const char *target, const char *path);
/* As readlink(2): the target is cut to `size` bytes, and no zero byte follows. */
ssize_t selvedge_store_readlink(selvedge_store *store, const char *path, char *buffer, size_t size);
int selvedge_store_chmod(selvedge_store *store, const char *path, mode_t mode);

/* Calls `entry` for each name of a directory, "." and ".." too, until it returns other than 0. Returns 0, or
 * that value. `type` is S_IFREG, S_IFDIR, ...; `name` is valid during the call. `entry` may use the store.
 * Names that are added or removed meanwhile may be left out. */
int selvedge_store_list(selvedge_store *store, const char *path,
                        int (*entry)(const char *name, mode_t type, void *argument), void *argument);

/* --- Keys and values ------------------------------------------------------------------- */

/* The files of a directory, as values that are read and replaced as a whole.
 *
 * A put, an erase and a compare-and-put are one change each: a reader sees the old value or the new one, and
 * so does a program after a crash. A value is the contents of the file with the name of the key.
 *
 * A key is a name of 1 to 255 bytes without a slash and a zero byte, other than "." and "..": otherwise EINVAL
 * or ENAMETOOLONG. A value has at most SELVEDGE_VALUE_MAX bytes (EFBIG). */
typedef struct selvedge_kv selvedge_kv;

#define SELVEDGE_VALUE_MAX (16u << 20)

/* Opens a directory. O_CREAT makes it, and those above it, if they are missing; other flags are EINVAL.
 * `mode`: the permission bits of new values. Symbolic links are not followed. */
selvedge_kv *selvedge_kv_open(selvedge_store *store, const char *path, int flags, mode_t mode);

/* Closes it. Nothing is made durable. */
void selvedge_kv_close(selvedge_kv *kv);

/* Copies the value of a key to `buffer`, at most `size` bytes. Returns the size of the whole value; -1 with
 * ENOENT if the key has no value. */
ssize_t selvedge_kv_get(selvedge_kv *kv, const void *key, size_t key_size, void *buffer, size_t size);

/* Calls `reader` with the value of a key, in place where possible, and returns 0. `reader` must not use the
 * store, nor wait for threads that do; calls on keys fail with EDEADLK.
 * It must not store to the value: where the processor has protection keys, this kills the process, and elsewhere
 * it changes the file.
 *
 * The value does not change while the session lasts. The session ends if `reader` takes longer than the lease
 * of the service (10 s) while another program waits to change the value, or if the process is stopped for that
 * time. From then on the bytes may change at any time, one by one, until `reader` returns; they stay readable.
 * The call then returns -1 with ENODEV, and what `reader` has computed is void. So that it computes nothing
 * dangerous, copy lengths and offsets that are in the value before you check and use them. */
int selvedge_kv_borrow(selvedge_kv *kv, const void *key, size_t key_size,
                       void (*reader)(const void *value, size_t size, void *argument), void *argument);

/* Gives a key a value, in place of any it has. */
int selvedge_kv_put(selvedge_kv *kv, const void *key, size_t key_size, const void *value, size_t size);

/* Gives a key a value if it has the value `old`; if `old` is NULL, if it has none. Returns 1 if so, 0 if not,
 * -1 after an error. */
int selvedge_kv_compare_and_put(selvedge_kv *kv, const void *key, size_t key_size, const void *old,
                                size_t old_size, const void *value, size_t size);

/* Removes a key and its value. Returns 1, or 0 if there was none, or -1. */
int selvedge_kv_erase(selvedge_kv *kv, const void *key, size_t key_size);

/* Calls `entry` for each key, in no order, until it returns other than 0. Returns 0, or that value. `key` is
 * valid during the call. `entry` may use the store. Keys that are put or erased meanwhile may be left out. */
int selvedge_kv_list(selvedge_kv *kv, int (*entry)(const void *key, size_t key_size, void *argument),
                     void *argument);

#ifdef __cplusplus
}
#endif

#endif
