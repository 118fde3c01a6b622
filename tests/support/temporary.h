/* Folders and files of a test's own; whoever makes one removes it. A system that gives none ends the test. */
#ifndef CKKS_TESTS_TEMPORARY_H
#define CKKS_TESTS_TEMPORARY_H

#include <stddef.h>

/* A new folder (0700) whose name begins with `name`, into path[bytes]. */
void temporary_folder(char *path, size_t bytes, const char *name);
/* The same, in memory where the system has such a place: for what syncs a lot. */
void temporary_folder_in_memory(char *path, size_t bytes, const char *name);
/* A new file (0600) of these bytes. */
void temporary_file(char *path, size_t bytes, const char *name, const void *data, size_t size);

#endif
