/* A program that ends without closing its store: `return`, `exit`, `fork` (a child that exits first). */
#include <selvedge/files.h>
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    CHECK(selvedge_store_close(NULL) == 0);
    selvedge_store *store = selvedge_store_connect(argv[1]);
    CHECK(store != NULL);
    selvedge_kv *kv = selvedge_kv_open(store, "left", O_CREAT, 0644);
    CHECK(kv != NULL && selvedge_kv_put(kv, argv[2], strlen(argv[2]), "behind", 6) == 0);
    if (strcmp(argv[2], "fork") == 0) {
        int status;
        pid_t child = fork();
        if (child == 0)
            exit(0);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    if (strcmp(argv[2], "return") != 0)
        exit(0);
    return 0;
}
