/* Messages, exit codes, the progress bar and JSON. */
#include "client/ctl/ctl.h"

#include "client/lib/exit_class.h"
#include "client/lib/rpc_internal.h"
#include "kernels/base/bytes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

int ctl_exit_code(const ckks_error *err) {
    /* by SIGINT; a server that cancels is another matter */
    if (err->code == CKKS_CANCELLED && !rpc_error_is_from_server(err)) return EXIT_INTERRUPTED;
    return (int)client_exit_class(err);
}

/* What to do about it; "" where the message says all. */
static const char *way_out(const ckks_error *err, bool has_key) {
    switch (err->code) {
    case CKKS_KEY_UNKNOWN:
    case CKKS_KEY_EVICTED:
        return has_key ? "upload these keys: ckksctl register, with the same --key"
                       : "upload the keys again: ckksctl register";
    case CKKS_KEY_MISSING:
        if (has_key)
            return "make and upload what the model needs, both with the same --key: ckksctl keygen --for "
                   "MODEL "
                   "&& ckksctl register";
        return "make and upload what the model needs: ckksctl keygen --for MODEL && ckksctl register";
    case CKKS_PARAMS_MISMATCH:
    case CKKS_LINEAGE_MISMATCH:
        return "use the key that was made for this model (--key), or make one: ckksctl keygen --for MODEL";
    case CKKS_CONFIG_RETIRED:
        return "the model was replaced: run the command again, without a /VERSION or saved metadata";
    case CKKS_AUTH:
        return "give a token that the server knows: --token-file, or ckksctl profile --token-file FILE";
    case CKKS_PERMISSION_DENIED:
        if (!strcmp(err->field, "method")) return "give the address of the control socket";
        return rpc_error_is_from_server(err)
                   ? "this token lacks the scope; the operator makes one with ckksctl token add"
                   : "";
    case CKKS_INSECURE_PARAMETERS:
        if (!strcmp(err->field, "log_n")) return "leave --log-n out, or give a larger one";
        return "do not encrypt for this server; --allow-insecure is for tests with data that is no secret";
    case CKKS_UNTRUSTED_SERVER:
        if (!strcmp(err->field, "certificate"))
            return "name its authority (--ca FILE), and the server by the certificate's name, not by number";
        return "do not use this server until its operator has explained it";
    case CKKS_QUEUE_FULL:
    case CKKS_DRAINING:
        return "try again later";
    case CKKS_QUOTA:
        return "delete key sets that are no longer used, or ask the operator for more";
    case CKKS_UNAVAILABLE:
        return "ckksctl doctor checks the way to the server step by step";
    default:
        return "";
    }
}

int ctl_fail(const ctl_options *options, const ckks_error *err) {
    char text[512];
    ckks_error copy = *err;
    const bool is_remote = rpc_error_is_from_server(err);
    copy.stage[0] = 0; /* the message says who spoke */
    ckks_error_print(&copy, text, sizeof text);
    text_make_printable(text); /* it quotes names of files and cells of tables */
    const int code = ctl_exit_code(err);
    const char *advice = way_out(err, options && options->key);
    if (options && options->json) {
        json_writer j;
        json_begin(&j);
        json_object(&j, NULL);
        json_object(&j, "error");
        json_string(&j, "code", ckks_status_name(err->code));
        json_bool(&j, "from_server", is_remote);
        json_string(&j, "field", err->field);
        json_string(&j, "message", err->message[0] ? err->message : ckks_status_text(err->code));
        json_string(&j, "advice", advice);
        json_integer(&j, "exit", (uint64_t)code);
        json_close_object(&j);
        json_close_object(&j);
        json_end(&j);
    }
    fprintf(stderr, "ckksctl: %s\n", text);
    if (advice[0]) fprintf(stderr, "  %s\n", advice);
    return code;
}

void ctl_note(const ctl_options *options, const char *format, ...) {
    if (options && (options->quiet || options->json)) return;
    fflush(stdout); /* a note follows what it is about */
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments); // NOLINT(clang-analyzer-valist.Uninitialized): started above
    va_end(arguments);
    fputc('\n', stderr);
}

void ctl_warn(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("ckksctl: warning: ", stderr);
    vfprintf(stderr, format, arguments); // NOLINT(clang-analyzer-valist.Uninitialized): started above
    va_end(arguments);
    fputc('\n', stderr);
}

void ctl_warn_unrounded(double step) {
    if (!(step > 0))
        ctl_warn("results are not rounded (--raw, or the model promises no precision): do not pass them on, "
                 "their last digits carry information about your secret key");
}

char *ctl_bytes(char text[32], uint64_t bytes) {
    static const char *const unit[] = {"KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes / 1024;
    int u = 0;
    if (bytes < 1024) {
        snprintf(text, 32, "%llu bytes", (unsigned long long)bytes);
        return text;
    }
    while (value >= 1024 && u < 3) value /= 1024, u++;
    snprintf(text, 32, "%.*f %s", value < 10 ? 2 : value < 100 ? 1 : 0, value, unit[u]);
    return text;
}

/* ---- progress ---- */

const char *ctl_value(char text[CTL_VALUE_BYTES], double value, double step) {
    const int decimals = step > 0 ? (int)ceil(-log10(step) - 1e-9) : 0;
    if (step > 0)
        snprintf(text, CTL_VALUE_BYTES, "%.*f", decimals < 0 ? 0 : decimals, value);
    else
        snprintf(text, CTL_VALUE_BYTES, "%.17g", value);
    return text;
}

void ctl_print_value(double value, double step) {
    char text[CTL_VALUE_BYTES];
    printf("\t%s", ctl_value(text, value, step));
}

/* On one line: what is wrapped could not be drawn over. The bar gives way to the text, which is cut at last.
 */
static void draw(const ctl_bar *bar, double share, const char *said) {
    static const char full[] = "##############################";
    char text[160];
    struct winsize window = {0};
    const int columns =
        ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 ? window.ws_col : 80;
    int width = columns - 1 - (int)(strlen(bar->what) + strlen(said) + sizeof " [] " - 1);
    if (width > (int)sizeof full - 1) width = (int)sizeof full - 1;
    const int filled = (int)(share * width);
    if (width >= 4)
        snprintf(text, sizeof text, "%s [%.*s%*s] %s", bar->what, filled, full, width - filled, "", said);
    else
        snprintf(text, sizeof text, "%s %s", bar->what, said);
    fprintf(stderr, "\r%.*s\x1b[K", columns - 1, text);
    fflush(stderr);
}

void ctl_bar_begin(ctl_bar *bar, const ctl_options *options, const char *what, bool is_bytes) {
    *bar = (ctl_bar){.what = what, .is_bytes = is_bytes};
    bar->is_on = isatty(STDERR_FILENO) && !options->quiet && !options->json;
}

void ctl_bar_update(void *context, uint64_t done, uint64_t total) {
    ctl_bar *bar = context;
    char have[32], all[32], said[80];
    const uint64_t now = rpc_now_ns();
    if (!bar->is_on || total == 0 || (done < total && now - bar->shown_ns < 50000000u)) return;
    bar->shown_ns = now;
    if (bar->is_bytes)
        ctl_bytes(have, done), ctl_bytes(all, total);
    else
        snprintf(have, sizeof have, "%llu", (unsigned long long)done),
            snprintf(all, sizeof all, "%llu", (unsigned long long)total);
    snprintf(said, sizeof said, "%s of %s", have, all);
    draw(bar, (double)done / (double)total, said);
}

void ctl_bar_rows(ctl_bar *bar, uint64_t done, uint64_t thousandths, uint64_t row_count, uint64_t begin_ns) {
    const uint64_t now = rpc_now_ns();
    if (!bar->is_on || (thousandths < 1000 && now - bar->shown_ns < 50000000u)) return;
    bar->shown_ns = now;
    char said[96];
    const double seconds = (double)(now - begin_ns) * 1e-9;
    snprintf(said, sizeof said, "%llu rows, %llu %%, %.0f rows/s", (unsigned long long)done,
             (unsigned long long)thousandths / 10, seconds > 0 ? (double)row_count / seconds : 0.0);
    draw(bar, (double)thousandths / 1000, said);
}

void ctl_bar_end(ctl_bar *bar) {
    if (bar->is_on && bar->shown_ns) fputs("\r\x1b[K", stderr);
    bar->is_on = false;
}

/* ---- JSON ---- */

void json_begin(json_writer *j) {
    *j = (json_writer){0};
}

void json_discard(json_writer *j) {
    if (j->to && j->to != stdout) fclose(j->to);
    free(j->text);
    *j = (json_writer){0};
}

static void write_text(FILE *to, const char *text) {
    fputc('"', to);
    for (const char *c = text; *c;) {
        const size_t step = text_step(c);
        const unsigned char byte = (unsigned char)*c;
        if (byte == '"' || byte == '\\')
            fprintf(to, "\\%c", byte);
        else if (step)
            fwrite(c, 1, step, to);
        else /* a name of a file, say, that is no UTF-8: readers of JSON take nothing else */
            fprintf(to, "\\u%04x", byte < 0x80 ? byte : 0xfffd);
        c += step ? step : 1;
    }
    fputc('"', to);
}

/* comma and key of the next item */
static void lead(json_writer *j, const char *key) {
    if (!j->to) j->to = open_memstream(&j->text, &j->size);
    if (!j->to) j->to = stdout; /* no memory: as it comes */
    if (j->depth) {
        if (j->has_items[j->depth - 1]) fputs(", ", j->to);
        j->has_items[j->depth - 1] = true;
    }
    if (key) {
        write_text(j->to, key);
        fputs(": ", j->to);
    }
}

static void open_bracket(json_writer *j, const char *key, char bracket) {
    lead(j, key);
    fputc(bracket, j->to);
    CKKS_ASSERT(j->depth < sizeof j->has_items / sizeof *j->has_items);
    j->has_items[j->depth++] = false;
}
void json_object(json_writer *j, const char *key) {
    open_bracket(j, key, '{');
}
void json_list(json_writer *j, const char *key) {
    open_bracket(j, key, '[');
}
void json_close_object(json_writer *j) {
    j->depth--;
    fputc('}', j->to);
}
void json_close_list(json_writer *j) {
    j->depth--;
    fputc(']', j->to);
}
void json_string(json_writer *j, const char *key, const char *value) {
    lead(j, key);
    if (value)
        write_text(j->to, value);
    else
        fputs("null", j->to);
}
void json_number(json_writer *j, const char *key, double value) {
    char text[40] = "null";
    lead(j, key);
    /* the shortest text that reads back as the same number */
    for (int digits = 15; isfinite(value) && digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    fputs(text, j->to);
}
void json_integer(json_writer *j, const char *key, uint64_t value) {
    lead(j, key);
    fprintf(j->to, "%llu", (unsigned long long)value);
}
void json_bool(json_writer *j, const char *key, bool value) {
    lead(j, key);
    fputs(value ? "true" : "false", j->to);
}
void json_hex(json_writer *j, const char *key, const uint8_t *data, size_t size) {
    char text[129];
    CKKS_ASSERT(size <= 64);
    json_string(j, key, hex_encode(text, data, size));
}
void json_end(json_writer *j) {
    if (j->to && j->to != stdout) {
        fclose(j->to);
        if (j->text) fwrite(j->text, 1, j->size, stdout);
        j->to = NULL;
    }
    fputc('\n', stdout);
    json_discard(j);
}
