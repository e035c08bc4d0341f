/* Pointers of both kinds, for sparse and clang; with MIXED, a mix of which they must warn. */
#include <selvedge/short.h>

struct node {
    struct node persistent *next;
};

pstatic static struct node persistent *head = NULL;

static void push(struct node persistent *node)
{
    patomic {
        node->next = head;
        head = node;
    }
}

int main(void)
{
#ifdef MIXED
    struct node *node = head;
#else
    struct node persistent *node = head;
#endif
    push((struct node persistent *)node);
    return 0;
}
