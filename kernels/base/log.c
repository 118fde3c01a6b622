#include "kernels/base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

static log_sink sink_function;
static void *sink_context;
static _Atomic int sink_level = LOG_LEVEL_INFO;

void log_set_sink(log_sink sink, void *context) {
    sink_function = sink, sink_context = context;
}
void log_set_level(log_level level) {
    atomic_store_explicit(&sink_level, (int)level, memory_order_relaxed);
}
log_level log_get_level(void) {
    return (log_level)atomic_load_explicit(&sink_level, memory_order_relaxed);
}

void log_write(log_level level, const char *format, ...) {
    if (!sink_function || level > log_get_level()) return;
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    sink_function(sink_context, level, line);
}
