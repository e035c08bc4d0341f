/* A block that writes more than a log holds. "write MEGABYTES VALUE" is killed after the block;
 * "check MEGABYTES VALUE" checks the bytes. */
#include "check.h"
#include <selvedge/short.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    size_t words = strtoul(argv[2], NULL, 10) << 17;
    unsigned long value = strtoul(argv[3], NULL, 10);
    unsigned long *large = selvedge_root("large", words * sizeof *large);
    CHECK(large != NULL);
    if (!strcmp(argv[1], "check")) {
        for (size_t n = 0; n < words; n++)
            CHECK(large[n] == value + n);
        return 0;
    }
    patomic {
        for (size_t n = 0; n < words; n++)
            large[n] = value + n;
    }
    /* The next one is cancelled, and another one is short. */
    patomic {
        for (size_t n = 0; n < words; n++)
            large[n] = 1;
        __transaction_cancel;
    }
    patomic { large[1] = value + 1; large[0] = value; }
    raise(SIGKILL);
    return 1;
}
