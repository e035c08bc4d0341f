/* Persistent variables of a program that is built again and again. */
#include "check.h"
#include <selvedge/short.h>

#ifdef ADDED
pstatic double added = 0.5;
pstatic char text[100] = "text";
#endif

pstatic int a = 1;

#ifdef NOISE
static int noise[1000] = {1};
__attribute__((used)) static int more_code(int n) { return n + noise[n]; }
#endif

#ifndef REMOVED
#ifdef LARGER
pstatic long b[2] = {2, 3};
#else
pstatic long b = 2;
#endif
#endif

static pstatic struct {
    char name[20];
    long counts[3000];
} c = {"initial", {7}};

#ifdef NAMED
SELVEDGE_PROGRAM("statics");
#endif

#ifdef ADDRESS
pstatic int *address = &a;
#endif

static int *local(void)
{
    static pstatic int count = 10;
    return &count;
}

#ifdef NOISE
__attribute__((used)) static int *other(void)
{
    static int count[3];
    static pstatic int number;
    return count + number;
}
#endif

int main(void)
{
    int *count = local();
    patomic {
        a += 1;
        c.counts[0] += 1;
        c.counts[2999] += 1;
        c.name[0] = 'I';
        *count += 1;
#ifdef ADDED
        added += 1;
        text[0] = 'T';
#endif
    }
    printf("%d %s %ld %ld %d", a, c.name, c.counts[0], c.counts[2999], *count);
#ifndef REMOVED
#ifndef LARGER
    patomic { b += 1; }
    printf(" b %ld", b);
#endif
#endif
#ifdef ADDED
    printf(" added %g %s", added, text);
#endif
    printf("\n");
    return 0;
}
