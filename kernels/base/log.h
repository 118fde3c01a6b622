/*
 * The logging hook: libraries never print. A process installs one sink; without one, lines are dropped.
 * A line is a list of key=value pairs; the sink decides where it goes. No secret may be passed here.
 */
#ifndef CKKS_BASE_LOG_H
#define CKKS_BASE_LOG_H

/* journald priorities */
typedef enum log_level {
    LOG_LEVEL_ERROR = 3,
    LOG_LEVEL_WARNING = 4,
    LOG_LEVEL_NOTICE = 5,
    LOG_LEVEL_INFO = 6,
    LOG_LEVEL_DEBUG = 7
} log_level;

/* `line` has no newline and is valid during the call only. Called on any thread; must not block for long. */
typedef void (*log_sink)(void *context, log_level level, const char *line);

/* log_set_sink: call before any thread starts. sink = NULL drops lines. */
void log_set_sink(log_sink sink, void *context);
/* log_set_level drops lines of a number above `level`. Any thread. */
void log_set_level(log_level level);
log_level log_get_level(void);

void log_write(log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
