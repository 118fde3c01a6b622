/*
 * A small vocabulary for tests of graph programs: a device with one slot, a secret key and its resident key
 * set, encrypted samples, and a handful of evaluators whose results are known in the clear.
 *
 * The device is the CPU's, or what CKKSD_TEST_DEVICE says (cpu, cuda). Every suite runs twice on the CPU:
 * replays in recorded order, and in adversarial orders. What must succeed and does not aborts the test with
 * the cause.
 */
#ifndef CKKS_TESTS_PROGRAM_FIXTURE_H
#define CKKS_TESTS_PROGRAM_FIXTURE_H

#include "kernels/program/graph_program.h"
#include "tests/support/fixtures.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
// cmocka wants these first
#include <cmocka.h>

#define assert_status(call, expected) assert_string_equal(ckks_status_name(call), ckks_status_name(expected))
#define assert_ok(call)               must_at(call, #call, __FILE__, __LINE__)
void must_at(ckks_status status, const char *what, const char *file, int line);

/* ---- device, slot, keys ---- */

#define FIXTURE_SCALE   0x1p35
#define FIXTURE_LEVEL   2u
#define FIXTURE_SLOTS   512u
#define FIXTURE_KEYS    3u /* relinearisation, rotation by 1, public */
#define FIXTURE_SAMPLES 2u

typedef struct program_fixture {
    device *dev;
    ckks_context *context;
    const ckks_params *params;
    const device_tables *tables;
    uint32_t n;
    secret_key *secret;
    resident_keys *keys;
    graph_slot *slot;
    device_stream *stream; /* the test's own */
} program_fixture;

/* skips the test where the device is not there */
void program_fixture_open(program_fixture *f);
/* over another ring degree (at least 2^10): FIXTURE_SLOTS values are then repeated over all slots */
void program_fixture_open_ring(program_fixture *f, uint32_t log_n);
void program_fixture_close(program_fixture *f); /* asserts that every byte came back */
/* a second device, independent of the fixture's, for ranks and mix-ups */
void program_fixture_open_second(program_fixture *f, const program_fixture *first);
bool program_fixture_is_adversarial(void);

extern const key_requirement fixture_requirements[FIXTURE_KEYS];
uint32_t fixture_rotation_element(void);
/* a fresh key set of `secret` */
resident_keys *fixture_keys_create(program_fixture *f, const secret_key *secret);
secret_key *fixture_secret_create(program_fixture *f);

typedef struct memory_mark {
    device_memory_account account;
} memory_mark;
memory_mark memory_mark_take(const program_fixture *f);
/* device and staging bytes and the number of allocations are what they were */
void assert_memory_is(const program_fixture *f, const memory_mark *mark);

/* ---- encrypted samples ---- */

typedef struct sample {
    double slots[FIXTURE_SLOTS];
    uint8_t seed[SEED_BYTES];
    uint8_t lineage[LINEAGE_BYTES];
    uint64_t *words; /* both components */
    uint8_t *packed; /* component 0 packed, then component 1 packed */
    uint64_t packed_bytes, seeded_bytes;
    uint64_t *on_device; /* made on demand */
    uint64_t *pinned;    /* made on demand */
    void *pinned_packed; /* likewise */
    program_fixture *f;
    value_signature signature;
} sample;

/* Random slots in [-1, 1), from `seed`, encrypted under `secret` (NULL: the fixture's). */
sample *sample_create(program_fixture *f, uint64_t seed, const secret_key *secret);
void sample_destroy(sample *s);
graph_input sample_input(sample *s, graph_source source, bool is_seeded);
/* packed and seeded: as most requests come */
graph_input sample_packed(sample *s);
ckks_value sample_value(sample *s); /* on the device */

/* ---- evaluators ---- */

typedef enum program_kind {
    PROGRAM_ADD,      /* a + b */
    PROGRAM_MULTIPLY, /* 0: a * b, relinearised and rescaled; 1: rotate(a + b, 1), on a branch of its own */
    PROGRAM_ROTATE,   /* rotate(a, 1) */
    PROGRAM_SLOW,     /* rotate(a, 1) `repeat` times, in two branches that are summed */
    PROGRAM_RANDOM,   /* a plus an encryption of zero */
    PROGRAM_WEIGHTED, /* a * w0 + b * w1, weights from a binding set */
} program_kind;

typedef struct test_program {
    program_fixture *f;
    graph_slot *slot;
    program_kind kind;
    uint32_t repeat;
    uint32_t calls; /* of the callable */
    device_stream *side;
    device_event *fork, *join;
    value_signature inputs[2], outputs[2];
    graph_program_config config;
    workspace_plan *plan;
    graph_program *program;
    const uint64_t *weights[2];
    /* where a run was told to read and write, for the last runs */
    const uint64_t *seen_input[64], *seen_output[64];
} test_program;

/* One more round of what looks for two things that run side by side? At least `rounds`, then until it was
 * seen (a test fails that never sees it); under a tool that puts everything in a row one, seen or not. */
bool test_another_round(int round, int rounds, bool was_seen);

/* plans and creates; slot NULL: the fixture's */
void test_program_init(test_program *t, program_fixture *f, graph_slot *slot, program_kind kind);
/* `repeat` rotations in a row, twice, side by side; few of them where fixture_is_short() */
void test_program_init_slow(test_program *t, program_fixture *f, graph_slot *slot, uint32_t repeat);
void test_program_init_weighted(test_program *t, program_fixture *f, graph_slot *slot, binding_set *weights);
void test_program_init_eager(test_program *t, program_fixture *f, graph_slot *slot, program_kind kind);
void test_program_fini(test_program *t); /* destroys the program too */
/* config, plan and callable without the program */
void test_program_configure(test_program *t, program_fixture *f, graph_slot *slot, program_kind kind);

ckks_status test_program_capture(test_program *t, int32_t warmup, ckks_error *err);
/* init, capture with one warm-up run */
void test_program_start(test_program *t, program_fixture *f, graph_slot *slot, program_kind kind);
uint32_t test_program_input_count(const test_program *t);

/* ---- asking and checking ---- */

/* replay(inputs, owned) with packed samples a and b (b unused by one-input programs) */
ckks_status test_replay(test_program *t, graph_result *out, sample *a, sample *b, ckks_error *err);
ckks_status test_copy(test_program *t, graph_handle *out, sample *a, sample *b, ckks_error *err);
/* the clear result of output `index` */
void test_expected(const test_program *t, double *slots, uint32_t index, const sample *a, const sample *b);
/* decrypts host words */
void fixture_decrypt(program_fixture *f, double *slots, const uint64_t *words,
                     const value_signature *signature, const secret_key *secret);
void assert_close(const double *actual, const double *expected);
bool is_close(const double *actual, const double *expected);
/* every output of an owned or borrowed result decrypts to what a and b give */
void assert_result(test_program *t, const graph_result *result, const sample *a, const sample *b);
/* replays and checks, from scratch */
void assert_works(test_program *t, sample *a, sample *b);

/* weights: constant plaintexts w0, w1 at the samples' level */
binding_set *fixture_weights_create(program_fixture *f, double w0, double w1);
ckks_status fixture_weights_refresh(program_fixture *f, binding_set *set, double w0, double w1,
                                    ckks_error *err);

/* ---- failure injection ---- */

typedef enum fault_mode { FAULT_CALL, FAULT_ASYNCHRONOUS, FAULT_ALLOCATION } fault_mode;
/* Runs scenario(context, f) again and again, with the n-th call after its fault_on failing, for every n (in
 * adversarial order: every third), until one run needs fewer calls. The scenario switches off before it looks
 * at what is left, puts the slot right and leaves nothing behind. Prints and returns how many runs had a
 * failure; 0 where this mode makes no sense. */
typedef void (*fault_scenario)(void *context, program_fixture *f);
uint32_t fault_each(program_fixture *f, fault_mode mode, fault_scenario scenario, void *context);
/* what a test can expect of `seen_in_all`, when only some calls are made to fail (fixture_is_short) */
uint32_t fault_count(uint32_t seen_in_all);
void fault_on(program_fixture *f);
void fault_off(program_fixture *f);

/* the suite's main: both orders */
int program_suite_run(const char *name, const struct CMUnitTest *tests, size_t count);
#define program_suite(name, tests) program_suite_run(name, tests, sizeof(tests) / sizeof(tests)[0])

#endif
