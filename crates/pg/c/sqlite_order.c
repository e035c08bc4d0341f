/* libselvedge-sqlite: a loadable extension of SQLite with a VFS whose xSync is a barrier.
 *
 *   .load libselvedge-sqlite
 *   .open 'file:/mnt/data/app.db?vfs=selvedge'
 *
 * The VFS `selvedge` forwards all calls to the default VFS, except for syncs of a database and its
 * journals in a mount of Selvedge. Such a sync is pg_barrier of a patchgroup that this process has
 * engaged. A commit then returns without waiting for the disk.
 *
 * Guarantees
 * ----------
 * - After a crash, SQLite's recovery finds the state after some commit, with all commits before it.
 *   It may not be the newest one. PRAGMA selvedge_sync waits until all commits are durable.
 * - One process has a database open for writing through this VFS. xOpen fails with SQLITE_BUSY in
 *   others, since a barrier orders only the changes of its own group. An empty file with the suffix
 *   -order beside the database has the lock.
 * - Changes by processes that have ended precede those of this process: xOpen makes the database,
 *   its journals and their directory durable.
 * - A transaction on several databases waits for the disk, since they may be in different mounts.
 * - A frame of a WAL is one write instead of two, and so are the writes of a rollback journal that
 *   follow each other: each write is a call of the mount's server. The journal is whole before the
 *   database changes, so that a process which is killed leaves what it would leave without this.
 * - Outside of a mount of Selvedge, or if it refuses groups, a sync is the default VFS's own. PRAGMA
 *   selvedge_order returns `barrier` or `fsync`. */
#define _FILE_OFFSET_BITS 64
#define _GNU_SOURCE /* flock */
#include <selvedge/patchgroup.h>
#include <sqlite3ext.h>
SQLITE_EXTENSION_INIT1

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* The group of a mount, while databases of that mount are open. */
struct place {
    struct place *next;
    dev_t device;
    pg_t group;
    int users; /* open files */
};

/* The lock of a database, which connections of this process share. */
struct owner {
    struct owner *next;
    dev_t device;
    ino_t inode;
    int lock;  /* a descriptor of the file `path` */
    int users; /* connections */
    char path[];
};

/* SQLite's file format, section 4.1: a WAL is a header and frames, which are a header and a page. */
enum { WAL_HEADER = 32, FRAME_HEADER = 24, MAX_PAGE = 65536, ROOM = FRAME_HEADER + MAX_PAGE };
/* Section 3: the header of a rollback journal takes at least a sector. */
enum { SECTOR = 512 };

/* An open file. That of the default VFS follows in memory. */
struct file {
    sqlite3_file base;
    const char *name;    /* of a database that can be written; else NULL. SQLite keeps it until the close */
    struct place *place; /* NULL: a sync is the default VFS's own */
    struct owner *owner; /* NULL: not a database, or not in order */
    int is_super;        /* a super-journal */
    int is_wal;
    char *held;          /* NULL: not a journal in order. Else ROOM bytes for writes that are held */
    int held_count;      /* bytes that wait for those after them. They end at `end` */
    sqlite3_int64 end;   /* of the last write to a journal */
    sqlite3_int64 size;  /* of a rollback journal that holds writes, without those. -1: not known */
    struct file *journal;  /* of a database: its open rollback journal that holds writes */
    struct file *database; /* of such a journal */
};

static pthread_mutex_t tables = PTHREAD_MUTEX_INITIALIZER; /* the four below */
static struct place *places;
static struct owner *owners;
static int supers; /* open super-journals */
static sqlite3_vfs *under;

static sqlite3_file *real(sqlite3_file *file)
{
    return (sqlite3_file *)((struct file *)file + 1);
}

/* --- places and owners: the caller has locked the tables ------------------------------ */

/* Writes the directory of a file to `dir`. Returns 0 if the name is too long. */
static int directory(const char *name, char dir[PATH_MAX])
{
    const char *slash = strrchr(name, '/');
    size_t length = !slash ? 1 : slash == name ? 1 : (size_t)(slash - name);
    if (length >= PATH_MAX)
        return 0;
    memcpy(dir, slash ? name : ".", length);
    dir[length] = 0;
    return 1;
}

static void leave_place(struct place *place)
{
    struct place **link = &places;
    if (!place || --place->users)
        return;
    while (*link != place)
        link = &(*link)->next;
    *link = place->next;
    pg_close(place->group);
    free(place);
}

/* The same place, with one more user. */
static struct place *share_place(struct place *place)
{
    if (place)
        place->users++;
    return place;
}

/* The group of the mount with this directory, which it makes if `is_new`. NULL if the mount has no group. */
static struct place *enter_place(const char *dir, int is_new)
{
    struct stat status;
    struct place *place;
    if (stat(dir, &status))
        return NULL;
    for (place = places; place; place = place->next)
        if (place->device == status.st_dev)
            return share_place(place);
    place = is_new ? malloc(sizeof *place) : NULL;
    if (!place)
        return NULL;
    *place = (struct place){places, status.st_dev, pg_create(dir), 1};
    if (place->group >= 0 && fcntl(place->group, F_SETFD, FD_CLOEXEC) == 0 &&
        pg_engage(place->group) == 0)
        return places = place;
    if (place->group >= 0)
        pg_close(place->group);
    free(place);
    return NULL;
}

static void leave_owner(struct owner *owner)
{
    struct owner **link = &owners;
    if (!owner || --owner->users)
        return;
    while (*link != owner)
        link = &(*link)->next;
    *link = owner->next;
    unlink(owner->path);
    close(owner->lock);
    free(owner);
}

/* Makes a file durable, if it is there. */
static int sync_path(const char *path)
{
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY), failed;
    if (file < 0)
        return errno == ENOENT ? 0 : -1;
    failed = fsync(file);
    close(file);
    return failed;
}

/* Makes all earlier changes of a database durable, whose process may have ended. The database
 * itself is synced by the caller: to close another descriptor of it would drop SQLite's locks. */
static int sync_earlier(const char *name, const char *dir)
{
    static const char *suffixes[] = {"-journal", "-wal"};
    char path[PATH_MAX + 16];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s%s", name, suffixes[i]);
        if (sync_path(path))
            return -1;
    }
    return sync_path(dir);
}

/* Opens and locks the file of a lock. Its last owner removes it, so the name may have changed. */
static int lock_path(const char *path)
{
    struct stat opened, named;
    for (;;) {
        int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
        if (lock < 0)
            return -1;
        if (flock(lock, LOCK_EX | LOCK_NB) || fstat(lock, &opened)) {
            int error = errno;
            close(lock);
            errno = error;
            return -1;
        }
        if (stat(path, &named) == 0 && named.st_ino == opened.st_ino)
            return lock;
        close(lock);
    }
}

/* Locks a database for this process. */
static int enter_owner(struct owner **found, sqlite3_file *database, const char *name, const char *dir)
{
    struct stat status;
    struct owner *owner;
    size_t size = sizeof *owner + strlen(name) + sizeof "-order";
    *found = NULL;
    if (stat(name, &status))
        return SQLITE_CANTOPEN;
    for (owner = owners; owner; owner = owner->next)
        if (owner->device == status.st_dev && owner->inode == status.st_ino) {
            owner->users++;
            *found = owner;
            return SQLITE_OK;
        }
    owner = malloc(size);
    if (!owner)
        return SQLITE_NOMEM;
    *owner = (struct owner){owners, status.st_dev, status.st_ino, -1, 1};
    snprintf(owner->path, size - sizeof *owner, "%s-order", name);
    owner->lock = lock_path(owner->path);
    if (owner->lock < 0) {
        int is_busy = errno == EWOULDBLOCK;
        sqlite3_log(is_busy ? SQLITE_BUSY : SQLITE_CANTOPEN,
                    is_busy ? "another process has %s open through the VFS selvedge"
                            : "cannot make a lock for %s",
                    name);
        free(owner);
        return is_busy ? SQLITE_BUSY : SQLITE_CANTOPEN;
    }
    owners = *found = owner;
    if (database->pMethods->xSync(database, SQLITE_SYNC_FULL) == SQLITE_OK && !sync_earlier(name, dir))
        return SQLITE_OK;
    leave_owner(owner);
    *found = NULL;
    return SQLITE_IOERR_FSYNC;
}

/* --- files ----------------------------------------------------------------------------- */

/* Writes bytes of a journal that end at `end`. */
static int write_up_to_end(sqlite3_file *file, const void *bytes, int count)
{
    struct file *own = (struct file *)file;
    int result = real(file)->pMethods->xWrite(real(file), bytes, count, own->end - count);
    if (result != SQLITE_OK)
        own->size = -1;
    else if (own->size >= 0 && own->size < own->end)
        own->size = own->end;
    return result;
}

/* Writes what is held. Each call that may follow a write to a journal does this first. */
static int release(sqlite3_file *file)
{
    struct file *own = (struct file *)file;
    int count = own->held_count;
    own->held_count = 0;
    return count ? write_up_to_end(file, own->held, count) : SQLITE_OK;
}

/* Writes what the rollback journal of a database holds. Each change of the database does this first:
 * with synchronous=OFF no sync of the journal comes before it. */
static int release_journal(struct file *database)
{
    return database->journal ? release(&database->journal->base) : SQLITE_OK;
}

/* Whether a write to a journal is held until the next call. In a WAL this is the header of a new frame,
 * since SQLite then writes the frame's page. Others may read the frame after that. Headers that
 * SQLite writes again are before the end, and have no page after them. In a rollback journal these are
 * shorter than a sector, and one that is cleared may be the commit: nothing need follow it. */
static int is_holdable(const struct file *own, int count, sqlite3_int64 offset)
{
    if (own->is_wal)
        return count == FRAME_HEADER && (offset == own->end || offset == WAL_HEADER);
    return count <= ROOM && (offset >= own->end || count >= SECTOR);
}

static int write_to_journal(sqlite3_file *file, const void *bytes, int count, sqlite3_int64 offset)
{
    struct file *own = (struct file *)file;
    if (own->held_count && offset == own->end && count <= ROOM - own->held_count) {
        memcpy(own->held + own->held_count, bytes, (size_t)count);
        own->held_count += count;
        own->end += count;
        return own->is_wal ? release(file) : SQLITE_OK;
    }
    int result = release(file), is_held = is_holdable(own, count, offset);
    if (result != SQLITE_OK)
        return result;
    own->end = offset + count;
    if (!is_held)
        return write_up_to_end(file, bytes, count);
    memcpy(own->held, bytes, (size_t)count);
    own->held_count = count;
    return SQLITE_OK;
}

static int file_close(sqlite3_file *file)
{
    struct file *own = (struct file *)file;
    int released = release(file), result = real(file)->pMethods->xClose(real(file));
    sqlite3_free(own->held);
    if (own->database)
        own->database->journal = NULL;
    pthread_mutex_lock(&tables);
    supers -= own->is_super;
    leave_owner(own->owner);
    leave_place(own->place);
    pthread_mutex_unlock(&tables);
    return result != SQLITE_OK ? result : released;
}

static int file_read(sqlite3_file *file, void *bytes, int count, sqlite3_int64 offset)
{
    struct file *own = (struct file *)file;
    int released = release(file);
    if (released != SQLITE_OK)
        return released;
    /* Each commit looks for an old header after its own bytes. The kernel would ask for the size. */
    if (own->database && own->size >= 0 && offset >= own->size) {
        memset(bytes, 0, (size_t)count);
        return SQLITE_IOERR_SHORT_READ;
    }
    return real(file)->pMethods->xRead(real(file), bytes, count, offset);
}

static int file_write(sqlite3_file *file, const void *bytes, int count, sqlite3_int64 offset)
{
    if (((struct file *)file)->held)
        return write_to_journal(file, bytes, count, offset);
    int released = release_journal((struct file *)file);
    return released ? released : real(file)->pMethods->xWrite(real(file), bytes, count, offset);
}

static int file_truncate(sqlite3_file *file, sqlite3_int64 size)
{
    int released = release(file);
    if (released == SQLITE_OK)
        released = release_journal((struct file *)file);
    if (released != SQLITE_OK)
        return released;
    int result = real(file)->pMethods->xTruncate(real(file), size);
    ((struct file *)file)->size = result == SQLITE_OK ? size : -1;
    return result;
}

static int is_spanning(void)
{
    pthread_mutex_lock(&tables);
    int is_open = supers > 0;
    pthread_mutex_unlock(&tables);
    return is_open;
}

static int file_sync(sqlite3_file *file, int flags)
{
    struct file *own = (struct file *)file;
    int result = release(file);
    if (result != SQLITE_OK)
        return result;
    if (!own->place || is_spanning()) {
        result = real(file)->pMethods->xSync(real(file), flags);
        if (result != SQLITE_OK || !own->place)
            return result;
    }
    return pg_barrier(own->place->group) ? SQLITE_IOERR_FSYNC : SQLITE_OK;
}

static int file_size(sqlite3_file *file, sqlite3_int64 *size)
{
    int released = release(file);
    return released ? released : real(file)->pMethods->xFileSize(real(file), size);
}

static int file_lock(sqlite3_file *file, int level)
{
    return real(file)->pMethods->xLock(real(file), level);
}

static int file_unlock(sqlite3_file *file, int level)
{
    /* Others may look at the journal then. */
    int released = release_journal((struct file *)file);
    int result = real(file)->pMethods->xUnlock(real(file), level);
    return result != SQLITE_OK ? result : released;
}

/* Makes all commits durable. Without a place some may not even have been synced: the level may be NORMAL or
 * OFF. Returns 0, or -1 with errno. */
static int make_durable(struct file *own)
{
    char dir[PATH_MAX];
    if (release_journal(own) != SQLITE_OK) {
        errno = EIO;
        return -1;
    }
    if (own->place)
        return pg_sync(own->place->group);
    if (!own->name || !directory(own->name, dir))
        return 0; /* in memory, a temporary file, or read-only */
    errno = EIO; /* SQLite's own result has none */
    if (real(&own->base)->pMethods->xSync(real(&own->base), SQLITE_SYNC_FULL) != SQLITE_OK)
        return -1;
    return sync_earlier(own->name, dir);
}

/* PRAGMA selvedge_order and selvedge_sync. `words` are the answer, the name and the argument. */
static int file_pragma(struct file *own, char **words)
{
    if (!sqlite3_stricmp(words[1], "selvedge_order")) {
        words[0] = sqlite3_mprintf("%s", own->place ? "barrier" : "fsync");
        return SQLITE_OK;
    }
    if (!sqlite3_stricmp(words[1], "selvedge_sync")) {
        if (make_durable(own) == 0) {
            words[0] = sqlite3_mprintf("durable");
            return SQLITE_OK;
        }
        words[0] = sqlite3_mprintf("cannot make the database durable: %s", strerror(errno));
        return SQLITE_IOERR;
    }
    return SQLITE_NOTFOUND;
}

static int file_control(sqlite3_file *file, int code, void *argument)
{
    if (code == SQLITE_FCNTL_PRAGMA) {
        int result = file_pragma((struct file *)file, argument);
        if (result != SQLITE_NOTFOUND)
            return result;
    }
    /* A journal keeps what it holds: no code asks for a file's contents, and SQLite ignores some errors. */
    int result = real(file)->pMethods->xFileControl(real(file), code, argument);
    if (code == SQLITE_FCNTL_VFSNAME && result == SQLITE_OK)
        *(char **)argument = sqlite3_mprintf("selvedge/%z", *(char **)argument);
    return result;
}

/* A method that is that of the default VFS. */
#define FORWARDS(type, method, name, parameters, arguments) \
    static type name parameters { return real(file)->pMethods->method arguments; }

FORWARDS(int, xCheckReservedLock, file_check_reserved_lock, (sqlite3_file *file, int *is_locked), (real(file), is_locked))
FORWARDS(int, xSectorSize, file_sector_size, (sqlite3_file *file), (real(file)))
FORWARDS(int, xDeviceCharacteristics, file_characteristics, (sqlite3_file *file), (real(file)))
FORWARDS(int, xShmMap, file_shm_map, (sqlite3_file *file, int page, int size, int extend, void volatile **memory),
         (real(file), page, size, extend, memory))
FORWARDS(int, xShmLock, file_shm_lock, (sqlite3_file *file, int offset, int count, int flags),
         (real(file), offset, count, flags))
FORWARDS(int, xShmUnmap, file_shm_unmap, (sqlite3_file *file, int is_deleted), (real(file), is_deleted))
FORWARDS(int, xFetch, file_fetch, (sqlite3_file *file, sqlite3_int64 offset, int count, void **memory),
         (real(file), offset, count, memory))
FORWARDS(int, xUnfetch, file_unfetch, (sqlite3_file *file, sqlite3_int64 offset, void *memory),
         (real(file), offset, memory))

static void file_shm_barrier(sqlite3_file *file)
{
    real(file)->pMethods->xShmBarrier(real(file));
}

/* The methods, by the version of those of the default VFS: a file has what that one has. */
#define METHODS(version) \
    {version, file_close, file_read, file_write, file_truncate, file_sync, file_size, file_lock, \
     file_unlock, file_check_reserved_lock, file_control, file_sector_size, file_characteristics, \
     file_shm_map, file_shm_lock, file_shm_barrier, file_shm_unmap, file_fetch, file_unfetch}

static const sqlite3_io_methods methods[] = {METHODS(1), METHODS(2), METHODS(3)};

/* The open database of a journal, if both are files of this VFS itself. */
static struct file *database_of(const char *journal)
{
    struct file *database = (struct file *)sqlite3_database_file_object(journal);
    for (int i = 0; i < 3; i++)
        if (database->base.pMethods == &methods[i])
            return database;
    return NULL;
}

/* Lets a journal hold writes. */
static int prepare_to_hold(struct file *own, struct file *database, int flags)
{
    own->is_wal = (flags & SQLITE_OPEN_WAL) != 0;
    if (flags & SQLITE_OPEN_MAIN_JOURNAL)
        own->database = database;
    if (!own->is_wal && !own->database)
        return SQLITE_OK;
    if (own->database && real(&own->base)->pMethods->xFileSize(real(&own->base), &own->size) != SQLITE_OK)
        own->size = -1;
    own->held = sqlite3_malloc(ROOM);
    if (!own->held)
        return SQLITE_NOMEM;
    if (own->database)
        own->database->journal = own;
    return SQLITE_OK;
}

/* Puts an open file in order: a database by a group and a lock, its journals by the same group. */
static int put_in_order(struct file *own, const char *name, int flags)
{
    const int journals = SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_WAL | SQLITE_OPEN_SUPER_JOURNAL;
    char dir[PATH_MAX];
    int result = SQLITE_OK, is_database = (flags & SQLITE_OPEN_MAIN_DB) != 0;
    struct file *database = NULL;
    if (!name || !(flags & SQLITE_OPEN_READWRITE) || !(flags & (SQLITE_OPEN_MAIN_DB | journals)) ||
        !directory(name, dir))
        return SQLITE_OK;
    if (is_database)
        own->name = name;
    if (flags & (SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_WAL))
        database = database_of(name);
    pthread_mutex_lock(&tables);
    own->is_super = (flags & SQLITE_OPEN_SUPER_JOURNAL) != 0;
    supers += own->is_super;
    own->place = database ? share_place(database->place) : enter_place(dir, is_database);
    if (own->place && is_database)
        result = enter_owner(&own->owner, real(&own->base), name, dir);
    pthread_mutex_unlock(&tables);
    if (result == SQLITE_OK && own->place)
        result = prepare_to_hold(own, database, flags);
    return result;
}

static int vfs_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *file, int flags, int *out)
{
    struct file *own = (struct file *)file;
    int given = flags, result;
    (void)vfs;
    memset(own, 0, sizeof *own);
    result = under->xOpen(under, name, real(file), flags, &given);
    if (out)
        *out = given;
    if (!real(file)->pMethods)
        return result;
    int version = real(file)->pMethods->iVersion;
    file->pMethods = &methods[version < 1 ? 0 : version > 3 ? 2 : version - 1];
    if (result != SQLITE_OK)
        return result;
    /* The kind of the file is in `flags`, and its access in `given`. */
    int access = given & SQLITE_OPEN_READWRITE;
    result = put_in_order(own, name, (flags & ~SQLITE_OPEN_READWRITE) | access);
    if (result != SQLITE_OK) {
        file_close(file);
        file->pMethods = NULL;
    }
    return result;
}

/* Whether a name is that of a super-journal: SQLite ends it in -mj and nine digits. */
static int is_super_name(const char *name)
{
    size_t length = strlen(name);
    return length > 12 && !memcmp(name + length - 12, "-mj", 3);
}

static int vfs_delete(sqlite3_vfs *vfs, const char *name, int is_synced)
{
    char dir[PATH_MAX];
    struct place *place = NULL;
    int result;
    (void)vfs;
    if (is_synced && directory(name, dir)) {
        pthread_mutex_lock(&tables);
        place = enter_place(dir, 0);
        pthread_mutex_unlock(&tables);
    }
    /* The end of a super-journal commits in all databases. */
    result = under->xDelete(under, name, is_synced && (!place || is_super_name(name)));
    if (!place)
        return result;
    if (result == SQLITE_OK && pg_barrier(place->group))
        result = SQLITE_IOERR_DIR_FSYNC;
    pthread_mutex_lock(&tables);
    leave_place(place);
    pthread_mutex_unlock(&tables);
    return result;
}

static int vfs_access(sqlite3_vfs *vfs, const char *name, int flags, int *result)
{
    (void)vfs;
    return under->xAccess(under, name, flags, result);
}

static int vfs_full_path(sqlite3_vfs *vfs, const char *name, int size, char *path)
{
    (void)vfs;
    return under->xFullPathname(under, name, size, path);
}

static void *vfs_dl_open(sqlite3_vfs *vfs, const char *name)
{
    (void)vfs;
    return under->xDlOpen(under, name);
}

static void vfs_dl_error(sqlite3_vfs *vfs, int size, char *text)
{
    (void)vfs;
    under->xDlError(under, size, text);
}

static void (*vfs_dl_sym(sqlite3_vfs *vfs, void *library, const char *symbol))(void)
{
    (void)vfs;
    return under->xDlSym(under, library, symbol);
}

static void vfs_dl_close(sqlite3_vfs *vfs, void *library)
{
    (void)vfs;
    under->xDlClose(under, library);
}

static int vfs_randomness(sqlite3_vfs *vfs, int size, char *bytes)
{
    (void)vfs;
    return under->xRandomness(under, size, bytes);
}

static int vfs_sleep(sqlite3_vfs *vfs, int microseconds)
{
    (void)vfs;
    return under->xSleep(under, microseconds);
}

static int vfs_time(sqlite3_vfs *vfs, double *days)
{
    (void)vfs;
    return under->xCurrentTime(under, days);
}

static int vfs_error(sqlite3_vfs *vfs, int size, char *text)
{
    (void)vfs;
    return under->xGetLastError(under, size, text);
}

static int vfs_time_int64(sqlite3_vfs *vfs, sqlite3_int64 *milliseconds)
{
    (void)vfs;
    return under->xCurrentTimeInt64(under, milliseconds);
}

static sqlite3_vfs own_vfs = {
    .zName = "selvedge",
    .xOpen = vfs_open,
    .xDelete = vfs_delete,
    .xAccess = vfs_access,
    .xFullPathname = vfs_full_path,
    .xDlOpen = vfs_dl_open,
    .xDlError = vfs_dl_error,
    .xDlSym = vfs_dl_sym,
    .xDlClose = vfs_dl_close,
    .xRandomness = vfs_randomness,
    .xSleep = vfs_sleep,
    .xCurrentTime = vfs_time,
    .xGetLastError = vfs_error,
    .xCurrentTimeInt64 = vfs_time_int64,
};

/* SQLite derives the name of this function from that of the library. */
__attribute__((visibility("default"))) int
sqlite3_selvedgesqlite_init(sqlite3 *database, char **error, const sqlite3_api_routines *api);

int sqlite3_selvedgesqlite_init(sqlite3 *database, char **error, const sqlite3_api_routines *api)
{
    SQLITE_EXTENSION_INIT2(api);
    (void)database;
    if (sqlite3_vfs_find("selvedge"))
        return SQLITE_OK_LOAD_PERMANENTLY;
    under = sqlite3_vfs_find(NULL);
    if (!under) {
        *error = sqlite3_mprintf("SQLite has no default VFS");
        return SQLITE_ERROR;
    }
    own_vfs.iVersion = under->iVersion < 2 ? 1 : 2;
    own_vfs.szOsFile = (int)sizeof(struct file) + under->szOsFile;
    own_vfs.mxPathname = under->mxPathname;
    int result = sqlite3_vfs_register(&own_vfs, 0);
    return result == SQLITE_OK ? SQLITE_OK_LOAD_PERMANENTLY : result;
}
