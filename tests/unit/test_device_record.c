/* Recording and replay: what is recorded, in which order it may run, and what is refused. */
#include "tests/support/alloc_fault.h"
#include "tests/support/device_fixture.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
// cmocka wants the four above first
#include <cmocka.h>

#define assert_ok(call) assert_status(call, CKKS_OK)
static void assert_status(ckks_status actual, ckks_status expected) {
    assert_string_equal(ckks_status_name(actual), ckks_status_name(expected));
}

#define BUFFERS 4u

typedef struct fixture {
    device_fixture f;
    device_stream *side;
    device_event *fork, *joined;
    uint64_t *buffer[BUFFERS]; /* one limb each, all zero */
} fixture;

static void fixture_open(fixture *x) {
    device_fixture_open(&x->f, NULL, 1);
    uint64_t *zero = calloc(x->f.n, 8);
    for (uint32_t i = 0; i < BUFFERS; i++) x->buffer[i] = device_fixture_upload(&x->f, zero, x->f.n * 8);
    free(zero);
    assert_ok(device_stream_create(x->f.dev, &x->side, NULL));
    assert_ok(device_event_create(x->f.dev, &x->fork, NULL));
    assert_ok(device_event_create(x->f.dev, &x->joined, NULL));
}
static void fixture_close(fixture *x) {
    for (uint32_t i = 0; i < BUFFERS; i++) device_free(x->f.dev, x->buffer[i]);
    device_event_destroy(x->fork), device_event_destroy(x->joined);
    device_stream_destroy(x->side);
    device_fixture_close(&x->f);
}
static kernel_poly poly_in(uint64_t *words) {
    return device_fixture_poly(words, 1, (kernel_basis){0, 1, 0});
}
/* to = from + scalar */
static ckks_status add(fixture *x, device_stream *stream, uint64_t *to, uint64_t *from, uint64_t scalar) {
    const kernel_scalars_args args = {x->f.tables, poly_in(to), poly_in(from), {scalar}, 0};
    return device_launch(stream, KERNEL_ADD_SCALARS, &args, NULL);
}
/* to = from * scalar */
static ckks_status multiply(fixture *x, device_stream *stream, uint64_t *to, uint64_t *from,
                            uint64_t scalar) {
    const kernel_scalars_args args = {x->f.tables, poly_in(to), poly_in(from), {scalar}, 0};
    return device_launch(stream, KERNEL_MULTIPLY_SCALARS, &args, NULL);
}
static void order(fixture *x, device_stream *first, device_stream *then) {
    device_event *event = first == x->f.stream ? x->fork : x->joined;
    assert_ok(device_event_record(event, first, NULL));
    assert_ok(device_stream_wait(then, event, NULL));
}
static void replay(fixture *x, device_graph *graph) {
    assert_ok(device_graph_replay(graph, x->f.stream, NULL));
    assert_ok(device_stream_synchronize(x->f.stream, NULL));
}

static void recording_does_not_run_and_replay_does(void **state) {
    (void)state;
    fixture x;
    fixture_open(&x);
    device_graph *graph;
    uint64_t host = 0;
    assert_ok(device_record_begin(x.f.stream, NULL));
    assert_true(device_is_recording(x.f.stream));
    assert_ok(add(&x, x.f.stream, x.buffer[0], x.buffer[0], 5));
    assert_ok(device_copy(x.f.stream, x.buffer[1], x.buffer[0], 8, NULL));
    assert_ok(device_copy_out(x.f.stream, &host, x.buffer[1], 8, NULL));
    assert_ok(device_fill(x.f.stream, x.buffer[2], 1, 8, NULL));
    assert_ok(device_record_end(x.f.stream, &graph, NULL));
    assert_false(device_is_recording(x.f.stream));
    assert_ok(device_stream_synchronize(x.f.stream, NULL));
    assert_true(x.buffer[0][0] == 0 && host == 0 && x.buffer[2][0] == 0);
    replay(&x, graph);
    assert_true(x.buffer[0][0] == 5 && host == 5 && x.buffer[2][0] == 0x0101010101010101u);
    replay(&x, graph);
    assert_true(x.buffer[0][0] == 10 && host == 10);

    assert_int_equal(device_graph_node_count(graph), 4);
    const graph_node *node = device_graph_node(graph, 0);
    assert_int_equal(node->kind, GRAPH_NODE_KERNEL);
    assert_int_equal(node->kernel, KERNEL_ADD_SCALARS);
    assert_int_equal(node->dependency_count, 0);
    assert_int_equal(node->access_count, 2);
    assert_true(node->accesses[0].is_write && node->accesses[0].address == x.buffer[0]);
    assert_true(node->accesses[0].bytes == x.f.n * 8);
    node = device_graph_node(graph, 3);
    assert_int_equal(node->kind, GRAPH_NODE_FILL);
    assert_true(node->dependency_count == 1 && node->dependencies[0] == 2);
    device_graph_destroy(graph);
    fixture_close(&x);
}

/* the classic capture bug, visible on every device: a host counter that a recorded region advances */
static void host_work_while_recording_is_not_repeated_by_replay(void **state) {
    (void)state;
    fixture x;
    fixture_open(&x);
    device_graph *graph;
    uint64_t counter = 1;
    assert_ok(device_record_begin(x.f.stream, NULL));
    assert_ok(add(&x, x.f.stream, x.buffer[0], x.buffer[0], counter++));
    assert_ok(device_record_end(x.f.stream, &graph, NULL));
    for (int i = 0; i < 3; i++) replay(&x, graph);
    assert_true(counter == 2);
    assert_true(x.buffer[0][0] == 3); /* 1 + 1 + 1, not 1 + 2 + 3 */
    device_graph_destroy(graph);
    fixture_close(&x);
}

static void arguments_are_copied_when_recorded(void **state) {
    (void)state;
    fixture x;
    fixture_open(&x);
    device_graph *graph;
    kernel_scalars_args args = {x.f.tables, poly_in(x.buffer[0]), poly_in(x.buffer[0]), {7}, 0};
    assert_ok(device_record_begin(x.f.stream, NULL));
    assert_ok(device_launch(x.f.stream, KERNEL_ADD_SCALARS, &args, NULL));
    assert_ok(device_record_end(x.f.stream, &graph, NULL));
    memset(&args, 0xff, sizeof args);
    replay(&x, graph);
    assert_true(x.buffer[0][0] == 7);
    device_graph_destroy(graph);
    fixture_close(&x);
}

/* buffer[3] = 2 * (b0 + 1) + 3 * (b0 + 1), the two products on two streams */
static ckks_status record_diamond(fixture *x, device_graph **graph, ckks_error *err) {
    device_stream *s = x->f.stream;
    assert_ok(device_record_begin(s, NULL));
    assert_ok(add(x, s, x->buffer[0], x->buffer[0], 1));
    order(x, s, x->side);
    assert_true(device_is_recording(x->side));
    assert_ok(multiply(x, s, x->buffer[1], x->buffer[0], 2));
    assert_ok(multiply(x, x->side, x->buffer[2], x->buffer[0], 3));
    order(x, x->side, s);
    const kernel_binary_args sum = {x->f.tables, poly_in(x->buffer[3]), poly_in(x->buffer[1]),
                                    poly_in(x->buffer[2])};
    assert_ok(device_launch(s, KERNEL_ADD, &sum, NULL));
    return device_record_end(s, graph, err);
}

static void events_fork_and_join_streams_inside_a_recording(void **state) {
    (void)state;
    fixture x;
    fixture_open(&x);
    device_graph *graph;
    assert_ok(record_diamond(&x, &graph, NULL));
    assert_false(device_is_recording(x.side));
    assert_int_equal(device_graph_node_count(graph), 4);
    assert_int_equal(device_graph_node(graph, 1)->dependency_count, 1);
    assert_int_equal(device_graph_node(graph, 2)->dependency_count, 1);
    assert_int_equal(device_graph_node(graph, 2)->dependencies[0], 0);
    assert_int_equal(device_graph_node(graph, 3)->dependency_count, 2);
    assert_int_equal(device_graph_node(graph, 3)->dependencies[0], 1);
    assert_int_equal(device_graph_node(graph, 3)->dependencies[1], 2);
    replay(&x, graph);
    assert_true(x.buffer[3][0] == 5 && x.buffer[3][x.f.n - 1] == 5);
    assert_ok(add(&x, x.side, x.buffer[0], x.buffer[0], 9)); /* the side stream runs eagerly again */
    assert_ok(device_stream_synchronize(x.side, NULL));
    assert_true(x.buffer[0][0] == 10);
    device_graph_destroy(graph);
    fixture_close(&x);
}

static void adversarial_order_gives_the_same_words_for_a_correct_graph(void **state) {
    (void)state;
    if (fixture_device_kind() != DEVICE_CPU) skip(); /* a card chooses its order itself */
    fixture x;
    fixture_open(&x);
    device_graph *graph;
    assert_ok(record_diamond(&x, &graph, NULL));
    assert_ok(device_set_adversarial_order(x.f.dev, 42, NULL));
    for (uint64_t i = 1; i <= 50; i++) {
        replay(&x, graph);
        assert_true(x.buffer[3][0] == 5 * i && x.buffer[3][x.f.n - 1] == 5 * i);
    }
    device_graph_destroy(graph);
    fixture_close(&x);
}

/* the join is missing: the sum may run before the second product */
static ckks_status record_without_join(fixture *x, device_graph **graph, ckks_error *err) {
    device_stream *s = x->f.stream;
    assert_ok(device_record_begin(s, NULL));
    assert_ok(add(x, s, x->buffer[0], x->buffer[0], 1));
    order(x, s, x->side);
    assert_ok(multiply(x, x->side, x->buffer[2], x->buffer[0], 3));
    assert_ok(multiply(x, s, x->buffer[3], x->buffer[2], 2)); /* reads what the side stream writes */
    order(x, x->side, s);
    return device_record_end(s, graph, err);
}

static void unordered_launches_that_meet_in_memory_are_refused_by_name(void **state) {
    (void)state;
    fixture x;
    fixture_open(&x);
    device_graph *graph;
    ckks_error err = {0};
    assert_status(record_without_join(&x, &graph, &err), CKKS_RECORDING_VIOLATION);
    assert_null(graph);
    assert_string_equal(err.field, "order");
    assert_non_null(strstr(err.message, "MULTIPLY_SCALARS (node 1) and MULTIPLY_SCALARS (node 2)"));
    assert_false(device_is_recording(x.f.stream));
    assert_false(device_is_recording(x.side));
    fixture_close(&x);
}

static void adversarial_order_shows_a_missing_dependency(void **state) {
    (void)state;
    if (fixture_device_kind() != DEVICE_CPU) skip(); /* a card chooses its order itself */
    fixture x;
    fixture_open(&x);
    device_graph *graph;
    device_skip_race_check(x.f.dev, true);
    assert_ok(record_without_join(&x, &graph, NULL));
    uint32_t differences = 0;
    for (uint64_t i = 1; i <= 20; i++) { /* recorded order hides it */
        replay(&x, graph);
        assert_true(x.buffer[3][0] == 6 * i);
    }
    assert_ok(device_set_adversarial_order(x.f.dev, 7, NULL));
    for (uint64_t i = 21; i <= 40; i++) {
        replay(&x, graph);
        differences += x.buffer[3][0] != 6 * i;
    }
    assert_in_range(differences, 1, 20);
    print_message("  a missing dependency changed %u of 20 replays\n", differences);
    assert_ok(device_set_adversarial_order(x.f.dev, 0, NULL));
    replay(&x, graph);
    assert_true(x.buffer[3][0] == 6 * 41);
    device_graph_destroy(graph);
    fixture_close(&x);
}

/* each entry: what two unordered nodes do to [offset, offset + bytes) of one buffer */
static void race_check_looks_at_bytes_and_at_who_writes(void **state) {
    (void)state;
    static const struct {
        uint32_t offset_a, bytes_a, offset_b, bytes_b;
        bool a_writes, b_writes;
        ckks_status expected;
    } table[] = {
        {0, 64, 0, 64, true, true, CKKS_RECORDING_VIOLATION},
        {0, 64, 64, 64, true, true, CKKS_OK},
        {0, 65, 64, 64, true, true, CKKS_RECORDING_VIOLATION},
        {64, 64, 0, 65, true, true, CKKS_RECORDING_VIOLATION},
        {64, 64, 0, 64, true, true, CKKS_OK},
        {0, 512, 100, 1, true, false, CKKS_RECORDING_VIOLATION},
        {100, 1, 0, 512, false, true, CKKS_RECORDING_VIOLATION},
        {0, 512, 100, 1, false, true, CKKS_RECORDING_VIOLATION},
        {0, 512, 0, 512, false, false, CKKS_OK},
    };
    fixture x;
    fixture_open(&x);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        device_graph *graph;
        uint8_t *shared = (uint8_t *)x.buffer[0];
        uint8_t *own_a = (uint8_t *)x.buffer[1], *own_b = (uint8_t *)x.buffer[2];
        assert_ok(device_record_begin(x.f.stream, NULL));
        assert_ok(device_fill(x.f.stream, x.buffer[3], 0, 8, NULL));
        order(&x, x.f.stream, x.side);
        uint8_t *a = shared + table[i].offset_a, *b = shared + table[i].offset_b;
        assert_ok(table[i].a_writes ? device_copy(x.f.stream, a, own_a, table[i].bytes_a, NULL)
                                    : device_copy(x.f.stream, own_a, a, table[i].bytes_a, NULL));
        assert_ok(table[i].b_writes ? device_copy(x.side, b, own_b, table[i].bytes_b, NULL)
                                    : device_copy(x.side, own_b, b, table[i].bytes_b, NULL));
        order(&x, x.side, x.f.stream);
        assert_status(device_record_end(x.f.stream, &graph, NULL), table[i].expected);
        device_graph_destroy(graph);
    }
    fixture_close(&x);
}

/* Random programs on three streams with random events: the check against reachability by brute force. */
#define NODES 24u
static bool brute_force_races(bool before[NODES][NODES], const uint32_t *writes, const uint32_t *reads,
                              uint32_t count) {
    for (uint32_t a = 0; a < count; a++)
        for (uint32_t b = a + 1; b < count; b++)
            if (!before[a][b] && (writes[a] == writes[b] || writes[a] == reads[b] || reads[a] == writes[b]))
                return true;
    return false;
}

static void race_check_agrees_with_brute_force_on_random_graphs(void **state) {
    (void)state;
    fixture x;
    fixture_open(&x);
    prng r;
    prng_init(&r, 11);
    uint32_t refused = 0, accepted = 0;
    device_stream *third;
    device_event *event;
    assert_ok(device_stream_create(x.f.dev, &third, NULL));
    assert_ok(device_event_create(x.f.dev, &event, NULL));
    device_stream *const streams[3] = {x.f.stream, x.side, third};
    for (int round = 0; round < 400; round++) {
        bool before[NODES][NODES] = {{false}}, known[3][NODES] = {{false}};
        uint32_t writes[NODES], reads[NODES], count = 0;
        const uint32_t wanted = 2 + (uint32_t)prng_below(&r, NODES - 2);
        const uint32_t places = 8 + (uint32_t)prng_below(&r, 100),
                       sync_percent = 20 + (uint32_t)prng_below(&r, 70);
        assert_ok(device_record_begin(x.f.stream, NULL));
        assert_ok(device_event_record(event, x.f.stream, NULL));
        for (int s = 1; s < 3; s++) assert_ok(device_stream_wait(streams[s], event, NULL));
        while (count < wanted) {
            const uint32_t s = (uint32_t)prng_below(&r, 3);
            if (prng_below(&r, 100) < sync_percent) { /* s waits for t */
                const uint32_t t = (uint32_t)prng_below(&r, 3);
                assert_ok(device_event_record(event, streams[t], NULL));
                assert_ok(device_stream_wait(streams[s], event, NULL));
                for (uint32_t i = 0; i < NODES; i++) known[s][i] |= known[t][i];
            }
            writes[count] = (uint32_t)prng_below(&r, places);
            reads[count] = (uint32_t)prng_below(&r, places);
            if (reads[count] == writes[count]) continue;
            assert_ok(
                device_copy(streams[s], x.buffer[0] + writes[count], x.buffer[0] + reads[count], 8, NULL));
            for (uint32_t i = 0; i < count; i++) before[i][count] = known[s][i];
            known[s][count++] = true;
        }
        for (int s = 1; s < 3; s++) {
            assert_ok(device_event_record(event, streams[s], NULL));
            assert_ok(device_stream_wait(x.f.stream, event, NULL));
        }
        device_graph *graph;
        const bool races = brute_force_races(before, writes, reads, count);
        assert_status(device_record_end(x.f.stream, &graph, NULL),
                      races ? CKKS_RECORDING_VIOLATION : CKKS_OK);
        device_graph_destroy(graph);
        refused += races, accepted += !races;
    }
    assert_true(refused > 50 && accepted > 50);
    print_message("  %u graphs refused, %u accepted\n", refused, accepted);
    device_event_destroy(event);
    device_stream_destroy(third);
    fixture_close(&x);
}

static void stream_that_was_not_joined_is_refused(void **state) {
    (void)state;
    fixture x;
    fixture_open(&x);
    device_graph *graph;
    ckks_error err = {0};
    assert_ok(device_record_begin(x.f.stream, NULL));
    assert_ok(add(&x, x.f.stream, x.buffer[0], x.buffer[0], 1));
    order(&x, x.f.stream, x.side);
    assert_ok(add(&x, x.side, x.buffer[1], x.buffer[1], 1));
    assert_status(device_record_end(x.f.stream, &graph, &err), CKKS_RECORDING_VIOLATION);
    assert_string_equal(err.field, "stream");
    assert_null(graph);
    /* joined, and then it went on */
    assert_ok(device_record_begin(x.f.stream, NULL));
    assert_ok(add(&x, x.f.stream, x.buffer[0], x.buffer[0], 1));
    order(&x, x.f.stream, x.side);
    assert_ok(add(&x, x.side, x.buffer[1], x.buffer[1], 1));
    order(&x, x.side, x.f.stream);
    assert_ok(add(&x, x.side, x.buffer[1], x.buffer[1], 1));
    assert_status(device_record_end(x.f.stream, &graph, &err), CKKS_RECORDING_VIOLATION);
    assert_null(graph);
    /* a fork without work needs no join */
    assert_ok(device_record_begin(x.f.stream, NULL));
    assert_ok(add(&x, x.f.stream, x.buffer[0], x.buffer[0], 1));
    order(&x, x.f.stream, x.side);
    assert_ok(device_record_end(x.f.stream, &graph, NULL));
    assert_ok(device_stream_synchronize(x.side, NULL));
    device_graph_destroy(graph);
    fixture_close(&x);
}

static void allocation_and_host_waits_by_the_recording_thread_are_refused(void **state) {
    (void)state;
    fixture x;
    fixture_open(&x);
    const device_tables *tables;
    device_graph *graph;
    void *memory;
    for (int which = 0; which < 8; which++) {
        ckks_error err = {0};
        assert_ok(device_event_record(x.joined, x.side, NULL));
        assert_ok(device_record_begin(x.f.stream, NULL));
        assert_ok(add(&x, x.f.stream, x.buffer[0], x.buffer[0], 1));
        ckks_status rc = CKKS_RECORDING_VIOLATION;
        if (which == 0) rc = device_allocate(x.f.dev, &memory, 64, MEMORY_ARENA, &err);
        if (which == 1) rc = device_allocate_host(x.f.dev, &memory, 64, &err);
        if (which == 2) rc = device_stream_synchronize(x.f.stream, &err);
        if (which == 3) rc = device_stream_synchronize(x.side, &err);
        if (which == 4) rc = device_event_synchronize(x.joined, &err);
        if (which == 5) rc = device_stream_recover(x.side, &err);
        if (which == 6) rc = device_tables_acquire(x.f.dev, &tables, x.f.context, &err);
        if (which == 7) {
            device_free(x.f.dev, x.buffer[3]);
            x.buffer[3] = NULL;
        }
        assert_status(rc, CKKS_RECORDING_VIOLATION);
        if (which < 7) assert_int_equal(err.code, CKKS_RECORDING_VIOLATION);
        /* the recording is spoilt, and says why */
        assert_status(add(&x, x.f.stream, x.buffer[0], x.buffer[0], 1), CKKS_RECORDING_VIOLATION);
        ckks_error end = {0};
        assert_status(device_record_end(x.f.stream, &graph, &end), CKKS_RECORDING_VIOLATION);
        assert_string_equal(end.field, which < 7 ? err.field : "device_free");
        assert_ok(device_stream_synchronize(x.f.stream, NULL));
    }
    assert_true(x.buffer[0][0] == 0);
    fixture_close(&x);
}

static void *other_thread(void *argument) {
    fixture *x = argument;
    /* what is recorded never runs: there is nothing to wait for */
    if (device_stream_synchronize(x->f.stream, NULL) != CKKS_RECORDING_VIOLATION)
        return (void *)(uintptr_t)CKKS_INTERNAL;
    void *memory = NULL;
    device_stream *stream = NULL;
    ckks_status rc = device_allocate(x->f.dev, &memory, 64, MEMORY_ARENA, NULL);
    if (rc == CKKS_OK) rc = device_stream_create(x->f.dev, &stream, NULL);
    if (rc == CKKS_OK) rc = add(x, stream, x->buffer[1], x->buffer[1], 4);
    if (rc == CKKS_OK) rc = device_stream_synchronize(stream, NULL);
    device_stream_destroy(stream);
    device_free(x->f.dev, memory);
    return (void *)(uintptr_t)rc;
}

static void other_threads_are_not_disturbed_by_a_recording(void **state) {
    (void)state;
    fixture x;
    fixture_open(&x);
    device_graph *graph;
    pthread_t thread;
    void *result;
    assert_ok(device_record_begin(x.f.stream, NULL));
    assert_ok(add(&x, x.f.stream, x.buffer[0], x.buffer[0], 1));
    assert_int_equal(pthread_create(&thread, NULL, other_thread, &x), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_status((ckks_status)(uintptr_t)result, CKKS_OK);
    assert_true(x.buffer[1][0] == 4);
    assert_ok(device_record_end(x.f.stream, &graph, NULL));
    replay(&x, graph);
    assert_true(x.buffer[0][0] == 1 && x.buffer[1][0] == 4);
    device_graph_destroy(graph);
    fixture_close(&x);
}

static void events_do_not_cross_the_border_of_a_recording(void **state) {
    (void)state;
    fixture x;
    fixture_open(&x);
    device_graph *graph;
    ckks_error err = {0};
    /* recorded outside, waited for inside */
    assert_ok(device_event_record(x.joined, x.side, NULL));
    assert_ok(device_record_begin(x.f.stream, NULL));
    assert_status(device_stream_wait(x.f.stream, x.joined, &err), CKKS_RECORDING_VIOLATION);
    assert_string_equal(err.field, "event");
    assert_status(device_record_end(x.f.stream, &graph, NULL), CKKS_RECORDING_VIOLATION);
    /* recorded inside, used after the end */
    assert_ok(device_record_begin(x.f.stream, NULL));
    assert_ok(device_event_record(x.joined, x.f.stream, NULL));
    assert_ok(device_record_end(x.f.stream, &graph, NULL));
    assert_status(device_stream_wait(x.side, x.joined, NULL), CKKS_RECORDING_VIOLATION);
    assert_status(device_event_synchronize(x.joined, NULL), CKKS_RECORDING_VIOLATION);
    assert_false(device_event_is_complete(x.joined));
    device_graph_destroy(graph);
    assert_ok(device_event_record(x.joined, x.side, NULL)); /* a new record heals it */
    assert_ok(device_event_synchronize(x.joined, NULL));
    /* two recordings do not mix */
    assert_ok(device_record_begin(x.f.stream, NULL));
    assert_ok(device_record_begin(x.side, NULL));
    assert_ok(device_event_record(x.fork, x.f.stream, NULL));
    assert_status(device_stream_wait(x.side, x.fork, NULL), CKKS_RECORDING_VIOLATION);
    assert_status(device_record_end(x.side, &graph, NULL), CKKS_RECORDING_VIOLATION);
    assert_ok(device_record_end(x.f.stream, &graph, NULL));
    assert_int_equal(device_graph_node_count(graph), 0);
    replay(&x, graph); /* an empty graph is a graph */
    device_graph_destroy(graph);
    /* an event that was never recorded holds nothing back, inside or outside */
    device_event *fresh;
    assert_ok(device_event_create(x.f.dev, &fresh, NULL));
    assert_ok(device_record_begin(x.f.stream, NULL));
    assert_ok(device_stream_wait(x.f.stream, fresh, NULL));
    device_record_abort(x.f.stream);
    assert_ok(device_stream_wait(x.f.stream, fresh, NULL));
    device_event_destroy(fresh);
    fixture_close(&x);
}

static void recording_calls_out_of_place_are_refused(void **state) {
    (void)state;
    fixture x;
    fixture_open(&x);
    device_graph *graph, *none;
    assert_status(device_record_end(x.f.stream, &graph, NULL), CKKS_RECORDING_VIOLATION);
    device_record_abort(x.f.stream); /* nothing to do */
    assert_ok(record_diamond(&x, &graph, NULL));
    /* begin twice */
    assert_ok(device_record_begin(x.f.stream, NULL));
    assert_status(device_record_begin(x.f.stream, NULL), CKKS_RECORDING_VIOLATION);
    assert_status(device_record_end(x.f.stream, &none, NULL), CKKS_RECORDING_VIOLATION);
    /* a replay inside */
    assert_ok(device_record_begin(x.f.stream, NULL));
    assert_status(device_graph_replay(graph, x.f.stream, NULL), CKKS_RECORDING_VIOLATION);
    assert_status(device_record_end(x.f.stream, &none, NULL), CKKS_RECORDING_VIOLATION);
    /* end on a stream that only joined */
    assert_ok(device_record_begin(x.f.stream, NULL));
    order(&x, x.f.stream, x.side);
    assert_status(device_record_end(x.side, &none, NULL), CKKS_RECORDING_VIOLATION);
    assert_false(device_is_recording(x.f.stream));
    /* a refused launch spoils it */
    assert_ok(device_record_begin(x.f.stream, NULL));
    assert_status(add(&x, x.f.stream, NULL, x.buffer[0], 1), CKKS_INVALID_ARGUMENT);
    assert_status(device_record_end(x.f.stream, &none, NULL), CKKS_INVALID_ARGUMENT);
    /* abort, and the stream runs */
    assert_ok(device_record_begin(x.f.stream, NULL));
    assert_ok(add(&x, x.f.stream, x.buffer[0], x.buffer[0], 100));
    device_record_abort(x.f.stream);
    replay(&x, graph);
    assert_true(x.buffer[3][0] == 5);
    device_graph_destroy(graph);
    device_graph_destroy(NULL);
    fixture_close(&x);
}

/* whoever goes on after such a refusal must not end with a graph that lacks an order or a replay */
static void what_belongs_to_another_device_spoils_the_recording(void **state) {
    (void)state;
    fixture x, other;
    fixture_open(&x), fixture_open(&other);
    device_graph *foreign, *planned, *none;
    assert_ok(record_diamond(&other, &foreign, NULL));
    assert_ok(device_record_begin_planning(x.f.stream, NULL));
    assert_ok(device_record_end(x.f.stream, &planned, NULL));
    for (int which = 0; which < 4; which++) {
        ckks_error err = {0}, end = {0};
        assert_ok(device_record_begin(x.f.stream, NULL));
        const ckks_status rc = which == 0   ? device_stream_wait(x.f.stream, other.fork, &err)
                               : which == 1 ? device_event_record(other.fork, x.f.stream, &err)
                               : which == 2 ? device_graph_replay(foreign, x.f.stream, &err)
                                            : device_graph_replay(planned, x.f.stream, &err);
        assert_status(rc, which < 3 ? CKKS_INVALID_ARGUMENT : CKKS_RECORDING_VIOLATION);
        assert_status(add(&x, x.f.stream, x.buffer[0], x.buffer[0], 1), rc);
        assert_status(device_record_end(x.f.stream, &none, &end), rc);
        assert_string_equal(end.message, err.message);
    }
    device_graph_destroy(planned), device_graph_destroy(foreign);
    fixture_close(&other), fixture_close(&x);
}

static void destroying_a_stream_ends_its_recording(void **state) {
    (void)state;
    fixture x;
    fixture_open(&x);
    device_stream *gone;
    device_graph *graph;
    assert_ok(device_stream_create(x.f.dev, &gone, NULL));
    assert_ok(device_record_begin(gone, NULL));
    assert_ok(device_event_record(x.fork, gone, NULL));
    assert_ok(device_stream_wait(x.side, x.fork, NULL));
    device_stream_destroy(gone);
    assert_false(device_is_recording(x.side));
    assert_status(device_record_end(x.side, &graph, NULL), CKKS_RECORDING_VIOLATION);
    fixture_close(&x);
}

static void planning_takes_virtual_addresses_and_never_runs(void **state) {
    (void)state;
    fixture x;
    fixture_open(&x);
    device_graph *graph;
    ckks_error err = {0};
    uint64_t *a = (uint64_t *)(uintptr_t)0x100000000000u, *b = a + x.f.n; /* nobody's */
    assert_ok(device_record_begin_planning(x.f.stream, NULL));
    assert_ok(add(&x, x.f.stream, b, a, 1));
    assert_ok(device_copy(x.f.stream, a, b, x.f.n * 8, NULL));
    assert_ok(device_fill(x.f.stream, b, 0, 8, NULL));
    assert_ok(device_record_end(x.f.stream, &graph, NULL));
    assert_int_equal(device_graph_node_count(graph), 3);
    assert_true(device_graph_node(graph, 0)->accesses[0].address == b);
    assert_int_equal(device_graph_node(graph, 2)->dependencies[0], 1);
    assert_status(device_graph_replay(graph, x.f.stream, &err), CKKS_RECORDING_VIOLATION);
    device_graph_destroy(graph);
    /* shapes and races are checked all the same */
    assert_ok(device_record_begin_planning(x.f.stream, NULL));
    assert_status(add(&x, x.f.stream, b + 1, a, 1), CKKS_INVALID_ARGUMENT); /* misaligned */
    device_record_abort(x.f.stream);
    assert_ok(device_record_begin_planning(x.f.stream, NULL));
    order(&x, x.f.stream, x.side);
    assert_ok(add(&x, x.f.stream, b, a, 1));
    assert_ok(add(&x, x.side, b, a, 1));
    order(&x, x.side, x.f.stream);
    assert_status(device_record_end(x.f.stream, &graph, NULL), CKKS_RECORDING_VIOLATION);
    fixture_close(&x);
}

static void replays_of_one_graph_on_two_streams_are_ordered_by_events(void **state) {
    (void)state;
    fixture x;
    fixture_open(&x);
    device_graph *graph;
    assert_ok(record_diamond(&x, &graph, NULL));
    for (int i = 0; i < 20; i++) {
        assert_ok(device_graph_replay(graph, x.f.stream, NULL));
        order(&x, x.f.stream, x.side);
        assert_ok(device_graph_replay(graph, x.side, NULL));
        order(&x, x.side, x.f.stream);
    }
    assert_ok(device_stream_synchronize(x.f.stream, NULL));
    assert_true(x.buffer[3][0] == 200);
    device_graph_destroy(graph);
    fixture_close(&x);
}

static void destroying_a_graph_waits_for_its_replays(void **state) {
    (void)state;
    fixture x;
    fixture_open(&x);
    device_graph *graph;
    assert_ok(record_diamond(&x, &graph, NULL));
    for (int i = 0; i < 100; i++) assert_ok(device_graph_replay(graph, x.f.stream, NULL));
    device_graph_destroy(graph);
    assert_ok(device_stream_synchronize(x.f.stream, NULL));
    assert_true(x.buffer[3][0] == 500);
    fixture_close(&x);
}

static void recording_survives_every_allocation_failure(void **state) {
    (void)state;
    fixture x;
    fixture_open(&x);
    device_graph *graph = NULL;
    uint64_t nth = 1;
    for (;; nth++) {
        ckks_status rc;
        alloc_fault_set(nth);
        rc = device_record_begin(x.f.stream, NULL);
        if (rc == CKKS_OK) {
            (void)add(&x, x.f.stream, x.buffer[0], x.buffer[0], 1);
            (void)device_event_record(x.fork, x.f.stream, NULL);
            (void)device_stream_wait(x.side, x.fork, NULL);
            (void)add(&x, x.side, x.buffer[1], x.buffer[0], 1);
            (void)add(&x, x.f.stream, x.buffer[2], x.buffer[0], 1);
            (void)device_event_record(x.joined, x.side, NULL);
            (void)device_stream_wait(x.f.stream, x.joined, NULL);
            rc = device_record_end(x.f.stream, &graph, NULL);
        }
        const bool was_reached = alloc_fault_calls() >= nth;
        alloc_fault_set(0);
        if (!was_reached) {
            assert_ok(rc);
            break;
        }
        if (rc != CKKS_OK) assert_status(rc, CKKS_RESOURCE_EXHAUSTED);
        device_graph_destroy(rc == CKKS_OK ? graph : NULL);
        /* whatever is left of the failed attempt */
        device_record_abort(x.f.stream);
        device_record_abort(x.side);
        assert_ok(device_stream_synchronize(x.side, NULL)); /* it ran eagerly where the wait failed */
        graph = NULL;
    }
    assert_true(nth > 15);
    replay(&x, graph);
    device_graph_destroy(graph);
    fixture_close(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recording_does_not_run_and_replay_does),
        cmocka_unit_test(host_work_while_recording_is_not_repeated_by_replay),
        cmocka_unit_test(arguments_are_copied_when_recorded),
        cmocka_unit_test(events_fork_and_join_streams_inside_a_recording),
        cmocka_unit_test(adversarial_order_gives_the_same_words_for_a_correct_graph),
        cmocka_unit_test(unordered_launches_that_meet_in_memory_are_refused_by_name),
        cmocka_unit_test(adversarial_order_shows_a_missing_dependency),
        cmocka_unit_test(race_check_looks_at_bytes_and_at_who_writes),
        cmocka_unit_test(race_check_agrees_with_brute_force_on_random_graphs),
        cmocka_unit_test(stream_that_was_not_joined_is_refused),
        cmocka_unit_test(allocation_and_host_waits_by_the_recording_thread_are_refused),
        cmocka_unit_test(other_threads_are_not_disturbed_by_a_recording),
        cmocka_unit_test(events_do_not_cross_the_border_of_a_recording),
        cmocka_unit_test(recording_calls_out_of_place_are_refused),
        cmocka_unit_test(what_belongs_to_another_device_spoils_the_recording),
        cmocka_unit_test(destroying_a_stream_ends_its_recording),
        cmocka_unit_test(planning_takes_virtual_addresses_and_never_runs),
        cmocka_unit_test(replays_of_one_graph_on_two_streams_are_ordered_by_events),
        cmocka_unit_test(destroying_a_graph_waits_for_its_replays),
        cmocka_unit_test(recording_survives_every_allocation_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
