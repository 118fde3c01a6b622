/*
 * Allocation failure injection for tests: test binaries are linked with --wrap for malloc, calloc, realloc,
 * strdup, strndup. So is the daemon with its injected faults: with CKKSD_TEST_FAIL_ALLOCATIONS=N in its
 * environment every N-th allocation fails from one SIGUSR2 to the next; with "rising" for N, the n-th after
 * the n-th SIGUSR2.
 */
#ifndef CKKS_TESTS_ALLOC_FAULT_H
#define CKKS_TESTS_ALLOC_FAULT_H

#include <stdint.h>

/* The n-th allocation from now (1 = next) on any thread returns NULL, once; 0 switches off. */
void alloc_fault_set(uint64_t nth);
/* allocations counted since alloc_fault_set */
uint64_t alloc_fault_calls(void);

#endif
