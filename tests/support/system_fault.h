/*
 * Failure injection for calls of the system: test binaries are linked with --wrap for those listed in
 * system_fault.c (files and folders, mappings, starts of threads). What libraries call for themselves is not
 * ours to wrap.
 */
#ifndef CKKS_TESTS_SYSTEM_FAULT_H
#define CKKS_TESTS_SYSTEM_FAULT_H

#include <stdint.h>

/* The n-th call from now (1 = next) on any thread fails, once, with this errno; a write just before it writes
 * only half. 0 switches off. */
void system_fault_set(uint64_t nth, int error);
/* as the error: the process is killed where that call would begin */
#define SYSTEM_FAULT_KILL (-1)
/* calls counted since system_fault_set */
uint64_t system_fault_calls(void);

#endif
