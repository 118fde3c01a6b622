/* The two clocks: monotonic for every decision, wall-clock for what people read. */
#ifndef CKKSD_CLOCK_H
#define CKKSD_CLOCK_H

#include <stdint.h>
#include <time.h>

#define NS_PER_MS 1000000ull
#define NS_PER_S  1000000000ull

static inline uint64_t clock_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}
static inline uint64_t clock_unix_s(void) {
    return (uint64_t)time(NULL);
}

#endif
