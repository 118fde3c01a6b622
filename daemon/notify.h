/*
 * What the service manager hears: READY after the self test, STATUS lines, WATCHDOG while slots make
 * progress, STOPPING. Without NOTIFY_SOCKET every call does nothing. Any thread; none waits for a manager
 * that does not read: what it has no room for is said later, but for what is of use only now.
 */
#ifndef CKKSD_NOTIFY_H
#define CKKSD_NOTIFY_H

#include <stdint.h>

void notify_ready(const char *status);
void notify_status(const char *format, ...) __attribute__((format(printf, 1, 2)));
void notify_watchdog(void);
void notify_stopping(const char *status);
void notify_reloading(void);
/* notify_extend asks for `seconds` more before starting or stopping counts as failed. */
void notify_extend(uint32_t seconds);
/* notify_flush says what waits, as far as there is room now. */
void notify_flush(void);
/* notify_watchdog_interval_ms: how often the manager wants to hear us (half its limit); 0 = no watchdog, or
 * no libsystemd. */
uint64_t notify_watchdog_interval_ms(void);

#endif
