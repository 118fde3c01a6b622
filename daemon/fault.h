/*
 * Faults on purpose, for tests: compiled only with CKKS_FAULT_INJECTION, driven by the environment. A product
 * build has none of it.
 *
 *   CKKSD_TEST_HANG_SLOT=INDEX     that slot's thread hangs once the server was ready
 *   CKKSD_TEST_FAIL_REPLAY=N       the N-th inference of the process meets a device error
 *   CKKSD_TEST_SLOW_MS=MS          every inference takes that much longer
 */
#ifndef CKKSD_FAULT_H
#define CKKSD_FAULT_H

#include "kernels/device.h"

#ifdef CKKS_FAULT_INJECTION
void fault_hang(uint32_t slot_index);
void fault_replay(device *dev);
void fault_replay_end(device *dev);
#else
static inline void fault_hang(uint32_t slot_index) {
    (void)slot_index;
}
static inline void fault_replay(device *dev) {
    (void)dev;
}
static inline void fault_replay_end(device *dev) {
    (void)dev;
}
#endif

#endif
