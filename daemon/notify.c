#include "daemon/notify.h"

#include "daemon/clock.h"

#include <stdarg.h>
#include <stdio.h>

#ifdef HAVE_SYSTEMD
#include <systemd/sd-daemon.h>

static void send_text(const char *text) {
    (void)sd_notify(0, text);
}
uint64_t notify_watchdog_interval_ms(void) {
    uint64_t limit_us = 0;
    return sd_watchdog_enabled(0, &limit_us) > 0 ? limit_us / 2000 : 0;
}
#else
static void send_text(const char *text) {
    (void)text;
}
uint64_t notify_watchdog_interval_ms(void) {
    return 0;
}
#endif

void notify_ready(const char *status) {
    char text[256];
    snprintf(text, sizeof text, "READY=1\nSTATUS=%s", status);
    send_text(text);
}
void notify_status(const char *format, ...) {
    char text[256] = "STATUS=";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + 7, sizeof text - 7, format, arguments);
    va_end(arguments);
    send_text(text);
}
void notify_watchdog(void) {
    send_text("WATCHDOG=1");
}
void notify_stopping(const char *status) {
    char text[256];
    snprintf(text, sizeof text, "STOPPING=1\nSTATUS=%s", status);
    send_text(text);
}
void notify_reloading(void) {
    char text[64];
    snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%llu",
             (unsigned long long)(clock_now_ns() / 1000));
    send_text(text);
}
void notify_extend_start(uint32_t seconds) {
    char text[64];
    snprintf(text, sizeof text, "EXTEND_TIMEOUT_USEC=%llu", (unsigned long long)seconds * 1000000ull);
    send_text(text);
}
