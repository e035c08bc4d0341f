#include "short.c"
