/*
 * Between the messages of package.proto and the plain structures of kernels/. Everything read here is
 * hostile: each size is checked before use, each index against its table, and protobuf is parsed from a
 * bounded allocator.
 */
#ifndef CKKS_PROTO_PACKAGE_H
#define CKKS_PROTO_PACKAGE_H

#include "kernels/program/plan.h"
#include "kernels/value.h"
#include "proto/container.h"

#include "package.pb-c.h"

/* ---- bounded protobuf parsing ---- */

/* message_unpack parses with a bump arena of at most `arena_bytes`, refuses a message with more than 4
 * unknown fields (at any depth reached) and names `what` in errors. The caller frees with message_free. */
ckks_status message_unpack(ProtobufCMessage **out, const ProtobufCMessageDescriptor *descriptor,
                           const void *bytes, size_t size, size_t arena_bytes, const char *what,
                           ckks_error *err);
void message_free(ProtobufCMessage *message);
/* message_arena_bytes: enough for any message of ours that has `size` bytes serialised (about ten times
 * that), at most `arena_bytes_max`. What needs more is someone's attempt to grow. */
size_t message_arena_bytes(size_t size, size_t arena_bytes_max);

/* ---- parameters, signatures, keys ---- */

/* params_from_message runs params_finish and compares the id; it does not run the security gate. */
ckks_status params_from_message(ckks_params *out, const Ckksd__V1__Parameters *message, ckks_error *err);
/* *_to_message fill a message whose pointers go into `storage`, valid as long as it and the source. */
typedef struct params_message {
    Ckksd__V1__Parameters message;
} params_message;
void params_to_message(params_message *out, const ckks_params *params);

typedef struct signature_message {
    Ckksd__V1__Signature message;
} signature_message;
/* Bytes, alignment and device are not on the wire: bytes follow from params, alignment is VALUE_ALIGNMENT,
 * device is 0 (the receiver puts its own there before it compares). CKKS_PARAMS_MISMATCH if the signature
 * names other parameters. */
ckks_status signature_from_message(value_signature *out, const ckks_params *params,
                                   const Ckksd__V1__Signature *message, ckks_error *err);
void signature_to_message(signature_message *out, const value_signature *signature);

#define KEY_REQUIREMENTS_MAX 4096u

/* key_requirements_from_messages checks kinds, elements (odd, below 2N, not 1), levels, duplicates, count <=
 * KEY_REQUIREMENTS_MAX. Caller frees. */
ckks_status key_requirements_from_messages(key_requirement **out, uint32_t *count, const ckks_params *params,
                                           Ckksd__V1__KeyRequirement *const *messages, size_t message_count,
                                           ckks_error *err);
/* key_requirements_to_messages fills items[count] and list[count], pointers to them. */
void key_requirements_to_messages(Ckksd__V1__KeyRequirement *items, Ckksd__V1__KeyRequirement **list,
                                  const key_requirement *keys, uint32_t count);

/* ---- model package ---- */

typedef struct package {
    ckks_params params;
    plan plan; /* points into this package */
    const Ckksd__V1__PackageManifest *manifest;
    uint8_t digest[32]; /* of the file */
    void *internal;
} package;

/* package_parse: `bytes` may be freed afterwards. Runs plan_check, and the gate for 128 bits unless the
 * package says insecure and `allow_insecure`. The caller owns *out; package_destroy accepts NULL. */
ckks_status package_parse(package **out, const void *bytes, size_t size, bool allow_insecure,
                          ckks_error *err);
ckks_status package_load(package **out, const char *path, bool allow_insecure,
                         ckks_error *err); /* reads the file; blocks */
void package_destroy(package *p);

/* package_write serialises description + plan. Caller fills description's parts other than parameters,
 * signatures, keys, key_bytes, insecure, security_bits: these come from the plan. */
ckks_status package_build(uint8_t **out, size_t *size, const plan *p,
                          const Ckksd__V1__ModelDescription *description,
                          const Ckksd__V1__CompileReport *report, ckks_error *err);

/* ---- model description, as a client trusts it only after this ---- */

/* description_check: parameters consistent, gate (unless allow_insecure), signatures of these parameters,
 * layouts in range, key count and bytes within caps and equal to what the requirements give, finite numbers,
 * shapes. CKKS_UNTRUSTED_SERVER or CKKS_INSECURE_PARAMETERS, naming the field. */
typedef struct description_limits {
    uint32_t key_count_max; /* 0 = 1024 */
    uint64_t key_bytes_max; /* 0 = 4 GiB */
    bool allow_insecure;    /* a description that says so itself may be over the security table */
} description_limits;
ckks_status description_check(const Ckksd__V1__ModelDescription *description,
                              const description_limits *limits, ckks_error *err);
/* the same checks with their own codes (CKKS_MALFORMED, CKKS_PARAMS_MISMATCH, ...), for files of one's own */
ckks_status description_validate(const Ckksd__V1__ModelDescription *description,
                                 const description_limits *limits, ckks_error *err);

#endif
