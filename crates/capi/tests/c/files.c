/* Every call of <selvedge/files.h>, on the store at the socket that the argument names. */
#include <selvedge/files.h>
#include "check.h"
#include <errno.h>
#include <pthread.h>

#define FAILS(call, number) CHECK((errno = 0, (call) == -1) && errno == (number))

static selvedge_store *store;

static void open_files(void)
{
    char buffer[32];
    struct stat stat;
    CHECK(selvedge_store_mkdir(store, "dir", 0755) == 0);
    FAILS(selvedge_store_mkdir(store, "/dir/", 0755), EEXIST);
    selvedge_file *file = selvedge_file_open(store, "dir/file", O_RDWR | O_CREAT | O_EXCL, 0640);
    CHECK(file != NULL);
    CHECK(selvedge_file_write(file, "contents", 8) == 8);
    CHECK(selvedge_file_pwrite(file, "C", 1, 0) == 1);
    CHECK(selvedge_file_pread(file, buffer, sizeof buffer, 2) == 6 && memcmp(buffer, "ntents", 6) == 0);
    CHECK(selvedge_file_seek(file, -3, SEEK_END) == 5);
    CHECK(selvedge_file_read(file, buffer, sizeof buffer) == 3 && memcmp(buffer, "nts", 3) == 0);
    CHECK(selvedge_file_seek(file, 0, SEEK_CUR) == 8);
    FAILS(selvedge_file_seek(file, -1, SEEK_SET), EINVAL);
    FAILS(selvedge_file_seek(file, 0, 77), EINVAL);
    FAILS(selvedge_file_pread(file, buffer, 1, -1), EINVAL);
    CHECK(selvedge_file_truncate(file, 4) == 0 && selvedge_file_sync(file) == 0);
    CHECK(selvedge_file_stat(file, &stat) == 0);
    CHECK(stat.st_size == 4 && stat.st_mode == (S_IFREG | 0640) && stat.st_nlink == 1);
    CHECK(stat.st_mtim.tv_sec > 1000000000);
    selvedge_file_close(file);
    CHECK(selvedge_file_open(store, "dir/file", O_RDWR | O_CREAT | O_EXCL, 0640) == NULL && errno == EEXIST);
    CHECK(strstr(selvedge_message(), "dir/file") != NULL);
    CHECK(selvedge_file_open(store, "dir/none", O_RDONLY, 0) == NULL && errno == ENOENT);
    CHECK(selvedge_file_open(store, "dir/file/", O_RDONLY, 0) == NULL && errno == ENOTDIR);
    CHECK(selvedge_file_open(store, "dir", O_WRONLY, 0) == NULL && errno == EISDIR);
    CHECK(selvedge_file_open(store, "dir/file", O_RDONLY | O_DIRECTORY, 0) == NULL && errno == ENOTDIR);
    file = selvedge_file_open(store, "dir/file", O_WRONLY | O_APPEND, 0);
    CHECK(selvedge_file_write(file, "++", 2) == 2 && selvedge_file_seek(file, 0, SEEK_CUR) == 6);
    FAILS(selvedge_file_read(file, buffer, 1), EBADF);
    selvedge_file_close(file);
    file = selvedge_file_open(store, "dir/file", O_RDONLY, 0);
    CHECK(selvedge_file_read(file, buffer, sizeof buffer) == 6 && memcmp(buffer, "Cont++", 6) == 0);
    FAILS(selvedge_file_write(file, "x", 1), EBADF);
    FAILS(selvedge_file_truncate(file, 0), EINVAL);
    CHECK(selvedge_store_unlink(store, "dir/file") == 0); /* it is open, and stays */
    CHECK(selvedge_file_pread(file, buffer, 1, 0) == 1);
    CHECK(selvedge_file_stat(file, &stat) == 0 && stat.st_nlink == 0);
    selvedge_file_close(file);
    file = selvedge_file_open(store, "dir/file", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    selvedge_file_close(file);
}

static int count_name(const char *name, mode_t type, void *argument)
{
    unsigned *seen = argument;
    struct stat stat;
    CHECK(selvedge_store_stat(store, "dir", &stat) == 0); /* the store may be used */
    if (strcmp(name, "dir") == 0)
        *seen |= 1 << (type == S_IFDIR);
    if (strcmp(name, "link") == 0)
        *seen |= 4u << (type == S_IFLNK);
    if (strcmp(name, ".") == 0)
        *seen |= 16;
    return 0;
}

static int stop(const char *name, mode_t type, void *argument)
{
    (void)name, (void)type, (void)argument;
    return 7;
}

static void paths(void)
{
    char target[8];
    struct stat stat;
    unsigned seen = 0;
    CHECK(selvedge_store_symlink(store, "/dir", "link") == 0);
    CHECK(selvedge_store_readlink(store, "link", target, sizeof target) == 4);
    CHECK(memcmp(target, "/dir", 4) == 0 && selvedge_store_readlink(store, "link", target, 2) == 2);
    CHECK(selvedge_store_stat(store, "link", &stat) == 0 && S_ISDIR(stat.st_mode));
    CHECK(selvedge_store_lstat(store, "link", &stat) == 0 && S_ISLNK(stat.st_mode));
    CHECK(selvedge_store_lstat(store, "link/", &stat) == 0 && S_ISDIR(stat.st_mode));
    CHECK(selvedge_store_stat(store, "link/../../dir/./file", &stat) == 0 && S_ISREG(stat.st_mode));
    CHECK(selvedge_store_stat(store, "/", &stat) == 0 && stat.st_ino == 1);
    FAILS(selvedge_store_stat(store, "", &stat), ENOENT);
    FAILS(selvedge_store_stat(store, "dir/file/x", &stat), ENOTDIR);
    CHECK(selvedge_store_symlink(store, "loop", "loop") == 0);
    FAILS(selvedge_store_stat(store, "loop", &stat), ELOOP);
    CHECK(selvedge_store_link(store, "dir/file", "second") == 0);
    CHECK(selvedge_store_stat(store, "second", &stat) == 0 && stat.st_nlink == 2);
    CHECK(selvedge_store_chmod(store, "second", 0444) == 0);
    CHECK(selvedge_store_rename(store, "second", "dir/third") == 0);
    FAILS(selvedge_store_rename(store, "dir", "dir/inside"), EINVAL);
    FAILS(selvedge_store_rename(store, "dir/file", "new/"), ENOTDIR);
    FAILS(selvedge_store_rename(store, "/", "new"), EBUSY);
    CHECK(selvedge_store_stat(store, "dir/third", &stat) == 0 && (stat.st_mode & 07777) == 0444);
    CHECK(selvedge_store_list(store, "/", count_name, &seen) == 0 && seen == (2 | 8 | 16));
    CHECK(selvedge_store_list(store, "/", stop, NULL) == 7);
    FAILS(selvedge_store_list(store, "second", stop, NULL), ENOENT);
    FAILS(selvedge_store_rmdir(store, "dir"), ENOTEMPTY);
    FAILS(selvedge_store_unlink(store, "dir"), EISDIR);
    FAILS(selvedge_store_rmdir(store, "dir/file"), ENOTDIR);
    CHECK(selvedge_store_unlink(store, "dir/third") == 0 && selvedge_store_unlink(store, "dir/file") == 0);
    CHECK(selvedge_store_rmdir(store, "link/../dir") == 0);
    CHECK(selvedge_store_unlink(store, "link") == 0 && selvedge_store_unlink(store, "loop") == 0);
}

static void keep(const void *value, size_t size, void *argument)
{
    char **kept = argument;
    CHECK(size == 5 && memcmp(value, "value", 5) == 0);
    *kept = "seen";
}

static int count_key(const void *key, size_t size, void *argument)
{
    CHECK(size == 3 && memcmp(key, "key", 3) == 0);
    ++*(int *)argument;
    return 0;
}

static void keys(void)
{
    char buffer[4], *kept = NULL;
    int count = 0;
    CHECK(selvedge_kv_open(store, "a/b", 0, 0644) == NULL && errno == ENOENT);
    CHECK(selvedge_kv_open(store, "a/b", O_EXCL, 0644) == NULL && errno == EINVAL);
    selvedge_kv *kv = selvedge_kv_open(store, "a/b", O_CREAT, 0644);
    CHECK(kv != NULL);
    FAILS(selvedge_kv_get(kv, "key", 3, NULL, 0), ENOENT);
    CHECK(selvedge_kv_compare_and_put(kv, "key", 3, "", 0, "value", 5) == 0);
    CHECK(selvedge_kv_compare_and_put(kv, "key", 3, NULL, 0, "first", 5) == 1);
    CHECK(selvedge_kv_compare_and_put(kv, "key", 3, NULL, 0, "other", 5) == 0);
    CHECK(selvedge_kv_compare_and_put(kv, "key", 3, "first", 5, "", 0) == 1);
    CHECK(selvedge_kv_get(kv, "key", 3, NULL, 0) == 0);
    CHECK(selvedge_kv_put(kv, "key", 3, "value", 5) == 0);
    CHECK(selvedge_kv_get(kv, "key", 3, buffer, sizeof buffer) == 5 && memcmp(buffer, "valu", 4) == 0);
    CHECK(selvedge_kv_borrow(kv, "key", 3, keep, &kept) == 0 && kept != NULL);
    FAILS(selvedge_kv_put(kv, "a/b", 3, "value", 5), EINVAL);
    CHECK(selvedge_kv_list(kv, count_key, &count) == 0 && count == 1);
    CHECK(selvedge_kv_erase(kv, "key", 3) == 1 && selvedge_kv_erase(kv, "key", 3) == 0);
    CHECK(selvedge_kv_put(kv, "left", 4, "behind", 6) == 0);
    selvedge_kv_close(kv);
    selvedge_kv_close(NULL);
}

/* Threads change one value and one file. */
static void *work(void *argument)
{
    selvedge_kv *kv = argument;
    for (int i = 0; i < 50; ++i) {
        char old[16], new[16];
        ssize_t size;
        int length;
        do {
            size = selvedge_kv_get(kv, "count", 5, old, sizeof old - 1);
            CHECK(size > 0);
            old[size] = 0;
            length = snprintf(new, sizeof new, "%d", atoi(old) + 1);
        } while (selvedge_kv_compare_and_put(kv, "count", 5, old, (size_t)size, new, (size_t)length) != 1);
    }
    return NULL;
}

static void threads(void)
{
    pthread_t all[4];
    char end[16];
    selvedge_kv *kv = selvedge_kv_open(store, "a/b", 0, 0644);
    CHECK(selvedge_kv_put(kv, "count", 5, "0", 1) == 0);
    for (int i = 0; i < 4; ++i)
        CHECK(pthread_create(&all[i], NULL, work, kv) == 0);
    for (int i = 0; i < 4; ++i)
        CHECK(pthread_join(all[i], NULL) == 0);
    CHECK(selvedge_kv_get(kv, "count", 5, end, sizeof end) == 3 && memcmp(end, "200", 3) == 0);
    selvedge_kv_close(kv);
}

int main(int count, char **words)
{
    CHECK(count == 2);
    CHECK(selvedge_store_connect("nothing") == NULL && errno == ENOENT);
    CHECK(strstr(selvedge_message(), "nothing") != NULL);
    store = selvedge_store_connect(words[1]);
    CHECK(store != NULL);
    open_files();
    paths();
    keys();
    threads();
    CHECK(selvedge_store_sync(store) == 0);
    CHECK(selvedge_store_close(store) == 0);
    return 0;
}
