/* Checkers in C (C99) and C++ that judge many crash states in one process.
 *
 * `selvedge crash explore` starts such a program once, and asks it for the judgement of each state.
 * That is faster than a new process for each. There is no library, only this header:
 *
 *     static int check(const char *dir, const char *output, char *message, size_t size)
 *     {
 *         if (is_damaged(dir)) {
 *             snprintf(message, size, "the index of %s is damaged", dir);
 *             return 1;
 *         }
 *         return 0;
 *     }
 *
 *     int main(void)
 *     {
 *         return selvedge_check_serve(check) == 0 ? 0 : 1;
 *     }
 *
 * `dir` is the directory with the files after the crash, `output` the path of a file with the
 * program's standard output before the crash. The function returns 0 if the state is right. Otherwise
 * it writes a message of one line, and returns another number.
 *
 * The function may print: the standard output of the process becomes its standard error. Its standard
 * input is empty. */
#ifndef SELVEDGE_CHECKER_H
#define SELVEDGE_CHECKER_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Moves an open file to a number that children do not inherit, and opens `path` in its place, or
 * copies the standard error. */
static inline int selvedge_check_moved(int fd, const char *path)
{
	int moved = fcntl(fd, F_DUPFD, 3);
	int other = path ? open(path, O_RDONLY) : dup(2);

	if (moved < 0 || other < 0 || fcntl(moved, F_SETFD, FD_CLOEXEC) < 0 || dup2(other, fd) < 0)
		return -1;
	if (other != fd)
		close(other);
	return moved;
}

/* Reads a line of at most `size` - 1 bytes and ends it with zero. Returns its length, 0 at the end of
 * the input, and -1 with errno if it cannot be read. The explorer sends one line at a time. */
static inline long selvedge_check_line(int from, char *line, size_t size)
{
	size_t len = 0;

	while (len < size - 1) {
		ssize_t got = read(from, line + len, size - 1 - len);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return (long)got;
		len += (size_t)got;
		if (line[len - 1] == '\n') {
			line[len - 1] = 0;
			return (long)len;
		}
	}
	errno = ENAMETOOLONG;
	return -1;
}

/* Writes all of a text. Returns 0, or -1 with errno. */
static inline int selvedge_check_write(int to, const char *text, size_t len)
{
	while (len > 0) {
		ssize_t put = write(to, text, len);

		if (put < 0 && errno != EINTR)
			return -1;
		if (put > 0) {
			text += put;
			len -= (size_t)put;
		}
	}
	return 0;
}

/* Judges states by `check` until the standard input ends. Returns 0, or -1 with errno if the
 * explorer cannot be reached or a line is not a question. */
static inline int selvedge_check_serve(int (*check)(const char *dir, const char *output,
						    char *message, size_t size))
{
	static char line[16384], answer[2048];
	const size_t fail = 5; /* length of "fail " */
	int from = selvedge_check_moved(0, "/dev/null");
	int to = selvedge_check_moved(1, NULL);
	long len;

	if (from < 0 || to < 0)
		return -1;
	while ((len = selvedge_check_line(from, line, sizeof line)) > 0) {
		char *output = strchr(line, '\t');
		int verdict;

		if (!output) {
			errno = EPROTO;
			return -1;
		}
		*output++ = 0;
		memcpy(answer, "fail ", fail + 1);
		/* One byte stays for the end of the line. */
		verdict = check(line, output, answer + fail, sizeof answer - fail - 1);
		fflush(stdout);
		if (verdict == 0) {
			strcpy(answer, "ok");
		} else if (!answer[fail]) {
			snprintf(answer + fail, sizeof answer - fail - 1, "the checker returned %d",
				 verdict);
		}
		for (char *at = answer; *at; at++)
			if (*at == '\n' || *at == '\r')
				*at = ' ';
		strcat(answer, "\n");
		if (selvedge_check_write(to, answer, strlen(answer)) < 0)
			return -1;
	}
	return (int)len;
}

#ifdef __cplusplus
}
#endif

#endif
