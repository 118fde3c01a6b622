#include "daemon/fault.h"

#ifdef CKKS_FAULT_INJECTION

#include "daemon/metrics.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
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

/* ---- a gate: the test knows who is at it, and when it opens ---- */

static int gate_arrived = -1, gate_go = -1, gate_go_first = -1; /* the first slot may have a way of its own */

static int gate_part(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", getenv("CKKSD_TEST_GATE"), name);
    const int fd = open(path, O_RDWR | O_CLOEXEC); /* of a FIFO: never at its end */
    CKKS_ASSERT(fd >= 0);
    return fd;
}
static void gate_find(void) {
    if (!getenv("CKKSD_TEST_GATE")) return;
    gate_arrived = gate_part("arrived"), gate_go = gate_part("go");
    if (setting("CKKSD_TEST_GATE_FIRST") > 0) gate_go_first = gate_part("go-first");
}
static void gate_pass(uint32_t slot_index) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    char byte = 'a';
    pthread_once(&once, gate_find);
    if (gate_go < 0) return;
    const int go = slot_index == 0 && gate_go_first >= 0 ? gate_go_first : gate_go;
    const bool has_passed = write(gate_arrived, &byte, 1) == 1 && read(go, &byte, 1) == 1;
    CKKS_ASSERT(has_passed);
}

void fault_replay(device *dev, uint32_t slot_index) {
    static _Atomic long replays;
    gate_pass(slot_index);
    const long slow_ms = setting("CKKSD_TEST_SLOW_MS");
    if (slow_ms > 0) usleep((useconds_t)slow_ms * 1000);
    const long now = atomic_fetch_add(&replays, 1) + 1;
    if (now == setting("CKKSD_TEST_FAIL_REPLAY")) device_fault_set(dev, 1, true);
    if (now == setting("CKKSD_TEST_LOSE_REPLAY")) device_fault_lose(dev);
}

void fault_key_job(void) {
    if (setting("CKKSD_TEST_GATE_KEYS") > 0) gate_pass(UINT32_MAX);
}

void fault_recovery(void) {
    if (setting("CKKSD_TEST_GATE_RECOVERY") > 0) gate_pass(UINT32_MAX);
}

void fault_bring_back(device *dev, uint32_t model_index) {
    if (setting("CKKSD_TEST_FAIL_BRING_BACK") == (long)model_index) device_fault_set(dev, 1, true);
}

void fault_capture(device *dev) {
    static _Atomic long captures;
    if (atomic_fetch_add(&captures, 1) < setting("CKKSD_TEST_FAIL_CAPTURES")) device_fault_set(dev, 1, true);
}
void fault_capture_end(device *dev) {
    if (setting("CKKSD_TEST_FAIL_CAPTURES") > 0) device_fault_set(dev, 0, false);
}

void fault_replay_end(device *dev) {
    if (setting("CKKSD_TEST_FAIL_REPLAY") > 0) device_fault_set(dev, 0, false);
}

/* ---- a made-up card ---- */

static uint32_t reads;

static int card_nothing(void) {
    return 0;
}
static const char *card_error(int status) {
    return status ? "made up" : "";
}
static int card_text(char *text, unsigned size, const char *value) {
    return snprintf(text, size, "%s", value) < 0;
}
static int card_driver(char *text, unsigned size) {
    return card_text(text, size, "1.2.3");
}
static int card_count(unsigned *out) {
    *out = 1;
    return 0;
}
static int card_by_uuid(const char *uuid, health_card **out) {
    (void)uuid;
    *out = (health_card *)&reads;
    return 0;
}
static int card_by_index(unsigned index, health_card **out) {
    *out = (health_card *)&reads;
    return index != 0;
}
static int card_name(health_card *card, char *text, unsigned size) {
    (void)card;
    return card_text(text, size, "Made-up \"Card\"");
}
static int card_capability(health_card *card, int *major, int *minor) {
    (void)card;
    *major = 9, *minor = 0;
    return 0;
}
static bool card_is_hot(void) {
    return reads >= 3 && reads < 6;
}
static int card_temperature(health_card *card, int sensor, unsigned *out) {
    (void)card, (void)sensor;
    reads++; /* once each reading */
    *out = card_is_hot() ? 91 : 40;
    return 0;
}
static int card_power(health_card *card, unsigned *mw) {
    (void)card;
    *mw = 123456;
    return 0;
}
static int card_utilisation(health_card *card, health_utilisation *out) {
    (void)card;
    *out = (health_utilisation){75, 25};
    return 0;
}
static int card_memory(health_card *card, health_memory *out) {
    (void)card;
    *out = (health_memory){4096, 1024, 3072};
    return 0;
}
static int card_ecc(health_card *card, int type, int counter, unsigned long long *out) {
    (void)card, (void)counter;
    *out = type ? (reads >= 3 ? 2 : 0) : 7;
    return 0;
}
static int card_clock(health_card *card, int type, unsigned *mhz) {
    (void)card, (void)type, (void)mhz;
    return 3; /* this one does not say */
}
static int card_throttle(health_card *card, unsigned long long *bits) {
    (void)card;
    *bits = card_is_hot() ? 0x44 : 0x4;
    return 0;
}

const health_driver *fault_health_driver(void) {
    static const health_driver driver = {
        card_nothing,     card_nothing, card_error,      card_driver,      card_count,    card_by_uuid,
        card_by_index,    card_name,    card_capability, card_temperature, card_power,    card_power,
        card_utilisation, card_memory,  card_ecc,        card_clock,       card_throttle,
    };
    return setting("CKKSD_TEST_GPU_HEALTH") > 0 ? &driver : NULL;
}

#else
typedef int fault_is_absent; /* a translation unit needs a declaration */
#endif
