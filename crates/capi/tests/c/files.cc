// The header of files in C++, on its own and first.
#include <selvedge/files.h>

int main()
{
    return selvedge_store_connect("nothing") == nullptr ? 0 : 1;
}
