/*
 * A CPU device with a secret key, its evaluation keys resident, and a way to run an evaluation in every mode:
 * it is planned, run eagerly in the planned workspace, recorded, and replayed in several adversarial orders;
 * all must write the same words. What cannot be made aborts the test.
 */
#ifndef CKKS_TESTS_EVALUATOR_FIXTURE_H
#define CKKS_TESTS_EVALUATOR_FIXTURE_H

#include "kernels/evaluator/evaluator.h"
#include "kernels/scheme/encoder.h"
#include "kernels/scheme/keys.h"
#include "tests/support/device_fixture.h"

#define EVALUATOR_FIXTURE_KEYS_MAX  64u
#define EVALUATOR_FIXTURE_OWNED_MAX 2048u

typedef struct evaluator_fixture {
    device_fixture on;
    secret_key *sk;
    uint32_t key_count;
    key_requirement keys[EVALUATOR_FIXTURE_KEYS_MAX];
    key_table_entry table[EVALUATOR_FIXTURE_KEYS_MAX];
    key_table_entry *table_device;
    random_state *random; /* device; set to the same state before each run */
    void *owned[EVALUATOR_FIXTURE_OWNED_MAX];
    uint32_t owned_count;
    uint32_t slot_count; /* N/2 */
    prng r;
    uint32_t node_count; /* of the last recording */
} evaluator_fixture;

/* takes the context */
void evaluator_fixture_open(evaluator_fixture *f, ckks_context *context, const key_requirement *keys,
                            uint32_t key_count);
void evaluator_fixture_close(evaluator_fixture *f);

/* index in the key table; aborts if there is none */
uint32_t evaluator_fixture_key(const evaluator_fixture *f, uint32_t kind, uint32_t galois_element);
galois_step evaluator_fixture_rotation(const evaluator_fixture *f, int64_t steps);

/* device memory that close returns */
void *evaluator_fixture_upload(evaluator_fixture *f, const void *host, uint64_t bytes);
/* values[batch][slot_count] in (-1, 1) times magnitude; the caller frees */
double *evaluator_fixture_slots(evaluator_fixture *f, uint32_t batch_count, double magnitude);
/* real[batch][slot_count], imag NULL or likewise */
ckks_value evaluator_fixture_encrypt(evaluator_fixture *f, const double *real, const double *imag,
                                     uint32_t batch_count, uint32_t level, double scale);
ckks_value evaluator_fixture_plain(evaluator_fixture *f, const double *real, uint32_t level, double scale);
/* over QP, as diagonals are; any power-of-two slot count */
uint64_t *evaluator_fixture_diagonal(evaluator_fixture *f, const double *real, uint32_t slot_count,
                                     uint32_t level, double scale);

typedef struct host_value {
    value_signature signature;
    uint64_t *words; /* malloc */
} host_value;
void host_value_free(host_value *v);

/* evaluates into out[out_count], which it must not release */
typedef ckks_status (*evaluator_fixture_callable)(void *context, evaluator *ev, ckks_value *out,
                                                  ckks_error *err);
/* Returns what the callable returned while planning; host[out_count] is filled on success. */
ckks_status evaluator_fixture_run(evaluator_fixture *f, host_value *host, uint32_t out_count,
                                  evaluator_fixture_callable run, void *context, ckks_error *err);
/* real, imag (may be NULL): [slot_count] of one batch entry */
void evaluator_fixture_decrypt(evaluator_fixture *f, double *real, double *imag, const host_value *v,
                               uint32_t entry);

/* Largest difference after decryption, over all batch entries. */
double evaluator_fixture_error(evaluator_fixture *f, const host_value *v, const double *real,
                               const double *imag);
/* Stated noise bound of `count` noise terms (fresh encryption, rescale, key switch) on a slot, at this scale:
 * eight deviations of the sum of an encryption error, a rescale's rounding and one key switch. */
double evaluator_fixture_bound(const evaluator_fixture *f, double scale, double count);

#endif
