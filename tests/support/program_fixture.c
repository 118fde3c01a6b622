#include "tests/support/program_fixture.h"

#include "kernels/device_graph.h"
#include "kernels/scheme/encoder.h"
#include "proto/packing.h"
#include "tests/support/alloc_fault.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_adversarial;

void must_at(ckks_status status, const char *what, const char *file, int line) {
    if (status == CKKS_OK) return;
    print_error("%s:%d: %s: %s\n", file, line, what, ckks_status_name(status));
    _fail(file, line);
}

static void must(ckks_status rc, const char *what, const ckks_error *err) {
    char text[512];
    if (rc == CKKS_OK) return;
    fprintf(stderr, "program fixture: %s: %s\n", what, ckks_error_print(err, text, sizeof text));
    abort();
}

static void *need(void *memory) {
    if (memory == NULL) abort();
    return memory;
}

/* ---- device, slot, keys ---- */

const key_requirement fixture_requirements[FIXTURE_KEYS] = {
    {.kind = KEY_RELINEARISATION, .level = FIXTURE_LEVEL},
    {.kind = KEY_GALOIS, .galois_element = 5, .level = FIXTURE_LEVEL},
    {.kind = KEY_PUBLIC, .level = FIXTURE_LEVEL},
};

uint32_t fixture_rotation_element(void) {
    return galois_element_rotate(10, 1);
}

bool program_fixture_is_adversarial(void) {
    return is_adversarial;
}

secret_key *fixture_secret_create(program_fixture *f) {
    ckks_error err = {0};
    secret_key *secret = NULL;
    must(secret_key_generate(&secret, f->context, &err), "secret key", &err);
    return secret;
}

resident_keys *fixture_keys_create(program_fixture *f, const secret_key *secret) {
    ckks_error err = {0};
    resident_keys *keys = NULL;
    packed_key packed[FIXTURE_KEYS];
    uint8_t seed[SEED_BYTES];
    for (uint32_t i = 0; i < SEED_BYTES; i++) seed[i] = (uint8_t)(i * 7 + 1);
    for (uint32_t i = 0; i < FIXTURE_KEYS; i++) {
        const key_requirement *is = &fixture_requirements[i];
        uint64_t *words = need(malloc(key_seeded_word_count(f->params, is) * 8));
        must(key_generate(words, secret, is, seed, i, &err), "key", &err);
        const uint64_t bytes = packing_key_bytes(f->params, is);
        uint8_t *data = need(malloc(bytes));
        const uint32_t digits = is->kind == KEY_PUBLIC ? 1 : params_digit_count(f->params, is->level);
        packing_pack(data, words, f->params, is->level, is->kind != KEY_PUBLIC, digits);
        free(words);
        packed[i] = (packed_key){.requirement = *is, .packed = data, .packed_bytes = bytes};
    }
    must(resident_keys_upload(&keys, f->dev, f->context, packed, FIXTURE_KEYS, seed,
                              secret_key_lineage(secret), &err),
         "upload", &err);
    for (uint32_t i = 0; i < FIXTURE_KEYS; i++) free((void *)(uintptr_t)packed[i].packed);
    return keys;
}

static void furnish_device(program_fixture *f) {
    ckks_error err = {0};
    if (is_adversarial) must(device_set_adversarial_order(f->dev, 20261129, &err), "adversarial order", &err);
    must(device_tables_acquire(f->dev, &f->tables, f->context, &err), "tables", &err);
    must(device_stream_create(f->dev, &f->stream, &err), "stream", &err);
    must(graph_slot_create(&f->slot, f->dev, (4ull << 20) * (f->n / 1024), &err), "slot", &err);
    f->keys = fixture_keys_create(f, f->secret);
}

void program_fixture_open(program_fixture *f) {
    program_fixture_open_ring(f, 10);
}

void program_fixture_open_ring(program_fixture *f, uint32_t log_n) {
    *f = (program_fixture){.dev = fixture_open_device(1)};
    f->context = fixture_context(log_n, FIXTURE_LEVEL + 1, 1, 1);
    f->params = context_params(f->context);
    f->n = params_n(f->params);
    f->secret = fixture_secret_create(f);
    furnish_device(f);
}

void program_fixture_open_second(program_fixture *f, const program_fixture *first) {
    *f = (program_fixture){.dev = fixture_open_device(1), .context = fixture_context_of(first->params)};
    f->params = context_params(f->context);
    f->n = first->n;
    int8_t *coefficients = need(malloc(f->n));
    ckks_error err = {0};
    secret_key_export(first->secret, coefficients);
    must(secret_key_import(&f->secret, f->context, coefficients, secret_key_lineage(first->secret), &err),
         "import", &err);
    free(coefficients);
    furnish_device(f);
}

void program_fixture_close(program_fixture *f) {
    resident_keys_release(f->keys);
    graph_slot_destroy(f->slot);
    device_stream_destroy(f->stream);
    device_tables_release(f->dev, f->tables);
    device_close(f->dev); /* asserts that nothing is left */
    secret_key_destroy(f->secret);
    context_destroy(f->context);
    *f = (program_fixture){0};
}

memory_mark memory_mark_take(const program_fixture *f) {
    memory_mark mark;
    device_memory(f->dev, &mark.account);
    return mark;
}

void assert_memory_is(const program_fixture *f, const memory_mark *mark) {
    device_memory_account now;
    device_memory(f->dev, &now);
    assert_int_equal(now.bytes_used, mark->account.bytes_used);
    assert_int_equal(now.allocation_count, mark->account.allocation_count);
    for (int i = 0; i < MEMORY_PURPOSE_COUNT; i++)
        assert_int_equal(now.bytes_by_purpose[i], mark->account.bytes_by_purpose[i]);
}

/* ---- samples ---- */

sample *sample_create(program_fixture *f, uint64_t seed, const secret_key *secret) {
    ckks_error err = {0};
    prng r;
    sample *s = need(calloc(1, sizeof *s));
    const uint64_t component = (uint64_t)(FIXTURE_LEVEL + 1) * f->n;
    uint64_t *plain = need(malloc(component * 8));
    if (secret == NULL) secret = f->secret;
    s->f = f;
    prng_init(&r, seed);
    for (uint32_t i = 0; i < FIXTURE_SLOTS; i++) s->slots[i] = prng_symmetric(&r);
    s->words = need(malloc(2 * component * 8));
    must(encoder_encode(plain, f->context, s->slots, NULL, FIXTURE_SLOTS, FIXTURE_LEVEL, false, FIXTURE_SCALE,
                        &err),
         "encode", &err);
    must(encrypt_symmetric(s->words, s->seed, secret, plain, FIXTURE_LEVEL, &err), "encrypt", &err);
    free(plain);
    for (uint32_t limb = 0; limb <= FIXTURE_LEVEL; limb++)
        seed_expand(s->words + component + (uint64_t)limb * f->n, f->n, f->params->prime[limb], s->seed,
                    SEED_CIPHERTEXT, 0, limb);
    memcpy(s->lineage, secret_key_lineage(secret), LINEAGE_BYTES);
    value_signature_ciphertext(&s->signature, f->params, 2, FIXTURE_LEVEL, FIXTURE_SCALE, device_id(f->dev));
    s->packed_bytes = packing_poly_bytes(f->params, FIXTURE_LEVEL, false, 2);
    s->seeded_bytes = packing_poly_bytes(f->params, FIXTURE_LEVEL, false, 1);
    s->packed = need(malloc(s->packed_bytes));
    packing_pack(s->packed, s->words, f->params, FIXTURE_LEVEL, false, 2);
    return s;
}

void sample_destroy(sample *s) {
    if (s == NULL) return;
    device_free(s->f->dev, s->on_device);
    device_free_host(s->f->dev, s->pinned);
    device_free_host(s->f->dev, s->pinned_packed);
    free(s->words);
    free(s->packed);
    free(s);
}

ckks_value sample_value(sample *s) {
    ckks_error err = {0};
    void *words = s->on_device;
    if (words == NULL) {
        must(device_allocate(s->f->dev, &words, s->signature.bytes, MEMORY_RETAINED, &err), "sample", &err);
        must(device_copy_in(s->f->stream, words, s->words, s->signature.bytes, &err), "sample", &err);
        must(device_stream_synchronize(s->f->stream, &err), "sample", &err);
        s->on_device = words;
    }
    return (ckks_value){s->signature, s->on_device};
}

graph_input sample_input(sample *s, graph_source source, bool is_seeded) {
    ckks_error err = {0};
    graph_input input = {
        .source = source, .signature = s->signature, .data = s->words, .bytes = s->signature.bytes};
    memcpy(input.lineage, s->lineage, LINEAGE_BYTES);
    if (source == GRAPH_SOURCE_PACKED_PINNED && s->pinned_packed == NULL) {
        must(device_allocate_host(s->f->dev, &s->pinned_packed, s->packed_bytes, &err), "pinned sample",
             &err);
        memcpy(s->pinned_packed, s->packed, s->packed_bytes);
    }
    if (source == GRAPH_SOURCE_PACKED_HOST || source == GRAPH_SOURCE_PACKED_PINNED) {
        input.data = source == GRAPH_SOURCE_PACKED_HOST ? s->packed : s->pinned_packed;
        input.bytes = is_seeded ? s->seeded_bytes : s->packed_bytes;
        input.is_seeded = is_seeded;
        input.seed = s->seed;
    } else if (source == GRAPH_SOURCE_WORDS_DEVICE) {
        input.data = sample_value(s).words;
    } else if (source == GRAPH_SOURCE_WORDS_PINNED) {
        void *words = s->pinned;
        if (words == NULL) {
            must(device_allocate_host(s->f->dev, &words, s->signature.bytes, &err), "pinned sample", &err);
            memcpy(words, s->words, s->signature.bytes);
            s->pinned = words;
        }
        input.data = s->pinned;
    }
    return input;
}

graph_input sample_packed(sample *s) {
    return sample_input(s, GRAPH_SOURCE_PACKED_HOST, true);
}

/* ---- evaluators ---- */

#define TRY(call)                                                                                            \
    do {                                                                                                     \
        if ((rc = (call)) != CKKS_OK) goto out;                                                              \
    } while (0)

static const uint32_t table_relinearise = 0, table_rotate = 1;

static ckks_status evaluate_add(evaluator *ev, graph_region *region, const ckks_value *in, ckks_error *err) {
    ckks_status rc;
    ckks_value sum = {0};
    TRY(evaluator_add(ev, &sum, &in[0], &in[1], err));
    TRY(graph_region_output(region, 0, &sum, err));
out:
    (void)evaluator_release(ev, &sum);
    return rc;
}

/* the product on the main stream, the rotated sum beside it */
static ckks_status evaluate_multiply(test_program *t, evaluator *ev, graph_region *region,
                                     const ckks_value *in, ckks_error *err) {
    ckks_status rc;
    ckks_value product = {0}, scaled = {0}, sum = {0}, rotated = {0};
    const galois_step step = {fixture_rotation_element(), table_rotate};
    device_stream *main = ev->stream;
    TRY(device_event_record(t->fork, main, err));
    TRY(device_stream_wait(t->side, t->fork, err));
    TRY(evaluator_multiply(ev, &product, &in[0], &in[1], err));
    TRY(evaluator_relinearise(ev, &scaled, &product, table_relinearise, true, err));
    TRY(graph_region_output(region, 0, &scaled, err));
    ev->stream = t->side;
    TRY(evaluator_add(ev, &sum, &in[0], &in[1], err));
    TRY(evaluator_apply_galois(ev, &rotated, &sum, step, err));
    TRY(graph_region_output(region, 1, &rotated, err));
    TRY(device_event_record(t->join, t->side, err));
    TRY(device_stream_wait(main, t->join, err));
out:
    ev->stream = main;
    (void)evaluator_release(ev, &rotated), (void)evaluator_release(ev, &sum);
    (void)evaluator_release(ev, &scaled), (void)evaluator_release(ev, &product);
    return rc;
}

static ckks_status rotate_often(evaluator *ev, ckks_value *out, const ckks_value *in, uint32_t count,
                                uint32_t key, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    ckks_value current = {0};
    const galois_step step = {fixture_rotation_element(), key};
    for (uint32_t i = 0; i < count; i++) {
        ckks_value next = {0};
        TRY(evaluator_apply_galois(ev, &next, i == 0 ? in : &current, step, err));
        (void)evaluator_release(ev, &current);
        current = next;
    }
    *out = current, current = (ckks_value){0};
out:
    (void)evaluator_release(ev, &current);
    return rc;
}

static ckks_status evaluate_rotate(evaluator *ev, graph_region *region, const ckks_value *in,
                                   ckks_error *err) {
    ckks_status rc;
    ckks_value rotated = {0};
    TRY(rotate_often(ev, &rotated, &in[0], 1, 0, err));
    TRY(graph_region_output(region, 0, &rotated, err));
out:
    (void)evaluator_release(ev, &rotated);
    return rc;
}

static ckks_status evaluate_slow(test_program *t, evaluator *ev, graph_region *region, const ckks_value *in,
                                 ckks_error *err) {
    ckks_status rc;
    ckks_value left = {0}, right = {0}, sum = {0};
    device_stream *main = ev->stream;
    TRY(device_event_record(t->fork, main, err));
    TRY(device_stream_wait(t->side, t->fork, err));
    TRY(rotate_often(ev, &left, &in[0], t->repeat, 0, err));
    ev->stream = t->side;
    TRY(rotate_often(ev, &right, &in[0], t->repeat, 0, err));
    TRY(device_event_record(t->join, t->side, err));
    ev->stream = main;
    TRY(device_stream_wait(main, t->join, err));
    TRY(evaluator_add(ev, &sum, &left, &right, err));
    TRY(graph_region_output(region, 0, &sum, err));
out:
    ev->stream = main;
    (void)evaluator_release(ev, &sum), (void)evaluator_release(ev, &right),
        (void)evaluator_release(ev, &left);
    return rc;
}

static ckks_status evaluate_random(evaluator *ev, graph_region *region, const ckks_value *in,
                                   ckks_error *err) {
    ckks_status rc;
    ckks_value fresh = {0};
    TRY(evaluator_rerandomise(ev, &fresh, &in[0], 0, 0, err));
    TRY(graph_region_output(region, 0, &fresh, err));
out:
    (void)evaluator_release(ev, &fresh);
    return rc;
}

static ckks_value weight_value(const test_program *t, uint32_t index) {
    ckks_value v = {.signature = t->config.inputs[0], .words = (uint64_t *)(uintptr_t)t->weights[index]};
    v.signature.kind = VALUE_PLAINTEXT;
    v.signature.component_count = 1;
    v.signature.bytes /= 2;
    return v;
}

static ckks_status evaluate_weighted(test_program *t, evaluator *ev, graph_region *region,
                                     const ckks_value *in, ckks_error *err) {
    ckks_status rc;
    ckks_value left = {0}, right = {0}, sum = {0};
    const ckks_value w0 = weight_value(t, 0), w1 = weight_value(t, 1);
    TRY(evaluator_multiply_plain(ev, &left, &in[0], &w0, err));
    TRY(evaluator_multiply_plain(ev, &right, &in[1], &w1, err));
    TRY(evaluator_add(ev, &sum, &left, &right, err));
    TRY(graph_region_output(region, 0, &sum, err));
out:
    (void)evaluator_release(ev, &sum), (void)evaluator_release(ev, &right),
        (void)evaluator_release(ev, &left);
    return rc;
}

static ckks_status evaluate(void *context, graph_region *region, const ckks_value *inputs,
                            uint32_t input_count, ckks_error *err) {
    test_program *t = context;
    evaluator *ev = region->evaluator;
    ckks_status rc = CKKS_INTERNAL;
    (void)input_count;
    t->seen_input[t->calls % 64] = inputs[0].words;
    t->seen_output[t->calls % 64] = region->outputs[0].words;
    t->calls++;
    switch (t->kind) {
    case PROGRAM_ADD:
        rc = evaluate_add(ev, region, inputs, err);
        break;
    case PROGRAM_MULTIPLY:
        rc = evaluate_multiply(t, ev, region, inputs, err);
        break;
    case PROGRAM_ROTATE:
        rc = evaluate_rotate(ev, region, inputs, err);
        break;
    case PROGRAM_SLOW:
        rc = evaluate_slow(t, ev, region, inputs, err);
        break;
    case PROGRAM_RANDOM:
        rc = evaluate_random(ev, region, inputs, err);
        break;
    case PROGRAM_WEIGHTED:
        rc = evaluate_weighted(t, ev, region, inputs, err);
        break;
    }
    /* who gives up leaves nothing running on a stream of its own (twice: a call that fails may not have
     * waited) */
    if (rc != CKKS_OK && !device_is_recording(t->side)) {
        (void)device_stream_synchronize(t->side, NULL);
        (void)device_stream_synchronize(t->side, NULL);
    }
    return rc;
}

uint32_t test_program_input_count(const test_program *t) {
    return t->kind == PROGRAM_ADD || t->kind == PROGRAM_MULTIPLY || t->kind == PROGRAM_WEIGHTED ? 2 : 1;
}

static void configure(test_program *t) {
    static const key_requirement none[1];
    program_fixture *f = t->f;
    const uint32_t dev = device_id(f->dev);
    for (int i = 0; i < 2; i++) {
        value_signature_ciphertext(&t->inputs[i], f->params, 2, FIXTURE_LEVEL, FIXTURE_SCALE, dev);
        value_signature_ciphertext(&t->outputs[i], f->params, 2, FIXTURE_LEVEL, FIXTURE_SCALE, dev);
    }
    t->config = (graph_program_config){.context = f->context,
                                       .tables = f->tables,
                                       .callable = evaluate,
                                       .callable_context = t,
                                       .inputs = t->inputs,
                                       .input_count = test_program_input_count(t),
                                       .outputs = t->outputs,
                                       .output_count = 1,
                                       .keys = none};
    if (t->kind == PROGRAM_MULTIPLY) {
        t->config.output_count = 2;
        value_signature_ciphertext(&t->outputs[0], f->params, 2, FIXTURE_LEVEL - 1,
                                   FIXTURE_SCALE * FIXTURE_SCALE / (double)f->params->prime[FIXTURE_LEVEL],
                                   dev);
        t->config.keys = fixture_requirements, t->config.key_count = 2;
    } else if (t->kind == PROGRAM_ROTATE || t->kind == PROGRAM_SLOW) {
        t->config.keys = fixture_requirements + 1, t->config.key_count = 1;
    } else if (t->kind == PROGRAM_RANDOM) {
        t->config.keys = fixture_requirements + 2, t->config.key_count = 1;
        t->config.uses_randomness = true;
    } else if (t->kind == PROGRAM_WEIGHTED) {
        value_signature_ciphertext(&t->outputs[0], f->params, 2, FIXTURE_LEVEL, FIXTURE_SCALE * FIXTURE_SCALE,
                                   dev);
    }
}

void test_program_configure(test_program *t, program_fixture *f, graph_slot *slot, program_kind kind) {
    ckks_error err = {0};
    *t = (test_program){.f = f, .slot = slot != NULL ? slot : f->slot, .kind = kind, .repeat = 1};
    configure(t);
    must(device_stream_create(f->dev, &t->side, &err), "side stream", &err);
    must(device_event_create(f->dev, &t->fork, &err), "event", &err);
    must(device_event_create(f->dev, &t->join, &err), "event", &err);
}

static void plan_and_create(test_program *t) {
    ckks_error err = {0};
    must(graph_plan_workspace(&t->plan, t->f->dev, &t->config, &err), "plan", &err);
    t->config.workspace = t->plan;
    must(graph_program_create(&t->program, t->slot, &t->config, &err), "create", &err);
}

bool test_another_round(int round, int rounds, bool was_seen) {
    if (fixture_is_short()) return round == 0;
    assert_true(round < 50);
    return round < rounds || !was_seen;
}

void test_program_init(test_program *t, program_fixture *f, graph_slot *slot, program_kind kind) {
    test_program_configure(t, f, slot, kind);
    plan_and_create(t);
}

void test_program_init_slow(test_program *t, program_fixture *f, graph_slot *slot, uint32_t repeat) {
    test_program_configure(t, f, slot, PROGRAM_SLOW);
    t->repeat = fixture_is_short() && repeat > 3 ? 3 : repeat;
    plan_and_create(t);
}

void test_program_init_eager(test_program *t, program_fixture *f, graph_slot *slot, program_kind kind) {
    test_program_configure(t, f, slot, kind);
    t->config.execution_eager = true;
    plan_and_create(t);
}

void test_program_init_weighted(test_program *t, program_fixture *f, graph_slot *slot, binding_set *weights) {
    test_program_configure(t, f, slot, PROGRAM_WEIGHTED);
    t->config.bindings = weights;
    for (uint32_t i = 0; i < 2; i++) {
        binding_info info;
        binding_set_info(weights, i, &info);
        t->weights[i] = info.words;
    }
    plan_and_create(t);
}

void test_program_fini(test_program *t) {
    graph_program_destroy(t->program);
    workspace_plan_destroy(t->plan);
    if (t->fork != NULL) device_event_destroy(t->fork);
    if (t->join != NULL) device_event_destroy(t->join);
    device_stream_destroy(t->side);
    *t = (test_program){0};
}

ckks_status test_program_capture(test_program *t, int32_t warmup, ckks_error *err) {
    sample *a = sample_create(t->f, 101, NULL), *b = sample_create(t->f, 102, NULL);
    const ckks_value examples[2] = {sample_value(a), sample_value(b)};
    const ckks_status rc = graph_program_capture(t->program, warmup, examples, t->f->keys, err);
    sample_destroy(a), sample_destroy(b);
    return rc;
}

void test_program_start(test_program *t, program_fixture *f, graph_slot *slot, program_kind kind) {
    ckks_error err = {0};
    test_program_init(t, f, slot, kind);
    must(test_program_capture(t, 1, &err), "capture", &err);
}

/* ---- asking and checking ---- */

ckks_status test_copy(test_program *t, graph_handle *out, sample *a, sample *b, ckks_error *err) {
    graph_input inputs[2] = {sample_packed(a)};
    if (b != NULL) inputs[1] = sample_packed(b);
    return graph_program_copy_inputs_from(t->program, out, inputs, t->config.input_count, t->f->keys, err);
}

ckks_status test_replay(test_program *t, graph_result *out, sample *a, sample *b, ckks_error *err) {
    graph_input inputs[2] = {sample_packed(a)};
    if (b != NULL) inputs[1] = sample_packed(b);
    return graph_program_replay(t->program, out, inputs, t->config.input_count, t->f->keys,
                                GRAPH_OUTPUT_OWNED, err);
}

/* weights in the clear, as last refreshed by fixture_weights_refresh */
static _Atomic double clear_weights[2];

void test_expected(const test_program *t, double *slots, uint32_t index, const sample *a, const sample *b) {
    for (uint32_t i = 0; i < FIXTURE_SLOTS; i++) {
        const uint32_t next = (i + 1) % FIXTURE_SLOTS, far = (i + t->repeat) % FIXTURE_SLOTS;
        switch (t->kind) {
        case PROGRAM_ADD:
            slots[i] = a->slots[i] + b->slots[i];
            break;
        case PROGRAM_MULTIPLY:
            slots[i] = index == 0 ? a->slots[i] * b->slots[i] : a->slots[next] + b->slots[next];
            break;
        case PROGRAM_ROTATE:
            slots[i] = a->slots[next];
            break;
        case PROGRAM_SLOW:
            slots[i] = 2 * a->slots[far];
            break;
        case PROGRAM_RANDOM:
            slots[i] = a->slots[i];
            break;
        case PROGRAM_WEIGHTED:
            slots[i] = clear_weights[0] * a->slots[i] + clear_weights[1] * b->slots[i];
            break;
        }
    }
}

void fixture_decrypt(program_fixture *f, double *slots, const uint64_t *words,
                     const value_signature *signature, const secret_key *secret) {
    ckks_error err = {0};
    const uint32_t level = signature->limb_count - 1;
    uint64_t *plain = need(malloc((uint64_t)signature->limb_count * f->n * 8));
    must(decrypt(plain, secret != NULL ? secret : f->secret, words, signature->component_count, level, &err),
         "decrypt", &err);
    must(encoder_decode(slots, NULL, f->context, plain, FIXTURE_SLOTS, level, signature->scale, &err),
         "decode", &err);
    free(plain);
}

bool is_close(const double *actual, const double *expected) {
    double worst = 0;
    for (uint32_t i = 0; i < FIXTURE_SLOTS; i++) worst = fmax(worst, fabs(actual[i] - expected[i]));
    return worst < 1e-3;
}

void assert_close(const double *actual, const double *expected) {
    assert_true(is_close(actual, expected));
}

void assert_result(test_program *t, const graph_result *result, const sample *a, const sample *b) {
    double actual[FIXTURE_SLOTS], expected[FIXTURE_SLOTS];
    assert_int_equal(result->output_count, t->config.output_count);
    for (uint32_t i = 0; i < result->output_count; i++) {
        const value_signature *s = &t->outputs[i];
        uint64_t *words = need(malloc(s->bytes));
        assert_ok(graph_result_read(result, i, words, s->bytes / 8, NULL));
        fixture_decrypt(t->f, actual, words, s, NULL);
        test_expected(t, expected, i, a, b);
        assert_close(actual, expected);
        free(words);
    }
}

void assert_works(test_program *t, sample *a, sample *b) {
    ckks_error err = {0};
    graph_result result;
    must(test_replay(t, &result, a, b, &err), "replay", &err);
    assert_result(t, &result, a, b);
    graph_result_release(&result);
}

/* ---- weights ---- */

static value_signature weight_signature(const program_fixture *f) {
    value_signature s;
    value_signature_ciphertext(&s, f->params, 1, FIXTURE_LEVEL, FIXTURE_SCALE, device_id(f->dev));
    s.kind = VALUE_PLAINTEXT;
    return s;
}

ckks_status fixture_weights_refresh(program_fixture *f, binding_set *set, double w0, double w1,
                                    ckks_error *err) {
    const double weights[2] = {w0, w1};
    const uint64_t words = (uint64_t)(FIXTURE_LEVEL + 1) * f->n;
    uint64_t *plain = need(malloc(2 * words * 8));
    binding_update updates[2];
    for (uint32_t i = 0; i < 2; i++) {
        ckks_error cause = {0};
        must(encoder_encode(plain + i * words, f->context, &weights[i], NULL, 1, FIXTURE_LEVEL, false,
                            FIXTURE_SCALE, &cause),
             "encode", &cause);
        updates[i] = (binding_update){
            .id = 10 + i, .words = plain + i * words, .word_count = words, .signature = weight_signature(f)};
    }
    const ckks_status rc = binding_set_refresh(set, updates, 2, err);
    if (rc == CKKS_OK) {
        clear_weights[0] = w0;
        clear_weights[1] = w1;
    }
    free(plain);
    return rc;
}

binding_set *fixture_weights_create(program_fixture *f, double w0, double w1) {
    ckks_error err = {0};
    binding_set *set = NULL;
    const uint64_t words = (uint64_t)(FIXTURE_LEVEL + 1) * f->n;
    const binding_descriptor d[2] = {{10, words, weight_signature(f)}, {11, words, weight_signature(f)}};
    must(binding_set_create(&set, f->dev, d, 2, &err), "weights", &err);
    must(fixture_weights_refresh(f, set, w0, w1, &err), "weights", &err);
    return set;
}

/* ---- failure injection ---- */

static struct {
    fault_mode mode;
    uint64_t n;
    bool is_on, was_on;
    uint64_t calls; /* counted while it was on */
} fault;

void fault_on(program_fixture *f) {
    fault.is_on = fault.was_on = true;
    if (fault.mode == FAULT_ALLOCATION)
        alloc_fault_set(fault.n);
    else
        device_fault_set(f->dev, fault.n, fault.mode == FAULT_ASYNCHRONOUS);
}

void fault_off(program_fixture *f) {
    if (!fault.is_on) return;
    fault.is_on = false;
    fault.calls = fault.mode == FAULT_ALLOCATION ? alloc_fault_calls() : device_fault_calls(f->dev);
    device_fault_set(f->dev, 0, false);
    alloc_fault_set(0);
}

uint32_t fault_each(program_fixture *f, fault_mode mode, fault_scenario scenario, void *context) {
    static const char *const names[] = {"device call", "device call, later on its stream,", "allocation"};
    if (mode == FAULT_ALLOCATION && fixture_device_kind() != DEVICE_CPU) {
        print_message("allocations are not made to fail: the driver's would be among them\n");
        return 0;
    }
    if (mode == FAULT_ASYNCHRONOUS && fixture_is_short()) {
        print_message(
            "work is not made to fail on its stream: what follows it would read what was never made\n");
        return 0;
    }
    fault.mode = mode;
    /* the second time round, in adversarial order, every third will do */
    uint32_t runs = 0;
    for (fault.n = 1;; fault.n += fixture_is_short() ? 5 : is_adversarial ? 3 : 1, runs++) {
        fault.was_on = false;
        scenario(context, f);
        fault_off(f);
        assert_true(fault.was_on);
        if (fault.n > fault.calls) break;
    }
    print_message("%u runs, in each another %s failed\n", runs, names[mode]);
    return runs;
}

uint32_t fault_count(uint32_t seen_in_all) {
    return fixture_is_short() ? 0 : seen_in_all;
}

/* ---- main ---- */

int program_suite_run(const char *name, const struct CMUnitTest *tests, size_t count) {
    char title[128];
    snprintf(title, sizeof title, "%s", name);
    is_adversarial = false;
    int failed = _cmocka_run_group_tests(title, tests, count, NULL, NULL);
    if (fixture_device_kind() != DEVICE_CPU) return failed;
    snprintf(title, sizeof title, "%s, adversarial order", name);
    is_adversarial = true;
    failed += _cmocka_run_group_tests(title, tests, count, NULL, NULL);
    return failed;
}
