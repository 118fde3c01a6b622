#include "tests/support/evaluator_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPLAYS 4u

static void must(ckks_status rc, const char *what, const ckks_error *err) {
    char text[512];
    if (rc == CKKS_OK) return;
    fprintf(stderr, "evaluator fixture: %s: %s\n", what, ckks_error_print(err, text, sizeof text));
    abort();
}

static void *must_have(void *p) {
    if (!p) abort();
    return p;
}

void *evaluator_fixture_upload(evaluator_fixture *f, const void *host, uint64_t bytes) {
    if (f->owned_count == EVALUATOR_FIXTURE_OWNED_MAX) abort();
    return f->owned[f->owned_count++] = device_fixture_upload(&f->on, host, bytes);
}

/* [digit][2][limb][N] from the seeded half; [2][limb][N] for the public key */
static uint64_t *resident_words(const evaluator_fixture *f, uint32_t index) {
    ckks_error err = {0};
    const ckks_params *p = f->on.params;
    const key_requirement *key = &f->keys[index];
    const bool is_public = key->kind == KEY_PUBLIC;
    const uint32_t q_limbs = key->level + 1, limbs = q_limbs + (is_public ? 0 : p->p_count);
    const uint32_t digits = is_public ? 1 : params_digit_count(p, key->level), n = f->on.n;
    uint8_t seed[SEED_BYTES];
    for (uint32_t i = 0; i < SEED_BYTES; i++) seed[i] = (uint8_t)(i * 7 + index);
    uint64_t *half = must_have(malloc(key_seeded_word_count(p, key) * sizeof *half));
    uint64_t *words = must_have(malloc(key_resident_word_count(p, key) * sizeof *words));
    must(key_generate(half, f->sk, key, seed, index, &err), "key", &err);
    for (uint32_t d = 0; d < digits; d++)
        for (uint32_t i = 0; i < limbs; i++) {
            const uint32_t prime = i < q_limbs ? i : p->q_count + (i - q_limbs);
            uint64_t *to = words + ((uint64_t)2 * d * limbs + i) * n;
            memcpy(to, half + ((uint64_t)d * limbs + i) * n, n * sizeof *to);
            seed_expand(to + (uint64_t)limbs * n, n, p->prime[prime], seed,
                        is_public ? SEED_PUBLIC_KEY : SEED_KEY_SET, index * params_digit_count_full(p) + d,
                        prime);
        }
    free(half);
    return words;
}

void evaluator_fixture_open(evaluator_fixture *f, ckks_context *context, const key_requirement *keys,
                            uint32_t key_count) {
    ckks_error err = {0};
    if (key_count > EVALUATOR_FIXTURE_KEYS_MAX) abort();
    memset(f, 0, sizeof *f);
    device_fixture_open(&f->on, context, 2);
    prng_init(&f->r, 42);
    f->slot_count = f->on.n / 2;
    f->key_count = key_count;
    must(secret_key_generate(&f->sk, f->on.context, &err), "secret key", &err);
    for (uint32_t i = 0; i < key_count; i++) {
        f->keys[i] = keys[i];
        uint64_t *words = resident_words(f, i);
        const uint64_t bytes = key_resident_word_count(f->on.params, &keys[i]) * sizeof *words;
        f->table[i] =
            (key_table_entry){(uintptr_t)evaluator_fixture_upload(f, words, bytes), keys[i].level + 1, 0};
        free(words);
    }
    f->table_device = evaluator_fixture_upload(f, f->table, sizeof f->table);
    f->random = evaluator_fixture_upload(f, NULL, sizeof *f->random);
}

void evaluator_fixture_close(evaluator_fixture *f) {
    for (uint32_t i = 0; i < f->owned_count; i++) device_free(f->on.dev, f->owned[i]);
    secret_key_destroy(f->sk);
    device_fixture_close(&f->on);
    memset(f, 0, sizeof *f);
}

uint32_t evaluator_fixture_key(const evaluator_fixture *f, uint32_t kind, uint32_t galois_element) {
    for (uint32_t i = 0; i < f->key_count; i++)
        if (f->keys[i].kind == kind && f->keys[i].galois_element == galois_element) return i;
    fprintf(stderr, "evaluator fixture: no key of kind %u, element %u\n", kind, galois_element);
    abort();
}

galois_step evaluator_fixture_rotation(const evaluator_fixture *f, int64_t steps) {
    const uint32_t g = galois_element_rotate(f->on.params->log_n, steps);
    return (galois_step){g, g == 1 ? 0 : evaluator_fixture_key(f, KEY_GALOIS, g)};
}

double *evaluator_fixture_slots(evaluator_fixture *f, uint32_t batch_count, double magnitude) {
    const size_t count = (size_t)batch_count * f->slot_count;
    double *slots = must_have(malloc(count * sizeof *slots));
    for (size_t i = 0; i < count; i++) slots[i] = magnitude * prng_symmetric(&f->r);
    return slots;
}

ckks_value evaluator_fixture_encrypt(evaluator_fixture *f, const double *real, const double *imag,
                                     uint32_t batch_count, uint32_t level, double scale) {
    ckks_error err = {0};
    ckks_value v;
    const uint32_t n = f->on.n, limbs = level + 1;
    value_signature_ciphertext(&v.signature, f->on.params, 2, level, scale, device_id(f->on.dev));
    v.signature.batch_count = batch_count;
    v.signature.bytes *= batch_count;
    uint64_t *words = must_have(malloc(v.signature.bytes));
    uint64_t *plain = must_have(malloc((size_t)limbs * n * sizeof *plain));
    for (uint32_t b = 0; b < batch_count; b++) {
        uint8_t seed[SEED_BYTES];
        uint64_t *c0 = words + (uint64_t)b * 2 * limbs * n, *c1 = c0 + (uint64_t)limbs * n;
        const size_t at = (size_t)b * f->slot_count;
        must(encoder_encode(plain, f->on.context, real + at, imag ? imag + at : NULL, f->slot_count, level,
                            false, scale, &err),
             "encode", &err);
        must(encrypt_symmetric(c0, seed, f->sk, plain, level, &err), "encrypt", &err);
        for (uint32_t i = 0; i < limbs; i++)
            seed_expand(c1 + (uint64_t)i * n, n, f->on.params->prime[i], seed, SEED_CIPHERTEXT, 0, i);
    }
    v.words = evaluator_fixture_upload(f, words, v.signature.bytes);
    free(words);
    free(plain);
    return v;
}

ckks_value evaluator_fixture_plain(evaluator_fixture *f, const double *real, uint32_t level, double scale) {
    ckks_error err = {0};
    ckks_value v;
    value_signature_ciphertext(&v.signature, f->on.params, 1, level, scale, device_id(f->on.dev));
    v.signature.kind = VALUE_PLAINTEXT;
    uint64_t *words = must_have(malloc(v.signature.bytes));
    must(encoder_encode(words, f->on.context, real, NULL, f->slot_count, level, false, scale, &err), "encode",
         &err);
    v.words = evaluator_fixture_upload(f, words, v.signature.bytes);
    free(words);
    return v;
}

uint64_t *evaluator_fixture_diagonal(evaluator_fixture *f, const double *real, uint32_t slot_count,
                                     uint32_t level, double scale) {
    ckks_error err = {0};
    const uint64_t bytes = (uint64_t)(level + 1 + f->on.params->p_count) * f->on.n * sizeof(uint64_t);
    uint64_t *words = must_have(malloc(bytes));
    must(encoder_encode(words, f->on.context, real, NULL, slot_count, level, true, scale, &err), "encode",
         &err);
    uint64_t *device_words = evaluator_fixture_upload(f, words, bytes);
    free(words);
    return device_words;
}

void host_value_free(host_value *v) {
    free(v->words);
    *v = (host_value){0};
}

/* ---- running ---- */

static evaluator evaluator_of(evaluator_fixture *f, workspace *memory) {
    return (evaluator){.stream = f->on.stream,
                       .tables = f->on.tables,
                       .context = f->on.context,
                       .memory = memory,
                       .keys = f->table_device,
                       .key_count = f->key_count,
                       .random = f->random};
}

static ckks_status plan(evaluator_fixture *f, workspace_plan **out, ckks_value *values,
                        evaluator_fixture_callable run, void *context, ckks_error *err) {
    workspace *memory = NULL;
    device_graph *graph = NULL;
    ckks_error own = {0};
    must(workspace_create_planning(&memory, &own), "planning", &own);
    evaluator ev = evaluator_of(f, memory);
    must(device_record_begin_planning(f->on.stream, &own), "record", &own);
    const ckks_status rc = run(context, &ev, values, err);
    if (rc != CKKS_OK) {
        device_record_abort(f->on.stream);
    } else {
        must(device_record_end(f->on.stream, &graph, &own), "record", &own);
        must(workspace_plan_create(out, memory, graph, &own), "plan", &own);
    }
    device_graph_destroy(graph);
    workspace_destroy(memory);
    return rc;
}

static void reset_random(evaluator_fixture *f) {
    ckks_error err = {0};
    random_state state = {.counter = 3};
    for (uint32_t i = 0; i < sizeof state.key; i++) state.key[i] = (uint8_t)(3 * i + 1);
    must(device_copy_in(f->on.stream, f->random, &state, sizeof state, &err), "copy", &err);
    must(device_stream_synchronize(f->on.stream, &err), "copy", &err);
}

static void compare(evaluator_fixture *f, const host_value *host, const ckks_value *values, uint32_t count,
                    const char *how) {
    for (uint32_t i = 0; i < count; i++) {
        uint64_t *words = must_have(malloc(host[i].signature.bytes));
        device_fixture_download(&f->on, words, values[i].words, host[i].signature.bytes);
        if (memcmp(words, host[i].words, host[i].signature.bytes) != 0) {
            fprintf(stderr, "evaluator fixture: output %u: the words of %s differ from the eager run's\n", i,
                    how);
            abort();
        }
        free(words);
    }
}

/* every replay order must give the eager run's words, from an arena filled with rubbish */
static void replay_all(evaluator_fixture *f, const host_value *host, uint32_t count, workspace *memory,
                       void *arena, uint64_t arena_bytes, evaluator_fixture_callable run, void *context) {
    ckks_error err = {0};
    device_graph *graph = NULL;
    ckks_value *values = must_have(calloc(count, sizeof *values));
    evaluator ev = evaluator_of(f, memory);
    workspace_rewind(memory);
    must(device_record_begin(f->on.stream, &err), "record", &err);
    must(run(context, &ev, values, &err), "recorded run", &err);
    must(device_record_end(f->on.stream, &graph, &err), "record", &err);
    f->node_count = device_graph_node_count(graph);
    for (uint32_t k = 0; k < REPLAYS; k++) {
        reset_random(f);
        must(fixture_adversarial_order(f->on.dev, k, &err), "order", &err);
        if (arena_bytes)
            must(device_fill(f->on.stream, arena, (uint8_t)(0x11 * k), arena_bytes, &err), "fill", &err);
        must(device_graph_replay(graph, f->on.stream, &err), "replay", &err);
        must(device_stream_synchronize(f->on.stream, &err), "replay", &err);
        compare(f, host, values, count, "a replay");
    }
    must(fixture_adversarial_order(f->on.dev, 0, &err), "order", &err);
    device_graph_destroy(graph);
    free(values);
}

ckks_status evaluator_fixture_run(evaluator_fixture *f, host_value *host, uint32_t out_count,
                                  evaluator_fixture_callable run, void *context, ckks_error *err) {
    ckks_error own = {0};
    workspace_plan *wp = NULL;
    workspace *memory = NULL;
    ckks_value *values = must_have(calloc(out_count, sizeof *values));
    memset(host, 0, out_count * sizeof *host);
    const ckks_status rc = plan(f, &wp, values, run, context, err);
    if (rc != CKKS_OK) {
        free(values);
        return rc;
    }
    const uint64_t bytes = workspace_plan_bytes(wp);
    void *arena = device_fixture_upload(&f->on, NULL, bytes);
    must(workspace_create_fixed(&memory, wp, arena, &own), "workspace", &own);
    evaluator ev = evaluator_of(f, memory);
    reset_random(f);
    must(run(context, &ev, values, &own), "eager run", &own);
    must(device_stream_synchronize(f->on.stream, &own), "eager run", &own);
    for (uint32_t i = 0; i < out_count; i++) {
        host[i].signature = values[i].signature;
        host[i].words = must_have(malloc(values[i].signature.bytes));
        device_fixture_download(&f->on, host[i].words, values[i].words, values[i].signature.bytes);
    }
    replay_all(f, host, out_count, memory, arena, bytes, run, context);
    workspace_destroy(memory);
    workspace_plan_destroy(wp);
    device_free(f->on.dev, arena);
    free(values);
    return CKKS_OK;
}

/* ---- reading ---- */

void evaluator_fixture_decrypt(evaluator_fixture *f, double *real, double *imag, const host_value *v,
                               uint32_t entry) {
    ckks_error err = {0};
    const value_signature *s = &v->signature;
    const uint64_t limb_words = (uint64_t)s->limb_count * f->on.n;
    uint64_t *plain = must_have(malloc(limb_words * sizeof *plain));
    double *unused = must_have(malloc(f->slot_count * sizeof *unused));
    must(decrypt(plain, f->sk, v->words + entry * s->component_count * limb_words, s->component_count,
                 s->limb_count - 1, &err),
         "decrypt", &err);
    must(encoder_decode(real, imag ? imag : unused, f->on.context, plain, f->slot_count, s->limb_count - 1,
                        s->scale, &err),
         "decode", &err);
    free(plain);
    free(unused);
}

double evaluator_fixture_error(evaluator_fixture *f, const host_value *v, const double *real,
                               const double *imag) {
    double worst = 0;
    double *re = must_have(malloc(f->slot_count * sizeof *re)),
           *im = must_have(malloc(f->slot_count * sizeof *im));
    for (uint32_t b = 0; b < v->signature.batch_count; b++) {
        evaluator_fixture_decrypt(f, re, im, v, b);
        for (uint32_t i = 0; i < f->slot_count; i++) {
            const size_t at = (size_t)b * f->slot_count + i;
            const double error = hypot(re[i] - real[at], im[i] - (imag ? imag[at] : 0));
            worst = error > worst || error != error ? error : worst;
        }
    }
    free(re);
    free(im);
    return worst;
}

/* Sum over digits of (digit / P)^2: what the errors of a key weigh after the division by P. */
static double digit_weight(const ckks_params *p) {
    double weight = 0, log_p = 0;
    for (uint32_t i = 0; i < p->p_count; i++) log_p += log2((double)p->prime[p->q_count + i]);
    for (uint32_t first = 0; first < p->q_count; first += p->digit_size) {
        double bits = -log_p;
        for (uint32_t i = first; i < p->q_count && i < first + p->digit_size; i++)
            bits += log2((double)p->prime[i]);
        weight += exp2(2 * bits);
    }
    return weight;
}

double evaluator_fixture_bound(const evaluator_fixture *f, double scale, double count) {
    const double n = f->on.n, sigma = 3.24, alpha = f->on.params->digit_size;
    const double rounding = sqrt((2 * n / 3 + 1) / 12);
    const double key_switch = sigma * sqrt(alpha * n * digit_weight(f->on.params) / 12);
    return count * 8 * sqrt(n) * (sigma + rounding + key_switch) / scale;
}
