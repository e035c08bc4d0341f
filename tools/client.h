/* Shared by the clients that test and measure servers of others. */
#ifndef CLIENT_H
#define CLIENT_H

#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* The server that this client started, if it did. */
static pid_t server;

static _Noreturn __attribute__((format(printf, 1, 2))) void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    fputs("\n", stderr);
    if (server > 0)
        kill(server, SIGKILL);
    _exit(1);
}

/* Seconds. */
static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

/* A number below `below`. */
static uint64_t some(uint64_t *seed, uint64_t below)
{
    *seed ^= *seed << 13, *seed ^= *seed >> 7, *seed ^= *seed << 17;
    return *seed % below;
}

/* Seconds of processors that a program had. */
static double used_by(pid_t program)
{
    struct timespec at = {0};
    clockid_t clock;
    if (clock_getcpuclockid(program, &clock) != 0 || clock_gettime(clock, &at) != 0)
        fail("no program %d", program);
    return at.tv_sec + at.tv_nsec / 1e9;
}

#endif
