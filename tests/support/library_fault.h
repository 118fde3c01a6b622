/*
 * Failure injection for calls of libraries: test binaries are linked with --wrap for what our code calls of
 * SQLite, nng and libuv and what can fail there, and for posix_memalign and stat; library_fault.c has the
 * list. A call that fails did nothing, or, `late`, did what it was asked and says that it did not (SQLite's
 * alone: the others own up).
 */
#ifndef CKKS_TESTS_LIBRARY_FAULT_H
#define CKKS_TESTS_LIBRARY_FAULT_H

#include <stdbool.h>
#include <stdint.h>

/* The n-th call from now (1 = next) on any thread fails, once. 0 switches off. */
void library_fault_set(uint64_t nth, bool late);
/* calls counted since library_fault_set, and the name of the one that failed; NULL: none did */
uint64_t library_fault_calls(void);
const char *library_fault_name(void);

#endif
