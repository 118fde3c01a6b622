#include "client/ctl/bench.h"

#include "kernels/scheme/encoder.h"
#include "proto/packing.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

void bench_rig_close(bench_rig *rig) {
    if (rig->keys) resident_keys_release(rig->keys);
    device_stream_destroy(rig->stream);
    if (rig->tables) device_tables_release(rig->dev, rig->tables);
    client_secret_key_destroy(rig->secret);
    free(rig->requirements);
    *rig = (bench_rig){0};
}

static ckks_status upload_keys(bench_rig *rig, ckks_error *err) {
    ckks_status rc;
    client_key_set *set = NULL;
    packed_key *packed = calloc(rig->key_count, sizeof *packed);
    if (!packed) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for keys");
    rc = client_key_set_generate(&set, rig->secret, rig->requirements, rig->key_count, NULL, NULL, err);
    if (rc == CKKS_OK) {
        const uint8_t *at = set->payload;
        for (uint32_t i = 0; i < rig->key_count; i++) {
            packed[i] =
                (packed_key){rig->requirements[i], at, packing_key_bytes(rig->params, &rig->requirements[i])};
            at += packed[i].packed_bytes;
        }
        rc = resident_keys_upload(&rig->keys, rig->dev, rig->context, packed, rig->key_count, set->seed,
                                  set->lineage, err);
    }
    client_key_set_destroy(set);
    free(packed);
    return rc;
}

ckks_status bench_rig_open(bench_rig *rig, device *dev, const ckks_params *params,
                           const key_requirement *keys, uint32_t key_count, ckks_error *err) {
    ckks_status rc;
    *rig = (bench_rig){.dev = dev, .key_count = key_count};
    if ((rc = client_secret_key_generate(&rig->secret, params, err)) != CKKS_OK) goto out;
    rig->context = rig->secret->context;
    rig->params = context_params(rig->context);
    if ((rc = device_tables_acquire(dev, &rig->tables, rig->context, err)) != CKKS_OK) goto out;
    if ((rc = device_stream_create(dev, &rig->stream, err)) != CKKS_OK) goto out;
    if (!(rig->requirements = malloc(((size_t)key_count + 1) * sizeof *rig->requirements))) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for keys");
        goto out;
    }
    if (key_count) {
        memcpy(rig->requirements, keys, key_count * sizeof *keys);
        rc = upload_keys(rig, err);
    }
out:
    if (rc != CKKS_OK) bench_rig_close(rig);
    return rc;
}

void bench_sample_fini(bench_sample *sample, bench_rig *rig) {
    if (sample->on_device) device_free(rig->dev, sample->on_device);
    free(sample->slots);
    free(sample->words);
    *sample = (bench_sample){0};
}

/* reproducible values, so that two runs measure the same words */
static void fill(double *slots, uint32_t count, uint32_t period, uint64_t seed) {
    uint64_t x = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    for (uint32_t i = 0; i < count; i++) {
        x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
        slots[i] =
            i < period ? (double)(int64_t)(x * UINT64_C(0x2545F4914F6CDD1D)) * 0x1p-63 : slots[i - period];
    }
}

/* words [2][limb][N]; plain: scratch of one component */
static ckks_status encrypt_slots(uint64_t *words, uint64_t *plain, const bench_rig *rig, const double *slots,
                                 uint32_t level, double scale, ckks_error *err) {
    const uint32_t n = params_n(rig->params);
    uint64_t *c1 = words + ((size_t)level + 1) * n;
    uint8_t seed[SEED_BYTES];
    ckks_status rc = encoder_encode(plain, rig->context, slots, NULL, params_slot_count_max(rig->params),
                                    level, false, scale, err);
    if (rc == CKKS_OK) rc = encrypt_symmetric(words, seed, rig->secret->key, plain, level, err);
    for (uint32_t i = 0; i <= level && rc == CKKS_OK; i++)
        seed_expand(c1 + (size_t)i * n, n, rig->params->prime[i], seed, SEED_CIPHERTEXT, 0, i);
    return rc;
}

ckks_status bench_sample_make(bench_sample *out, bench_rig *rig, uint32_t level, double scale, uint64_t seed,
                              ckks_error *err) {
    return bench_sample_make_batch(out, rig, level, scale, seed, 1, params_slot_count_max(rig->params), err);
}

ckks_status bench_sample_make_batch(bench_sample *out, bench_rig *rig, uint32_t level, double scale,
                                    uint64_t seed, uint32_t batch_count, uint32_t period, ckks_error *err) {
    const uint32_t slot_count = params_slot_count_max(rig->params);
    const size_t component = ((size_t)level + 1) * params_n(rig->params);
    ckks_status rc = CKKS_OK;
    uint64_t *plain = malloc(component * sizeof *plain);
    *out = (bench_sample){.slots = malloc((size_t)batch_count * slot_count * sizeof *out->slots),
                          .words = malloc(batch_count * 2 * component * sizeof *out->words)};
    if (!plain || !out->slots || !out->words) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a sample");
        goto out;
    }
    value_signature_ciphertext(&out->signature, rig->params, 2, level, scale, device_id(rig->dev));
    out->signature.batch_count = batch_count;
    out->signature.bytes *= batch_count;
    for (uint32_t b = 0; b < batch_count && rc == CKKS_OK; b++) {
        double *slots = out->slots + (size_t)b * slot_count;
        fill(slots, slot_count, period, seed + b);
        rc = encrypt_slots(out->words + b * 2 * component, plain, rig, slots, level, scale, err);
    }
    if (rc != CKKS_OK) goto out;
    if ((rc = device_allocate(rig->dev, &out->on_device, out->signature.bytes, MEMORY_RETAINED, err)) !=
        CKKS_OK)
        goto out;
    if ((rc = device_copy_in(rig->stream, out->on_device, out->words, out->signature.bytes, err)) != CKKS_OK)
        goto out;
    rc = device_stream_synchronize(rig->stream, err);
out:
    free(plain);
    if (rc != CKKS_OK) bench_sample_fini(out, rig);
    return rc;
}

graph_input bench_sample_input(const bench_sample *sample, const bench_rig *rig) {
    graph_input input = {.source = GRAPH_SOURCE_WORDS_HOST,
                         .signature = sample->signature,
                         .data = sample->words,
                         .bytes = sample->signature.bytes};
    memcpy(input.lineage, secret_key_lineage(rig->secret->key), LINEAGE_BYTES);
    return input;
}

ckks_value bench_sample_value(const bench_sample *sample) {
    return (ckks_value){sample->signature, sample->on_device};
}

char *bench_machine(char text[128]) {
    char line[256];
    snprintf(text, 128, "unknown processor");
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        colon[1 + strcspn(colon + 1, "\n")] = 0;
        snprintf(text, 128, "%.120s", colon + 1 + strspn(colon + 1, " "));
        break;
    }
    if (f) fclose(f);
    return text;
}

/* ---- earlier results: our own JSON, members in the order in which we write them ---- */

ckks_status bench_earlier_load(bench_earlier *out, const char *path, ckks_error *err) {
    ckks_status rc;
    uint8_t *bytes = NULL;
    *out = (bench_earlier){0};
    if ((rc = file_read(&bytes, &out->size, path, 16u << 20, err)) != CKKS_OK) return rc;
    out->text = realloc(bytes, out->size + 1);
    if (!out->text) {
        free(bytes);
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory");
    }
    out->text[out->size] = 0;
    if (strstr((const char *)out->text, "\"median_us\"")) return CKKS_OK;
    bench_earlier_fini(out);
    return ckks_error_set(err, CKKS_MALFORMED, "compare", "%s: no results of `ckksctl bench ops --json`",
                          path);
}

void bench_earlier_fini(bench_earlier *earlier) {
    free(earlier->text);
    *earlier = (bench_earlier){0};
}

double bench_earlier_find(const bench_earlier *earlier, const char *set, const char *operation,
                          const char *member) {
    char key[256];
    if (!earlier->text) return 0;
    snprintf(key, sizeof key, "\"set\": \"%s\", \"operation\": \"%s\", ", set, operation);
    const char *at = strstr((const char *)earlier->text, key);
    if (!at) return 0;
    const char *end = strchr(at, '}');
    snprintf(key, sizeof key, "\"%s\": ", member);
    at = strstr(at, key);
    return at && end && at < end ? strtod(at + strlen(key), NULL) : 0;
}
