/* A checker of the test in servers.rs. */
#include <selvedge/checker.h>
#include <stdlib.h>

/* Reads a file of at most 99 bytes. */
static void get(const char *path, char *text)
{
	FILE *file = fopen(path, "r");

	if (!file)
		exit(9);
	text[fread(text, 1, 99, file)] = 0;
	fclose(file);
}

static int check(const char *dir, const char *output, char *message, size_t size)
{
	char path[4096], text[100], said[100];

	snprintf(path, sizeof path, "%s/f", dir);
	get(path, text);
	get(output, said);
	printf("ok\n");
	if (strcmp(said, "stored") == 0 && strcmp(text, "old") == 0) {
		snprintf(message, size, "f is not\nthe stored one");
		return 1;
	}
	if (strcmp(text, "old") != 0 && strcmp(text, "new") != 0) {
		snprintf(message, size, "f has no text");
		return -1;
	}
	return 0;
}

int main(void)
{
	return selvedge_check_serve(check) == 0 ? 0 : 1;
}
