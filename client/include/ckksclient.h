/*
 * libckksclient: encrypted inference from C.
 *
 * Your data and your secret key stay in your process; a ckksd server computes on ciphertexts. A first answer
 * (cc program.c $(pkg-config --cflags --libs ckksclient)):
 *
 *     ckksc_error error = CKKSC_ERROR_INIT;
 *     ckksc_status status = CKKSC_OTHER; // when it is not reached, error says what was in the way
 *     ckksc_connection *server = NULL;
 *     ckksc_model *model = NULL;
 *     ckksc_secret_key *key = NULL;
 *     ckksc_key_set *keys = NULL;
 *     ckksc_connect_options where = CKKSC_CONNECT_OPTIONS_INIT;
 *     where.address = "tcp://host:7000", where.token = token;
 *     if (ckksc_connect(&server, &where, &error) == CKKSC_OK &&
 *         ckksc_model_fetch(&model, server, "mnist", NULL, NULL, &error) == CKKSC_OK &&
 *         ckksc_secret_key_generate(&key, model, &error) == CKKSC_OK &&
 *         ckksc_key_set_generate(&keys, key, &model, 1, &error) == CKKSC_OK &&
 *         ckksc_register(server, keys, &error) == CKKSC_OK)
 *         status = ckksc_infer(scores, server, model, key, ckksc_key_set_id(keys), row, &error);
 *
 * Conventions
 *   - Outputs come first, the error last (it may be NULL). Functions return a ckksc_status. After a failure
 * the objects and images that they make are NULL and other outputs undefined, unless it says otherwise.
 *   - *_generate, *_create, *_import and the like give the caller an object to return with its *_destroy,
 * which accepts NULL. Buffers that a function allocates are returned with ckksc_free, which wipes them.
 *   - Models, keys and key sets do not change after creation and may be used by several threads; so may a
 * connection. Functions that say so block; the others compute.
 *   - Structures begin with struct_bytes; initialise them with their *_INIT, so that a program keeps working
 * with a later library: members that it was not compiled with count as zero. A structure without a valid
 * struct_bytes is CKKSC_USAGE, as is NULL for an argument that may not be NULL.
 *
 * What it protects, and what not
 *   - Parameters, sizes and layouts that a server or a file names are checked before they are used; sets
 * below 128 bits of security are refused unless allow_insecure.
 *   - Results are approximate. Handing decrypted values to others, the server included, can give away
 * information about the secret key: share only rounded results (ckksc_infer rounds to the precision that the
 * model promises).
 *   - Nothing proves that a server computed what it claims.
 */
#ifndef CKKSCLIENT_H
#define CKKSCLIENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CKKSC_API __attribute__((visibility("default")))
#else
#define CKKSC_API
#endif

#define CKKSC_VERSION_MAJOR 0
#define CKKSC_VERSION_MINOR 1

/* ---- errors ---- */

typedef enum ckksc_status {
    CKKSC_OK = 0,
    CKKSC_OTHER = 1,       /* memory, disk, our own fault */
    CKKSC_USAGE = 2,       /* an argument that makes no sense */
    CKKSC_INPUT = 3,       /* data or a file that cannot be used; a value out of range */
    CKKSC_REFUSED = 4,     /* the server said no; `reason` says why */
    CKKSC_UNREACHABLE = 5, /* no server answers */
    CKKSC_KEY = 6,         /* a key is missing, unknown, evicted, sealed or of other parameters */
    CKKSC_UNTRUSTED = 7,   /* what the server sent is not safe to use */
    CKKSC_IMPLAUSIBLE = 8  /* a decrypted result is outside of what the model produces */
} ckksc_status;

/* First cause of a failure. Never holds secret material. */
typedef struct ckksc_error {
    uint32_t struct_bytes;
    ckksc_status status;
    char code[48];     /* what exactly, as an identifier: "CKKS_KEY_UNKNOWN" */
    char reason[32];   /* the wire's reason: "KEY_UNKNOWN"; "" if none */
    char field[64];    /* the field, column or argument at fault; "" if none */
    char message[320]; /* one sentence for people */
    uint32_t is_retryable;
} ckksc_error;
#define CKKSC_ERROR_INIT                                                                                     \
    { sizeof(ckksc_error), CKKSC_OK, "", "", "", "", 0 }

/* ckksc_version returns "0.1.0". Static. */
CKKSC_API const char *ckksc_version(void);
/* ckksc_free wipes and frees a buffer of `bytes` bytes that this library allocated. Accepts NULL. */
CKKSC_API void ckksc_free(void *buffer, size_t bytes);

/* ---- models ---- */

typedef struct ckksc_model ckksc_model;
typedef struct ckksc_connection ckksc_connection;

typedef struct ckksc_model_options {
    uint32_t struct_bytes;
    uint32_t allow_insecure;      /* tests only */
    const uint8_t *pinned_digest; /* [32]: any other package is refused; NULL = not pinned */
    uint32_t key_count_max;       /* 0 = 1,024 */
    uint64_t key_bytes_max;       /* 0 = 4 GiB */
} ckksc_model_options;
#define CKKSC_MODEL_OPTIONS_INIT                                                                             \
    { sizeof(ckksc_model_options), 0, NULL, 0, 0 }

/* ckksc_model_create: from the image of a saved metadata file or a package file; `image` may be freed
 * afterwards. options may be NULL. */
CKKSC_API ckksc_status ckksc_model_create(ckksc_model **out, const void *image, size_t bytes,
                                          const ckksc_model_options *options, ckksc_error *error);
/* ckksc_model_fetch asks the server; version NULL = the newest that is ready. Blocks. */
CKKSC_API ckksc_status ckksc_model_fetch(ckksc_model **out, ckksc_connection *connection, const char *name,
                                         const char *version, const ckksc_model_options *options,
                                         ckksc_error *error);
CKKSC_API void ckksc_model_destroy(ckksc_model *model);

typedef struct ckksc_model_info {
    uint32_t struct_bytes;
    uint32_t input_count;   /* numbers of one row, as ckksc_encrypt takes them */
    uint32_t score_count;   /* numbers of one result */
    uint32_t label_count;   /* classes; 0 = the scores are the result */
    uint32_t log_n;         /* ring degree 2^log_n */
    uint32_t security_bits; /* 256, 192, 128; 0 = insecure */
    uint32_t key_count;     /* 0: the model needs no key set, and none can be generated for it */
    uint64_t key_bytes;     /* of a key set for this model alone */
    double promised_error;  /* of a score; 0 = no promise */
    double promised_step;   /* results are rounded to multiples of it; 0 = they are not: share none */
    uint8_t parameter_id[32];
    uint8_t digest[32];        /* of the package; zeros if the description has none */
    const char *name;          /* these two live as long as the model */
    const char *version;       /* "" if unknown */
    uint32_t rows_per_request; /* 1, or, in the throughput layout, how many rows one request may have */
} ckksc_model_info;
#define CKKSC_MODEL_INFO_INIT                                                                                \
    { sizeof(ckksc_model_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, {0}, NULL, NULL, 0 }
/* ckksc_model_describe fills *out, which the caller has initialised. */
CKKSC_API ckksc_status ckksc_model_describe(ckksc_model_info *out, const ckksc_model *model,
                                            ckksc_error *error);
/* Name of input `index`, or NULL where the model takes a plain tensor. Lives as long as the model. */
CKKSC_API const char *ckksc_model_column(const ckksc_model *model, uint32_t index);
/* Text of category `category` of a column of text: in a row it is the number `category`. NULL behind the last
 * one, and for a column of numbers. Lives as long as the model. */
CKKSC_API const char *ckksc_model_category(const ckksc_model *model, uint32_t index, uint32_t category);

/* ---- keys ---- */

typedef struct ckksc_secret_key ckksc_secret_key;
typedef struct ckksc_public_key ckksc_public_key;
typedef struct ckksc_key_set ckksc_key_set;

/* A fresh secret key for the model's parameters, in guarded memory (n bytes, n = 2^log_n, and what computing
 * with it needs; CKKSC_OTHER where the system locks no more). It serves every model of the same parameters.
 */
CKKSC_API ckksc_status ckksc_secret_key_generate(ckksc_secret_key **out, const ckksc_model *model,
                                                 ckksc_error *error);
/* Image of a secret-key file, sealed with the passphrase (UTF-8, up to its zero byte) unless that is NULL:
 * without one the image is the key. Sealing takes 256 MiB of memory and about a second. Write the image with
 * mode 0600; return it with ckksc_free. */
CKKSC_API ckksc_status ckksc_secret_key_export(uint8_t **image, size_t *bytes, const ckksc_secret_key *key,
                                               const char *passphrase, ckksc_error *error);
/* CKKSC_KEY when the passphrase is wrong, missing, or given for a key without one; CKKSC_INPUT for an image
 * that is none; CKKSC_UNTRUSTED for parameters below 128 bits of security unless allow_insecure. The image
 * stays the caller's, to wipe. */
CKKSC_API ckksc_status ckksc_secret_key_import(ckksc_secret_key **out, const void *image, size_t bytes,
                                               const char *passphrase, uint32_t allow_insecure,
                                               ckksc_error *error);
CKKSC_API void ckksc_secret_key_destroy(ckksc_secret_key *key);

/* Public key: others can encrypt for the owner of the secret key. */
CKKSC_API ckksc_status ckksc_public_key_export(uint8_t **image, size_t *bytes, const ckksc_secret_key *key,
                                               ckksc_error *error);
CKKSC_API ckksc_status ckksc_public_key_import(ckksc_public_key **out, const void *image, size_t bytes,
                                               uint32_t allow_insecure, ckksc_error *error);
CKKSC_API void ckksc_public_key_destroy(ckksc_public_key *key);

/* The evaluation keys that all of models[model_count] need, under `key`. Seconds of computing, and the set's
 * size in memory, for large parameters. CKKSC_KEY naming the model whose parameters are others than the
 * key's. */
CKKSC_API ckksc_status ckksc_key_set_generate(ckksc_key_set **out, const ckksc_secret_key *key,
                                              ckksc_model *const *models, uint32_t model_count,
                                              ckksc_error *error);
CKKSC_API ckksc_status ckksc_key_set_export(uint8_t **image, size_t *bytes, const ckksc_key_set *keys,
                                            ckksc_error *error);
CKKSC_API ckksc_status ckksc_key_set_import(ckksc_key_set **out, const void *image, size_t bytes,
                                            uint32_t allow_insecure, ckksc_error *error);
/* The 32 bytes by which a server knows the set. Live as long as the set. */
CKKSC_API const uint8_t *ckksc_key_set_id(const ckksc_key_set *keys);
/* Bytes to upload: 0 for NULL. */
CKKSC_API uint64_t ckksc_key_set_bytes(const ckksc_key_set *keys);
CKKSC_API void ckksc_key_set_destroy(ckksc_key_set *keys);

/* ---- ciphertexts ---- */

typedef struct ckksc_ciphertext ckksc_ciphertext; /* all ciphertexts of one request, or of one result */

/* ckksc_encrypt checks row[input_count] against the declared ranges, preprocesses and encrypts it, with `key`
 * or, where that is NULL, with `public_key`. In a row of columns a text is the number of its category
 * (ckksc_model_category), -1 where the model has none such, and a missing number is NaN: both are refused
 * unless a step of the model takes them. CKKSC_INPUT naming the column that is out of its range or not
 * finite, and for a public key where what the model promises holds under the secret one only. */
CKKSC_API ckksc_status ckksc_encrypt(ckksc_ciphertext **out, const ckksc_model *model,
                                     const ckksc_secret_key *key, const ckksc_public_key *public_key,
                                     const double *row, ckksc_error *error);
/* ckksc_encrypt_rows: the same for rows[row_count][input_count], 1 to rows_per_request of them, in one
 * request. CKKSC_INPUT naming the row or the number of rows. Uses all cores. */
CKKSC_API ckksc_status ckksc_encrypt_rows(ckksc_ciphertext **out, const ckksc_model *model,
                                          const ckksc_secret_key *key, const ckksc_public_key *public_key,
                                          const double *rows, uint32_t row_count, ckksc_error *error);
/* ckksc_decrypt: scores[score_count], exact to the last digit of the noise: see ckksc_round.
 * CKKSC_IMPLAUSIBLE (scores are filled all the same) when a score is outside of what the model produces. */
CKKSC_API ckksc_status ckksc_decrypt(double *scores, const ckksc_model *model, const ckksc_secret_key *key,
                                     const ckksc_ciphertext *result, ckksc_error *error);
/* ckksc_decrypt_rows: scores[row_count][score_count] of the first row_count rows of a request. */
CKKSC_API ckksc_status ckksc_decrypt_rows(double *scores, const ckksc_model *model,
                                          const ckksc_secret_key *key, const ckksc_ciphertext *result,
                                          uint32_t row_count, ckksc_error *error);
/* ckksc_round rounds scores[score_count] to the precision that the model promises. Neither may be NULL. */
CKKSC_API void ckksc_round(double *scores, const ckksc_model *model);
CKKSC_API ckksc_status ckksc_ciphertext_export(uint8_t **image, size_t *bytes, const ckksc_model *model,
                                               const ckksc_ciphertext *ciphertext, ckksc_error *error);
/* is_result: 0 a request, 1 a result */
CKKSC_API ckksc_status ckksc_ciphertext_import(ckksc_ciphertext **out, const ckksc_model *model,
                                               uint32_t is_result, const void *image, size_t bytes,
                                               ckksc_error *error);
CKKSC_API void ckksc_ciphertext_destroy(ckksc_ciphertext *ciphertext);

/* ckksc_classify applies the model's postprocessing to scores: values[score_count] (two for a binary decision
 * with both probabilities; value_capacity says how many fit) and the label's name, "" where the model has
 * none. */
CKKSC_API ckksc_status ckksc_classify(double *values, uint32_t value_capacity, uint32_t *value_count,
                                      char *label, size_t label_capacity, const ckksc_model *model,
                                      const double *scores, ckksc_error *error);

/* ---- a server ---- */

typedef struct ckksc_connect_options {
    uint32_t struct_bytes;
    uint32_t connect_ms; /* 0 = 5,000 */
    const char *address; /* tcp://host:port, tls+tcp://host:port, ipc:///path, ws://host:port/path, wss:// */
    const char *token;   /* "id.secret" */
    const char *ca_file; /* PEM; NULL = the system's authorities */
    uint32_t timeout_ms; /* of a call, retries included; 0 = 60,000 */
    uint64_t reply_bytes_max; /* 0 = 256 MiB */
    /* ipc:// alone: how long a call waits for its reply awake before it sleeps; takes up to this much of a
     * core a call and spares a wake-up, 10 to 50 us. 0 = not at all */
    uint32_t spin_us;
} ckksc_connect_options;
#define CKKSC_CONNECT_OPTIONS_INIT                                                                           \
    { sizeof(ckksc_connect_options), 0, NULL, NULL, NULL, 0, 0, 0 }

/* Blocks up to connect_ms for each step: reaching the server, its answer, reaching its second endpoint. The
 * strings of `options` are copied; copies of the token are overwritten before they are freed, but for those
 * that the transport library makes of requests (none to ipc://). CKKSC_USAGE for an address that is none,
 * CKKSC_UNREACHABLE where nobody answers or the host's name is unknown, CKKSC_UNTRUSTED for a certificate
 * that is not accepted. */
CKKSC_API ckksc_status ckksc_connect(ckksc_connection **out, const ckksc_connect_options *options,
                                     ckksc_error *error);
CKKSC_API void ckksc_disconnect(ckksc_connection *connection); /* no call may be in flight */

/* ckksc_register uploads a key set, resuming an earlier try; what the server has is not sent again. Blocks as
 * long as the upload takes: timeout_ms is for each of its messages. */
CKKSC_API ckksc_status ckksc_register(ckksc_connection *connection, const ckksc_key_set *keys,
                                      ckksc_error *error);
/* ckksc_evaluate sends a request and returns the result's ciphertexts, validated, not decrypted. key_set_id
 * may be NULL where the model needs no keys. Blocks. */
CKKSC_API ckksc_status ckksc_evaluate(ckksc_ciphertext **result, ckksc_connection *connection,
                                      const ckksc_model *model, const uint8_t key_set_id[32],
                                      const ckksc_ciphertext *request, ckksc_error *error);
/* ckksc_infer encrypts row[input_count], has it evaluated, decrypts and rounds: scores[score_count], filled
 * and rounded after CKKSC_IMPLAUSIBLE too. Blocks. */
CKKSC_API ckksc_status ckksc_infer(double *scores, ckksc_connection *connection, const ckksc_model *model,
                                   const ckksc_secret_key *key, const uint8_t key_set_id[32],
                                   const double *row, ckksc_error *error);
/* ckksc_infer_rows does that for rows[row_count][input_count] in one request (1 to rows_per_request of them):
 * scores[row_count][score_count]. For more rows call it again; several threads may, on one connection.
 * Blocks.
 */
CKKSC_API ckksc_status ckksc_infer_rows(double *scores, ckksc_connection *connection,
                                        const ckksc_model *model, const ckksc_secret_key *key,
                                        const uint8_t key_set_id[32], const double *rows, uint32_t row_count,
                                        ckksc_error *error);

#ifdef __cplusplus
}
#endif
#endif
