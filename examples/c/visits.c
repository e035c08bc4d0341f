/* Counts its runs in durable memory. Each run adds a record to a list that outlives the process. */
#include <selvedge.h>
#include <stdio.h>

struct visit {
    struct visit *next;
    unsigned long number;
};

SELVEDGE_STATIC unsigned long count = 0; /* initialised once, and kept */
SELVEDGE_STATIC struct visit *newest = NULL;

int main(void)
{
    SELVEDGE_ATOMIC { /* durable as a whole, or not at all */
        struct visit *visit = selvedge_pmalloc(sizeof *visit, NULL);
        visit->next = newest;
        visit->number = ++count;
        newest = visit;
    }
    for (struct visit *visit = newest; visit; visit = visit->next)
        printf("%lu ", visit->number);
    printf("\n");
    return 0;
}
