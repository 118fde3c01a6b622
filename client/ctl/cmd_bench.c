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
    OPTION_ROUNDS,
    OPTION_SLOTS,
    OPTION_TENANTS,
    OPTION_INPUTS,
    OPTION_BREAKDOWN,
    OPTION_SPIN
};
static const struct argp_option options[] = {
    {"device", OPTION_DEVICE, "KIND", 0, "auto (default), cpu or cuda", 0},
    {"gpu", OPTION_SELECTOR, "WHICH", 0, "index or UUID of the GPU", 0},
    {"threads", OPTION_THREADS, "N,...", 0,
     "CPU threads inside each operation (default: all cores); ops: several counts take turns, each against "
     "the first, on recordings alone",
     0},
    {"seconds", OPTION_SECONDS, "S", 0,
     "ops: time for each operation (default 0.3); serve, load: for each number of slots (default 5)", 0},
    {"set", OPTION_SET, "TEXT", 0,
     "ops: only parameter sets with this in their name (several: with | between); program, serve: one "
     "operation (--row) of that set",
     0},
    {"row", OPTION_ROW, "TEXT", 0,
     "ops: only operations with this in their name (several: with | between); program, serve: rotate or "
     "square",
     0},
    {"all", OPTION_ALL, 0, 0, "ops: large parameter sets too (gigabytes of keys)", 0},
    {"compare", OPTION_COMPARE, "FILE", 0,
     "ops: an earlier --json output; exit code 8 if an operation is clearly slower", 0},
    {"rounds", OPTION_ROUNDS, "N", 0, "program: rounds of each (default 20)", 0},
    {"slots", OPTION_SLOTS, "N,...", 0, "serve: slots at a time; load: requests at a time (default 1,2,4,8)",
     0},
    {"tenants", OPTION_TENANTS, "N", 0, "serve: key sets that requests take turns with (default 1)", 0},
    {"inputs", OPTION_INPUTS, "N", 0, "serve, load: different requests of each key set (default 4)", 0},
    {"spin", OPTION_SPIN, "US", 0,
     "load: wait for replies awake for this long before sleeping (local addresses; default 0)", 0},
    {"breakdown", OPTION_BREAKDOWN, 0, 0, "load: where a request's time goes, by stage", 0},
    {0}};

/* up to BENCH_COUNTS_MAX numbers from 1 to max; returns how many */
static uint32_t parse_counts(uint32_t counts[BENCH_COUNTS_MAX], char *text, unsigned long max,
                             const char *name, struct argp_state *state) {
    char *end = text;
    uint32_t found = 0;
    do {
        char *start = end;
        const unsigned long count = strtoul(start, &end, 10);
        if (end == start || (*end && *end != ',') || count < 1 || count > max || found == BENCH_COUNTS_MAX)
            argp_error(state, "--%s takes up to %u numbers from 1 to %lu, with commas between", name,
                       BENCH_COUNTS_MAX, max);
        counts[found++] = (uint32_t)count;
    } while (*end++ == ',');
    return found;
}

static uint32_t parse_count(const char *text, unsigned long max, const char *name, struct argp_state *state) {
    char *end;
    const unsigned long count = strtoul(text, &end, 10);
    if (*end || count < 1 || count > max) argp_error(state, "--%s takes 1 to %lu", name, max);
    return (uint32_t)count;
}

static const char *take_what(struct argp_state *state, const char *text) {
    static const char *const known[] = {"ops", "program", "serve", "load"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(text, known[i])) return text;
    argp_error(state, "%s cannot be timed: ops, program, serve or load?", text);
    return text;
}

static error_t parse(int key, char *argument, struct argp_state *state) {
    arguments *a = state->input;
    char *end;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        return 0;
    case OPTION_DEVICE:
        a->bench.device_kind = ctl_take_device(state, argument);
        return 0;
    case OPTION_SELECTOR:
        a->bench.selector = argument;
        return 0;
    case OPTION_THREADS:
        a->bench.thread_counts = parse_counts(a->bench.threads, argument, 1024, "threads", state);
        return 0;
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
    case OPTION_ROUNDS:
        a->bench.rounds = parse_count(argument, 100000, "rounds", state);
        return 0;
    case OPTION_SLOTS:
        a->bench.slot_counts = parse_counts(a->bench.slots, argument, BENCH_SLOTS_MAX, "slots", state);
        return 0;
    case OPTION_TENANTS:
        a->bench.tenants = parse_count(argument, 1000, "tenants", state);
        return 0;
    case OPTION_INPUTS:
        a->bench.inputs = parse_count(argument, 1000, "inputs", state);
        return 0;
    case OPTION_SPIN:
        a->common.spin_us = parse_count(argument, 1000000, "spin", state);
        return 0;
    case OPTION_BREAKDOWN:
        a->bench.with_breakdown = true;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0)
            a->what = take_what(state, argument);
        else if (!strcmp(a->what, "ops"))
            ctl_refuse_more(state, argument);
        else
            ctl_take_one(state, &a->bench.package, argument);
        return 0;
    case ARGP_KEY_END:
        ctl_need(state, a->what, "what to time", "ops, program, serve or load");
        if (!strcmp(a->what, "load")) ctl_need(state, a->bench.package, "MODEL", "a server's model");
        if (!strcmp(a->what, "load")) (void)ctl_take_model(state, a->bench.package);
        if (a->bench.thread_counts > 1 && (strcmp(a->what, "ops") != 0 || a->bench.compare))
            argp_error(state, "--threads takes several counts for ops alone, without --compare");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp parser = {
    options,
    parse,
    "ops\nprogram [PACKAGE]\nserve [PACKAGE]\nload MODEL[/VERSION]",
    "Time operations or a whole program on this machine's device.\v"
    "ops: encoding, encryption, decryption, key generation and the "
    "evaluator's operations, each of these recorded and eager in turn, "
    "for the parameter sets that compilation "
    "chooses from and for those that other libraries publish figures for "
    "(INSECURE where they are over the security table). Results are decrypted "
    "and compared before they are timed. With --threads 1,2 each count has a "
    "device of its own and they take turns, so that a core that changes its "
    "speed does so for all; the ratio is printed.\n\n"
    "program: a model package, eager against recorded, with the same staging, "
    "ownership, checks and memory; every "
    "result is compared word for word.\n\n"
    "serve: full load on several slots of one device, each asked again as "
    "soon as it has answered, in this process: requests per second, latencies, "
    "memory before and after. Every answer is compared with the words that "
    "the CPU computes; exit code 8 if one differs.\n\n"
    "Examples:\n"
    "  ckksctl bench ops --set 2^13 --row rotat --threads 1\n"
    "  ckksctl bench ops --set 2^14 --threads 1,2\n"
    "  ckksctl bench ops --json > before.json\n"
    "  ckksctl bench ops --compare before.json\n"
    "  ckksctl bench program mnist.ckm --rounds 50\n"
    "  ckksctl bench serve mnist.ckm --slots 8 --seconds 30 --tenants 2\n"
    "  ckksctl bench load mnist --slots 1,8,16\n"
    "  ckksctl bench load mnist --slots 1 --breakdown\n",
    ctl_common_children,
    0,
    0};

int command_bench(int argc, char **argv) {
    arguments a = {.bench = {.thread_counts = 1,
                             .rounds = 20,
                             .slots = {1, 2, 4, 8},
                             .slot_counts = 4,
                             .tenants = 1,
                             .inputs = 4}};
    argp_parse(&parser, argc, argv, 0, NULL, &a);
    a.bench.common = &a.common;
    const bool is_load = !strcmp(a.what, "load"), is_serve = !strcmp(a.what, "serve");
    if (!(a.bench.seconds > 0)) a.bench.seconds = is_serve || is_load ? 5 : 0.3;
    if (is_load) return bench_load(&a.bench);
    if (is_serve) return bench_serve(&a.bench);
    return strcmp(a.what, "ops") ? bench_program(&a.bench) : bench_ops(&a.bench);
}
