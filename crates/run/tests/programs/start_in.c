/* start_in DIR PROGRAM ARGUMENT...: executes a program in another working directory. Linked statically, so
   that the library does not see it. */
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 3 || chdir(argv[1]) != 0)
        return 100;
    execv(argv[2], argv + 2);
    return 101;
}
