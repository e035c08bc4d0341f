/* libselvedge-pg: the calls of <selvedge/patchgroup.h>, as requests to the server of the mount. */
#define _FILE_OFFSET_BITS 64 /* inode numbers have 64 bits */
#define _GNU_SOURCE          /* O_PATH */
#include <selvedge/patchgroup.h>

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether the inode number is one of a group. */
static int is_group(const struct stat *file)
{
    return (uint64_t)file->st_ino >> 62 == 1;
}

/* Closes the descriptor, and fails with this error. */
static int fail(int descriptor, int error)
{
    close(descriptor);
    errno = error;
    return -1;
}

static int request(pg_t pg, unsigned long number)
{
    return ioctl(pg, number) < 0 ? -1 : 0;
}

pg_t pg_create(const char *dir)
{
    char name[sizeof SELVEDGE_PG_NAME + 17];
    uint64_t own = 0;
    struct stat file;
    int place;
    pg_t pg;

    if (getrandom(&own, sizeof own, 0) < 0)
        return -1;
    snprintf(name, sizeof name, "%s.%016llx", SELVEDGE_PG_NAME, (unsigned long long)own);
    place = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (place < 0)
        return -1;
    /* Without O_CLOEXEC: programs that this process starts share its groups. */
    pg = openat(place, name, O_RDWR | O_NOCTTY);
    if (pg < 0)
        return fail(place, errno);
    close(place);
    if (fstat(pg, &file))
        return fail(pg, errno);
    /* Another file system may have a file of that name. */
    return is_group(&file) ? pg : fail(pg, EINVAL);
}

int pg_depend(pg_t after, pg_t before)
{
    struct stat file, other;
    uint64_t number;

    if (fstat(after, &file) || fstat(before, &other))
        return -1;
    /* Each mount counts its groups: the number says nothing about groups of another mount. */
    if (file.st_dev != other.st_dev || !is_group(&other)) {
        errno = EBADF;
        return -1;
    }
    number = other.st_ino;
    return ioctl(after, SELVEDGE_PG_DEPEND, &number) < 0 ? -1 : 0;
}

int pg_engage(pg_t pg)
{
    return request(pg, SELVEDGE_PG_ENGAGE);
}

int pg_disengage(pg_t pg)
{
    return request(pg, SELVEDGE_PG_DISENGAGE);
}

int pg_sync(pg_t pg)
{
    return request(pg, SELVEDGE_PG_SYNC);
}

int pg_barrier(pg_t pg)
{
    return request(pg, SELVEDGE_PG_BARRIER);
}

int pg_order(pg_t pg)
{
    return request(pg, SELVEDGE_PG_ORDER);
}

int pg_close(pg_t pg)
{
    return close(pg);
}
