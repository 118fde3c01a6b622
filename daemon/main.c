/* ckksd: the encrypted inference daemon. Arguments, configuration, process-wide settings; the rest is
 * server.c. */
#include "daemon/config.h"
#include "daemon/logging.h"
#include "daemon/server.h"

#include <argp.h>
#include <malloc.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>

#define CONFIG_DEFAULT     "/etc/ckksd/ckksd.conf"
#define EXIT_CONFIG        2
#define MMAP_THRESHOLD_MAX (32 << 20) /* the most that glibc takes */

/* the C library looks for it: hidden, as our names are, it would not find it */
__attribute__((visibility("default"))) const char *argp_program_version = "ckksd " CKKSD_VERSION;

static const struct argp_option options[] = {
    {"config", 'c', "FILE", 0, "Read the configuration from FILE (" CONFIG_DEFAULT ")", 0},
    {"check-config", 'C', NULL, 0,
     "Check the configuration and the token file, and exit: 0 if good, 2 if not", 0},
    {0},
};

typedef struct arguments {
    const char *config;
    bool only_check;
} arguments;

static error_t parse(int key, char *value, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case 'c':
        a->config = value;
        return 0;
    case 'C':
        a->only_check = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument '%s'", value);
        return EINVAL;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = options,
    .parser = parse,
    .doc = "ckksd: serves trained models on encrypted inputs.\v"
           "Signals: SIGTERM finishes what is running and exits; SIGHUP reads configuration, tokens and "
           "models again.\n"
           "The sample configuration documents every setting.",
};

/* A build that lacks the device says so here, as it would at start. What the machine has is not looked at:
 * the file may be meant for another, and a daemon may be running. */
static ckks_status check_device(const config *c, ckks_error *err) {
    ckks_status rc = CKKS_OK;
#ifndef CKKSD_CUDA
    device *none = NULL;
    const device_config wanted = {.kind = DEVICE_CUDA};
    if (c->device_kind == DEVICE_CUDA) rc = device_open(&none, &wanted, err);
    device_close(none);
#else
    (void)c, (void)err;
#endif
    return rc;
}

static int check_only(const config *c) {
    ckks_error err = {0};
    token_table tokens;
    if (check_device(c, &err) != CKKS_OK) {
        fprintf(stderr, "ckksd: %s\n", err.message);
        return EXIT_CONFIG;
    }
    if (token_table_load(&tokens, c->tokens, &err) != CKKS_OK) {
        fprintf(stderr, "ckksd: %s\n", err.message);
        return EXIT_CONFIG;
    }
    char text[256];
    if (c->device_kind != DEVICE_CUDA && server_describe_slots(c, text, sizeof text))
        fprintf(stderr, "ckksd: on a CPU, %s\n", text);
    printf("%s: good; %zu token%s in %s\n", c->file, tokens.count, tokens.count == 1 ? "" : "s", c->tokens);
    token_table_fini(&tokens);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv) {
    arguments a = {.config = CONFIG_DEFAULT};
    ckks_error err = {0};
    /* fresh pages for every 16 MiB message would cost more than the work: keep and reuse memory, in one arena
     */
    const bool is_set = mallopt(M_ARENA_MAX, 1) && mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_MAX) &&
                        mallopt(M_TRIM_THRESHOLD, 1 << 30);
    argp_err_exit_status = EXIT_CONFIG;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    signal(SIGHUP, SIG_IGN); /* a reload that comes before the loop listens must not end us */
    config *c = calloc(1, sizeof *c);
    if (!c || sodium_init() < 0) {
        free(c);
        return EXIT_FAILURE;
    }
    if (config_load(c, a.config, &err) != CKKS_OK) {
        fprintf(stderr, "ckksd: %s\n", err.message);
        free(c);
        return EXIT_CONFIG;
    }
    int code;
    if (a.only_check) {
        code = check_only(c);
    } else {
        signal(SIGPIPE, SIG_IGN);
        logging_start((log_level)c->log_level);
        log_write(LOG_LEVEL_NOTICE, "event=start version=%s config=%s", CKKSD_VERSION, a.config);
        if (!is_set)
            log_write(LOG_LEVEL_WARNING, "event=malloc_options message=\"allocator settings were refused\"");
        code = server_run(c, a.config);
    }
    free(c);
    return code;
}
