/*
 * The workspace planner against brute force: a planned arena is run in every topological order (small graphs)
 * or many random ones, and each node must read what it would read if nothing shared memory. A planner that
 * believes in the recorded order alone is shown to fail the same check.
 */
#include "kernels/evaluator/workspace_internal.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/fixtures.h"

#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define NODES_MAX 40u
#define UNIT      ((uint64_t)VALUE_ALIGNMENT)

/* Node i writes buffer i, all of it, and reads the buffers of its inputs. */
typedef struct dag {
    uint32_t count;
    graph_node nodes[NODES_MAX];
    kernel_access accesses[NODES_MAX][NODES_MAX];
    uint32_t dependencies[NODES_MAX][NODES_MAX];
    workspace_buffer buffers[NODES_MAX];
    uint64_t expected[NODES_MAX]; /* what node i writes */
} dag;

static uint64_t mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

static void dag_finish(dag *g) {
    for (uint32_t i = 0; i < g->count; i++) {
        g->nodes[i].accesses = g->accesses[i];
        g->nodes[i].dependencies = g->dependencies[i];
        uint64_t h = i + 1;
        for (uint32_t k = 1; k < g->nodes[i].access_count; k++)
            h = mix(h, g->expected[g->dependencies[i][k - 1]]);
        g->expected[i] = h;
    }
}

static void dag_node(dag *g, uint64_t bytes) {
    const uint32_t i = g->count++;
    const uint64_t address =
        i ? g->buffers[i - 1].address + g->buffers[i - 1].bytes : UINT64_C(0x4000000000000000);
    g->buffers[i] = (workspace_buffer){address, bytes, bytes, 0};
    g->accesses[i][0] = (kernel_access){(void *)(uintptr_t)address, bytes, true};
    g->nodes[i] = (graph_node){.kind = GRAPH_NODE_KERNEL, .access_count = 1};
}

static void dag_read(dag *g, uint32_t from) {
    const uint32_t i = g->count - 1;
    graph_node *node = &g->nodes[i];
    g->accesses[i][node->access_count++] =
        (kernel_access){(void *)(uintptr_t)g->buffers[from].address, g->buffers[from].bytes, false};
    g->dependencies[i][node->dependency_count++] = from;
}

/* Each node reads 0 to 3 earlier results; a few results are held to the end. */
static void dag_random(dag *g, uint32_t count, prng *r) {
    memset(g, 0, sizeof *g);
    while (g->count < count) {
        dag_node(g, UNIT * (1 + prng_below(r, 5)));
        const uint32_t i = g->count - 1, reads = i ? (uint32_t)prng_below(r, 4) : 0;
        for (uint32_t k = 0; k < reads; k++) {
            const uint32_t span = i < 6 ? i : 6;
            const uint32_t from = i - 1 - (uint32_t)prng_below(r, span);
            bool is_new = true;
            for (uint32_t d = 0; d < g->nodes[i].dependency_count; d++)
                is_new &= g->dependencies[i][d] != from;
            if (is_new) dag_read(g, from);
        }
        g->buffers[i].parts_held = prng_below(r, 8) == 0;
    }
    dag_finish(g);
}

static workspace_plan *plan_of(const dag *g, const graph_node *const *nodes) {
    workspace_plan *plan = NULL;
    ckks_error err = {0};
    assert_int_equal(workspace_plan_from_nodes(&plan, g->buffers, g->count, nodes, g->count, &err), CKKS_OK);
    return plan;
}

typedef struct arena_run {
    const dag *g;
    const workspace_plan *plan;
    uint64_t *arena; /* one word per UNIT: what was written last over it */
    bool done[NODES_MAX];
    uint32_t wrong;
    uint64_t orders;
} arena_run;

static uint64_t read_buffer(const arena_run *run, uint32_t buffer) {
    uint64_t offset, bytes, h = 0;
    workspace_plan_buffer(run->plan, buffer, &offset, &bytes);
    for (uint64_t k = 0; k < bytes / UNIT; k++) {
        const uint64_t word = run->arena[offset / UNIT + k];
        h = k == 0 ? word : h == word ? h : UINT64_MAX;
    }
    return h;
}

static void execute(arena_run *run, uint32_t i) {
    uint64_t offset, bytes, h = i + 1;
    const graph_node *node = &run->g->nodes[i];
    for (uint32_t d = 0; d < node->dependency_count; d++) {
        const uint64_t value = read_buffer(run, run->g->dependencies[i][d]);
        run->wrong += value != run->g->expected[run->g->dependencies[i][d]];
        h = mix(h, value);
    }
    workspace_plan_buffer(run->plan, i, &offset, &bytes);
    for (uint64_t k = 0; k < bytes / UNIT; k++) run->arena[offset / UNIT + k] = h;
    run->done[i] = true;
}

static bool is_ready(const arena_run *run, uint32_t i) {
    if (run->done[i]) return false;
    for (uint32_t d = 0; d < run->g->nodes[i].dependency_count; d++)
        if (!run->done[run->g->dependencies[i][d]]) return false;
    return true;
}

static void check_held(arena_run *run) {
    run->orders++;
    for (uint32_t i = 0; i < run->g->count; i++)
        if (run->g->buffers[i].parts_held) run->wrong += read_buffer(run, i) != run->g->expected[i];
}

static void run_every_order(arena_run *run, uint32_t done_count) {
    if (done_count == run->g->count) {
        check_held(run);
        return;
    }
    const uint64_t words = workspace_plan_bytes(run->plan) / UNIT;
    uint64_t *saved = malloc((words + 1) * sizeof *saved);
    assert_non_null(saved);
    memcpy(saved, run->arena, words * sizeof *saved);
    for (uint32_t i = 0; i < run->g->count; i++) {
        if (!is_ready(run, i)) continue;
        execute(run, i);
        run_every_order(run, done_count + 1);
        run->done[i] = false;
        memcpy(run->arena, saved, words * sizeof *saved);
    }
    free(saved);
}

static void run_random_order(arena_run *run, prng *r) {
    memset(run->done, 0, sizeof run->done);
    for (uint32_t k = 0; k < run->g->count; k++) {
        uint32_t ready[NODES_MAX], count = 0;
        for (uint32_t i = 0; i < run->g->count; i++)
            if (is_ready(run, i)) ready[count++] = i;
        execute(run, ready[prng_below(r, count)]);
    }
    check_held(run);
}

static void node_list(const graph_node **list, const dag *g) {
    for (uint32_t i = 0; i < g->count; i++) list[i] = &g->nodes[i];
}

static void no_order_of_a_small_graph_reads_another_buffers_words(void **state) {
    (void)state;
    prng r;
    prng_init(&r, 11);
    uint64_t orders = 0, shared = 0;
    for (uint32_t round = 0; round < 300; round++) {
        static dag g;
        const graph_node *nodes[NODES_MAX];
        dag_random(&g, 2 + (uint32_t)prng_below(&r, 6), &r);
        node_list(nodes, &g);
        workspace_plan *plan = plan_of(&g, nodes);
        arena_run run = {.g = &g, .plan = plan};
        run.arena = calloc(workspace_plan_bytes(plan) / UNIT + 1, sizeof *run.arena);
        run_every_order(&run, 0);
        assert_int_equal(run.wrong, 0);
        orders += run.orders;
        shared += workspace_plan_bytes(plan) < workspace_plan_bytes_live(plan);
        free(run.arena);
        workspace_plan_destroy(plan);
    }
    print_message("300 graphs, %llu orders, memory shared in %llu\n", (unsigned long long)orders,
                  (unsigned long long)shared);
    assert_true(shared > 50);
}

static void no_random_order_of_a_larger_graph_reads_another_buffers_words(void **state) {
    (void)state;
    prng r;
    prng_init(&r, 12);
    uint64_t live = 0, planned = 0;
    for (uint32_t round = 0; round < 200; round++) {
        static dag g;
        const graph_node *nodes[NODES_MAX];
        dag_random(&g, NODES_MAX, &r);
        node_list(nodes, &g);
        workspace_plan *plan = plan_of(&g, nodes);
        arena_run run = {.g = &g, .plan = plan};
        run.arena = calloc(workspace_plan_bytes(plan) / UNIT + 1, sizeof *run.arena);
        for (uint32_t k = 0; k < 50; k++) run_random_order(&run, &r);
        assert_int_equal(run.wrong, 0);
        live += workspace_plan_bytes_live(plan);
        planned += workspace_plan_bytes(plan);
        free(run.arena);
        workspace_plan_destroy(plan);
    }
    print_message("arena %.0f %% of the unshared bytes\n", 100.0 * (double)planned / (double)live);
    assert_true(planned < live);
}

/* The check must be able to fail: a plan made as if nodes ran in recorded order is unsound on the real graph.
 */
static void a_plan_for_the_recorded_order_alone_is_caught(void **state) {
    (void)state;
    prng r;
    prng_init(&r, 13);
    uint32_t caught = 0;
    for (uint32_t round = 0; round < 100; round++) {
        static dag g;
        graph_node chained[NODES_MAX];
        uint32_t dependency[NODES_MAX];
        const graph_node *nodes[NODES_MAX];
        dag_random(&g, NODES_MAX, &r);
        for (uint32_t i = 0; i < g.count; i++) {
            chained[i] = g.nodes[i];
            dependency[i] = i ? i - 1 : 0;
            chained[i].dependency_count = i ? 1 : 0;
            chained[i].dependencies = &dependency[i];
            nodes[i] = &chained[i];
        }
        workspace_plan *plan = plan_of(&g, nodes);
        arena_run run = {.g = &g, .plan = plan};
        run.arena = calloc(workspace_plan_bytes(plan) / UNIT + 1, sizeof *run.arena);
        for (uint32_t k = 0; k < 20; k++) run_random_order(&run, &r);
        caught += run.wrong != 0;
        free(run.arena);
        workspace_plan_destroy(plan);
    }
    print_message("caught in %u of 100 graphs\n", caught);
    assert_true(caught > 50);
}

static void a_chain_lives_in_two_buffers(void **state) {
    (void)state;
    static dag g;
    const graph_node *nodes[NODES_MAX];
    memset(&g, 0, sizeof g);
    for (uint32_t i = 0; i < 20; i++) {
        dag_node(&g, 4 * UNIT);
        if (i) dag_read(&g, i - 1);
    }
    dag_finish(&g);
    node_list(nodes, &g);
    workspace_plan *plan = plan_of(&g, nodes);
    assert_int_equal(workspace_plan_bytes(plan), 8 * UNIT);
    assert_int_equal(workspace_plan_bytes_live(plan), 80 * UNIT);
    workspace_plan_destroy(plan);
}

static void independent_branches_share_nothing(void **state) {
    (void)state;
    static dag g;
    const graph_node *nodes[NODES_MAX];
    memset(&g, 0, sizeof g);
    for (uint32_t i = 0; i < 8; i++) dag_node(&g, UNIT);
    dag_finish(&g);
    node_list(nodes, &g);
    workspace_plan *plan = plan_of(&g, nodes);
    assert_int_equal(workspace_plan_bytes(plan), 8 * UNIT);
    workspace_plan_destroy(plan);
}

static void a_fixed_workspace_repeats_the_planned_addresses(void **state) {
    (void)state;
    static dag g;
    const graph_node *nodes[NODES_MAX];
    workspace *ws = NULL;
    void *first = NULL, *second = NULL, *again = NULL, *base = NULL;
    ckks_error err = {0};
    memset(&g, 0, sizeof g);
    dag_node(&g, 2 * UNIT);
    dag_node(&g, UNIT);
    dag_finish(&g);
    node_list(nodes, &g);
    workspace_plan *plan = plan_of(&g, nodes);
    assert_int_equal(posix_memalign(&base, VALUE_ALIGNMENT, workspace_plan_bytes(plan)), 0);
    assert_int_equal(workspace_create_fixed(&ws, plan, base, &err), CKKS_OK);
    assert_int_equal(workspace_acquire(ws, &first, 2 * UNIT - 5, &err), CKKS_OK);
    assert_int_equal(workspace_acquire(ws, &second, UNIT, &err), CKKS_OK);
    assert_ptr_not_equal(first, second);
    assert_int_equal(workspace_acquire(ws, &again, UNIT, &err), CKKS_RECORDING_VIOLATION);
    workspace_rewind(ws);
    assert_int_equal(workspace_acquire(ws, &again, 2 * UNIT, &err), CKKS_OK);
    assert_ptr_equal(again, first);
    assert_int_equal(workspace_acquire(ws, &again, 2 * UNIT, &err), CKKS_RECORDING_VIOLATION);
    assert_null(again);
    workspace_rewind(ws); /* less than planned is another run as well */
    assert_int_equal(workspace_acquire(ws, &again, UNIT, &err), CKKS_RECORDING_VIOLATION);
    assert_null(again);
    workspace_destroy(ws);
    ws = NULL;
    assert_int_equal(workspace_create_fixed(&ws, plan, NULL, &err), CKKS_INVALID_ARGUMENT);
    assert_int_equal(workspace_create_fixed(&ws, plan, (uint8_t *)base + 8, &err), CKKS_INVALID_ARGUMENT);
    workspace_plan_destroy(plan);
    free(base);
}

static void impossible_sizes_are_refused(void **state) {
    (void)state;
    workspace *ws = NULL;
    void *p = NULL;
    ckks_error err = {0};
    assert_int_equal(workspace_create_planning(&ws, &err), CKKS_OK);
    assert_int_equal(workspace_acquire(ws, &p, 0, &err), CKKS_INVALID_ARGUMENT);
    assert_int_equal(workspace_acquire(ws, &p, UINT64_MAX, NULL), CKKS_RESOURCE_EXHAUSTED);
    assert_int_equal(workspace_acquire_parts(ws, &p, UNIT, 0, NULL), CKKS_INVALID_ARGUMENT);
    assert_int_equal(workspace_acquire_parts(ws, &p, UNIT + 1, 2, NULL), CKKS_INVALID_ARGUMENT);
    assert_int_equal(workspace_acquire_parts(ws, &p, UINT64_C(1) << 60, 1u << 20, NULL),
                     CKKS_RESOURCE_EXHAUSTED);
    assert_null(p);
    workspace_destroy(ws);
}

static void parts_are_released_one_by_one(void **state) {
    (void)state;
    workspace *ws = NULL;
    void *p = NULL;
    uint32_t count = 0;
    assert_int_equal(workspace_create_planning(&ws, NULL), CKKS_OK);
    assert_int_equal(workspace_acquire_parts(ws, &p, 2 * UNIT, 3, NULL), CKKS_OK);
    const workspace_buffer *buffers = workspace_buffers(ws, &count);
    assert_int_equal(count, 1);
    assert_int_equal(buffers[0].parts_held, 3);
    workspace_release(ws, (uint8_t *)p + 2 * UNIT);
    workspace_release(ws, p);
    assert_int_equal(buffers[0].parts_held, 1);
    workspace_release(ws, NULL);
    workspace_release(ws, (uint8_t *)p + 4 * UNIT);
    assert_int_equal(buffers[0].parts_held, 0);
    workspace_destroy(ws);
}

/* whether releasing `address` ends the process with a report */
static bool release_is_fatal(workspace *ws, void *address) {
    int status = 0;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct rlimit none = {0, 0};
        (void)setrlimit(RLIMIT_CORE, &none);
        signal(SIGABRT, SIG_DFL);
        (void)close(STDERR_FILENO);
        workspace_release(ws, address);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

/* A buffer that is given back while it is still in use would be another's at once: what makes no sense as a
 * release is our own mistake, and must not pass. */
static void what_was_not_handed_out_is_not_taken_back(void **state) {
    (void)state;
    workspace *ws = NULL;
    void *p = NULL, *q = NULL;
    int host = 0;
    assert_int_equal(workspace_create_planning(&ws, NULL), CKKS_OK);
    assert_int_equal(workspace_acquire_parts(ws, &p, 2 * UNIT, 2, NULL), CKKS_OK);
    assert_int_equal(workspace_acquire(ws, &q, UNIT, NULL), CKKS_OK);
    assert_false(release_is_fatal(ws, (uint8_t *)p + 2 * UNIT));
    assert_false(release_is_fatal(ws, &host));              /* of others */
    assert_true(release_is_fatal(ws, (uint8_t *)p + UNIT)); /* inside a part */
    assert_true(release_is_fatal(ws, (uint8_t *)p + 2 * UNIT + 1));
    assert_true(release_is_fatal(ws, (uint8_t *)q + UNIT)); /* behind the last */
    workspace_release(ws, p);
    workspace_release(ws, (uint8_t *)p + 2 * UNIT);
    assert_true(release_is_fatal(ws, p)); /* again */
    assert_false(release_is_fatal(ws, q));
    workspace_destroy(ws);
}

static void every_allocation_failure_while_planning_is_reported(void **state) {
    (void)state;
    static dag g;
    const graph_node *nodes[NODES_MAX];
    prng r;
    prng_init(&r, 14);
    dag_random(&g, NODES_MAX, &r);
    node_list(nodes, &g);
    for (uint64_t nth = 1;; nth++) {
        workspace_plan *plan = NULL;
        ckks_error err = {0};
        alloc_fault_set(nth);
        const ckks_status rc = workspace_plan_from_nodes(&plan, g.buffers, g.count, nodes, g.count, &err);
        const uint64_t calls = alloc_fault_calls();
        alloc_fault_set(0);
        if (calls < nth) {
            assert_int_equal(rc, CKKS_OK);
            workspace_plan_destroy(plan);
            break;
        }
        assert_int_equal(rc, CKKS_RESOURCE_EXHAUSTED);
        assert_null(plan);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_order_of_a_small_graph_reads_another_buffers_words),
        cmocka_unit_test(no_random_order_of_a_larger_graph_reads_another_buffers_words),
        cmocka_unit_test(a_plan_for_the_recorded_order_alone_is_caught),
        cmocka_unit_test(a_chain_lives_in_two_buffers),
        cmocka_unit_test(independent_branches_share_nothing),
        cmocka_unit_test(a_fixed_workspace_repeats_the_planned_addresses),
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(parts_are_released_one_by_one),
        cmocka_unit_test(what_was_not_handed_out_is_not_taken_back),
        cmocka_unit_test(every_allocation_failure_while_planning_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
