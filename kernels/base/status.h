/*
 * One table of everything that can go wrong, and the carrier of the first cause.
 *
 * Every fallible function returns a ckks_status and takes a `ckks_error *err` last. The error keeps the
 * *first* cause: a second ckks_error_set on a filled error changes nothing, so that unwinding code may
 * report freely. `err` may be NULL everywhere.
 *
 * Deliberately absent: exceptions by longjmp, errno as a channel, error objects on the heap.
 */
#ifndef CKKS_BASE_STATUS_H
#define CKKS_BASE_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

/* gRPC status numbers, as the wire carries them. */
typedef enum rpc_code {
    RPC_OK = 0,
    RPC_CANCELLED = 1,
    RPC_UNKNOWN = 2,
    RPC_INVALID_ARGUMENT = 3,
    RPC_DEADLINE_EXCEEDED = 4,
    RPC_NOT_FOUND = 5,
    RPC_ALREADY_EXISTS = 6,
    RPC_PERMISSION_DENIED = 7,
    RPC_RESOURCE_EXHAUSTED = 8,
    RPC_FAILED_PRECONDITION = 9,
    RPC_ABORTED = 10,
    RPC_OUT_OF_RANGE = 11,
    RPC_UNIMPLEMENTED = 12,
    RPC_INTERNAL = 13,
    RPC_UNAVAILABLE = 14,
    RPC_DATA_LOSS = 15,
    RPC_UNAUTHENTICATED = 16,
} rpc_code;

/*
 * X(name, rpc status, wire reason, is_retryable, text)
 *
 * The wire reason is what a client program switches on; "" where the rpc status says it all.
 * `is_retryable` says that the same request, unchanged, may succeed later.
 */
#define CKKS_STATUS_TABLE(X)                                                                                 \
    X(CKKS_OK, RPC_OK, "", false, "ok")                                                                      \
    X(CKKS_INVALID_ARGUMENT, RPC_INVALID_ARGUMENT, "", false, "invalid argument")                            \
    X(CKKS_MALFORMED, RPC_INVALID_ARGUMENT, "MALFORMED", false, "malformed data")                            \
    X(CKKS_UNSUPPORTED_VERSION, RPC_UNIMPLEMENTED, "VERSION", false, "unsupported version")                  \
    X(CKKS_UNSUPPORTED, RPC_UNIMPLEMENTED, "UNSUPPORTED", false, "unsupported")                              \
    X(CKKS_TOO_LARGE, RPC_INVALID_ARGUMENT, "TOO_LARGE", false, "too large")                                 \
    X(CKKS_NOT_FOUND, RPC_NOT_FOUND, "", false, "not found")                                                 \
    X(CKKS_ALREADY_EXISTS, RPC_ALREADY_EXISTS, "", false, "already exists")                                  \
    X(CKKS_INSECURE_PARAMETERS, RPC_INVALID_ARGUMENT, "INSECURE", false,                                     \
      "parameters are over the security table")                                                              \
    X(CKKS_PARAMS_MISMATCH, RPC_FAILED_PRECONDITION, "PARAMS_MISMATCH", false, "parameter id differs")       \
    X(CKKS_SIGNATURE_MISMATCH, RPC_INVALID_ARGUMENT, "SIGNATURE_MISMATCH", false, "signature differs")       \
    X(CKKS_LINEAGE_MISMATCH, RPC_FAILED_PRECONDITION, "LINEAGE_MISMATCH", false,                             \
      "inputs and keys belong to different secret keys")                                                     \
    X(CKKS_RESIDUE_RANGE, RPC_INVALID_ARGUMENT, "RESIDUE_RANGE", false, "a residue is out of range")         \
    X(CKKS_KEY_UNKNOWN, RPC_NOT_FOUND, "KEY_UNKNOWN", false, "unknown key set")                              \
    X(CKKS_KEY_EVICTED, RPC_FAILED_PRECONDITION, "KEY_EVICTED", false, "key set was evicted: upload again")  \
    X(CKKS_KEY_MISSING, RPC_FAILED_PRECONDITION, "KEY_MISSING", false,                                       \
      "a key that the model requires is missing")                                                            \
    X(CKKS_CONFIG_RETIRED, RPC_FAILED_PRECONDITION, "CONFIG_RETIRED", false,                                 \
      "model version was retired: fetch its metadata again")                                                 \
    X(CKKS_FAILED_PRECONDITION, RPC_FAILED_PRECONDITION, "", false, "failed precondition")                   \
    X(CKKS_HANDLE_MISSING, RPC_FAILED_PRECONDITION, "", false, "no prepared handle was given")               \
    X(CKKS_HANDLE_SUPERSEDED, RPC_FAILED_PRECONDITION, "", false, "prepared handle was superseded")          \
    X(CKKS_HANDLE_CONSUMED, RPC_FAILED_PRECONDITION, "", false, "prepared handle was already replayed")      \
    X(CKKS_HANDLE_FOREIGN, RPC_FAILED_PRECONDITION, "", false, "prepared handle is of another program")      \
    X(CKKS_PAYLOAD_POISONED, RPC_FAILED_PRECONDITION, "", false,                                             \
      "held payload is poisoned: a full good copy must come first")                                          \
    X(CKKS_LEASE_HELD, RPC_FAILED_PRECONDITION, "", false, "an output lease is held")                        \
    X(CKKS_STALE_GENERATION, RPC_FAILED_PRECONDITION, "", false,                                             \
      "the output view is of an older generation")                                                           \
    X(CKKS_CLOSED, RPC_FAILED_PRECONDITION, "", false, "closed")                                             \
    X(CKKS_RECORDING_VIOLATION, RPC_INTERNAL, "", false, "not allowed inside a recorded region")             \
    X(CKKS_ALIASING, RPC_INVALID_ARGUMENT, "", false, "storage is shared where it must not be")              \
    X(CKKS_OUT_OF_RANGE, RPC_OUT_OF_RANGE, "", false, "value out of range")                                  \
    X(CKKS_PRECISION, RPC_OUT_OF_RANGE, "", false, "precision does not suffice")                             \
    X(CKKS_RESOURCE_EXHAUSTED, RPC_RESOURCE_EXHAUSTED, "", true, "out of memory or budget")                  \
    X(CKKS_QUOTA, RPC_RESOURCE_EXHAUSTED, "QUOTA", false, "quota exceeded")                                  \
    X(CKKS_QUEUE_FULL, RPC_RESOURCE_EXHAUSTED, "QUEUE_FULL", true, "queue is full")                          \
    X(CKKS_DEADLINE, RPC_DEADLINE_EXCEEDED, "DEADLINE", true, "deadline passed")                             \
    X(CKKS_CANCELLED, RPC_CANCELLED, "", false, "cancelled")                                                 \
    X(CKKS_DRAINING, RPC_UNAVAILABLE, "DRAINING", true, "server is draining")                                \
    X(CKKS_UNAVAILABLE, RPC_UNAVAILABLE, "", true, "unavailable")                                            \
    X(CKKS_DEVICE_ERROR, RPC_UNAVAILABLE, "", true, "device error")                                          \
    X(CKKS_AUTH, RPC_UNAUTHENTICATED, "AUTH", false, "token is missing, unknown or wrong")                   \
    X(CKKS_PERMISSION_DENIED, RPC_PERMISSION_DENIED, "AUTH", false, "not permitted")                         \
    X(CKKS_REQUEST_ID_REUSED, RPC_ALREADY_EXISTS, "REQUEST_ID_REUSED", false,                                \
      "request id was used with another body")                                                               \
    X(CKKS_UNIMPLEMENTED, RPC_UNIMPLEMENTED, "", false, "unknown method")                                    \
    X(CKKS_IO, RPC_INTERNAL, "", true, "input/output error")                                                 \
    X(CKKS_DIGEST_MISMATCH, RPC_DATA_LOSS, "", false, "digest differs: data is damaged")                     \
    X(CKKS_PASSPHRASE, RPC_PERMISSION_DENIED, "", false, "wrong or missing passphrase")                      \
    X(CKKS_UNTRUSTED_SERVER, RPC_FAILED_PRECONDITION, "", false, "refused what the server sent")             \
    X(CKKS_INTERNAL, RPC_INTERNAL, "", false, "internal error")

typedef enum ckks_status {
#define X(name, rpc, reason, retryable, text) name,
    CKKS_STATUS_TABLE(X)
#undef X
        CKKS_STATUS_COUNT
} ckks_status;

/* First cause of a failure. Zero-initialise; no destructor. Never holds secret material. */
typedef struct ckks_error {
    ckks_status code;
    char stage[24];    /* "admission", "warmup", "capture", "first replay"; "" elsewhere */
    char field[64];    /* the field, setting, operator or argument at fault; "" if none */
    char message[320]; /* one sentence, no newline */
} ckks_error;

/* ckks_status_name returns the identifier, e.g. "CKKS_QUOTA". Static storage; never NULL. Thread-safe. */
const char *ckks_status_name(ckks_status status);
const char *ckks_status_text(ckks_status status);
const char *ckks_status_reason(ckks_status status);
rpc_code ckks_status_rpc(ckks_status status);
const char *rpc_code_name(rpc_code code);
bool ckks_status_is_retryable(ckks_status status);

/*
 * ckks_error_set fills an empty *err with the cause and returns `code`, so that `return ckks_error_set(...)`
 * and `rc = ckks_error_set(...); goto out;` read well. A filled *err is left as it is (first cause), but
 * `code` is returned all the same. `field` may be "". err may be NULL.
 */
ckks_status ckks_error_set(ckks_error *err, ckks_status code, const char *field, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
#ifdef __clang_analyzer__ /* it looks at one file at a time: say that the code comes back */
#define ckks_error_set(err, code, ...) ((void)ckks_error_set(err, code, __VA_ARGS__), (code))
#endif

/* ckks_error_stage names the stage of an already filled error if it has none yet. err may be NULL. */
void ckks_error_stage(ckks_error *err, const char *stage);

/* ckks_error_print writes "TEXT: field: message" (as far as present) into buffer[capacity]; returns buffer.
 */
char *ckks_error_print(const ckks_error *err, char *buffer, uint32_t capacity);

/*
 * CKKS_ASSERT checks our own program, in release builds too, and ends in a report on stderr and abort().
 * What a peer sent never asserts.
 */
#define CKKS_ASSERT(condition)                                                                               \
    do {                                                                                                     \
        if (__builtin_expect(!(condition), 0)) ckks_assert_failed(#condition, __FILE__, __LINE__, __func__); \
    } while (0)
__attribute__((noreturn, cold)) void ckks_assert_failed(const char *condition, const char *file, int line,
                                                        const char *function);

#endif
