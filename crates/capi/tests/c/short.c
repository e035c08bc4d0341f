/* The header with the short names, on its own and first. */
#include <selvedge/short.h>

static pstatic long number, other;
static long persistent *pointer;

int main(void)
{
    patomic { pointer = &number, other = 1; }
    store(&number, 2);
    wtstore(&number, 3);
    flush(&number);
    return fence() != 0 || pointer != &number || number != 3 || other != 1;
}
