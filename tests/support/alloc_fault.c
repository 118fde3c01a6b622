#include "tests/support/alloc_fault.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t size);

static _Atomic uint64_t fail_at, calls;

/* of a process that a test has started: CKKSD_TEST_FAIL_ALLOCATIONS=N, from one SIGUSR2 to the next; or
 * "rising": after the n-th SIGUSR2 the n-th allocation */
static uint64_t period;
static _Atomic int is_periodic;
static _Atomic uint64_t risen;

static void toggle(int number) {
    (void)number;
    atomic_fetch_xor(&is_periodic, 1);
}
static void rise(int number) {
    (void)number;
    atomic_store(&calls, 0);
    atomic_store(&fail_at, atomic_fetch_add(&risen, 1) + 1);
}
__attribute__((constructor)) static void read_environment(void) {
    const char *text = getenv("CKKSD_TEST_FAIL_ALLOCATIONS");
    period = text ? strtoull(text, NULL, 10) : 0;
    if (period) signal(SIGUSR2, toggle);
    if (text && strcmp(text, "rising") == 0) signal(SIGUSR2, rise);
}

static int fails(void) {
    const uint64_t nth = atomic_load_explicit(&fail_at, memory_order_relaxed);
    const uint64_t call = atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed) + 1;
    if (period && atomic_load_explicit(&is_periodic, memory_order_relaxed)) return call % period == 0;
    return nth != 0 && call == nth;
}

void alloc_fault_set(uint64_t nth) {
    atomic_store(&calls, 0);
    atomic_store(&fail_at, nth);
}
uint64_t alloc_fault_calls(void) {
    return atomic_load(&calls);
}

void *__wrap_malloc(size_t size) {
    return fails() ? NULL : __real_malloc(size);
}
void *__wrap_calloc(size_t count, size_t size) {
    return fails() ? NULL : __real_calloc(count, size);
}
void *__wrap_realloc(void *old, size_t size) {
    return fails() ? NULL : __real_realloc(old, size);
}
/* the C library's own calls of malloc are not ours to wrap */
char *__wrap_strdup(const char *text) {
    return fails() ? NULL : __real_strdup(text);
}
char *__wrap_strndup(const char *text, size_t size) {
    return fails() ? NULL : __real_strndup(text, size);
}
