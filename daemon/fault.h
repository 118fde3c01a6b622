/*
 * Faults on purpose, for tests: compiled only with CKKS_FAULT_INJECTION, driven by the environment. A product
 * build has none of it.
 *
 *   CKKSD_TEST_HANG_SLOT=INDEX     that slot's thread hangs once the server was ready
 *   CKKSD_TEST_FAIL_REPLAY=N       the N-th inference of the process meets a device error
 *   CKKSD_TEST_LOSE_REPLAY=N       the N-th inference of the process loses the device for good
 *   CKKSD_TEST_FAIL_BRING_BACK=I   a slot that is brought back meets a device error at its I-th model, from 0
 *   CKKSD_TEST_FAIL_CAPTURES=N     the first N captures of models meet a device error
 *   CKKSD_TEST_SLOW_MS=MS          every inference takes that much longer
 *   CKKSD_TEST_GATE=FOLDER         every inference writes to FOLDER/arrived and reads from FOLDER/go: a byte
 *   CKKSD_TEST_GATE_RECOVERY=1     a slot that is being brought back passes that gate too
 *   CKKSD_TEST_GPU_HEALTH=1        a made-up card is watched: it gets hot and cools down again
 */
#ifndef CKKSD_FAULT_H
#define CKKSD_FAULT_H

#include "kernels/device.h"
#include "kernels/device_health.h"

#ifdef CKKS_FAULT_INJECTION
void fault_hang(uint32_t slot_index);
void fault_replay(device *dev, uint32_t slot_index);
void fault_key_job(void);
void fault_recovery(void);
void fault_bring_back(device *dev, uint32_t model_index);
void fault_capture(device *dev);
void fault_capture_end(device *dev);
void fault_replay_end(device *dev);
/* fault_health_driver: the made-up card's, or NULL */
const health_driver *fault_health_driver(void);
#define HEALTH_INTERVAL_NS (100 * NS_PER_MS)
#define MODEL_RETRY_NS     (10 * NS_PER_MS)
#else
#define HEALTH_INTERVAL_NS (5 * NS_PER_S)
#define MODEL_RETRY_NS     (5 * NS_PER_S)
static inline void fault_hang(uint32_t slot_index) {
    (void)slot_index;
}
static inline void fault_replay(device *dev, uint32_t slot_index) {
    (void)dev, (void)slot_index;
}
static inline void fault_key_job(void) {}
static inline void fault_recovery(void) {}
static inline void fault_bring_back(device *dev, uint32_t model_index) {
    (void)dev, (void)model_index;
}
static inline void fault_capture(device *dev) {
    (void)dev;
}
static inline void fault_capture_end(device *dev) {
    (void)dev;
}
static inline void fault_replay_end(device *dev) {
    (void)dev;
}
static inline const health_driver *fault_health_driver(void) {
    return NULL;
}
#endif

#endif
