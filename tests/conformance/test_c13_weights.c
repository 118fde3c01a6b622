/* C13: weights are refreshed together, behind every replay and before the next; no result mixes generations.
 */
#include "tests/support/program_fixture.h"

#include "kernels/base/hash.h"
#include "kernels/program/graph_internal.h"
#include "kernels/scheme/encoder.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Generation g has the weights (g, 1 - g): a mixture of two generations is neither's answer. */
static double weight(uint64_t generation, int which) {
    const double g = (double)generation / 8;
    return which == 0 ? g : 1 - g;
}

typedef struct reader {
    test_program t;
    sample *a, *b;
    atomic_bool *stop;
    atomic_uint rounds;
    uint32_t wrong, failed;
    uint64_t lowest, highest;
} reader;

static void *read_results(void *context) {
    reader *r = context;
    r->lowest = UINT64_MAX;
    while (!atomic_load(r->stop)) {
        graph_result result;
        double actual[FIXTURE_SLOTS], expected[FIXTURE_SLOTS];
        if (test_replay(&r->t, &result, r->a, r->b, NULL) != CKKS_OK) {
            r->failed++;
            break;
        }
        const uint64_t g = result.binding_generation;
        for (uint32_t i = 0; i < FIXTURE_SLOTS; i++)
            expected[i] = weight(g, 0) * r->a->slots[i] + weight(g, 1) * r->b->slots[i];
        fixture_decrypt(r->t.f, actual, result.outputs[0].words, &r->t.outputs[0], NULL);
        r->wrong += !is_close(actual, expected);
        r->wrong += result.binding_count != 2 || result.binding_generations[0] != g ||
                    result.binding_generations[1] != g;
        if (g < r->lowest) r->lowest = g;
        if (g > r->highest) r->highest = g;
        graph_result_release(&result);
        atomic_fetch_add(&r->rounds, 1);
    }
    return NULL;
}

static void no_result_mixes_generations_while_two_slots_replay(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    graph_slot *other = NULL;
    assert_ok(graph_slot_create(&other, f.dev, 1u << 20, NULL));
    binding_set *set = fixture_weights_create(&f, weight(1, 0), weight(1, 1));
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL);
    atomic_bool stop = false;
    reader readers[2] = {{.a = a, .b = b, .stop = &stop}, {.a = b, .b = a, .stop = &stop}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        test_program_init_weighted(&readers[i].t, &f, i == 0 ? f.slot : other, set);
        assert_ok(test_program_capture(&readers[i].t, 0, NULL));
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_results, &readers[i]), 0);
    uint64_t generation = 1;
    for (; generation < 30; generation++) {
        const uint32_t seen = atomic_load(&readers[0].rounds) + atomic_load(&readers[1].rounds);
        assert_ok(
            fixture_weights_refresh(&f, set, weight(generation + 1, 0), weight(generation + 1, 1), NULL));
        /* let some replay see this one */
        while (atomic_load(&readers[0].rounds) + atomic_load(&readers[1].rounds) == seen) sched_yield();
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        print_message("slot %d: %u replays, generations %llu to %llu\n", i, atomic_load(&readers[i].rounds),
                      (unsigned long long)readers[i].lowest, (unsigned long long)readers[i].highest);
        assert_int_equal(readers[i].wrong, 0);
        assert_int_equal(readers[i].failed, 0);
        graph_program_stats stats;
        graph_program_get_stats(readers[i].t.program, &stats);
        assert_int_equal(stats.refreshes, 29);
    }
    assert_true(readers[0].highest - readers[0].lowest + readers[1].highest - readers[1].lowest > 2);
    assert_int_equal(binding_set_generation(set), generation);
    for (int i = 0; i < 2; i++) test_program_fini(&readers[i].t);
    assert_ok(binding_set_destroy(set, NULL));
    graph_slot_destroy(other);
    sample_destroy(a), sample_destroy(b);
    program_fixture_close(&f);
}

/* ---- refusals ---- */

typedef struct weights_case {
    program_fixture f;
    binding_set *set;
    sample *a, *b;
    test_program t;
    uint64_t *words; /* of two bindings, encoding 3 and 4 */
    uint64_t word_count;
    binding_update good[2];
} weights_case;

static void setup(weights_case *c) {
    program_fixture_open(&c->f);
    c->set = fixture_weights_create(&c->f, 0.5, -0.25);
    c->a = sample_create(&c->f, 1, NULL), c->b = sample_create(&c->f, 2, NULL);
    test_program_init_weighted(&c->t, &c->f, NULL, c->set);
    assert_ok(test_program_capture(&c->t, 0, NULL));
    c->word_count = (uint64_t)(FIXTURE_LEVEL + 1) * c->f.n;
    c->words = malloc(2 * c->word_count * 8);
    const double values[2] = {3, 4};
    for (uint32_t i = 0; i < 2; i++) {
        assert_ok(encoder_encode(c->words + i * c->word_count, c->f.context, &values[i], NULL, 1,
                                 FIXTURE_LEVEL, false, FIXTURE_SCALE, NULL));
        c->good[i] = (binding_update){
            .id = 10 + i, .words = c->words + i * c->word_count, .word_count = c->word_count};
        value_signature_ciphertext(&c->good[i].signature, c->f.params, 1, FIXTURE_LEVEL, FIXTURE_SCALE,
                                   device_id(c->f.dev));
        c->good[i].signature.kind = VALUE_PLAINTEXT;
    }
}
static void teardown(weights_case *c) {
    test_program_fini(&c->t);
    assert_ok(binding_set_destroy(c->set, NULL));
    sample_destroy(c->a), sample_destroy(c->b);
    free(c->words);
    program_fixture_close(&c->f);
}

static void refresh_is_refused_whole(void **state) {
    (void)state;
    weights_case c;
    setup(&c);
    binding_update bad[7][2];
    for (int i = 0; i < 7; i++) memcpy(bad[i], c.good, sizeof c.good);
    bad[0][1].id = 99;
    bad[1][1].word_count--;
    bad[2][1].signature.scale *= 2;
    bad[3][1].signature.limb_count--;
    bad[4][1].words = NULL;
    bad[5][1] = bad[5][0]; /* the same one twice */
    bad[6][0].word_count++;
    const ckks_status expected[7] = {
        CKKS_NOT_FOUND,        CKKS_SIGNATURE_MISMATCH, CKKS_SIGNATURE_MISMATCH, CKKS_SIGNATURE_MISMATCH,
        CKKS_INVALID_ARGUMENT, CKKS_INVALID_ARGUMENT,   CKKS_SIGNATURE_MISMATCH};
    for (int i = 0; i < 7; i++) {
        ckks_error err = {0};
        assert_status(binding_set_refresh(c.set, bad[i], 2, &err), expected[i]);
        assert_true(err.field[0] != 0);
        assert_int_equal(binding_set_generation(c.set), 1);
        assert_works(&c.t, c.a, c.b); /* with the old weights, both */
    }
    assert_status(binding_set_refresh(c.set, c.good, 0, NULL), CKKS_INVALID_ARGUMENT);
    teardown(&c);
}

static void bindings_tell_their_generation_and_digest(void **state) {
    (void)state;
    weights_case c;
    setup(&c);
    binding_info before[2], after[2];
    graph_result result;
    uint8_t digest[32];
    for (uint32_t i = 0; i < 2; i++) binding_set_info(c.set, i, &before[i]);
    assert_int_equal(binding_set_count(c.set), 2);
    assert_ok(binding_set_refresh(c.set, &c.good[1], 1, NULL)); /* one of them */
    for (uint32_t i = 0; i < 2; i++) {
        binding_set_info(c.set, i, &after[i]);
        assert_int_equal(after[i].id, 10 + i);
        assert_int_equal(before[i].generation, 1);
        assert_ptr_equal(after[i].words, before[i].words); /* fixed addresses */
    }
    assert_int_equal(after[0].generation, 1);
    assert_int_equal(after[1].generation, 2);
    assert_memory_equal(after[0].digest, before[0].digest, 32);
    sha256(digest, c.good[1].words, c.word_count * 8);
    assert_memory_equal(after[1].digest, digest, 32);
    assert_ok(test_replay(&c.t, &result, c.a, c.b, NULL));
    assert_int_equal(result.binding_generation, 2);
    assert_int_equal(result.binding_generations[0], 1);
    assert_int_equal(result.binding_generations[1], 2);
    double actual[FIXTURE_SLOTS], expected[FIXTURE_SLOTS];
    for (uint32_t i = 0; i < FIXTURE_SLOTS; i++) expected[i] = 0.5 * c.a->slots[i] + 4 * c.b->slots[i];
    fixture_decrypt(&c.f, actual, result.outputs[0].words, &c.t.outputs[0], NULL);
    assert_close(actual, expected);
    graph_result_release(&result);
    teardown(&c);
}

static void refresh_waits_for_a_replay_that_was_begun_and_not_finished(void **state) {
    (void)state;
    weights_case c;
    setup(&c);
    graph_handle handle;
    graph_pending *pending = NULL;
    graph_result result;
    for (int round = 0; round < 5; round++) {
        assert_ok(fixture_weights_refresh(&c.f, c.set, 0.5, -0.25, NULL));
        assert_ok(test_copy(&c.t, &handle, c.a, c.b, NULL));
        assert_ok(graph_program_replay_begin(c.t.program, &pending, handle, GRAPH_OUTPUT_OWNED, NULL));
        assert_ok(binding_set_refresh(c.set, c.good, 2,
                                      NULL)); /* on this very thread: must not wait for the finish */
        assert_true(graph_pending_is_complete(pending));
        assert_ok(graph_program_replay_finish(c.t.program, pending, &result, NULL));
        assert_result(&c.t, &result, c.a, c.b); /* still the weights it began with */
        assert_int_equal(result.binding_generation + 1, binding_set_generation(c.set));
        graph_result_release(&result);
    }
    teardown(&c);
}

static void a_set_in_use_is_not_destroyed_and_one_without_words_is_not_used(void **state) {
    (void)state;
    weights_case c;
    setup(&c);
    assert_status(binding_set_destroy(c.set, NULL), CKKS_FAILED_PRECONDITION);
    binding_set *empty = NULL;
    const binding_descriptor d[2] = {{10, c.word_count, c.good[0].signature},
                                     {11, c.word_count, c.good[1].signature}};
    const binding_descriptor twice[2] = {d[0], d[0]};
    assert_status(binding_set_create(&empty, c.f.dev, twice, 2, NULL), CKKS_INVALID_ARGUMENT);
    assert_ok(binding_set_create(&empty, c.f.dev, d, 2, NULL));
    test_program t;
    ckks_error err = {0};
    test_program_init_weighted(&t, &c.f, NULL, empty);
    assert_status(test_program_capture(&t, 0, &err), CKKS_FAILED_PRECONDITION);
    assert_string_equal(err.stage, "admission");
    assert_string_equal(err.field, "bindings");
    assert_ok(binding_set_refresh(empty, &c.good[0], 1, NULL));
    assert_status(test_program_capture(&t, 0, NULL), CKKS_FAILED_PRECONDITION); /* one is still missing */
    assert_ok(binding_set_refresh(empty, &c.good[1], 1, NULL));
    assert_ok(test_program_capture(&t, 0, NULL));
    test_program_fini(&t);
    assert_ok(binding_set_destroy(empty, NULL));
    teardown(&c);
}

/* ---- a device that fails in the middle ---- */

typedef struct fault_run {
    weights_case c;
    uint32_t kept, unknown;
} fault_run;

static void refresh_all_or_none_or_refuse(void *context, program_fixture *f) {
    fault_run *run = context;
    weights_case *c = &run->c;
    graph_result result;
    assert_ok(fixture_weights_refresh(f, c->set, 0.5, -0.25, NULL));
    const uint64_t generation = binding_set_generation(c->set);
    fault_on(f);
    const ckks_status rc = binding_set_refresh(c->set, c->good, 2, NULL);
    fault_off(f);
    const ckks_status replayed = test_replay(&c->t, &result, c->a, c->b, NULL);
    if (rc == CKKS_OK) {
        assert_ok(replayed);
        assert_int_equal(result.binding_generation, generation + 1);
        graph_result_release(&result);
    } else if (replayed == CKKS_OK) { /* nothing was written */
        run->kept++;
        assert_int_equal(result.binding_generation, generation);
        assert_result(&c->t, &result, c->a, c->b);
        graph_result_release(&result);
    } else {
        run->unknown++;
        assert_status(replayed, CKKS_DEVICE_ERROR);
        assert_int_equal(graph_program_get_state(c->t.program), GRAPH_PROGRAM_READY);
    }
}

static void refresh_that_breaks_half_way_holds_replays_back_until_repaired(void **state) {
    (void)state;
    fault_run run = {0};
    setup(&run.c);
    fault_each(&run.c.f, FAULT_CALL, refresh_all_or_none_or_refuse, &run);
    fault_each(&run.c.f, FAULT_ASYNCHRONOUS, refresh_all_or_none_or_refuse, &run);
    fault_each(&run.c.f, FAULT_ALLOCATION, refresh_all_or_none_or_refuse, &run);
    print_message("weights kept %u, unknown until repaired %u times\n", run.kept, run.unknown);
    assert_true(run.kept > 0 && (run.unknown > 0 || fixture_is_short()));
    assert_ok(fixture_weights_refresh(&run.c.f, run.c.set, 0.5, -0.25, NULL));
    assert_works(&run.c.t, run.c.a, run.c.b);
    teardown(&run.c);
}

/* A wait that fails may not have waited: weights must not change under a replay all the same. */
static void refresh_waits_for_replays_whichever_call_fails(void **state) {
    (void)state;
    weights_case c;
    setup(&c);
    void *ballast = NULL;
    const uint64_t ballast_bytes = device_get_kind(c.f.dev) == DEVICE_CUDA ? 1u << 28 : 1u << 22;
    assert_ok(device_allocate(c.f.dev, &ballast, ballast_bytes, MEMORY_RETAINED, NULL));
    for (uint64_t nth = 1; nth <= 4; nth++) {
        graph_handle handle;
        graph_pending *pending = NULL;
        graph_result result;
        assert_ok(fixture_weights_refresh(&c.f, c.set, 0.5, -0.25, NULL));
        const uint64_t generation = binding_set_generation(c.set);
        for (uint8_t i = 0; i < 20; i++) /* the replay runs behind this */
            assert_ok(device_fill(graph_slot_stream(c.f.slot), ballast, i, ballast_bytes, NULL));
        assert_ok(test_copy(&c.t, &handle, c.a, c.b, NULL));
        assert_ok(graph_program_replay_begin(c.t.program, &pending, handle, GRAPH_OUTPUT_OWNED, NULL));
        device_fault_set(c.f.dev, nth, false);
        (void)binding_set_refresh(c.set, c.good, 2, NULL);
        device_fault_set(c.f.dev, 0, false);
        assert_ok(graph_program_replay_finish(c.t.program, pending, &result, NULL));
        assert_result(&c.t, &result, c.a, c.b);
        assert_int_equal(result.binding_generation, generation);
        graph_result_release(&result);
    }
    device_free(c.f.dev, ballast);
    assert_ok(fixture_weights_refresh(&c.f, c.set, 0.5, -0.25, NULL));
    teardown(&c);
}

/* ---- many at once ---- */

typedef struct held_back {
    weights_case *c;
    ckks_status status;
    graph_result result;
    atomic_bool is_done;
} held_back;

static void *refresh_weights(void *context) {
    held_back *h = context;
    h->status = fixture_weights_refresh(&h->c->f, h->c->set, 0.5, -0.25, NULL);
    return NULL;
}
static void *replay_weighted(void *context) {
    held_back *h = context;
    h->status = test_replay(&h->c->t, &h->result, h->c->b, h->c->a, NULL);
    atomic_store(&h->is_done, true);
    return NULL;
}
/* until so many threads wait at the set's door; false: `is_done` came first, if there is one */
static bool wait_for_waiting(binding_set *set, uint32_t count, const atomic_bool *is_done) {
    while (binding_set_waiting(set) < count) {
        if (is_done != NULL && atomic_load(is_done)) return false;
        sched_yield();
    }
    return true;
}

typedef struct crowd {
    weights_case *c;
    graph_slot *slot;
    uint32_t number, rounds, wrong;
} crowd;

static void *refresh_often(void *context) {
    crowd *who = context;
    for (uint32_t i = 0; i < who->rounds; i++) {
        const double w = (double)(who->number * who->rounds + i) / 16;
        who->wrong += fixture_weights_refresh(&who->c->f, who->c->set, w, 1 - w, NULL) != CKKS_OK;
    }
    return NULL;
}
/* (w + (1 - w)) * a is a, whichever refresh was the latest, unless two are mixed */
static void *replay_often(void *context) {
    crowd *who = context;
    double actual[FIXTURE_SLOTS];
    for (uint32_t i = 0; i < who->rounds; i++) {
        graph_result result;
        if (test_replay(&who->c->t, &result, who->c->a, who->c->a, NULL) != CKKS_OK) {
            who->wrong++;
            continue;
        }
        fixture_decrypt(&who->c->f, actual, result.outputs[0].words, &who->c->t.outputs[0], NULL);
        who->wrong += !is_close(actual, who->c->a->slots);
        graph_result_release(&result);
    }
    return NULL;
}
static void *come_and_go(void *context) {
    crowd *who = context;
    for (uint32_t i = 0; i < who->rounds; i++) {
        test_program t;
        test_program_init_weighted(&t, &who->c->f, who->slot, who->c->set);
        test_program_fini(&t);
    }
    return NULL;
}

static void refreshes_replays_and_attachments_do_not_meet(void **state) {
    (void)state;
    weights_case c;
    setup(&c);
    assert_ok(fixture_weights_refresh(&c.f, c.set, 0, 1, NULL));
    graph_slot *other = NULL;
    assert_ok(graph_slot_create(&other, c.f.dev, 1u << 20, NULL));
    static void *(*const what[5])(void *) = {refresh_often, refresh_often, replay_often, come_and_go,
                                             come_and_go};
    const uint32_t rounds = fixture_is_short() ? 3 : 40;
    crowd who[5];
    pthread_t threads[5];
    for (uint32_t i = 0; i < 5; i++) {
        who[i] = (crowd){.c = &c, .slot = other, .number = i, .rounds = rounds};
        assert_int_equal(pthread_create(&threads[i], NULL, what[i], &who[i]), 0);
    }
    for (uint32_t i = 0; i < 5; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(who[i].wrong, 0);
    }
    assert_int_equal(binding_set_generation(c.set), 2 + 2 * rounds);
    graph_slot_destroy(other);
    teardown(&c);
}

/* A refresh walks the list of who is attached without the lock. */
typedef struct comer {
    weights_case *c;
    test_program t;
    atomic_bool is_done;
} comer;
static void *come(void *context) {
    comer *who = context;
    test_program_init_weighted(&who->t, &who->c->f, NULL, who->c->set);
    atomic_store(&who->is_done, true);
    return NULL;
}
static void *leave(void *context) {
    comer *who = context;
    test_program_fini(&who->t);
    atomic_store(&who->is_done, true);
    return NULL;
}

static void who_comes_or_leaves_waits_for_a_refresh(void **state) {
    (void)state;
    weights_case c;
    setup(&c);
    comer who = {.c = &c};
    held_back refresh = {.c = &c};
    for (int is_leaving = 0; is_leaving < 2; is_leaving++) {
        uint64_t generation;
        pthread_t refreshing, moving;
        assert_ok(binding_set_enter(c.set, NULL, &generation, NULL)); /* the refresh finds somebody inside */
        assert_int_equal(pthread_create(&refreshing, NULL, refresh_weights, &refresh), 0);
        (void)wait_for_waiting(c.set, 1, NULL);
        atomic_store(&who.is_done, false);
        assert_int_equal(pthread_create(&moving, NULL, is_leaving ? leave : come, &who), 0);
        assert_true(wait_for_waiting(c.set, 2, &who.is_done));
        assert_false(atomic_load(&who.is_done));
        binding_set_leave(c.set);
        pthread_join(refreshing, NULL), pthread_join(moving, NULL);
        assert_ok(refresh.status);
    }
    teardown(&c);
}

/* ---- sizes ---- */

static void a_binding_larger_than_a_piece_arrives_whole(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    binding_set *set = NULL;
    const uint64_t word_count = ((9u << 20) + 24) / 8; /* two pieces of 4 MiB and a rest */
    binding_descriptor d = {.id = 7, .word_count = word_count};
    value_signature_ciphertext(&d.signature, f.params, 1, FIXTURE_LEVEL, FIXTURE_SCALE, device_id(f.dev));
    uint64_t *words = malloc(word_count * 8), *back = calloc(word_count, 8);
    assert_non_null(words), assert_non_null(back);
    for (uint64_t i = 0; i < word_count; i++) words[i] = i * UINT64_C(0x9e3779b97f4a7c15);
    assert_ok(binding_set_create(&set, f.dev, &d, 1, NULL));
    const binding_update u = {7, words, word_count, d.signature};
    assert_ok(binding_set_refresh(set, &u, 1, NULL));
    binding_info info;
    uint8_t digest[32];
    binding_set_info(set, 0, &info);
    assert_ok(device_copy_out(f.stream, back, info.words, word_count * 8, NULL));
    assert_ok(device_stream_synchronize(f.stream, NULL));
    assert_memory_equal(back, words, word_count * 8);
    sha256(digest, words, word_count * 8);
    assert_memory_equal(info.digest, digest, 32);
    free(words), free(back);
    assert_ok(binding_set_destroy(set, NULL));
    program_fixture_close(&f);
}

static void a_size_that_is_nothing_or_wraps_is_refused(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    const memory_mark before = memory_mark_take(&f);
    static const uint64_t counts[] = {0, UINT64_MAX, UINT64_MAX / 8, UINT64_MAX / 8 + 2, UINT64_C(1) << 57};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        binding_descriptor d[3] = {{.id = 1, .word_count = 8},
                                   {.id = 2, .word_count = counts[i]},
                                   {.id = 3, .word_count = counts[i]}};
        binding_set *set = NULL;
        ckks_error err = {0};
        const ckks_status rc = binding_set_create(&set, f.dev, d, 3, &err);
        assert_null(set);
        assert_status(rc, counts[i] == UINT64_C(1) << 57 ? CKKS_RESOURCE_EXHAUSTED : CKKS_INVALID_ARGUMENT);
        assert_true(err.field[0] != 0);
        assert_memory_is(&f, &before);
    }
    program_fixture_close(&f);
}

/* ---- a slot that is recovered while a replay is held back ---- */

/* The copy of a request breaks on its stream; before the replay that belongs to it may begin, which a refresh
 * holds back, the slot is recovered and all streams are well again. The inputs are the request's before. */
static void a_replay_does_not_begin_on_what_a_recovery_dropped(void **state) {
    (void)state;
    weights_case c;
    setup(&c);
    uint64_t generation;
    pthread_t refreshing, replaying;
    held_back refresh = {.c = &c}, replay = {.c = &c};
    assert_works(&c.t, c.a, c.b);
    assert_ok(binding_set_enter(c.set, NULL, &generation, NULL)); /* the refresh finds somebody inside */
    assert_int_equal(pthread_create(&refreshing, NULL, refresh_weights, &refresh), 0);
    (void)wait_for_waiting(c.set, 1, NULL);
    device_fault_set(c.f.dev, 3, true); /* behind two calls for events, the copy itself */
    assert_int_equal(pthread_create(&replaying, NULL, replay_weighted, &replay), 0);
    assert_true(wait_for_waiting(c.set, 2, &replay.is_done));
    device_fault_set(c.f.dev, 0, false);
    assert_ok(graph_slot_recover(c.f.slot, NULL));
    binding_set_leave(c.set);
    pthread_join(refreshing, NULL), pthread_join(replaying, NULL);
    assert_ok(refresh.status);
    assert_status(replay.status, CKKS_DEVICE_ERROR);
    assert_int_equal(graph_program_get_state(c.t.program), GRAPH_PROGRAM_FAILED);
    assert_ok(test_program_capture(&c.t, 0, NULL));
    assert_works(&c.t, c.b, c.a);
    teardown(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_result_mixes_generations_while_two_slots_replay),
        cmocka_unit_test(refresh_is_refused_whole),
        cmocka_unit_test(bindings_tell_their_generation_and_digest),
        cmocka_unit_test(refresh_waits_for_a_replay_that_was_begun_and_not_finished),
        cmocka_unit_test(a_set_in_use_is_not_destroyed_and_one_without_words_is_not_used),
        cmocka_unit_test(refresh_that_breaks_half_way_holds_replays_back_until_repaired),
        cmocka_unit_test(refresh_waits_for_replays_whichever_call_fails),
        cmocka_unit_test(refreshes_replays_and_attachments_do_not_meet),
        cmocka_unit_test(who_comes_or_leaves_waits_for_a_refresh),
        cmocka_unit_test(a_binding_larger_than_a_piece_arrives_whole),
        cmocka_unit_test(a_size_that_is_nothing_or_wraps_is_refused),
        cmocka_unit_test(a_replay_does_not_begin_on_what_a_recovery_dropped),
    };
    return program_suite("C13 weight refresh", tests);
}
