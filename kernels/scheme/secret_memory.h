/*
 * Memory for secrets: between guard pages, not swapped where the system allows, wiped when freed (libsodium).
 */
#ifndef CKKS_SCHEME_SECRET_MEMORY_H
#define CKKS_SCHEME_SECRET_MEMORY_H

#include <stddef.h>

/* secret_allocate: 64-byte aligned, contents undefined; NULL when out of memory. secret_free wipes and
 * returns it; NULL is fine. Each call costs several system calls: allocate once per operation, not per limb.
 */
void *secret_allocate(size_t bytes);
void secret_free(void *memory);

#endif
