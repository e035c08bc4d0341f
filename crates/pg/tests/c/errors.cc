// The header in C++, and the errors outside of all mounts of Selvedge.
#include <selvedge/patchgroup.h>
#include <selvedge/patchgroup.h> // twice is once

#include <cerrno>
#include <cstdio>
#include <fcntl.h>

static int wrong = 0;

static void check(const char *call, int result, int error)
{
    if (result == -1 && errno == error)
        return;
    std::fprintf(stderr, "%s: result %d, errno %d, not %d\n", call, result, errno, error);
    wrong = 1;
}

#define CHECK(call, error) (errno = 0, check(#call, (call), (error)))

int main(int, char **words)
{
    const char *directory = words[1];
    CHECK(pg_create(directory), ENOENT);
    CHECK(pg_create("/no such directory"), ENOENT);
    CHECK(pg_create("/proc/self/status"), ENOTDIR);

    const pg_t file = open(directory, O_RDONLY);
    CHECK(pg_depend(file, file), EBADF);
    CHECK(pg_engage(file), ENOTTY);
    if (pg_close(file) != 0)
        wrong = 1;
    CHECK(pg_depend(file, file), EBADF);
    CHECK(pg_engage(file), EBADF);
    CHECK(pg_disengage(file), EBADF);
    CHECK(pg_sync(file), EBADF);
    CHECK(pg_barrier(file), EBADF);
    CHECK(pg_order(file), EBADF);
    CHECK(pg_close(file), EBADF);
    return wrong;
}
