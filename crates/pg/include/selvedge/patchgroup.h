/* Patchgroups for C (C99) and C++: order between changes of files, without fsync.
 *
 *   gcc program.c $(pkg-config --cflags --libs selvedge-pg)
 *
 * A group collects the changes that a process makes to files of one mount while it has the group
 * *engaged*. A group that depends on others reaches the disk after them. No call waits for the disk
 * except pg_sync.
 *
 *     pg_t copy = pg_create("/mnt/mail"), drop = pg_create("/mnt/mail");
 *     pg_engage(copy);
 *     ...                        // copies the message
 *     pg_disengage(copy);
 *     pg_depend(drop, copy);
 *     pg_engage(drop);
 *     unlink("/mnt/mail/inbox/1");
 *     pg_disengage(drop);
 *
 * Guarantees
 * ----------
 * - After a crash, a change of a group is present only if all changes of the groups on which it
 *   depends are present.
 * - A group cannot depend on itself, not even through other groups. First pg_depend names the
 *   groups before it, then processes engage it. A group on which another one depends is sealed: no
 *   process engages it any more.
 * - Children inherit the groups that their parent has engaged when they are made, and keep them.
 * - The order stays when the group is closed.
 *
 * All functions may be called by several threads at a time. The threads of a process share what it
 * has engaged. Each function returns -1 and sets errno if it fails; pg_create(3) has the table. */
#ifndef SELVEDGE_PATCHGROUP_H
#define SELVEDGE_PATCHGROUP_H

#ifdef __cplusplus
extern "C" {
#endif

/* A group: a file descriptor. Children inherit it over fork and exec. */
typedef int pg_t;

/* Makes a group in the mount that the directory `dir` is in. */
pg_t pg_create(const char *dir);

/* Makes `after` depend on `before`, and seals `before`. EBUSY: a running process, which may be a
 * child, has `before` engaged; or a process has ever engaged `after`. Returns 0 or -1. */
int pg_depend(pg_t after, pg_t before);

/* Makes further changes of this process part of the group. Returns 0 or -1. */
int pg_engage(pg_t pg);

/* Ends that, however often the process has engaged the group: threads that share a group count themselves.
 * Children that have inherited it keep it. Returns 0 or -1. */
int pg_disengage(pg_t pg);

/* Waits until the changes of the group so far are durable, and those on which they depend. Returns
 * 0 or -1. */
int pg_sync(pg_t pg);

/* Makes further changes of the group depend on its changes so far. Waits for nothing. Returns 0 or
 * -1. */
int pg_barrier(pg_t pg);

/* Makes each fsync, fdatasync and synchronous write of engaged processes a pg_barrier, which does
 * not wait. EBUSY: a process has engaged the group before. Returns 0 or -1. */
int pg_order(pg_t pg);

/* Closes the descriptor, as close does. The last close ends the group, and disengages it in all
 * processes. Returns 0 or -1. */
int pg_close(pg_t pg);

/* --- The protocol, for programs that do without the library --------------------------- */

/* The open of a name that begins with this, in any directory of the mount, makes a group. A random
 * rest of the name keeps two opens at the same time apart. */
#define SELVEDGE_PG_NAME ".selvedge-patchgroup"

/* Requests of ioctl. The input of SELVEDGE_PG_DEPEND is the inode number of the other group, an
 * integer of 64 bits. The others have no argument. */
#define SELVEDGE_PG_DEPEND 0x4008e901UL
#define SELVEDGE_PG_ENGAGE 0xe902UL
#define SELVEDGE_PG_DISENGAGE 0xe903UL
#define SELVEDGE_PG_SYNC 0xe904UL
#define SELVEDGE_PG_BARRIER 0xe905UL
#define SELVEDGE_PG_ORDER 0xe906UL

#ifdef __cplusplus
}
#endif

#endif
