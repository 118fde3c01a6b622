#include "daemon/notify.h"

#include "daemon/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#ifdef HAVE_SYSTEMD
#include <systemd/sd-daemon.h>
uint64_t notify_watchdog_interval_ms(void) {
    uint64_t limit_us = 0;
    return sd_watchdog_enabled(0, &limit_us) > 0 ? limit_us / 2000 : 0;
}
#else
uint64_t notify_watchdog_interval_ms(void) {
    return 0;
}
#endif

#define WAITING_MAX 16u
#define TEXT_MAX    256u

/* What the manager had no room for, oldest first. */
static struct {
    pthread_mutex_t lock; /* guards the rest */
    char text[WAITING_MAX][TEXT_MAX];
    uint32_t count;
} waiting = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* sd_notify waits for a manager that does not read; the loop must not. false: there is no room now. */
static bool send_now(const char *text) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const char *path = getenv("NOTIFY_SOCKET");
    const size_t length = path ? strlen(path) : 0;
    if (length < 2 || length >= sizeof to.sun_path || (path[0] != '/' && path[0] != '@')) return true;
    memcpy(to.sun_path, path, length);
    if (path[0] == '@') to.sun_path[0] = 0; /* a name without a file */
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    const ssize_t n =
        sendto(fd, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL, (const struct sockaddr *)&to,
               (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length));
    const bool is_full = n < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM);
    close(fd);
    return !is_full;
}

static void flush_waiting(void) {
    uint32_t gone = 0;
    while (gone < waiting.count && send_now(waiting.text[gone])) gone++;
    waiting.count -= gone;
    memmove(waiting.text[0], waiting.text[gone], waiting.count * sizeof waiting.text[0]);
}

/* In order: what is new goes behind what waits; the oldest is given up for it. */
static void send_text(const char *text) {
    pthread_mutex_lock(&waiting.lock);
    flush_waiting();
    if (waiting.count || !send_now(text)) {
        if (waiting.count == WAITING_MAX)
            memmove(waiting.text[0], waiting.text[1], --waiting.count * sizeof waiting.text[0]);
        snprintf(waiting.text[waiting.count++], TEXT_MAX, "%s", text);
    }
    pthread_mutex_unlock(&waiting.lock);
}

/* Of use now or not at all. */
static void send_or_drop(const char *text) {
    pthread_mutex_lock(&waiting.lock);
    flush_waiting();
    if (!waiting.count) (void)send_now(text);
    pthread_mutex_unlock(&waiting.lock);
}

void notify_flush(void) {
    pthread_mutex_lock(&waiting.lock);
    if (waiting.count) flush_waiting();
    pthread_mutex_unlock(&waiting.lock);
}

void notify_ready(const char *status) {
    char text[TEXT_MAX];
    snprintf(text, sizeof text, "READY=1\nSTATUS=%s", status);
    send_text(text);
}
void notify_status(const char *format, ...) {
    char text[TEXT_MAX] = "STATUS=";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + 7, sizeof text - 7, format, arguments);
    va_end(arguments);
    send_text(text);
}
void notify_watchdog(void) {
    send_or_drop("WATCHDOG=1");
}
void notify_stopping(const char *status) {
    char text[TEXT_MAX];
    snprintf(text, sizeof text, "STOPPING=1\nSTATUS=%s", status);
    send_text(text);
}
void notify_reloading(void) {
    char text[64];
    snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%llu",
             (unsigned long long)(clock_now_ns() / 1000));
    send_text(text);
}
void notify_extend(uint32_t seconds) {
    char text[64];
    snprintf(text, sizeof text, "EXTEND_TIMEOUT_USEC=%llu", (unsigned long long)seconds * 1000000ull);
    send_or_drop(text);
}
