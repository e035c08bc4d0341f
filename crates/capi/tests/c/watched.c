/* The part of a program with AddressSanitizer: plain stores to durable memory. */
#include "check.h"
#include <selvedge.h>
#include <stdlib.h>

void increment(long *number);

int main(int argc, char **argv)
{
    long *numbers = selvedge_root("numbers", 100 * sizeof *numbers);
    long *volatile ordinary = malloc(sizeof *ordinary);
    CHECK(numbers != NULL && ordinary != NULL && argv != NULL);
    *ordinary = 1;
    increment(numbers);
    increment(ordinary);
    CHECK(*ordinary == 2);
    memset(numbers + 1, argc, 99 * sizeof *numbers);
    CHECK(numbers[99] == argc * 0x0101010101010101);
    printf("%ld\n", numbers[0]);
    fflush(stdout);
    if (argc > 1)
        ordinary[1] = 1;
    free(ordinary);
    return 0;
}
