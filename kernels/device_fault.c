/* What tests switch on and off (device.h): which call fails, what is lost, which kernels are not there. */
#include "kernels/device_internal.h"

#include <stdatomic.h>

#ifdef CKKS_FAULT_INJECTION

void device_fault_set(device *dev, uint64_t nth, bool asynchronous) {
    pthread_mutex_lock(&dev->lock);
    dev->fault_calls = 0;
    dev->fault_nth = nth;
    dev->fault_asynchronous = asynchronous;
    pthread_mutex_unlock(&dev->lock);
}

void device_fault_lose(device *dev) {
    pthread_mutex_lock(&dev->lock);
    dev->fault_lose = true;
    pthread_mutex_unlock(&dev->lock);
}

uint64_t device_fault_calls(const device *dev) {
    /* the lock is not part of a device's observable state */
    pthread_mutex_t *lock = &((device *)(uintptr_t)dev)->lock;
    pthread_mutex_lock(lock);
    const uint64_t calls = dev->fault_calls;
    pthread_mutex_unlock(lock);
    return calls;
}

_Static_assert(KERNEL_COUNT <= 64, "one bit each");
void device_fault_hide(device *dev, kernel_id kernel, bool is_hidden) {
    const uint64_t bit = UINT64_C(1) << kernel;
    if (is_hidden)
        atomic_fetch_or(&dev->hidden_kernels, bit);
    else
        atomic_fetch_and(&dev->hidden_kernels, ~bit);
}

bool device_hides(const device *dev, kernel_id kernel) {
    return atomic_load(&dev->hidden_kernels) >> kernel & 1;
}

#else

bool device_hides(const device *dev, kernel_id kernel) {
    (void)dev, (void)kernel;
    return false;
}

#endif
