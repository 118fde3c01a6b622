/*
 * A key set as a device holds it: one allocation per key, both components, in the layout that recorded
 * kernels read through the key table: words, or narrow residues in the same places where the device wants
 * them (memory is that of the words: what narrow ones save is traffic).
 *
 * Keys come one after another: a set of a large model takes a gigabyte, and host memory that is touched for
 * the first time costs more than the words that are written to it. For the same reason a set can take over
 * the allocations of one that is not needed any more.
 *
 * Upload streams digit by digit through two pinned pieces, so that filling one overlaps the transfer of the
 * other; the device unpacks component 0, expands component 1 from the seed and checks every residue.
 */
#include "kernels/program/graph_internal.h"

#include "kernels/base/bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct resident_key {
    key_requirement is; /* what the key is; level is the highest at which it serves */
    uint64_t *words;
    uint64_t word_count;
} resident_key;

struct resident_keys {
    device *dev;
    atomic_uint references;
    uint8_t parameter_id[CKKS_PARAMETER_ID_BYTES];
    uint8_t lineage[LINEAGE_BYTES];
    uint64_t bytes;
    uint32_t count;
    resident_key keys[];
};

static void keys_free(resident_keys *keys) {
    if (keys == NULL) return;
    for (uint32_t i = 0; i < keys->count; i++) device_free(keys->dev, keys->keys[i].words);
    free(keys);
}

static ckks_status check_requirement(const ckks_params *params, const key_requirement *is, uint32_t index,
                                     ckks_error *err) {
    ckks_error cause = {0};
    char field[80];
    const ckks_status rc = key_requirement_check(params, is, &cause);
    if (rc == CKKS_OK) return CKKS_OK;
    snprintf(field, sizeof field, "key %u, %.40s", index, cause.field);
    return ckks_error_set(err, rc, field, "%s", cause.message);
}

static ckks_status check_config(resident_keys **out, device *dev, const ckks_context *context,
                                const resident_keys_config *config, ckks_error *err) {
    if (out == NULL || dev == NULL || context == NULL || config->requirements == NULL || config->count == 0 ||
        config->lineage == NULL)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "keys", "a key set needs keys");
    if (config->storage != NULL) {
        CKKS_ASSERT(config->storage->dev == dev);
        CKKS_ASSERT(atomic_load_explicit(&config->storage->references, memory_order_acquire) == 1);
    }
    return CKKS_OK;
}

/* An empty set with room for `count` keys. */
static ckks_status keys_create(resident_keys **out, device *dev, const ckks_context *context, uint32_t count,
                               const uint8_t lineage[LINEAGE_BYTES], ckks_error *err) {
    resident_keys *keys = calloc(1, sizeof *keys + (size_t)count * sizeof keys->keys[0]);
    if (keys == NULL) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
    keys->dev = dev;
    atomic_init(&keys->references, 1);
    memcpy(keys->parameter_id, context_params(context)->id, sizeof keys->parameter_id);
    memcpy(keys->lineage, lineage, sizeof keys->lineage);
    keys->count = count;
    *out = keys;
    return CKKS_OK;
}

/* an allocation of the right size that `from` has no use for any more */
static uint64_t *take_storage(resident_keys *from, uint64_t word_count) {
    for (uint32_t i = 0; from != NULL && i < from->count; i++) {
        uint64_t *words = from->keys[i].words;
        if (words == NULL || from->keys[i].word_count != word_count) continue;
        from->keys[i].words = NULL;
        return words;
    }
    return NULL;
}

static ckks_status key_allocate(resident_keys *keys, const ckks_context *context, uint32_t index,
                                const key_requirement *is, resident_keys *storage, ckks_error *err) {
    CKKS_ASSERT(keys != NULL);
    ckks_status rc = check_requirement(context_params(context), is, index, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = 0; i < index; i++)
        if (keys->keys[i].is.kind == is->kind && keys->keys[i].is.galois_element == is->galois_element)
            return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "keys",
                                  "keys %u and %u are for the same element", i, index);
    resident_key *key = &keys->keys[index];
    key->is = *is;
    key->word_count = key_resident_word_count(context_params(context), is);
    void *words = take_storage(storage, key->word_count);
    if (words == NULL &&
        (rc = device_allocate(keys->dev, &words, key->word_count * 8, MEMORY_KEYS, err)) != CKKS_OK)
        return rc;
    key->words = words;
    keys->bytes += key->word_count * 8;
    return CKKS_OK;
}

/* A set with memory for all keys. Consumes config->storage. */
static ckks_status keys_prepare(resident_keys **out, device *dev, const ckks_context *context,
                                const resident_keys_config *config, ckks_error *err) {
    resident_keys *set = NULL;
    ckks_status rc = keys_create(&set, dev, context, config->count, config->lineage, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < config->count; i++)
        rc = key_allocate(set, context, i, &config->requirements[i], config->storage, err);
    keys_free(config->storage);
    if (rc == CKKS_OK) *out = set, set = NULL;
    keys_free(set);
    return rc;
}

/* ---- upload ---- */

typedef struct key_shape {
    uint32_t digit_count, limb_count;
    kernel_basis basis;
    uint64_t digit_packed_bytes;
} key_shape;

static key_shape shape_of(const ckks_params *params, const key_requirement *is) {
    key_shape shape = {.digit_count = is->kind == KEY_PUBLIC ? 1 : params_digit_count(params, is->level),
                       .basis = {.q_first = 0,
                                 .q_count = is->level + 1,
                                 .p_count = is->kind == KEY_PUBLIC ? 0 : params->p_count}};
    shape.limb_count = basis_limb_count(shape.basis);
    for (uint32_t limb = 0; limb < shape.limb_count; limb++) {
        const uint64_t prime = params->prime[basis_prime(shape.basis, limb, params->q_count)];
        const uint64_t bits = 64u - (uint64_t)__builtin_clzll(prime);
        shape.digit_packed_bytes += align_up(params_n(params) * bits / 8, 16);
    }
    return shape;
}

/* from words to how the device wants its keys */
static ckks_status key_lay_out(device *dev, device_stream *stream, const device_tables *tables,
                               const ckks_params *params, const resident_key *key, ckks_error *err) {
    if (device_key_layout(dev) == KEY_WORDS) return CKKS_OK;
    const key_shape shape = shape_of(params, &key->is);
    const kernel_narrow_key_args args = {.tables = tables,
                                         .key = {.words = key->words,
                                                 .component_count = 2 * shape.digit_count,
                                                 .component_stride = shape.limb_count,
                                                 .basis = shape.basis}};
    return device_launch(stream, KERNEL_NARROW_KEY, &args, err);
}

/* What one upload works with. piece i: pinned bytes, their landing place on the device, and the event after
 * which both may be filled again. */
typedef struct key_upload {
    device *dev;
    const ckks_params *params;
    const device_tables *tables;
    device_stream *stream;
    uint8_t *pinned, *landing; /* [2][piece_bytes], then seed, then verdicts */
    uint64_t piece_bytes;
    device_event *taken[2];
    bool is_taken[2];
    uint32_t next;
    uint8_t *seed_device;
    uint32_t *verdict_device, *verdict_pinned;
} key_upload;

static void upload_fini(key_upload *up) {
    device_stream_destroy(up->stream); /* waits */
    for (int i = 0; i < 2; i++) device_event_destroy(up->taken[i]);
    device_free(up->dev, up->landing);
    device_free_host(up->dev, up->pinned);
    device_tables_release(up->dev, up->tables);
}

static ckks_status upload_init(key_upload *up, device *dev, const ckks_context *context, uint64_t piece_bytes,
                               uint32_t key_count, const uint8_t seed[SEED_BYTES], ckks_error *err) {
    *up = (key_upload){
        .dev = dev, .params = context_params(context), .piece_bytes = align_up(piece_bytes, 256)};
    ckks_status rc;
    const uint64_t seed_at = 2 * up->piece_bytes, verdict_at = seed_at + 256;
    const uint64_t bytes = verdict_at + (uint64_t)key_count * 4;
    void *pinned, *landing;
    if ((rc = device_tables_acquire(dev, &up->tables, context, err)) != CKKS_OK) return rc;
    if ((rc = device_allocate_host(dev, &pinned, bytes, err)) != CKKS_OK) return rc;
    up->pinned = pinned;
    if ((rc = device_allocate(dev, &landing, bytes, MEMORY_KEYS, err)) != CKKS_OK) return rc;
    up->landing = landing;
    up->seed_device = up->landing + seed_at;
    up->verdict_device = (uint32_t *)(void *)(up->landing + verdict_at);
    up->verdict_pinned = (uint32_t *)(void *)(up->pinned + verdict_at);
    if ((rc = device_stream_create(dev, &up->stream, err)) != CKKS_OK) return rc;
    for (int i = 0; i < 2; i++)
        if ((rc = device_event_create(dev, &up->taken[i], err)) != CKKS_OK) return rc;
    memcpy(up->pinned + seed_at, seed, SEED_BYTES);
    if ((rc = device_copy_in(up->stream, up->seed_device, up->pinned + seed_at, SEED_BYTES, err)) != CKKS_OK)
        return rc;
    return device_fill(up->stream, up->verdict_device, 0, (uint64_t)key_count * 4, err);
}

static ckks_status upload_digit(key_upload *up, const resident_key *key, const key_shape *shape,
                                uint32_t index, uint32_t digit, const uint8_t *packed, ckks_error *err) {
    ckks_status rc;
    const uint32_t piece = up->next;
    up->next ^= 1;
    if (up->is_taken[piece] && (rc = event_drain(up->taken[piece], err)) != CKKS_OK) return rc;
    uint8_t *pinned = up->pinned + piece * up->piece_bytes, *landing = up->landing + piece * up->piece_bytes;
    memcpy(pinned, packed, shape->digit_packed_bytes);
    if ((rc = device_copy_in(up->stream, landing, pinned, shape->digit_packed_bytes, err)) != CKKS_OK)
        return rc;
    const uint64_t component_words = (uint64_t)shape->limb_count * params_n(up->params);
    kernel_poly part = {.words = key->words + 2 * digit * component_words,
                        .component_count = 1,
                        .component_stride = shape->limb_count,
                        .basis = shape->basis};
    const kernel_unpack_args unpack = {.tables = up->tables,
                                       .out = part,
                                       .packed = landing,
                                       .packed_bytes = shape->digit_packed_bytes,
                                       .verdict = up->verdict_device + index};
    if ((rc = device_launch(up->stream, KERNEL_UNPACK, &unpack, err)) != CKKS_OK) return rc;
    part.words += component_words;
    const kernel_expand_args expand = {.tables = up->tables,
                                       .out = part,
                                       .seed = up->seed_device,
                                       .purpose = key->is.kind == KEY_PUBLIC ? SEED_PUBLIC_KEY : SEED_KEY_SET,
                                       .polynomial = index * params_digit_count_full(up->params) + digit};
    if ((rc = device_launch(up->stream, KERNEL_EXPAND, &expand, err)) != CKKS_OK) return rc;
    up->is_taken[piece] = true;
    return device_event_record(up->taken[piece], up->stream, err);
}

static ckks_status upload_verdicts(key_upload *up, uint32_t count, ckks_error *err) {
    ckks_status rc;
    if ((rc = device_copy_out(up->stream, up->verdict_pinned, up->verdict_device, (uint64_t)count * 4,
                              err)) != CKKS_OK)
        return rc;
    if ((rc = stream_drain(up->stream, err)) != CKKS_OK) return rc;
    for (uint32_t i = 0; i < count; i++) {
        if (up->verdict_pinned[i] == 0) continue;
        char field[32];
        snprintf(field, sizeof field, "key %u", i);
        return ckks_error_set(err, CKKS_RESIDUE_RANGE, field, "%s",
                              up->verdict_pinned[i] & VERDICT_RESIDUE ? "a residue is not below its modulus"
                                                                      : "padding is not zero");
    }
    return CKKS_OK;
}

static ckks_status upload_key(key_upload *up, const resident_key *key, uint32_t index,
                              const packed_key *packed, ckks_error *err) {
    const key_shape shape = shape_of(up->params, &key->is);
    const uint64_t bytes = shape.digit_count * shape.digit_packed_bytes;
    ckks_status rc = CKKS_OK;
    if (packed->packed == NULL || packed->packed_bytes != bytes) {
        char field[32];
        snprintf(field, sizeof field, "key %u", index);
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, field, "%llu packed bytes instead of %llu",
                              (unsigned long long)packed->packed_bytes, (unsigned long long)bytes);
    }
    for (uint32_t digit = 0; digit < shape.digit_count && rc == CKKS_OK; digit++)
        rc = upload_digit(up, key, &shape, index, digit, packed->packed + digit * shape.digit_packed_bytes,
                          err);
    return rc == CKKS_OK ? key_lay_out(up->dev, up->stream, up->tables, up->params, key, err) : rc;
}

ckks_status resident_keys_pack(resident_keys **out, device *dev, const ckks_context *context,
                               const resident_keys_config *config, ckks_error *err) {
    resident_keys *set = NULL;
    key_upload up = {.dev = dev};
    uint64_t largest = 0;
    ckks_status rc = check_config(out, dev, context, config, err);
    if (rc == CKKS_OK && (config->seed == NULL || config->pack == NULL))
        rc = ckks_error_set(err, CKKS_INVALID_ARGUMENT, "keys", "no keys or no seed");
    if (rc != CKKS_OK) {
        resident_keys_release(config->storage);
        return rc;
    }
    if ((rc = keys_prepare(&set, dev, context, config, err)) != CKKS_OK) return rc;
    for (uint32_t i = 0; i < config->count; i++) {
        const key_shape shape = shape_of(context_params(context), &config->requirements[i]);
        if (shape.digit_packed_bytes > largest) largest = shape.digit_packed_bytes;
    }
    if ((rc = upload_init(&up, dev, context, largest, config->count, config->seed, err)) != CKKS_OK) goto out;
    for (uint32_t i = 0; i < config->count; i++) {
        packed_key packed = {0};
        if ((rc = config->pack(config->source, i, &packed, err)) != CKKS_OK) goto out;
        if ((rc = upload_key(&up, &set->keys[i], i, &packed, err)) != CKKS_OK) goto out;
    }
    if ((rc = upload_verdicts(&up, config->count, err)) != CKKS_OK) goto out;
    *out = set, set = NULL;
out:
    upload_fini(&up);
    keys_free(set);
    return rc;
}

/* the caller has them all */
static ckks_status pack_from_list(void *source, uint32_t index, packed_key *out, ckks_error *err) {
    (void)err;
    *out = ((const packed_key *)source)[index];
    return CKKS_OK;
}

ckks_status resident_keys_upload(resident_keys **out, device *dev, const ckks_context *context,
                                 const packed_key *keys, uint32_t count, const uint8_t seed[SEED_BYTES],
                                 const uint8_t lineage[LINEAGE_BYTES], ckks_error *err) {
    if (keys == NULL || seed == NULL)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "keys", "no keys or no seed");
    key_requirement *requirements = malloc(((size_t)count + 1) * sizeof *requirements);
    packed_key *list = malloc(((size_t)count + 1) * sizeof *list);
    ckks_status rc = CKKS_RESOURCE_EXHAUSTED;
    if (requirements == NULL || list == NULL) {
        ckks_error_set(err, rc, "", "out of memory");
        goto out;
    }
    for (uint32_t i = 0; i < count; i++) requirements[i] = keys[i].requirement, list[i] = keys[i];
    const resident_keys_config config = {.requirements = requirements,
                                         .count = count,
                                         .lineage = lineage,
                                         .seed = seed,
                                         .pack = pack_from_list,
                                         .source = list};
    rc = resident_keys_pack(out, dev, context, &config, err);
out:
    free(list);
    free(requirements);
    return rc;
}

ckks_status resident_keys_fill(resident_keys **out, device *dev, const ckks_context *context,
                               const resident_keys_config *config, ckks_error *err) {
    resident_keys *set = NULL;
    device_stream *stream = NULL;
    const device_tables *tables = NULL;
    uint64_t *words = NULL;
    uint64_t largest = 0;
    ckks_status rc = check_config(out, dev, context, config, err);
    if (rc == CKKS_OK && config->fill == NULL)
        rc = ckks_error_set(err, CKKS_INVALID_ARGUMENT, "keys", "no keys");
    if (rc != CKKS_OK) {
        resident_keys_release(config->storage);
        return rc;
    }
    if ((rc = keys_prepare(&set, dev, context, config, err)) != CKKS_OK) return rc;
    for (uint32_t i = 0; i < set->count; i++)
        if (set->keys[i].word_count > largest) largest = set->keys[i].word_count;
    CKKS_ASSERT(largest > 0); /* no key is empty */
    if (!(words = malloc(largest * sizeof *words))) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for the words of a key");
        goto out;
    }
    if ((rc = device_tables_acquire(dev, &tables, context, err)) != CKKS_OK) goto out;
    if ((rc = device_stream_create(dev, &stream, err)) != CKKS_OK) goto out;
    for (uint32_t i = 0; i < set->count; i++) {
        const resident_key *key = &set->keys[i];
        if ((rc = config->fill(config->source, i, words, err)) != CKKS_OK) goto out;
        if ((rc = device_copy_in(stream, key->words, words, key->word_count * 8, err)) != CKKS_OK) goto out;
        if ((rc = key_lay_out(dev, stream, tables, context_params(context), key, err)) != CKKS_OK) goto out;
        if ((rc = stream_drain(stream, err)) != CKKS_OK) goto out;
    }
    *out = set, set = NULL;
out:
    device_stream_destroy(stream); /* waits for what still reads and writes */
    device_tables_release(dev, tables);
    free(words);
    keys_free(set);
    return rc;
}

/* ---- use ---- */

void resident_keys_retain(resident_keys *keys) {
    atomic_fetch_add_explicit(&keys->references, 1, memory_order_relaxed);
}

void resident_keys_release(resident_keys *keys) {
    if (keys == NULL) return;
    if (atomic_fetch_sub_explicit(&keys->references, 1, memory_order_acq_rel) == 1) keys_free(keys);
}

uint64_t resident_keys_bytes(const resident_keys *keys) {
    return keys->bytes;
}

const uint8_t *resident_keys_lineage(const resident_keys *keys) {
    return keys->lineage;
}

device *resident_keys_device(const resident_keys *keys) {
    return keys->dev;
}

const uint8_t *resident_keys_parameter_id(const resident_keys *keys) {
    return keys->parameter_id;
}

static const resident_key *find(const resident_keys *keys, const key_requirement *need) {
    for (uint32_t i = 0; i < keys->count; i++) {
        const key_requirement *is = &keys->keys[i].is;
        if (is->kind == need->kind && is->galois_element == need->galois_element && is->level >= need->level)
            return &keys->keys[i];
    }
    return NULL;
}

ckks_status key_table_fill(key_table_entry *entries, const resident_keys *keys, const key_requirement *needs,
                           uint32_t count, ckks_error *err) {
    for (uint32_t i = 0; i < count; i++) {
        const resident_key *key = find(keys, &needs[i]);
        if (key == NULL) {
            char field[40];
            if (needs[i].kind == KEY_GALOIS)
                snprintf(field, sizeof field, "galois element %u", needs[i].galois_element);
            else
                snprintf(field, sizeof field, "%s key",
                         needs[i].kind == KEY_PUBLIC ? "public" : "relinearisation");
            return ckks_error_set(err, CKKS_KEY_MISSING, field, "no such key up to level %u in the key set",
                                  needs[i].level);
        }
        if (entries != NULL)
            entries[i] = (key_table_entry){.address = (uint64_t)(uintptr_t)key->words,
                                           .q_limb_count = key->is.level + 1,
                                           .layout = device_key_layout(keys->dev)};
    }
    return CKKS_OK;
}

ckks_status resident_keys_satisfy(const resident_keys *keys, const key_requirement *requirements,
                                  uint32_t count, ckks_error *err) {
    if (keys == NULL) return ckks_error_set(err, CKKS_KEY_MISSING, "keys", "no key set");
    return key_table_fill(NULL, keys, requirements, count, err);
}
