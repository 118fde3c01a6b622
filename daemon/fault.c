#include "daemon/fault.h"

#ifdef CKKS_FAULT_INJECTION

#include "daemon/metrics.h"

#include <stdlib.h>
#include <unistd.h>

static long setting(const char *name) {
    const char *text = getenv(name);
    return text ? strtol(text, NULL, 10) : -1;
}

void fault_hang(uint32_t slot_index) {
    if (setting("CKKSD_TEST_HANG_SLOT") != (long)slot_index || !atomic_load(&daemon_metrics.is_ready)) return;
    for (;;) pause();
}

void fault_replay(device *dev) {
    static _Atomic long replays;
    const long slow_ms = setting("CKKSD_TEST_SLOW_MS");
    if (slow_ms > 0) usleep((useconds_t)slow_ms * 1000);
    const long now = atomic_fetch_add(&replays, 1) + 1;
    if (now == setting("CKKSD_TEST_FAIL_REPLAY")) device_fault_set(dev, 1, true);
    if (now == setting("CKKSD_TEST_LOSE_REPLAY")) device_fault_lose(dev);
}

void fault_replay_end(device *dev) {
    if (setting("CKKSD_TEST_FAIL_REPLAY") > 0) device_fault_set(dev, 0, false);
}

#else
typedef int fault_is_absent; /* a translation unit needs a declaration */
#endif
