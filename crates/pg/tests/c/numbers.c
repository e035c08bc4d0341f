/* Prints the numbers of the protocol, and its name. */
#include <selvedge/patchgroup.h>
#include <stdio.h>

int main(void)
{
    printf("%s %lu %lu %lu %lu %lu %lu\n", SELVEDGE_PG_NAME, SELVEDGE_PG_DEPEND, SELVEDGE_PG_ENGAGE,
           SELVEDGE_PG_DISENGAGE, SELVEDGE_PG_SYNC, SELVEDGE_PG_BARRIER, SELVEDGE_PG_ORDER);
    return 0;
}
