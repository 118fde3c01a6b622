/*
 * The cryptographic half of libckksclient: models as a client trusts them, keys, rows in and scores out. No
 * I/O, no clock, no threads of its own (OpenMP inside key generation and batches), so that it can go where
 * there are neither sockets nor files. Randomness is the operating system's, through libsodium.
 *
 * Internal header: the library's RPC and file halves and ckksctl include it; the public face is ckksclient.h.
 */
#ifndef CKKS_CLIENT_CRYPTO_H
#define CKKS_CLIENT_CRYPTO_H

#include "kernels/scheme/keys.h"
#include "proto/package.h"

#define CLIENT_INPUTS_MAX 4096u /* ciphertexts of one request */

/* client_init prepares libsodium; call before anything else here. Idempotent, thread-safe. */
ckks_status client_init(ckks_error *err);

/* ---- models ---- */

typedef struct client_model_options {
    bool allow_insecure;
    const uint8_t *pinned_digest; /* [32], NULL = not pinned: CKKS_UNTRUSTED_SERVER on any other */
    uint32_t key_count_max;       /* 0 = 1,024 */
    uint64_t key_bytes_max;       /* 0 = 4 GiB */
} client_model_options;

/* What a client knows of a model, checked. Immutable: may be used by several threads. */
typedef struct client_model {
    Ckksd__V1__ModelDescription *description; /* owned */
    ckks_params params;
    uint32_t input_count, output_count; /* ciphertexts */
    value_signature *inputs, *outputs;
    uint32_t key_count;
    key_requirement *keys;
    uint64_t key_bytes;     /* of a set with exactly these keys, as it travels */
    uint32_t raw_count;     /* numbers of one row before preprocessing */
    uint32_t element_count; /* after it: what is encrypted */
    uint32_t score_count;   /* what is decrypted */
    bool has_digest;
    uint8_t digest[32]; /* of the package */
} client_model;

/* client_model_create parses a ModelDescription (protobuf bytes, which may be freed afterwards), runs every
 * check, the security gate first of all. `digest`, if not NULL, replaces the description's (a package cannot
 * name its own). CKKS_UNTRUSTED_SERVER, CKKS_INSECURE_PARAMETERS, CKKS_MALFORMED. The caller owns *out. */
ckks_status client_model_create(client_model **out, const void *description, size_t size,
                                const uint8_t *digest, const client_model_options *options, ckks_error *err);
/* client_model_from_file: the image of a saved metadata file or of a package. */
ckks_status client_model_from_file(client_model **out, const void *image, size_t size,
                                   const client_model_options *options, ckks_error *err);
void client_model_destroy(client_model *model); /* accepts NULL */

/* client_model_label_count: classes that postprocessing names; 0 = the scores themselves are the result. */
uint32_t client_model_label_count(const client_model *model);

/* ---- rows in, scores out (crypto_preprocess.c, crypto_process.c): pure ---- */

/* client_apply_steps runs preprocessing steps, as package.proto defines them, over a row in heap memory,
 * which may move and change its length; the caller frees *values, also after an error. CKKS_OUT_OF_RANGE for
 * a category that a step does not know. */
ckks_status client_apply_steps(double **values, size_t *count, Ckksd__V1__PreprocessStep *const *steps,
                               size_t step_count, ckks_error *err);

/* client_preprocess turns one raw row [raw_count] into elements [element_count], checking the declared ranges
 * of columns and elements. CKKS_OUT_OF_RANGE naming the column or element. */
ckks_status client_preprocess(double *elements, const client_model *model, const double *row,
                              ckks_error *err);

typedef struct client_prediction {
    uint32_t value_count;
    double *values; /* owned: scores after the numeric steps (probabilities, or the scores themselves) */
    bool has_label;
    uint32_t label_index;
    char label[256];
    double margin; /* distance of the winning score to the runner-up or threshold, before the numeric steps;
                      infinite where there is nothing to compare */
} client_prediction;
/* client_postprocess applies the model's steps to scores [score_count]. */
ckks_status client_postprocess(client_prediction *out, const client_model *model, const double *scores,
                               ckks_error *err);
void client_prediction_fini(client_prediction *prediction);

/* ---- classes from scores of pairs (crypto_pairs.c) ---- */

#define CLIENT_CLASSES_MAX 256u
/* client_pair_classes: how many classes have so many pairs; 0 if none or over CLIENT_CLASSES_MAX. */
uint32_t client_pair_classes(uint64_t pair_count);
/* client_pair_winner: the class with most votes, the first of equals; a score above zero is a vote for the
 * first of its pair. class_count is 2 to CLIENT_CLASSES_MAX, as in the others. */
uint32_t client_pair_winner(const double *scores, uint32_t class_count);
/* client_pair_share: the first's share of a pair, 1 / (1 + exp(scale * score + offset)), within 1e-7 and 1.
 */
double client_pair_share(double score, double scale, double offset);
/* client_pair_couple: probabilities[class_count] from the shares of all pairs. CKKS_RESOURCE_EXHAUSTED. */
ckks_status client_pair_couple(double *probabilities, const double *shares, uint32_t class_count,
                               ckks_error *err);

/* client_score_factor: by what the client multiplies a decrypted score, before anything else; 1 for most
 * models. Scores of the original model divided by it are what decryption gives. */
double client_score_factor(const client_model *model);

/* client_promised_step: 1, 2 or 5 times a power of ten, the smallest not below the promised error; 0 without
 * a promise. client_round rounds scores to multiples of it. */
double client_promised_step(const client_model *model);
void client_round(double *scores, uint32_t count, double step);

/* How rows lie in ciphertexts. Ciphertexts are counted through the batches of all inputs (outputs).
 * client_slots fills the slot vector [client_slot_count] of one ciphertext from the elements of row_count
 * rows (one in the latency layout); client_check_rows says whether so many go into one request. */
uint32_t client_slot_count(const client_model *model);
uint32_t client_rows_per_request(const client_model *model);
uint32_t client_input_ciphertexts(const client_model *model);
uint32_t client_output_ciphertexts(const client_model *model);
ckks_status client_check_rows(const client_model *model, uint32_t row_count, ckks_error *err);
ckks_status client_slots(double *slots, const client_model *model, const double *elements, uint32_t row_count,
                         uint32_t ciphertext, ckks_error *err);
/* client_scores picks scores [row_count][score_count] out of decoded outputs
 * [client_output_ciphertexts][N/2].
 */
ckks_status client_scores(double *scores, const client_model *model, const double *const *decoded,
                          uint32_t row_count, ckks_error *err);
/* client_scores_are_plausible: every score finite and inside the range that the model says its outputs have.
 */
bool client_scores_are_plausible(const client_model *model, const double *scores, uint32_t count);

/* ---- keys ---- */

typedef struct client_secret_key {
    ckks_context *context; /* owned */
    secret_key *key;       /* owned; guarded memory */
} client_secret_key;

ckks_status client_secret_key_generate(client_secret_key **out, const ckks_params *params, ckks_error *err);
void client_secret_key_destroy(client_secret_key *sk); /* wipes; accepts NULL */

/* Passphrase protection: Argon2id, then XChaCha20-Poly1305, both libsodium's. */
typedef struct client_passphrase {
    const char *text; /* NULL = none */
    size_t bytes;
} client_passphrase;

/* client_secret_key_export builds the image of a secret-key file: wipe it and free() it. */
ckks_status client_secret_key_export(uint8_t **image, size_t *size, const client_secret_key *sk,
                                     const client_passphrase *passphrase, uint64_t created_unix,
                                     ckks_error *err);
/* client_secret_key_import: CKKS_PASSPHRASE when one is needed, superfluous or wrong. Gates the parameters.
 */
ckks_status client_secret_key_import(client_secret_key **out, const void *image, size_t size,
                                     const client_passphrase *passphrase, bool allow_insecure,
                                     ckks_error *err);

/* client_requirements_add merges a model's needs into *requirements (grown with realloc; free with free()):
 * per key the highest level, sorted as relinearisation, Galois by element, public key. */
ckks_status client_requirements_add(key_requirement **requirements, uint32_t *count,
                                    const key_requirement *more, uint32_t more_count, ckks_error *err);
/* client_requirements_cover: CKKS_KEY_MISSING naming the first that `have` lacks or has at too low a level.
 */
ckks_status client_requirements_cover(const key_requirement *have, uint32_t have_count,
                                      const key_requirement *need, uint32_t need_count, ckks_error *err);

/* A key set as it travels. */
typedef struct client_key_set {
    ckks_params params;
    uint8_t lineage[LINEAGE_BYTES];
    uint8_t seed[SEED_BYTES];
    uint8_t id[32];
    bool is_insecure;
    uint32_t key_count;
    key_requirement *keys;
    uint64_t payload_bytes;
    uint8_t *payload; /* all packed keys, in order */
} client_key_set;

/* progress may be NULL; called from one thread at a time */
typedef void (*client_progress)(void *context, uint64_t done, uint64_t total);

ckks_status client_key_set_generate(client_key_set **out, const client_secret_key *sk,
                                    const key_requirement *keys, uint32_t key_count, client_progress progress,
                                    void *progress_context, ckks_error *err);
void client_key_set_destroy(client_key_set *set);
ckks_status client_key_set_export(uint8_t **image, size_t *size, const client_key_set *set, ckks_error *err);
ckks_status client_key_set_import(client_key_set **out, const void *image, size_t size, bool allow_insecure,
                                  ckks_error *err);

/* A public key, at the highest level. Its file is a key set of one key with a kind of its own. */
typedef struct client_public_key {
    ckks_context *context; /* owned */
    uint8_t lineage[LINEAGE_BYTES];
    uint64_t *words; /* [2][q_count][N] */
} client_public_key;
/* client_public_key_export makes a fresh public key of `sk` as a file image. */
ckks_status client_public_key_export(uint8_t **image, size_t *size, const client_secret_key *sk,
                                     ckks_error *err);
ckks_status client_public_key_import(client_public_key **out, const void *image, size_t size,
                                     bool allow_insecure, ckks_error *err);
void client_public_key_destroy(client_public_key *pk);

/* ---- ciphertexts ---- */

/* One value: a ciphertext, or a batch of them one after the other. */
typedef struct client_ciphertext {
    value_signature signature;
    bool is_seeded;
    uint8_t seed[SEED_BYTES]; /* of component 1 of all entries: entry i is polynomial i */
    uint8_t *packed;          /* component 0 of each entry alone when seeded; owned */
    uint64_t packed_bytes;
} client_ciphertext;

typedef struct client_ciphertexts {
    uint32_t count;
    client_ciphertext *items; /* owned */
    uint8_t lineage[LINEAGE_BYTES];
    uint32_t row_count;
    bool is_received; /* from a server: what is wrong with it is the server's fault */
} client_ciphertexts;
void client_ciphertexts_fini(client_ciphertexts *list); /* accepts zeroed */

/* client_encrypt encrypts preprocessed elements [row_count][element_count] (row_count at most
 * client_rows_per_request) with the secret key, or with the public key where sk is NULL. Every call draws
 * fresh randomness. Ciphertexts are made by the OpenMP team of the calling thread. CKKS_INVALID_ARGUMENT
 * naming rows for another number of them; CKKS_PARAMS_MISMATCH if the key is of another parameter set;
 * CKKS_UNSUPPORTED for a public key where the model's promise holds under the secret one only. */
ckks_status client_encrypt(client_ciphertexts *out, const client_model *model, const client_secret_key *sk,
                           const client_public_key *pk, const double *elements, uint32_t row_count,
                           ckks_error *err);

/* client_decrypt: outputs of the model into scores [row_count][score_count]. Signatures and sizes are
 * compared with the model's before anything is decrypted. */
ckks_status client_decrypt(double *scores, const client_model *model, const client_secret_key *sk,
                           const client_ciphertexts *outputs, uint32_t row_count, ckks_error *err);

/* client_ciphertexts_check compares a list with expected signatures: count, signature, seeds, bytes. */
ckks_status client_ciphertexts_check(const client_ciphertexts *list, const ckks_params *params,
                                     const value_signature *expected, uint32_t expected_count,
                                     ckks_error *err);

/* Ciphertext files. The caller owns *image (free()) and *out. is_request says which of the model's signatures
 * to expect: CKKS_SIGNATURE_MISMATCH for others, for another package's digest, and naming "ciphertexts" for a
 * result where a request is expected or the reverse. */
ckks_status client_ciphertexts_export(uint8_t **image, size_t *size, const client_ciphertexts *list,
                                      const client_model *model, ckks_error *err);
ckks_status client_ciphertexts_import(client_ciphertexts *out, const client_model *model, bool is_request,
                                      const void *image, size_t size, ckks_error *err);

#endif
