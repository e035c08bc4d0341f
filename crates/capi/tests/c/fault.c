/* The file of the logs is truncated while the program runs. The thread that truncates the logs is
 * the first to access the missing page. */
#include "check.h"
#include <pthread.h>
#include <selvedge/short.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOG_BYTES (2 << 20)

static long *durable;

static void *work(void *count)
{
    for (long n = 0; n < (long)count; n++)
        patomic {
            durable[0] += 1;
            durable[20] += 1;
        }
    return NULL;
}

static void work_elsewhere(long count)
{
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, work, (void *)count));
    CHECK(!pthread_join(thread, NULL));
}

int main(void)
{
    durable = selvedge_root("fault", 200);
    CHECK(durable != NULL);
    /* Each thread begins with a log of its own. Each log gets some records. */
    for (int n = 0; n < 16; n++)
        work_elsewhere(1000);
    char path[4096];
    struct stat stat;
    CHECK(snprintf(path, sizeof path, "%s/regions", getenv("SELVEDGE_REGION_PATH")) > 0);
    CHECK(!lstat(path, &stat));
    /* Removes the last log, with its first line, which records how far it is truncated. */
    CHECK(!truncate(path, stat.st_size - LOG_BYTES - 8192));
    work((void *)60000);
    printf("not noticed\n");
    return 0;
}
