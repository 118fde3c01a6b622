/* ckksctl bench */
#include "client/ctl/bench.h"

#include <stdlib.h>
#include <string.h>

typedef struct arguments {
    ctl_options common;
    bench_options bench;
    const char *what;
} arguments;

enum {
    OPTION_DEVICE = CTL_KEY_FIRST,
    OPTION_SELECTOR,
    OPTION_THREADS,
    OPTION_SECONDS,
    OPTION_SET,
    OPTION_ROW,
    OPTION_ALL,
    OPTION_COMPARE,
    OPTION_ROUNDS
};
static const struct argp_option options[] = {
    {"device", OPTION_DEVICE, "KIND", 0, "auto (default), cpu or cuda", 0},
    {"gpu", OPTION_SELECTOR, "WHICH", 0, "index or UUID of the GPU", 0},
    {"threads", OPTION_THREADS, "N", 0, "CPU threads inside each operation (default: all cores)", 0},
    {"seconds", OPTION_SECONDS, "S", 0, "ops: time for each operation (default 0.3)", 0},
    {"set", OPTION_SET, "TEXT", 0, "ops: only parameter sets with this in their name", 0},
    {"row", OPTION_ROW, "TEXT", 0, "ops: only operations with this in their name", 0},
    {"all", OPTION_ALL, 0, 0, "ops: large parameter sets too (gigabytes of keys)", 0},
    {"compare", OPTION_COMPARE, "FILE", 0,
     "ops: an earlier --json output; exit code 8 if an operation is clearly slower", 0},
    {"rounds", OPTION_ROUNDS, "N", 0, "program: rounds of each (default 20)", 0},
    {0}};

static error_t parse(int key, char *argument, struct argp_state *state) {
    arguments *a = state->input;
    char *end;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        return 0;
    case OPTION_DEVICE:
        if (!strcmp(argument, "auto"))
            a->bench.device_kind = DEVICE_AUTO;
        else if (!strcmp(argument, "cpu"))
            a->bench.device_kind = DEVICE_CPU;
        else if (!strcmp(argument, "cuda"))
            a->bench.device_kind = DEVICE_CUDA;
        else
            argp_error(state, "--device takes auto, cpu or cuda");
        return 0;
    case OPTION_SELECTOR:
        a->bench.selector = argument;
        return 0;
    case OPTION_THREADS: {
        const unsigned long threads = strtoul(argument, &end, 10);
        if (*end || threads < 1 || threads > 1024) argp_error(state, "--threads takes 1 to 1024");
        a->bench.threads = (uint32_t)threads;
        return 0;
    }
    case OPTION_SECONDS:
        a->bench.seconds = strtod(argument, &end);
        if (*end || !(a->bench.seconds > 0) || a->bench.seconds > 3600)
            argp_error(state, "--seconds takes a number up to 3600");
        return 0;
    case OPTION_SET:
        a->bench.set = argument;
        return 0;
    case OPTION_ROW:
        a->bench.row = argument;
        return 0;
    case OPTION_ALL:
        a->bench.all_sets = true;
        return 0;
    case OPTION_COMPARE:
        a->bench.compare = argument;
        return 0;
    case OPTION_ROUNDS: {
        const unsigned long rounds = strtoul(argument, &end, 10);
        if (*end || rounds < 1 || rounds > 100000) argp_error(state, "--rounds takes 1 to 100000");
        a->bench.rounds = (uint32_t)rounds;
        return 0;
    }
    case ARGP_KEY_ARG:
        if (state->arg_num == 0)
            a->what = argument;
        else if (state->arg_num == 1 && !strcmp(a->what, "program"))
            a->bench.package = argument;
        else
            argp_usage(state);
        return 0;
    case ARGP_KEY_END:
        if (!a->what || (strcmp(a->what, "ops") != 0 && strcmp(a->what, "program") != 0))
            argp_error(state, "ops or program?");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp parser = {options,
                                   parse,
                                   "ops\nprogram [PACKAGE]",
                                   "Time operations or a whole program on this machine's device.\v"
                                   "ops: encoding, encryption, decryption, key generation and the "
                                   "evaluator's operations, each of these recorded and eager in turn, "
                                   "for the parameter sets that compilation "
                                   "chooses from and for those that other libraries publish figures for "
                                   "(INSECURE where they are over the security table). Results are decrypted "
                                   "and compared before they are timed.\n\n"
                                   "program: a model package, eager against recorded, with the same staging, "
                                   "ownership, checks and memory; every "
                                   "result is compared word for word.\n\n"
                                   "Examples:\n"
                                   "  ckksctl bench ops --set 2^13 --row rotat --threads 1\n"
                                   "  ckksctl bench ops --json > before.json\n"
                                   "  ckksctl bench ops --compare before.json\n"
                                   "  ckksctl bench program mnist.ckm --rounds 50\n",
                                   ctl_common_children,
                                   0,
                                   0};

int command_bench(int argc, char **argv) {
    arguments a = {.bench = {.seconds = 0.3, .rounds = 20}};
    argp_parse(&parser, argc, argv, 0, NULL, &a);
    a.bench.common = &a.common;
    return strcmp(a.what, "ops") ? bench_program(&a.bench) : bench_ops(&a.bench);
}
