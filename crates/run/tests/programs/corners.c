/* Prints what the calls of a program return, in the directory that its argument names. The tests compare
   the output under `run` with that on tmpfs. */
#define _GNU_SOURCE
#include <errno.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define SHOW(call) do { errno = 0; long result = (long)(call); \
    printf("%d: %s = %ld%s%s\n", __LINE__, #call, result, errno ? " " : "", \
           errno ? strerrorname_np(errno) : ""); } while (0)

static void *volatile nowhere = (void *)8;

static long direct(long number, long a, long b, long c)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return result;
}

static void descriptors(void)
{
    int fd = open("file", O_RDWR | O_CREAT | O_EXCL, 0644);
    SHOW(fd);
    SHOW(open("file", O_RDWR | O_CREAT | O_EXCL, 0644));
    SHOW(write(fd, "0123456789", 10));
    int other = dup(fd);
    SHOW(other);
    SHOW(lseek(other, 3, SEEK_SET));
    char buffer[64] = "";
    SHOW(read(fd, buffer, 4));
    SHOW(lseek(other, 0, SEEK_CUR));
    SHOW(dup2(fd, 20));
    SHOW(dup3(fd, 21, O_CLOEXEC));
    SHOW(fcntl(21, F_GETFD));
    SHOW(fcntl(20, F_GETFL));
    SHOW(fcntl(fd, F_DUPFD, 30));
    SHOW(fcntl(fd, F_SETFL, O_APPEND));
    SHOW(fcntl(20, F_GETFL));
    SHOW(pwrite(fd, "ab", 2, 0));
    SHOW(lseek(fd, 0, SEEK_END));
    SHOW(fcntl(fd, F_SETFL, 0));
    SHOW(close(other));
    SHOW(read(other, buffer, 1));
    SHOW(close_range(20, 25, 0));
    SHOW(read(20, buffer, 1));
    SHOW(fcntl(30, F_GETFD));
    SHOW(close(30));
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN | POLLOUT};
    SHOW(poll(&poll_fd, 1, 0));
    SHOW(poll_fd.revents);
    int pipes[2];
    SHOW(pipe(pipes));
    SHOW(pipes[0]);
    SHOW(dup2(pipes[0], fd));
    SHOW(fcntl(fd, F_GETFL));
    SHOW(close(fd));
    SHOW(close(pipes[0]));
    SHOW(close(pipes[1]));
    SHOW(open("file", O_WRONLY));
    SHOW(read(3, buffer, 1));
    SHOW(isatty(3));
    SHOW(close(3));
    SHOW(close(3));
}

static void contents(void)
{
    int fd = open("data", O_RDWR | O_CREAT | O_TRUNC, 0600);
    struct iovec parts[2] = {{"hello ", 6}, {"world", 5}};
    SHOW(writev(fd, parts, 2));
    char buffer[32] = "";
    SHOW(pread(fd, buffer, 5, 6));
    SHOW(strcmp(buffer, "world"));
    SHOW(ftruncate(fd, 100000));
    SHOW(lseek(fd, 0, SEEK_HOLE) <= 100000);
    SHOW(fallocate(fd, 0, 100000, 5000));
    SHOW(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096));
    SHOW(pread(fd, buffer, 5, 0));
    SHOW(buffer[0]);
    SHOW(pwrite(fd, "x", 1, -1));
    SHOW(lseek(fd, -1, SEEK_SET));
    SHOW(truncate("data", 10));
    SHOW(fsync(fd));
    SHOW(fdatasync(fd));
    SHOW(read(fd, nowhere, 8));
    SHOW(pread(fd, nowhere, 5, 0));
    SHOW(write(fd, nowhere, 8));
    SHOW(open(nowhere, O_RDONLY));
    SHOW(stat("data", nowhere));
    void *map = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    SHOW(map == MAP_FAILED);
    SHOW(munmap(map, 4096));
    SHOW(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 1) == MAP_FAILED);
    int copy = open("copy", O_RDWR | O_CREAT, 0600);
    SHOW(copy_file_range(fd, &(loff_t){0}, copy, NULL, 10, 0));
    SHOW(lseek(copy, 0, SEEK_CUR));
    int null = open("/dev/null", O_WRONLY);
    SHOW(sendfile(null, copy, &(off_t){2}, 100));
    SHOW(sendfile(null, copy, &(off_t){-1}, 100));
    SHOW(lseek(copy, 0, SEEK_CUR));
    SHOW(flock(fd, LOCK_EX | LOCK_NB));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    SHOW(fcntl(fd, F_SETLK, &lock));
    SHOW(close(null));
    SHOW(close(copy));
    SHOW(close(fd));
    FILE *stream = fopen("lines", "w+");
    for (int n = 0; n < 3000; n++)
        fprintf(stream, "line %d\n", n);
    SHOW(fflush(stream));
    rewind(stream);
    int count = 0;
    while (fgets(buffer, sizeof buffer, stream))
        count++;
    SHOW(count);
    SHOW(fclose(stream));
}

static void names(void)
{
    struct stat found;
    SHOW(mkdir("dir", 0755));
    SHOW(mkdir("dir", 0755));
    SHOW(mkdir("dir/sub/", 0755));
    SHOW(symlink("../file", "dir/link"));
    SHOW(symlink("/dev/null", "away"));
    SHOW(symlink("loop", "loop"));
    SHOW(open("loop", O_RDONLY));
    SHOW(open("dir/link", O_RDONLY | O_NOFOLLOW));
    SHOW(stat("dir/link", &found));
    SHOW(found.st_size);
    SHOW(lstat("dir/link", &found));
    SHOW(S_ISLNK(found.st_mode));
    SHOW(stat("away", &found));
    SHOW(S_ISCHR(found.st_mode));
    SHOW(open("away", O_RDONLY));
    SHOW(close(3));
    SHOW(stat("dir/../dir/sub/../../file", &found));
    SHOW(stat("file/", &found));
    SHOW(stat("file/x", &found));
    SHOW(stat("none", &found));
    SHOW(stat("", &found));
    SHOW(open("none/", O_CREAT | O_WRONLY, 0600));
    SHOW(open("dir", O_WRONLY));
    SHOW(open("file", O_DIRECTORY));
    SHOW(link("file", "dir/hard"));
    SHOW(stat("file", &found));
    SHOW(found.st_nlink);
    SHOW(rename("dir/hard", "hard"));
    SHOW(rename("dir", "dir/sub/below"));
    SHOW(rename("hard", "none/hard"));
    SHOW(rename("hard", "/tmp/selvedge-run-none"));
    SHOW(renameat2(AT_FDCWD, "hard", AT_FDCWD, "file", RENAME_NOREPLACE));
    SHOW(unlink("dir"));
    SHOW(rmdir("dir"));
    SHOW(rmdir("file"));
    SHOW(rmdir("dir/sub/."));
    SHOW(unlink("hard"));
}

/* A symbolic link with a slash after it is followed by calls that look, and not by those that change names. */
static void slashes(void)
{
    SHOW(mkdir("target", 0755));
    SHOW(symlink("target", "to"));
    SHOW(symlink("missing", "dangling"));
    SHOW(access("to/", F_OK));
    SHOW(rmdir("to/"));
    SHOW(unlink("to/"));
    SHOW(rename("to/", "moved"));
    SHOW(rename("target", "to/"));
    SHOW(mkdir("to/", 0755));
    SHOW(mkdir("dangling/", 0755));
    SHOW(access("target", F_OK));
    char outside[] = "/tmp/selvedge-run-XXXXXX", missing[64];
    SHOW(mkdtemp(outside) != NULL);
    snprintf(missing, sizeof missing, "%s/missing", outside);
    SHOW(symlink(outside, "out"));
    SHOW(symlink(missing, "nowhere"));
    SHOW(rmdir("out/"));
    SHOW(mkdir("nowhere/", 0755));
    SHOW(rename("out/", "nowhere/"));
    SHOW(access(outside, F_OK));
    SHOW(access(missing, F_OK));
    SHOW(unlink("out"));
    SHOW(unlink("nowhere"));
    SHOW(rmdir(outside));
    SHOW(rmdir("target/"));
    SHOW(unlink("to"));
    SHOW(unlink("dangling"));
}

static void controls(void)
{
    int value = 1;
    int fd = open("controlled", O_RDWR | O_CREAT, 0644);
    SHOW(write(fd, "0123456789", 10));
    SHOW(ioctl(fd, FIONREAD, &value));
    SHOW(value);
    SHOW(lseek(fd, 3, SEEK_SET));
    SHOW(ioctl(fd, FIONREAD, &value));
    SHOW(value);
    SHOW(ioctl(fd, FIONREAD, nowhere));
    SHOW(ioctl(fd, FIONBIO, &(int){1}));
    SHOW(fcntl(fd, F_GETFL));
    SHOW(ioctl(fd, FIONBIO, &(int){0}));
    SHOW(fcntl(fd, F_GETFL));
    SHOW(ioctl(fd, TCGETS, nowhere));
    char path[64], contents[16] = "";
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), fd);
    int again = open(path, O_RDONLY);
    SHOW(read(again, contents, sizeof contents));
    SHOW(contents[0]);
    SHOW(close(again));
    snprintf(path, sizeof path, "/proc/thread-self/fd/%d", fd);
    again = open(path, O_RDONLY);
    SHOW(read(again, contents, sizeof contents));
    SHOW(close(again));
    SHOW(close(fd));
    int dir = open(".", O_RDONLY);
    SHOW(ioctl(dir, FIONREAD, &value));
    SHOW(close(dir));
    SHOW(unlink("controlled"));
}

static void attributes(void)
{
    struct stat found;
    int dir = open("dir", O_RDONLY | O_DIRECTORY);
    SHOW(openat(dir, "new", O_CREAT | O_WRONLY, 0640));
    SHOW(fstatat(dir, "new", &found, 0));
    SHOW(found.st_mode);
    SHOW(fstatat(dir, "", &found, AT_EMPTY_PATH));
    SHOW(unlinkat(dir, "sub", AT_REMOVEDIR));
    SHOW(faccessat(dir, "new", X_OK, 0));
    SHOW(readlinkat(dir, "link", (char[64]){0}, 64));
    SHOW(close(4));
    SHOW(close(dir));
    umask(077);
    SHOW(open("masked", O_CREAT | O_RDWR, 0666));
    SHOW(fstat(3, &found));
    SHOW(found.st_mode);
    SHOW(fchmod(3, 0444));
    SHOW(chmod("masked", 0400));
    SHOW(futimens(3, (struct timespec[2]){{1, 2}, {3, 4}}));
    SHOW(fstat(3, &found));
    SHOW(found.st_mtim.tv_sec * 10 + found.st_mtim.tv_nsec);
    SHOW(unlink("masked"));
    SHOW(write(3, "still", 5));
    SHOW(fstat(3, &found));
    SHOW(found.st_nlink);
    SHOW(close(3));
    umask(022);
    int temporary = open(".", O_TMPFILE | O_RDWR, 0600);
    SHOW(temporary);
    SHOW(write(temporary, "t", 1));
    SHOW(symlink("unnamed", "pointer"));
    SHOW(linkat(temporary, "", AT_FDCWD, "pointer/", AT_EMPTY_PATH));
    SHOW(linkat(temporary, "", AT_FDCWD, "slash/", AT_EMPTY_PATH));
    SHOW(unlink("pointer"));
    SHOW(linkat(temporary, "", AT_FDCWD, "named", AT_EMPTY_PATH));
    SHOW(access("named", R_OK | W_OK));
    SHOW(close(temporary));
    SHOW(setxattr("file", "trusted.a", "value", 5, 0));
    SHOW(getxattr("file", "trusted.a", (char[8]){0}, 8));
    SHOW(getxattr("file", "trusted.b", NULL, 0));
    SHOW(removexattr("file", "trusted.a"));
    int seen = 0;
    DIR *list = opendir("dir");
    while (readdir(list))
        seen++;
    SHOW(seen);
    SHOW(closedir(list));
}

static void directories(const char *top)
{
    char path[4096];
    SHOW(chdir("dir"));
    SHOW(strcmp(getcwd(path, sizeof path) + strlen(top), "/dir"));
    SHOW(access("new", F_OK));
    SHOW(chdir(".."));
    SHOW(strcmp(getcwd(path, sizeof path), top));
    SHOW(getcwd(path, 2) == NULL);
    int here = open(".", O_RDONLY);
    SHOW(chdir("/"));
    SHOW(strcmp(getcwd(path, sizeof path), "/"));
    SHOW(access("file", F_OK));
    SHOW(fchdir(here));
    SHOW(access("file", F_OK));
    SHOW(close(here));
    SHOW(chdir("file"));
    SHOW(access("../../../../../../../../dev/null", W_OK));
}

static volatile int arrived;

static void on_signal(int signal)
{
    (void)signal;
    int fd = open("from-handler", O_CREAT | O_WRONLY | O_APPEND, 0600);
    if (write(fd, "s", 1) == 1)
        arrived++;
    close(fd);
}

static void *writer(void *argument)
{
    int fd = *(int *)argument;
    for (int n = 0; n < 500; n++)
        if (write(fd, "0123456789abcdef", 16) != 16)
            return argument;
    return NULL;
}

static volatile int started;

static void *interrupted(void *argument)
{
    char name[] = "busy";
    started = 1;
    while (!*(volatile int *)argument) {
        int fd = open(name, O_CREAT | O_RDWR, 0600);
        if (fd < 0 || close(fd) != 0)
            return argument;
    }
    return NULL;
}

static void threads(void)
{
    pthread_t threads[4];
    int fd = open("appended", O_CREAT | O_WRONLY | O_APPEND, 0600);
    for (int n = 0; n < 4; n++)
        pthread_create(&threads[n], NULL, writer, &fd);
    void *failed = NULL;
    for (int n = 0; n < 4; n++) {
        void *one;
        pthread_join(threads[n], &one);
        failed = one ? one : failed;
    }
    SHOW(failed != NULL);
    SHOW(lseek(fd, 0, SEEK_END));
    SHOW(close(fd));
    struct sigaction action = {.sa_handler = on_signal}, seen;
    SHOW(sigaction(SIGUSR1, &action, NULL));
    SHOW(sigaction(SIGUSR1, NULL, &seen));
    SHOW(seen.sa_handler == on_signal);
    SHOW(seen.sa_flags & SA_SIGINFO);
    /* Signals that arrive at each moment of a thread's first call, which is longer than the others. */
    failed = NULL;
    for (int n = 0; n < 500; n++) {
        int stop = started = 0;
        pthread_create(&threads[0], NULL, interrupted, &stop);
        while (!started)
            ;
        for (volatile int m = 0; m < n * 20; m++)
            ;
        for (int m = 0; m < 3; m++) {
            int before = arrived;
            pthread_kill(threads[0], SIGUSR1);
            while (arrived == before)
                usleep(10);
        }
        stop = 1;
        void *one;
        pthread_join(threads[0], &one);
        failed = one ? one : failed;
    }
    SHOW(failed != NULL);
    struct stat found;
    SHOW(stat("from-handler", &found));
    SHOW(found.st_size);
    SHOW(raise(SIGUSR1));
    SHOW(arrived);
}

static void directly(void)
{
    SHOW(direct(SYS_open, (long)"file", O_RDONLY, 0));
    SHOW(direct(SYS_lseek, 3, 2, SEEK_SET));
    SHOW(syscall(SYS_lseek, 3, 0, SEEK_CUR));
    SHOW(direct(SYS_close, 3, 0, 0));
    SHOW(direct(SYS_open, (long)"none", O_RDONLY, 0));
    SHOW(direct(SYS_getpid, 0, 0, 0) == getpid());
}

/* Paths that name open files by their numbers, as shells and other programs use them. */
static void numbers(void)
{
    struct stat stat_of;
    struct statfs space;
    char path[64], target[4096];
    int dir = open("numbered", O_RDONLY | (mkdir("numbered", 0755) == 0 ? O_DIRECTORY : 0));
    int fd = openat(dir, "file", O_RDWR | O_CREAT, 0644);
    SHOW(write(fd, "contents", 8));
    for (int n = 0; n < 2; n++) {
        snprintf(path, sizeof path, "%s/%d", n ? "/proc/self/fd" : "/dev/fd", fd);
        SHOW(stat(path, &stat_of));
        SHOW(stat_of.st_size);
        SHOW(access(path, R_OK | W_OK));
        SHOW(access(path, X_OK));
        SHOW(truncate(path, 5 + n));
        SHOW(chmod(path, 0600));
        SHOW(lstat(path, &stat_of));
        SHOW(S_ISLNK(stat_of.st_mode));
        long len = readlink(path, target, sizeof target);
        SHOW(len > 0);
        printf("%.*s\n", (int)len, target);
        snprintf(target, sizeof target, "linked%d", n);
        SHOW(linkat(AT_FDCWD, path, AT_FDCWD, target, AT_SYMLINK_FOLLOW));
        SHOW(rename(path, "elsewhere"));
        SHOW(unlink(target));
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d/file", dir);
    SHOW(stat(path, &stat_of));
    SHOW(close(open(path, O_RDONLY)) == 0);
    SHOW(rename(path, "numbered/other"));
    snprintf(path, sizeof path, "/proc/self/fd/%d", dir);
    long len = readlink(path, target, sizeof target);
    printf("%.*s\n", (int)len, target);
    SHOW(unlink("numbered/other"));
    int nameless = open("numbered", O_TMPFILE | O_RDWR, 0600);
    snprintf(path, sizeof path, "/proc/self/fd/%d", nameless);
    SHOW(linkat(AT_FDCWD, path, AT_FDCWD, "numbered/named", AT_SYMLINK_FOLLOW));
    SHOW(stat("numbered/named", &stat_of));
    SHOW(stat("/dev/fd/9999", &stat_of));
    SHOW(statfs("missing", &space));
    /* The kernel does not look at the fifth argument of renameat. */
    SHOW(syscall(SYS_renameat, dir, "named", AT_FDCWD, "renamed", 0x1234));
    SHOW(stat("renamed", &stat_of));
    close(nameless);
    close(fd);
    close(dir);
}

/* Paths that start at a file, at a number of /proc, and at the working directory without a name. */
static void starts(void)
{
    int fd = open("start", O_RDWR | O_CREAT, 0600), copy = open("copy", O_RDWR | O_CREAT, 0600);
    struct stat stat_of;
    char path[64];
    SHOW(write(fd, "0123", 4));
    SHOW(openat(fd, ".", O_RDONLY));
    SHOW(openat(fd, ".", O_WRONLY | O_TRUNC));
    SHOW(openat(fd, "..", O_RDONLY));
    SHOW(fstatat(fd, ".", &stat_of, 0));
    SHOW(fchmodat(fd, ".", 0644, 0));
    snprintf(path, sizeof path, "/proc/self/fd/%d/", fd);
    SHOW(open(path, O_WRONLY | O_TRUNC));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    SHOW(open(path, O_RDONLY | O_DIRECTORY));
    SHOW(open(path, O_RDWR | O_NOFOLLOW | O_TRUNC));
    SHOW(open(path, O_RDWR | O_CREAT | O_EXCL | O_TRUNC, 0600));
    SHOW(close(open(path, O_PATH | O_TRUNC)));
    SHOW(close(open(path, O_RDWR | O_CREAT, 0600)));
    SHOW(fstat(fd, &stat_of));
    SHOW(stat_of.st_size);
    SHOW(symlink("start", "start-link"));
    int link = open("start-link", O_PATH | O_NOFOLLOW);
    snprintf(path, sizeof path, "/proc/self/fd/%d", link);
    SHOW(open(path, O_RDONLY));
    SHOW(mkdir("start-directory", 0700));
    SHOW(unlink("start-directory/"));
    SHOW(unlink("missing/"));
    int dir = open("start-directory", O_RDONLY);
    snprintf(path, sizeof path, "/proc/self/fd/%d", dir);
    SHOW(open(path, O_RDWR | O_CREAT, 0600));
    int nameless = open(path, O_TMPFILE | O_RDWR, 0600);
    SHOW(write(nameless, "a", 1));
    SHOW(chdir("start-directory"));
    struct timespec times[2] = {{1000, 0}, {2000, 0}};
    SHOW(syscall(SYS_utimensat, AT_FDCWD, "", times, AT_EMPTY_PATH));
    SHOW(faccessat(AT_FDCWD, "", R_OK, AT_EMPTY_PATH));
    SHOW(fchownat(AT_FDCWD, "", -1, 1, AT_EMPTY_PATH));
    SHOW(stat(".", &stat_of));
    SHOW(stat_of.st_mtime);
    SHOW(stat_of.st_gid);
    SHOW(chdir(".."));
    SHOW(lseek(fd, 0, SEEK_SET));
    SHOW(copy_file_range(fd, NULL, copy, NULL, 4, 1));
    off_t first = 0, second = 2;
    SHOW(copy_file_range(fd, &first, fd, &second, 4, 0));
    SHOW(copy_file_range(fd, &second, fd, &first, 4, 0));
    SHOW(copy_file_range(fd, NULL, fd, &second, 2, 0));
    SHOW(second);
    SHOW(lseek(fd, 3, SEEK_SET));
    SHOW(copy_file_range(fd, NULL, fd, &first, 10, 0));
    SHOW(first);
    SHOW(lseek(fd, 0, SEEK_SET));
    SHOW(copy_file_range(fd, NULL, fd, NULL, 1, 0));
    SHOW(fcntl(copy, F_SETFL, O_APPEND));
    SHOW(copy_file_range(fd, NULL, copy, NULL, 4, 0));
    SHOW(sendfile(copy, fd, NULL, 4));
    SHOW(fcntl(copy, F_SETFL, 0));
    SHOW(sendfile(copy, fd, NULL, 4));
    for (int n = 0; n < 5; n++)
        close((int[]){fd, copy, link, dir, nameless}[n]);
}

/* A path that is longer than the kernel's buffer, and flags that exclude each other. */
static void long_path(void)
{
    char name[251];
    memset(name, 'n', 250);
    name[250] = 0;
    for (int n = 0; n < 18; n++)
        if (mkdir(name, 0700) != 0 || chdir(name) != 0)
            SHOW(-1);
    SHOW(syscall(SYS_getcwd, name, 10));
    memset(name, 'n', 250);
    for (int n = 0; n < 18; n++)
        if (chdir("..") != 0 || rmdir(name) != 0)
            SHOW(-1);
    SHOW(open(".", O_TMPFILE | O_RDONLY, 0600));
    SHOW(open(".", O_TMPFILE | O_CREAT | O_RDWR, 0600));
    SHOW(open("missing", O_PATH | O_CREAT | O_TRUNC, 0600));
}

/* A splice moves what a pipe has room for. */
static void splices(void)
{
    static char bytes[100000];
    int ends[2], small[2];
    int fd = open("spliced", O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (int n = 0; n < 100000; n++)
        bytes[n] = n % 251;
    SHOW(write(fd, bytes, sizeof bytes));
    SHOW(pipe(ends));
    SHOW(pipe(small));
    SHOW(fcntl(small[1], F_SETPIPE_SZ, 4096));
    loff_t at = 0;
    SHOW(splice(fd, &at, small[1], NULL, 4096, 0));
    SHOW(at);
    SHOW(splice(fd, &at, small[1], NULL, 10, SPLICE_F_NONBLOCK));
    SHOW(at);
    SHOW(read(small[0], bytes + 50000, 4096));
    SHOW(memcmp(bytes + 50000, bytes, 4096));
    SHOW(splice(small[0], NULL, fd, &at, 10, SPLICE_F_NONBLOCK));
    SHOW(lseek(fd, 0, SEEK_SET));
    SHOW(splice(fd, NULL, ends[1], NULL, 1000, SPLICE_F_MORE));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(splice(ends[0], NULL, fd, NULL, 600, SPLICE_F_NONBLOCK));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(splice(ends[0], NULL, fd, &at, 600, 0));
    SHOW(splice(fd, &at, ends[1], &at, 10, 0));
    SHOW(splice(fd, &at, ends[1], NULL, 10, 0x100));
    SHOW(splice(fd, NULL, fd, NULL, 10, 0));
    SHOW(splice(fd, &at, ends[1], NULL, 0, 0));
    for (int n = 0; n < 5; n++)
        close((int[]){fd, ends[0], ends[1], small[0], small[1]}[n]);
    SHOW(unlink("spliced"));
}

/* Data among the code, as libcrypto has them, that look like a call. */
__asm__(".text\n"
        "looks_like_a_call: .byte 0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0xc3, 0, 0, 0, 0, 0, 0, 0, 0\n");
extern const unsigned char looks_like_a_call[16];

static void data(void)
{
    for (int n = 0; n < 16; n++)
        SHOW(looks_like_a_call[n]);
}

int main(int count, char **arguments)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count != 2 || chdir(arguments[1]) != 0)
        return 1;
    descriptors();
    contents();
    names();
    slashes();
    controls();
    attributes();
    directories(arguments[1]);
    threads();
    directly();
    numbers();
    starts();
    long_path();
    splices();
    data();
    return 0;
}
