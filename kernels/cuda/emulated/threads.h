/* How runtime.cpp has a kernel executed. */
#ifndef CKKS_CUDA_EMULATED_THREADS_H
#define CKKS_CUDA_EMULATED_THREADS_H

#include <cuda_runtime.h>

/* Executes `now`, all of it, on the calling thread. next: what this thread executes right after it, or NULL;
 * if it may overlap, its first block begins before `now` does, and goes as far as its wait for it. */
void emulated_execute(const EmulatedLaunch &now, const EmulatedLaunch *next);

/* A kernel trapped: the device is lost. */
bool emulated_is_lost();

/* A misuse that a card would answer with a hang or with anything: says it and aborts. */
[[noreturn]] void emulated_fail(const char *what, const char *where);

#endif
