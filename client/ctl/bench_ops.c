/*
 * Timings of single operations. Device operations are programs, as the daemon runs them, timed on the device;
 * encoding, encryption, decryption and key generation are host functions. Every result of an operation is
 * decrypted and compared before it is timed: a fast wrong answer is no figure.
 */
#include "client/ctl/bench_rows.h"

#include "client/lib/rpc_internal.h"
#include "kernels/scheme/encoder.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS_MIN 5u
#define ROUNDS_MAX 2000u
#define BURST      3u   /* runs of a turn, with several thread counts */
#define ERROR_MAX  1e-2 /* of slots in [-1, 1]: noise at the smallest scale, 2^28, stays far below */

/* The menu that compilation chooses from, the sets that other CPU libraries publish figures for, and those of
 * other GPU libraries (over the security table: marked insecure, never offered for use). */
static const bench_set sets[] = {
    {"2^12 depth 1", 12, 38, 28, 2, 38, 1, 1, 28, .has_matrix_mod = true},
    {"2^13 depth 4, P 40", 13, 40, 30, 5, 40, 1, 1, 30, .is_large = false},
    {"2^14 depth 7, 1 prime a digit", 14, 50, 40, 8, 50, 1, 1, 40, .is_large = false},
    {"2^14 depth 7, 2 primes a digit", 14, 50, 40, 8, 50, 2, 2, 40, .has_matrix = true},
    {"2^14 depth 8", 14, 50, 40, 9, 50, 1, 1, 40, .is_large = false},
    {"2^15 depth 15, 3 primes a digit", 15, 50, 40, 16, 50, 3, 3, 40, .is_large = false},
    {"2^15 depth 16", 15, 50, 40, 17, 50, 3, 3, 40, .is_large = true, .has_matrix = true},
    {"2^16 depth 34", 16, 50, 40, 35, 50, 6, 6, 40, .is_large = true, .has_matrix = true},
    {"2^14, 8 + 2 limbs, 4 digits", 14, 50, 50, 8, 50, 2, 2, 45, .is_large = false},
    {"2^15, 16 + 4 limbs, 4 digits", 15, 50, 50, 16, 50, 4, 4, 45, .is_large = true},
    {"2^16, 24 + 6 limbs, 4 digits", 16, 50, 50, 24, 50, 6, 6, 45, .is_large = true},
};
#define SET_COUNT (sizeof sets / sizeof *sets)

#define ROW_TABLES 3u
static const bench_row *const row_tables[ROW_TABLES] = {bench_host_rows, bench_device_rows,
                                                        bench_linear_rows};

/* ---- what rows share ---- */

galois_step bench_step(const bench_run *r, int64_t steps) {
    const uint32_t element = galois_element_rotate(r->rig.params->log_n, steps);
    galois_step step = {element, 0};
    for (uint32_t i = 0; i < r->rig.key_count; i++)
        if (r->rig.requirements[i].galois_element == element) step.key = i;
    return step;
}

value_signature bench_output(const bench_run *r, uint32_t level, double scale) {
    value_signature s;
    value_signature_ciphertext(&s, r->rig.params, 2, level, scale, device_id(r->rig.dev));
    return s;
}

ckks_status bench_words(uint64_t **out, size_t count, ckks_error *err) {
    if ((*out = calloc(count, sizeof **out))) return CKKS_OK; /* touched: pages are not part of a timing */
    return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a benchmark");
}

ckks_status bench_device_words(bench_run *r, uint64_t count, ckks_error *err) {
    return device_allocate(r->rig.dev, &r->now.on_device, count * sizeof(uint64_t), MEMORY_STATIC, err);
}

ckks_status bench_compare_slots(bench_run *r, const double *slots, const double *expected, ckks_error *err) {
    const uint32_t slot_count = params_slot_count_max(r->rig.params);
    for (uint32_t i = 0; i < slot_count; i++) r->error = fmax(r->error, fabs(slots[i] - expected[i]));
    if (r->error < ERROR_MAX) return CKKS_OK;
    return ckks_error_set(err, CKKS_INTERNAL, r->row->name, "the result is wrong by %.2e", r->error);
}

ckks_status bench_decrypt(const bench_run *r, double *slots, const uint64_t *words, uint32_t level,
                          double scale, ckks_error *err) {
    uint64_t *plain;
    ckks_status rc = bench_words(&plain, ((size_t)level + 1) * params_n(r->rig.params), err);
    if (rc == CKKS_OK) rc = decrypt(plain, r->rig.secret->key, words, 2, level, err);
    if (rc == CKKS_OK)
        rc = encoder_decode(slots, NULL, r->rig.context, plain, params_slot_count_max(r->rig.params), level,
                            scale, err);
    free(plain);
    return rc;
}

/* ---- timing ---- */

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* microseconds of one turn */
static ckks_status take_turn(double *values, uint32_t burst, bench_timed one, void *context,
                             ckks_error *err) {
    uint64_t ns = 0;
    ckks_status rc = burst > 1 ? one(&ns, context, err) : CKKS_OK;
    for (uint32_t i = 0; i < burst && rc == CKKS_OK; i++) {
        rc = one(&ns, context, err);
        values[i] = (double)ns * 1e-3;
    }
    return rc;
}

ckks_status bench_measure(bench_figure *out, const bench_run *r, bench_timed one, void *const *contexts,
                          uint32_t count, uint32_t burst, ckks_error *err) {
    static double values[BENCH_WAYS_MAX][ROUNDS_MAX];
    uint32_t rounds = 0, turns = 0;
    uint64_t ns = 0;
    ckks_status rc;
    for (uint32_t way = 0; way < count; way++)
        if ((rc = one(&ns, contexts[way], err)) != CKKS_OK) return rc; /* warm */
    const uint64_t begin = rpc_now_ns(), end = begin + (uint64_t)(r->options->seconds * count * 1e9);
    while (rounds + burst <= ROUNDS_MAX && (rounds < ROUNDS_MIN || rpc_now_ns() < end)) {
        for (uint32_t turn = 0; turn < count; turn++) {
            const uint32_t way = (turns + turn) % count; /* who goes first alternates */
            if ((rc = take_turn(values[way] + rounds, burst, one, contexts[way], err)) != CKKS_OK) return rc;
        }
        rounds += burst, turns++;
    }
    for (uint32_t way = 0; way < count; way++) {
        const double *v = values[way];
        qsort(values[way], rounds, sizeof *v, compare_doubles);
        out[way] = (bench_figure){v[rounds / 2], v[rounds / 10], v[rounds - 1 - rounds / 10], v[0], rounds};
    }
    return CKKS_OK;
}

static ckks_status host_timed(uint64_t *ns, void *context, ckks_error *err) {
    bench_run *r = context;
    if (r->threads) omp_set_num_threads((int)r->threads);
    const uint64_t begin = rpc_now_ns();
    const ckks_status rc = r->row->once(r, err);
    *ns = rpc_now_ns() - begin;
    return rc;
}

static ckks_status check_host(bench_run *r, ckks_error *err) {
    const ckks_status rc = r->row->once(r, err);
    if (rc == CKKS_OK && r->row->check_host) return r->row->check_host(r, err);
    r->error = -1;
    return rc;
}

/* figures of the recording and the eager program, or of the host's call */
static ckks_status measure_ways(bench_figure figures[2], bench_run *r, ckks_error *err) {
    bench_programs programs = {0};
    void *const context[] = {r};
    ckks_status rc;
    if (r->row->once) {
        rc = check_host(r, err);
        return rc == CKKS_OK ? bench_measure(figures, r, host_timed, context, 1, 1, err) : rc;
    }
    if ((rc = bench_programs_open(&programs, r, true, err)) == CKKS_OK) {
        void *const ways[] = {programs.recorded, programs.eager};
        rc = bench_measure(figures, r, bench_replay_timed, ways, 2, 1, err);
    }
    bench_programs_close(&programs);
    return rc;
}

/* figures of the same thing with each thread count */
static ckks_status measure_threads(bench_figure *figures, bench_run *runs, uint32_t count, ckks_error *err) {
    bench_programs programs[BENCH_COUNTS_MAX] = {0};
    void *contexts[BENCH_COUNTS_MAX];
    const bool is_host = runs->row->once != NULL;
    ckks_status rc = CKKS_OK;
    for (uint32_t i = 0; i < count && rc == CKKS_OK; i++) {
        rc = is_host ? check_host(&runs[i], err) : bench_programs_open(&programs[i], &runs[i], false, err);
        contexts[i] = is_host ? (void *)&runs[i] : programs[i].recorded;
    }
    if (rc == CKKS_OK)
        rc = bench_measure(figures, runs, is_host ? host_timed : bench_replay_timed, contexts, count, BURST,
                           err);
    for (uint32_t i = 0; i < count; i++) bench_programs_close(&programs[i]);
    return rc;
}

/* ---- printing ---- */

static const char heading[] =
    "                                         median us  10 % .. 90 %          minimum "
    "   runs";
static const char threads_heading[] =
    "                                     threads   median us  10 % .. 90 %          minimum "
    "   runs  times as fast, by minima and medians";

static void print_change(bench_run *r, const bench_figure *f, const char *member) {
    const double before = bench_earlier_find(&r->earlier, r->set->name, r->row->name, member);
    if (!(before > 0)) return;
    const bool is_worse = f->low_us > 1.1 * before; /* even in its good tenth */
    r->worse += is_worse;
    if (!r->options->common->json)
        printf("  %+.0f %%%s", 100 * (f->median_us / before - 1), is_worse ? " SLOWER" : "");
}

static void print_text(bench_run *r, const bench_figure *graph, const bench_figure *eager) {
    printf("  %-36s %11.1f  %9.1f .. %-9.1f %9.1f  %5u", r->row->name, graph->median_us, graph->low_us,
           graph->high_us, graph->min_us, graph->rounds);
    print_change(r, graph, "median_us");
    if (eager) {
        printf("\n  %36s %11.1f  %9.1f .. %-9.1f %9.1f  graph/eager %.2f", "eager", eager->median_us,
               eager->low_us, eager->high_us, eager->min_us, graph->median_us / eager->median_us);
        print_change(r, eager, "eager_median_us");
    }
    printf("\n");
    fflush(stdout);
}

/* how many times as fast as the first thread count */
static double speedup(const bench_figure *figures, uint32_t i, bool by_minima) {
    return by_minima ? figures->min_us / figures[i].min_us : figures->median_us / figures[i].median_us;
}

static void print_threads(const bench_run *runs, const bench_figure *figures, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        const bench_figure *f = &figures[i];
        printf("  %-36s %5u %11.1f  %9.1f .. %-9.1f %9.1f  %5u", i ? "" : runs->row->name, runs[i].threads,
               f->median_us, f->low_us, f->high_us, f->min_us, f->rounds);
        if (i) printf("  %.2f  %.2f", speedup(figures, i, true), speedup(figures, i, false));
        printf("\n");
    }
    fflush(stdout);
}

static void json_figure(json_writer *j, const char *prefix, const bench_figure *f) {
    char name[32];
    const struct {
        const char *name;
        double value;
    } members[] = {
        {"median_us", f->median_us}, {"low_us", f->low_us}, {"high_us", f->high_us}, {"min_us", f->min_us}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        snprintf(name, sizeof name, "%s%s", prefix, members[i].name);
        json_number(j, name, members[i].value);
    }
}

static void json_threads(json_writer *j, const bench_run *runs, const bench_figure *figures, uint32_t count) {
    json_list(j, "threads");
    for (uint32_t i = 0; i < count; i++) {
        json_object(j, NULL);
        json_integer(j, "threads", runs[i].threads);
        json_figure(j, "", &figures[i]);
        json_integer(j, "rounds", figures[i].rounds);
        json_number(j, "speedup", speedup(figures, i, false));
        json_number(j, "speedup_min", speedup(figures, i, true));
        json_close_object(j);
    }
    json_close_list(j);
}

/* figures: of the recording; threads: [run_count], NULL unless there are several */
static void print_json(bench_run *r, const bench_figure *graph, const bench_figure *eager,
                       const bench_figure *threads, uint32_t run_count) {
    json_writer *j = r->json;
    const double before = bench_earlier_find(&r->earlier, r->set->name, r->row->name, "median_us");
    json_object(j, NULL); /* bench_earlier_find depends on this order */
    json_string(j, "set", r->set->name);
    json_string(j, "operation", r->row->name);
    json_figure(j, "", graph);
    json_integer(j, "rounds", graph->rounds);
    if (eager) {
        json_figure(j, "eager_", eager);
        json_number(j, "ratio", graph->median_us / eager->median_us);
    }
    json_bool(j, "checked", r->error >= 0);
    if (r->error >= 0) json_number(j, "error", r->error);
    json_bool(j, "insecure", params_security_bits(r->rig.params) < 128);
    if (before > 0) json_number(j, "before_us", before);
    if (threads) json_threads(j, r, threads, run_count);
    json_close_object(j);
    print_change(r, graph, "median_us");
    if (eager) print_change(r, eager, "eager_median_us");
}

/* ---- one parameter set ---- */

/* is one of the texts of `wanted`, with | between, in the name? */
static bool is_named(const char *name, const char *wanted) {
    char text[128];
    for (const char *at = wanted;; at++) {
        const size_t length = strcspn(at, "|");
        snprintf(text, sizeof text, "%.*s", (int)(length < sizeof text ? length : sizeof text), at);
        if (length < sizeof text && strstr(name, text)) return true;
        at += length;
        if (!*at) return false;
    }
}

static bool is_row_wanted(const bench_options *o, const bench_set *set, const bench_row *row) {
    if (row->is_for && !row->is_for(set)) return false;
    return !o->row || is_named(row->name, o->row);
}

const bench_set *bench_set_find(const char *part) {
    for (size_t i = 0; i < SET_COUNT; i++)
        if (strstr(sets[i].name, part)) return &sets[i];
    return NULL;
}

ckks_status bench_set_params(ckks_params *out, const bench_set *s, ckks_error *err) {
    uint32_t q[CKKS_PRIMES_MAX], p[CKKS_PRIMES_MAX];
    for (uint32_t i = 0; i < s->q_count; i++) q[i] = i ? s->q_bits : s->q0_bits;
    for (uint32_t i = 0; i < s->p_count; i++) p[i] = s->p_bits;
    return params_generate(out, s->log_n, q, s->q_count, p, s->p_count, s->digit_size, err);
}

static void add_key(key_requirement *keys, uint32_t *count, uint32_t kind, uint32_t element, uint32_t level) {
    for (uint32_t i = 0; i < *count; i++)
        if (keys[i].kind == kind && keys[i].galois_element == element) return;
    CKKS_ASSERT(*count < BENCH_STEPS_MAX);
    keys[(*count)++] = (key_requirement){kind, element, level};
}

/* the keys of the wanted rows together */
static uint32_t collect_keys(key_requirement *keys, const bench_options *o, const bench_set *set,
                             const ckks_params *params) {
    const uint32_t level = params_level_max(params);
    uint32_t count = 0;
    for (size_t t = 0; t < ROW_TABLES; t++)
        for (const bench_row *row = row_tables[t]; row->name; row++) {
            int64_t steps[BENCH_STEPS_MAX];
            if (!is_row_wanted(o, set, row)) continue;
            if (row->needs_relinearisation) add_key(keys, &count, KEY_RELINEARISATION, 0, level);
            const uint32_t step_count = row->steps ? row->steps(steps) : 0;
            for (uint32_t i = 0; i < step_count; i++)
                add_key(keys, &count, KEY_GALOIS, galois_element_rotate(params->log_n, steps[i]), level);
        }
    return count;
}

static ckks_status set_open(bench_run *r, device *dev, const bench_set *s, ckks_error *err) {
    key_requirement keys[BENCH_STEPS_MAX];
    ckks_params params;
    ckks_status rc;
    if ((rc = bench_set_params(&params, s, err)) != CKKS_OK) return rc;
    r->set = s;
    r->level = params_level_max(&params);
    r->scale = ldexp(1, (int)s->scale_bits);
    const uint32_t key_count = collect_keys(keys, r->options, s, &params);
    if ((rc = bench_rig_open(&r->rig, dev, &params, keys, key_count, err)) != CKKS_OK) return rc;
    if ((rc = bench_sample_make(&r->a, &r->rig, r->level, r->scale, 1, err)) != CKKS_OK) return rc;
    return bench_sample_make(&r->b, &r->rig, r->level, r->scale, 2, err);
}

static void set_close(bench_run *r) {
    if (r->rig.dev) {
        bench_sample_fini(&r->a, &r->rig);
        bench_sample_fini(&r->b, &r->rig);
    }
    bench_rig_close(&r->rig);
}

static void state_close(bench_run *r) {
    bench_state *s = &r->now;
    hoisted_rotations_destroy(s->hoisted);
    linear_transform_destroy(s->transform);
    device_free(r->rig.dev, s->on_device);
    bench_sample_fini(&s->own, &r->rig);
    free(s->matrix);
    free(s->slots);
    for (size_t i = 0; i < sizeof s->words / sizeof *s->words; i++) free(s->words[i]);
    *s = (bench_state){0};
}

/* a device, and a run on it, for each thread count */
typedef struct ops {
    bench_run runs[BENCH_COUNTS_MAX];
    device *devices[BENCH_COUNTS_MAX];
    uint32_t count;
} ops;

static ckks_status run_row(ops *o, const bench_row *row, ckks_error *err) {
    bench_figure figures[BENCH_WAYS_MAX] = {0};
    bench_run *first = o->runs;
    const bool is_json = first->options->common->json, is_alone = o->count == 1;
    const bench_figure *eager = is_alone && !row->once ? &figures[1] : NULL;
    ckks_status rc = CKKS_OK;
    for (uint32_t i = 0; i < o->count && rc == CKKS_OK; i++) {
        o->runs[i].row = row;
        o->runs[i].error = 0;
        rc = row->open(&o->runs[i], err);
    }
    if (rc == CKKS_OK)
        rc = is_alone ? measure_ways(figures, first, err) : measure_threads(figures, o->runs, o->count, err);
    for (uint32_t i = 0; i < o->count; i++) state_close(&o->runs[i]);
    if (rc != CKKS_OK) return rc;
    if (is_json)
        print_json(first, figures, eager, is_alone ? NULL : figures, o->count);
    else if (is_alone)
        print_text(first, figures, eager);
    else
        print_threads(o->runs, figures, o->count);
    return CKKS_OK;
}

static ckks_status run_set(ops *o, const bench_set *s, ckks_error *err) {
    const bench_options *options = o->runs->options;
    ckks_status rc = CKKS_OK;
    for (uint32_t i = 0; i < o->count && rc == CKKS_OK; i++)
        rc = set_open(&o->runs[i], o->devices[i], s, err);
    if (rc == CKKS_OK && !options->common->json)
        printf("%s%s\n", s->name,
               params_security_bits(o->runs->rig.params) < 128 ? "  (INSECURE: for comparison only)" : "");
    for (size_t t = 0; t < ROW_TABLES; t++)
        for (const bench_row *row = row_tables[t]; row->name && rc == CKKS_OK; row++)
            if (is_row_wanted(options, s, row)) rc = run_row(o, row, err);
    for (uint32_t i = 0; i < o->count; i++) set_close(&o->runs[i]);
    return rc;
}

static bool is_wanted(const bench_options *o, const bench_set *s) {
    bool has_row = false;
    for (size_t t = 0; t < ROW_TABLES; t++)
        for (const bench_row *row = row_tables[t]; row->name; row++) has_row |= is_row_wanted(o, s, row);
    return has_row && (o->set ? is_named(s->name, o->set) : o->all_sets || !s->is_large);
}

static void print_head(const ops *o, json_writer *j) {
    char machine[128];
    const uint32_t host = o->runs->threads ? o->runs->threads : (uint32_t)omp_get_max_threads();
    const char *description = device_describe(o->devices[0]);
    if (o->runs->options->common->json) {
        json_object(j, NULL);
        json_string(j, "machine", bench_machine(machine));
        json_string(j, "device", description);
        json_integer(j, "threads", host);
        json_string(j, "version", CKKSD_VERSION);
        json_list(j, "results");
        return;
    }
    printf("%s; %s", bench_machine(machine), description);
    for (uint32_t i = 1; i < o->count; i++) printf(", in turn with %u", o->runs[i].threads);
    if (o->count == 1) printf("; host %u thread%s", host, host == 1 ? "" : "s");
    printf("\n%s\n", o->count == 1 ? heading : threads_heading);
}

static ckks_status ops_open(ops *o, const bench_options *options, json_writer *j, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    o->count = options->thread_counts;
    for (uint32_t i = 0; i < o->count && rc == CKKS_OK; i++) {
        const device_config config = {.kind = (device_kind)options->device_kind,
                                      .selector = options->selector,
                                      .threads = options->threads[i]};
        o->runs[i] = (bench_run){.options = options, .threads = options->threads[i], .json = j};
        rc = device_open(&o->devices[i], &config, err);
    }
    return rc;
}

int bench_ops(const bench_options *options) {
    ckks_error err = {0};
    json_writer j;
    uint32_t chosen = 0;
    ops all = {0};
    json_begin(&j);
    for (size_t i = 0; i < SET_COUNT; i++) chosen += is_wanted(options, &sets[i]);
    ckks_status rc =
        chosen ? CKKS_OK
               : ckks_error_set(&err, CKKS_INVALID_ARGUMENT, options->row ? "row" : "set",
                                "nothing is chosen: no set with \"%s\" in its name has a row with \"%s\"",
                                options->set ? options->set : "", options->row ? options->row : "");
    if (rc == CKKS_OK) rc = ops_open(&all, options, &j, &err);
    if (rc == CKKS_OK && options->compare)
        rc = bench_earlier_load(&all.runs->earlier, options->compare, &err);
    if (rc == CKKS_OK) print_head(&all, &j);
    for (size_t i = 0; i < SET_COUNT && rc == CKKS_OK; i++)
        if (is_wanted(options, &sets[i])) rc = run_set(&all, &sets[i], &err);
    if (rc == CKKS_OK && options->common->json) {
        json_close_list(&j);
        json_close_object(&j);
        json_end(&j);
    }
    json_discard(&j);
    bench_earlier_fini(&all.runs->earlier);
    for (uint32_t i = 0; i < all.count; i++) device_close(all.devices[i]);
    if (rc != CKKS_OK) return ctl_fail(options->common, &err);
    return all.runs->worse ? EXIT_MISMATCH : EXIT_GOOD;
}
