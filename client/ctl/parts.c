#include "client/ctl/parts.h"

#include "client/lib/rpc_internal.h"
#include "kernels/evaluator/chebyshev.h"

#include <stdlib.h>
#include <string.h>

static ckks_status no_memory(ckks_error *err) {
    return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for parts of a program");
}

/* ---- cutting ---- */

static bool uses_b(const plan_operation *o) {
    return o->kind == PLAN_ADD || o->kind == PLAN_SUBTRACT || o->kind == PLAN_MULTIPLY;
}

/* may the program be cut before operation `at`? Only ciphertexts of two components go in and out. */
static bool can_cut(const plan *p, uint32_t at) {
    const uint32_t border = p->operations[at].first_output;
    for (uint32_t i = at; i < p->operation_count; i++) {
        const plan_operation *o = &p->operations[i];
        if (o->a < border && p->values[o->a].component_count != 2) return false;
        if (uses_b(o) && o->b < border && p->values[o->b].component_count != 2) return false;
    }
    return true;
}

static uint64_t plain_bytes(const plan *p, uint32_t index) {
    const uint64_t limbs = p->plains[index].level + 1 + (p->plains[index].with_p ? p->params->p_count : 0);
    return limbs * params_n(p->params) * sizeof(uint64_t);
}

static void account(plan_part *part, const plan *p, const plan_operation *o) {
    switch (o->kind) {
    case PLAN_ROTATE:
    case PLAN_CONJUGATE:
        part->rotations++;
        break;
    case PLAN_ROTATE_HOISTED:
    case PLAN_INNER_SUM:
        part->rotations += o->step_count;
        break;
    case PLAN_LINEAR_TRANSFORM: {
        const plan_transform *t = &p->transforms[o->transform];
        for (uint32_t i = 0; i < t->baby_count; i++) part->rotations += t->baby_steps[i] != 0;
        for (uint32_t i = 0; i < t->giant_count; i++) part->rotations += t->giant_steps[i] != 0;
        for (uint32_t i = 0; i < t->term_count; i++) part->weight_bytes += plain_bytes(p, t->terms[i].plain);
        break;
    }
    case PLAN_RELINEARISE:
        part->key_switches++;
        break;
    case PLAN_ADD_PLAIN:
    case PLAN_MULTIPLY_PLAIN:
        part->weight_bytes += plain_bytes(p, o->plain);
        break;
    case PLAN_MATRIX_PRODUCT: {
        const plan_matrix *m = &p->matrices[o->matrix];
        part->weight_bytes += (uint64_t)m->row_count * (m->column_count + (m->bias ? 1 : 0)) *
                              (p->values[o->a].level + 1) * sizeof(uint64_t);
        break;
    }
    default:
        break;
    }
}

ckks_status plan_parts(plan_part **out, uint32_t *count, const plan *p, ckks_error *err) {
    plan_part *parts = calloc((size_t)p->operation_count + 1, sizeof *parts);
    *out = parts, *count = 0;
    if (!parts) return no_memory(err);
    for (uint32_t i = 0; i < p->operation_count; i++) {
        const plan_operation *o = &p->operations[i];
        const bool is_new = !i || (strcmp(o->source, p->operations[i - 1].source) != 0 && can_cut(p, i));
        if (is_new)
            parts[(*count)++] =
                (plan_part){.source = o->source, .first = i, .level_in = p->values[o->a].level};
        plan_part *part = &parts[*count - 1];
        const plan_value *y = &p->values[o->first_output + o->output_count - 1];
        part->count++;
        part->level_out = y->level;
        part->scale_out = y->scale;
        account(part, p, o);
    }
    return CKKS_OK;
}

/* ---- excerpts ---- */

typedef struct excerpt_maker {
    const plan *p;
    uint32_t first, count;
    plan *to;
    plan_value *values;
    plan_operation *operations;
    uint32_t *outputs, *map; /* map: [value_count] of the original */
    plan_plain *plains;
    plan_transform *transforms;
    plan_transform_term *terms;
    uint32_t term_count;
    plan_polynomial *polynomials;
    plan_matrix *matrices;
} excerpt_maker;

static size_t aligned(size_t bytes) {
    return (bytes + 15) / 16 * 16;
}

/* room for everything, from one block */
static ckks_status make_room(excerpt_maker *m, void **memory, ckks_error *err) {
    const plan *p = m->p;
    size_t terms = 0, plains = m->count;
    for (uint32_t i = m->first; i < m->first + m->count; i++)
        if (p->operations[i].kind == PLAN_LINEAR_TRANSFORM)
            terms += p->transforms[p->operations[i].transform].term_count;
    plains += terms;
    const size_t sizes[] = {(size_t)p->value_count * sizeof *m->values,
                            m->count * sizeof *m->operations,
                            (size_t)p->value_count * sizeof *m->outputs,
                            (size_t)p->value_count * sizeof *m->map,
                            plains * sizeof *m->plains,
                            m->count * sizeof *m->transforms,
                            terms * sizeof *m->terms,
                            m->count * sizeof *m->polynomials,
                            m->count * sizeof *m->matrices};
    size_t total = 16;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) total += aligned(sizes[i]);
    uint8_t *at = *memory = calloc(1, total);
    if (!at) return no_memory(err);
    m->values = (void *)at, at += aligned(sizes[0]);
    m->operations = (void *)at, at += aligned(sizes[1]);
    m->outputs = (void *)at, at += aligned(sizes[2]);
    m->map = (void *)at, at += aligned(sizes[3]);
    m->plains = (void *)at, at += aligned(sizes[4]);
    m->transforms = (void *)at, at += aligned(sizes[5]);
    m->terms = (void *)at, at += aligned(sizes[6]);
    m->polynomials = (void *)at, at += aligned(sizes[7]);
    m->matrices = (void *)at;
    memset(m->map, 0xff, sizes[3]);
    return CKKS_OK;
}

static void take_input(excerpt_maker *m, uint32_t value) {
    if (value >= m->p->operations[m->first].first_output || m->map[value] != UINT32_MAX) return;
    m->map[value] = m->to->value_count;
    m->values[m->to->value_count++] = m->p->values[value];
    m->to->input_count++;
}

static uint32_t take_plain(excerpt_maker *m, uint32_t index) {
    m->plains[m->to->plain_count] = m->p->plains[index];
    return m->to->plain_count++;
}

static uint32_t take_transform(excerpt_maker *m, uint32_t index) {
    const plan_transform *from = &m->p->transforms[index];
    plan_transform *to = &m->transforms[m->to->transform_count];
    plan_transform_term *terms = m->terms + m->term_count;
    *to = *from;
    to->terms = terms;
    for (uint32_t i = 0; i < from->term_count; i++) {
        terms[i] = from->terms[i];
        terms[i].plain = take_plain(m, from->terms[i].plain);
    }
    m->term_count += from->term_count;
    return m->to->transform_count++;
}

static void take_operation(excerpt_maker *m, const plan_operation *from) {
    plan_operation *o = &m->operations[m->to->operation_count++];
    *o = *from;
    o->a = m->map[from->a];
    if (uses_b(from)) o->b = m->map[from->b];
    o->first_output = m->to->value_count;
    for (uint32_t k = 0; k < from->output_count; k++) {
        m->map[from->first_output + k] = m->to->value_count;
        m->values[m->to->value_count++] = m->p->values[from->first_output + k];
    }
    if (from->kind == PLAN_ADD_PLAIN || from->kind == PLAN_MULTIPLY_PLAIN)
        o->plain = take_plain(m, from->plain);
    if (from->kind == PLAN_LINEAR_TRANSFORM) o->transform = take_transform(m, from->transform);
    if (from->kind == PLAN_CHEBYSHEV) {
        m->polynomials[m->to->polynomial_count] = m->p->polynomials[from->polynomial];
        o->polynomial = m->to->polynomial_count++;
    }
    if (from->kind == PLAN_MATRIX_PRODUCT) {
        m->matrices[m->to->matrix_count] = m->p->matrices[from->matrix];
        o->matrix = m->to->matrix_count++;
    }
}

/* what later operations, or the program's outputs, need of it */
static void take_outputs(excerpt_maker *m) {
    const plan *p = m->p;
    const uint32_t end = m->first + m->count, low = p->operations[m->first].first_output;
    const uint32_t high = end < p->operation_count ? p->operations[end].first_output : p->value_count;
    for (uint32_t v = low; v < high; v++) {
        bool is_needed = false;
        for (uint32_t i = end; i < p->operation_count && !is_needed; i++)
            is_needed = p->operations[i].a == v || (uses_b(&p->operations[i]) && p->operations[i].b == v);
        for (uint32_t i = 0; i < p->output_count && !is_needed; i++) is_needed = p->outputs[i] == v;
        if (is_needed) m->outputs[m->to->output_count++] = m->map[v];
    }
}

ckks_status plan_excerpt_make(plan_excerpt *out, const plan *p, uint32_t first, uint32_t count,
                              ckks_error *err) {
    excerpt_maker m = {.p = p, .first = first, .count = count, .to = &out->plan};
    *out = (plan_excerpt){.plan = {.params = p->params, .is_insecure = p->is_insecure}};
    ckks_status rc = make_room(&m, &out->memory, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = first; i < first + count; i++) {
        take_input(&m, p->operations[i].a);
        if (uses_b(&p->operations[i])) take_input(&m, p->operations[i].b);
    }
    for (uint32_t i = first; i < first + count; i++) take_operation(&m, &p->operations[i]);
    take_outputs(&m);
    plan *to = &out->plan;
    to->values = m.values, to->operations = m.operations, to->outputs = m.outputs;
    to->plains = m.plains, to->transforms = m.transforms;
    to->polynomials = m.polynomials, to->matrices = m.matrices;
    if ((rc = plan_key_requirements(to, &out->keys, &to->key_count, err)) != CKKS_OK) return rc;
    to->keys = out->keys;
    return plan_check(to, err);
}

void plan_excerpt_fini(plan_excerpt *e) {
    free(e->keys);
    free(e->memory);
    *e = (plan_excerpt){0};
}

/* ---- timing ---- */

ckks_status plan_clock_open(plan_clock *out, uint32_t kind, const ckks_params *params,
                            const key_requirement *keys, uint32_t key_count, ckks_error *err) {
    const device_config config = {.kind = (device_kind)kind};
    *out = (plan_clock){0};
    ckks_status rc = device_open(&out->dev, &config, err);
    if (rc == CKKS_OK) rc = bench_rig_open(&out->rig, out->dev, params, keys, key_count, err);
    if (rc != CKKS_OK) plan_clock_close(out);
    return rc;
}

void plan_clock_close(plan_clock *c) {
    bench_rig_close(&c->rig);
    device_close(c->dev);
    *c = (plan_clock){0};
}

typedef struct timed_inputs {
    uint32_t count;
    bench_sample *samples;
    graph_input *sources;
} timed_inputs;

static void inputs_fini(timed_inputs *in, bench_rig *rig) {
    for (uint32_t i = 0; in->samples && i < in->count; i++) bench_sample_fini(&in->samples[i], rig);
    free(in->samples);
    free(in->sources);
}

static ckks_status inputs_init(timed_inputs *in, bench_rig *rig, const plan *p, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    *in = (timed_inputs){p->input_count, calloc(p->input_count, sizeof *in->samples),
                         calloc(p->input_count, sizeof *in->sources)};
    if (!in->samples || !in->sources) return no_memory(err);
    for (uint32_t i = 0; i < p->input_count && rc == CKKS_OK; i++) {
        rc = bench_sample_make_batch(&in->samples[i], rig, p->values[i].level, p->values[i].scale, i + 1,
                                     p->values[i].batch_count, params_slot_count_max(p->params), err);
        if (rc == CKKS_OK) in->sources[i] = bench_sample_input(&in->samples[i], rig);
    }
    return rc;
}

/* The shortest counts, once it has been (nearly) reached again: on a busy machine that takes more tries. */
#define NEARLY        1.05
#define REACHED_AGAIN 3u
#define PATIENCE      20.0 /* times `seconds` */

static uint32_t reached(const double *list, uint32_t count, double best) {
    uint32_t times = 0;
    for (uint32_t i = 0; i < count; i++) times += list[i] <= NEARLY * best;
    return times;
}

static ckks_status replay_rounds(double *ns, graph_program *program, const timed_inputs *in,
                                 resident_keys *keys, uint32_t rounds, double seconds, bool *is_unsteady,
                                 ckks_error *err) {
    const uint64_t begin_ns = rpc_now_ns();
    double list[256];
    *ns = 0;
    for (uint32_t i = 0;; i++) {
        graph_result result = {0};
        const double passed = (double)(rpc_now_ns() - begin_ns) * 1e-9;
        const uint32_t kept = i < 256 ? i : 256;
        if (i >= rounds && passed >= seconds) {
            const bool is_steady = reached(list, kept, *ns) >= REACHED_AGAIN;
            *is_unsteady = *is_unsteady || (!is_steady && passed >= PATIENCE * seconds);
            if (is_steady || passed >= PATIENCE * seconds) return CKKS_OK;
        }
        const ckks_status rc =
            graph_program_replay(program, &result, in->sources, in->count, keys, GRAPH_OUTPUT_OWNED, err);
        if (rc == CKKS_OK) list[i % 256] = (double)result.replay_ns;
        if (rc == CKKS_OK && (!i || list[i % 256] < *ns)) *ns = list[i % 256];
        graph_result_release(&result);
        if (rc != CKKS_OK) return rc;
    }
}

ckks_status plan_clock_time(double *ns, plan_clock *c, const plan *p, uint32_t rounds, double seconds,
                            ckks_error *err) {
    workload *work = NULL;
    graph_slot *slot = NULL;
    graph_program *program = NULL;
    timed_inputs in = {0};
    workload_memory memory;
    graph_program_config config;
    ckks_status rc;
    if ((rc = workload_prepare(&work, c->dev, p, NULL, err)) != CKKS_OK) goto out;
    workload_memory_account(work, &memory);
    if ((rc = inputs_init(&in, &c->rig, p, err)) != CKKS_OK) goto out;
    if ((rc = graph_slot_create(&slot, c->dev, memory.arena_bytes, err)) != CKKS_OK) goto out;
    workload_program_config(work, &config);
    if ((rc = graph_program_create(&program, slot, &config, err)) != CKKS_OK) goto out;
    if ((rc = workload_capture(work, program, 0, err)) != CKKS_OK) goto out;
    workload_self_test_end(work);
    rc = replay_rounds(ns, program, &in, p->key_count ? c->rig.keys : NULL, rounds, seconds, &c->is_unsteady,
                       err);
out:
    if (program) graph_program_close(program);
    graph_program_destroy(program);
    graph_slot_destroy(slot);
    inputs_fini(&in, &c->rig);
    if (work) workload_self_test_end(work);
    workload_destroy(work);
    return rc;
}
