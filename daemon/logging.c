#include "daemon/logging.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define WRITE_WAIT_MS 20 /* for a reader that is merely slow */

static const struct {
    const char *name;
    log_level level;
} names[] = {{"error", LOG_LEVEL_ERROR},
             {"warning", LOG_LEVEL_WARNING},
             {"notice", LOG_LEVEL_NOTICE},
             {"info", LOG_LEVEL_INFO},
             {"debug", LOG_LEVEL_DEBUG}};

static const char *level_name(log_level level) {
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].level == level) return names[i].name;
    return "?";
}

static enum { TO_FILE, TO_TERMINAL, TO_JOURNAL } destination;

/* The service manager names the stream that it gave us (systemd.exec(5), JOURNAL_STREAM); it may have been
 * redirected since. */
static bool is_journal(void) {
    struct stat st;
    const char *stream = getenv("JOURNAL_STREAM"); /* device:inode */
    char *colon = NULL, *end = NULL;
    if (!stream || fstat(STDERR_FILENO, &st) != 0) return false;
    const unsigned long long device = strtoull(stream, &colon, 10);
    if (colon == stream || *colon != ':') return false;
    const unsigned long long inode = strtoull(colon + 1, &end, 10);
    return end != colon + 1 && !*end && st.st_dev == (dev_t)device && st.st_ino == (ino_t)inode;
}

static void sink(void *context, log_level level, const char *line) {
    (void)context;
    char text[1152], time[40] = "";
    struct timespec now;
    struct tm parts;
    int n;
    clock_gettime(CLOCK_REALTIME, &now);
    switch (destination) {
    case TO_JOURNAL:
        n = snprintf(text, sizeof text, "<%d>%s\n", (int)level, line);
        break;
    case TO_TERMINAL:
        strftime(time, sizeof time, "%H:%M:%S", localtime_r(&now.tv_sec, &parts));
        n = snprintf(text, sizeof text, "%s.%03ld %s\n", time, now.tv_nsec / 1000000, line);
        break;
    default:
        strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%S", gmtime_r(&now.tv_sec, &parts));
        n = snprintf(text, sizeof text, "time=%s.%03ldZ level=%s %s\n", time, now.tv_nsec / 1000000,
                     level_name(level), line);
    }
    if (n <= 0) return;
    const size_t size = (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    /* a reader that does not read loses lines rather than stopping us: less than PIPE_BUF fits where there is
     * room */
    struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&room, 1, WRITE_WAIT_MS) != 1) return;
    /* one write, so that lines of threads do not mix */
    ssize_t ignored = write(STDERR_FILENO, text, size);
    (void)ignored;
}

void logging_start(log_level level) {
    destination = isatty(STDERR_FILENO) == 1 ? TO_TERMINAL : is_journal() ? TO_JOURNAL : TO_FILE;
    log_set_level(level);
    log_set_sink(sink, NULL);
}

bool log_level_parse(log_level *out, const char *text) {
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i].name, text) == 0) {
            *out = names[i].level;
            return true;
        }
    return false;
}

static bool is_plain(char c) {
    return c > ' ' && c < 0x7f && c != '"' && c != '=' && c != '\\';
}

char *log_quote(char *buffer, size_t capacity, const char *text) {
    bool needs_quotes = text[0] == 0;
    for (const char *c = text; *c; c++) needs_quotes |= !is_plain(*c);
    size_t used = 0;
    const size_t room = capacity - 6; /* closing quote, "...", NUL */
    if (needs_quotes) buffer[used++] = '"';
    for (const char *c = text; *c; c++) {
        if (used + 4 > room) {
            memcpy(buffer + used, "...", 3);
            used += 3;
            break;
        }
        if (*c >= ' ' && *c < 0x7f && *c != '"' && *c != '\\')
            buffer[used++] = *c;
        else
            used += (size_t)snprintf(buffer + used, 5, "\\x%02x", (unsigned char)*c);
    }
    if (needs_quotes) buffer[used++] = '"';
    buffer[used] = 0;
    return buffer;
}

void log_error(log_level level, const char *event, const ckks_error *err) {
    char message[400], field[96], stage[40] = "";
    if (err->stage[0]) snprintf(stage, sizeof stage, " stage=\"%s\"", err->stage);
    log_write(level, "event=%s error=%s%s field=%s message=%s", event, ckks_status_name(err->code), stage,
              log_quote(field, sizeof field, err->field), log_quote(message, sizeof message, err->message));
}
