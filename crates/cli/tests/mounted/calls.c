/*
 * System calls that safe Rust has no door to. The tests compile this once.
 *
 * calls map FILE           stores through a shared mapping and through the descriptor
 * calls keep FILE HANDLE   stores the file's handle
 * calls open DIR HANDLE    opens by that handle, on the mount of DIR, and copies to stdout
 *
 * Exits with 0, or with 1 and a message.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LEN = 8192, HANDLE_BYTES = 128 };

static int opened(const char *path, int flags)
{
    int fd = open(path, flags, 0600);
    if (fd < 0)
        err(1, "%s", path);
    return fd;
}

static void both_ways(const char *path)
{
    char seen[LEN];
    int fd = opened(path, O_RDWR | O_CREAT);
    if (ftruncate(fd, LEN))
        err(1, "ftruncate");
    char *map = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        err(1, "mmap");
    for (int round = 0; round < 3; round++) {
        memset(map, 'a' + round, LEN);
        if (pread(fd, seen, LEN, 0) != LEN || memcmp(seen, map, LEN))
            errx(1, "the descriptor does not see what the mapping stored");
        memset(seen, 'A' + round, LEN);
        if (pwrite(fd, seen + 100, LEN - 200, 100) != LEN - 200)
            err(1, "pwrite");
        if (map[99] != 'a' + round || map[100] != 'A' + round || map[LEN - 101] != 'A' + round)
            errx(1, "the mapping does not see what the descriptor wrote");
    }
    map[0] = '!';
    munmap(map, LEN);
    close(fd);
}

static void keep(const char *path, const char *to)
{
    char room[sizeof(struct file_handle) + HANDLE_BYTES];
    struct file_handle *handle = (struct file_handle *)room;
    int mount;
    handle->handle_bytes = HANDLE_BYTES;
    if (name_to_handle_at(AT_FDCWD, path, handle, &mount, 0))
        err(1, "name_to_handle_at");
    int fd = opened(to, O_WRONLY | O_CREAT | O_TRUNC);
    if (write(fd, room, sizeof room) != sizeof room)
        err(1, "%s", to);
}

static void by_handle(const char *dir, const char *from)
{
    char room[sizeof(struct file_handle) + HANDLE_BYTES], text[LEN];
    if (read(opened(from, O_RDONLY), room, sizeof room) != sizeof room)
        err(1, "%s", from);
    int fd = open_by_handle_at(opened(dir, O_RDONLY), (struct file_handle *)room, O_RDONLY);
    if (fd < 0)
        err(1, "open_by_handle_at");
    ssize_t len = read(fd, text, sizeof text);
    if (len < 0 || fwrite(text, 1, len, stdout) != (size_t)len)
        err(1, "read");
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "map"))
        both_ways(argv[2]);
    else if (argc == 4 && !strcmp(argv[1], "keep"))
        keep(argv[2], argv[3]);
    else if (argc == 4 && !strcmp(argv[1], "open"))
        by_handle(argv[2], argv[3]);
    else
        errx(1, "usage: calls map FILE | keep FILE HANDLE | open DIR HANDLE");
    return 0;
}
