/* Children that share open files with their parent: fork, exec and posix_spawn. As corners.c. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHOW(call) do { errno = 0; long result = (long)(call); \
    printf("%d: %s = %ld%s%s\n", __LINE__, #call, result, errno ? " " : "", \
           errno ? strerrorname_np(errno) : ""); } while (0)

extern char **environ;

static int status_of(pid_t child)
{
    int status;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int main(int count, char **arguments)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count > 2) {
        SHOW(lseek(10, 0, SEEK_CUR));
        SHOW(fcntl(11, F_GETFD));
        SHOW(write(10, "program", 7));
        SHOW(access("shared", F_OK));
        SHOW(write(1, "", 0));
        return 7;
    }
    if (chdir(arguments[1]) != 0)
        return 1;
    int fd = open("shared", O_RDWR | O_CREAT, 0644);
    dup2(fd, 10);
    dup3(fd, 11, O_CLOEXEC);
    close(fd);
    SHOW(write(10, "parent", 6));
    pid_t child = fork();
    if (child == 0) {
        SHOW(write(10, "child", 5));
        SHOW(close(10));
        _exit(3);
    }
    SHOW(status_of(child));
    SHOW(lseek(10, 0, SEEK_CUR));
    char *again[] = {"/proc/self/exe", arguments[1], "again", NULL};
    child = fork();
    if (child == 0) {
        execv("/none", again);
        execv("/proc/self/exe", again);
        _exit(9);
    }
    SHOW(status_of(child));
    SHOW(lseek(10, 0, SEEK_CUR));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "spawned", O_CREAT | O_WRONLY, 0600);
    SHOW(posix_spawn(&child, "/proc/self/exe", &actions, NULL, again, environ));
    SHOW(status_of(child));
    SHOW(lseek(10, 0, SEEK_CUR));
    SHOW(access("spawned", F_OK));
    child = vfork();
    if (child == 0) {
        close(10);
        _exit(5);
    }
    SHOW(status_of(child));
    SHOW(write(10, "end", 3));
    SHOW(lseek(10, 0, SEEK_CUR));
    char *const bare[] = {NULL};
    child = fork();
    if (child == 0) {
        execle("/proc/self/exe", "again", arguments[1], "again", NULL, bare);
        _exit(9);
    }
    SHOW(status_of(child));
    SHOW(lseek(10, 0, SEEK_CUR));
    return 0;
}
