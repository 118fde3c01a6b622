/*
 * A large file of rows, interrupted in every way: each allocation, each call of the system and each request
 * fails in turn, the journal is cut and altered at every byte. What comes of it is a typed error, and the
 * same command goes on and gives the results of a run that nobody disturbed.
 */
#include "tests/support/stream_words.h"

/* ---- what must hold ---- */

static void an_undisturbed_run_has_every_row_once_in_order(void **state) {
    (void)state;
    const char *at = undisturbed;
    assert_int_equal(strncmp(at, "row,label", 9), 0);
    for (unsigned i = 1; i <= ROWS; i++) {
        at = strchr(at, '\n') + 1;
        assert_int_equal(strtoul(at, NULL, 10), i);
    }
    assert_string_equal(strchr(at, '\n'), "\n");
}

static void the_largest_values_are_those_of_a_sort_and_of_equals_the_first(void **state) {
    (void)state;
    double values[200];
    uint32_t places[200], again[200];
    uint64_t seed = 1;
    for (uint32_t i = 0; i < 200; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
        values[i] = (double)(seed >> 59); /* many are equal */
    }
    for (uint32_t wanted = 1; wanted <= 200; wanted++) {
        assert_int_equal(top_select(places, values, 200, wanted), wanted);
        for (uint32_t k = 1; k < wanted; k++) {
            const double before = values[places[k - 1]], here = values[places[k]];
            assert_true(before > here || (before == here && places[k - 1] < places[k]));
        }
        for (uint32_t i = 0; i < 200; i++) {
            bool is_there = false;
            for (uint32_t k = 0; k < wanted; k++) is_there = is_there || places[k] == i;
            const double last = values[places[wanted - 1]];
            if (!is_there) assert_true(values[i] < last || (values[i] == last && i > places[wanted - 1]));
        }
    }
    assert_int_equal(top_select(again, values, 200, 1000), 200);
    assert_int_equal(top_common(places, again, 200), 200);
    assert_int_equal(top_select(again, values, 200, 0), 0);
    assert_int_equal(top_select(again, values, 0, 5), 0);
    const uint32_t a[] = {5, 1, 9}, b[] = {9, 2, 5};
    assert_int_equal(top_common(a, b, 3), 2);
}

/* the row of the file that begins so */
static const char *row_of(const char *text, unsigned row) {
    for (; row; row--) text = strchr(text, '\n') + 1;
    return text;
}

static void of_each_row_the_largest_values_alone_are_written_when_asked_for(void **state) {
    (void)state;
    ckks_error err;
    infer_stream_figures figures;
    size_t size;
    no_faults();
    wanted_top = 1;
    assert_int_equal(run(3, &figures, &err), CKKS_OK);
    wanted_top = 0;
    char *text = slurp(output, &size), head[32];
    assert_non_null(text);
    snprintf(head, sizeof head, "row,label,index_1,value_1,note\n");
    assert_int_equal(strncmp(text, head, strlen(head)), 0);
    for (unsigned i = 1; i <= ROWS; i++) {
        /* row, label, values, note: of all, and of the largest alone */
        double all[8];
        unsigned count = 0, best = 0;
        const char *at = strchr(row_of(undisturbed, i), ',') + 1;
        for (at = strchr(at, ',') + 1; *at != ',' && *at != '\n' && count < 8;) {
            char *end;
            all[count++] = strtod(at, &end);
            if (*end != ',') break;
            at = end + 1;
        }
        for (unsigned k = 1; k < count; k++)
            if (all[k] > all[best]) best = k;
        at = strchr(row_of(text, i), ',') + 1;
        char *end;
        const unsigned long index = strtoul(strchr(at, ',') + 1, &end, 10);
        assert_int_equal(*end, ',');
        const double value = strtod(end + 1, NULL);
        assert_true(index < count && value == all[index] && all[index] == all[best]);
    }
    free(text);
    clean();
}

/* There is something to go on with, or nothing is left. */
static void only_rows_may_be_left(uint64_t count) {
    const bool has_part = access(part_path, F_OK) == 0, has_journal = access(journal_path, F_OK) == 0;
    if (has_part != (count > 0) || has_journal != (count > 0))
        fail_msg("%lu rows, %s part, %s journal", count, has_part ? "a" : "no", has_journal ? "a" : "no");
}

static void a_disk_that_is_full_at_any_call_costs_no_result(void **state) {
    (void)state;
    uint64_t n = 1, failures = 0, resumed = 0;
    for (;; n++) {
        ckks_error err;
        infer_stream_figures figures;
        clean();
        disk.fail_at = n;
        const ckks_status rc = run(1, &figures, &err);
        if (disk.calls < n) break;
        if (rc == CKKS_OK) fail_msg("call %lu failed unheard", n);
        assert_int_equal(rc, CKKS_IO);
        assert_non_null(strstr(err.message, "No space left"));
        assert_non_null(strstr(err.message, output)); /* it or its .part or .journal */
        failures++;
        if (access(output, F_OK) == 0) { /* all is there but the journal's removal */
            (void)unlink(journal_path);
            continue;
        }
        must_go_on("a full disk");
        resumed++;
    }
    no_faults();
    printf("%lu calls of the system failed in turn, %lu runs went on\n", failures, resumed);
    assert_true(failures > 4 * 4);
}

static void an_allocation_that_fails_costs_no_result(void **state) {
    (void)state;
    uint64_t failures = 0;
    write_rows_file(ROWS, 1);
    for (uint64_t n = 1;; n += n < 120 ? 1 : 7) { /* a row's allocations recur: every seventh of them */
        ckks_error err;
        infer_stream_figures figures;
        clean();
        alloc_fault_set(n);
        const ckks_status rc = run(1, &figures, &err);
        const uint64_t calls = alloc_fault_calls();
        alloc_fault_set(0);
        if (calls < n) break;
        if (rc == CKKS_OK) fail_msg("allocation %lu failed unheard", n);
        if (rc != CKKS_RESOURCE_EXHAUSTED) fail_msg("allocation %lu: %s", n, ckks_status_name(rc));
        failures++;
        only_rows_may_be_left(figures.rows);
        must_go_on("a failed allocation");
    }
    printf("%lu allocations failed in turn\n", failures);
    assert_true(failures > 200);
}

static void a_request_that_fails_ends_the_run_and_the_next_one_goes_on(void **state) {
    (void)state;
    for (uint64_t n = 1; n <= ROWS; n += 13)
        for (uint32_t concurrency = 1; concurrency <= 4; concurrency += 3) {
            ckks_error err;
            infer_stream_figures figures;
            clean();
            server.fail_at = n;
            assert_int_equal(run(concurrency, &figures, &err), CKKS_UNAVAILABLE);
            assert_string_equal(err.message, "gone");
            assert_true(access(output, F_OK) != 0);
            if (concurrency == 1) assert_int_equal(figures.rows, (n - 1) / 64 * 64);
            only_rows_may_be_left(figures.rows);
            must_go_on("a failed request");
        }
}

static void an_interrupt_finishes_the_parts_under_way_and_says_where_it_stopped(void **state) {
    (void)state;
    /* whoever is faster: of four parts, (n - 1) / 64 at most are through and one a worker is under way */
    for (uint64_t n = 1; n <= 129; n += 64)
        for (uint32_t concurrency = 1; (n - 1) / 64 + concurrency < 4; concurrency++) {
            ckks_error err;
            infer_stream_figures figures;
            char text[64];
            clean();
            server.interrupt_at = n;
            assert_int_equal(run(concurrency, &figures, &err), CKKS_CANCELLED);
            snprintf(text, sizeof text, "behind row %llu:", (unsigned long long)figures.rows);
            assert_non_null(strstr(err.message, text));
            assert_true(figures.rows >= n && figures.rows < ROWS);
            must_go_on("an interrupt");
        }
}

/* after two parts: results and journal of an interrupted run */
static void two_parts(char **journal_text, size_t *journal_size, char **part_text, size_t *part_size) {
    ckks_error err;
    infer_stream_figures figures;
    clean();
    no_faults();
    server.fail_at = 129;
    assert_int_equal(run(1, &figures, &err), CKKS_UNAVAILABLE);
    no_faults();
    *journal_text = slurp(journal_path, journal_size);
    *part_text = slurp(part_path, part_size);
    assert_true(*journal_text && *part_text);
}

static void a_journal_cut_anywhere_is_gone_on_with(void **state) {
    (void)state;
    char *journal_text, *part_text;
    size_t journal_size, part_size;
    two_parts(&journal_text, &journal_size, &part_text, &part_size);
    for (size_t kept = 0; kept <= journal_size; kept++) {
        clean();
        spill(part_path, part_text, part_size);
        spill(journal_path, journal_text, kept);
        must_go_on("a journal that was cut");
    }
    free(journal_text), free(part_text);
}

static void a_journal_altered_anywhere_is_refused_or_does_no_harm(void **state) {
    (void)state;
    char *journal_text, *part_text;
    size_t journal_size, part_size;
    uint64_t refused = 0, harmless = 0;
    static const uint8_t changes[] = {0x01, 0x04, 0x20, 0x80};
    two_parts(&journal_text, &journal_size, &part_text, &part_size);
    for (size_t i = 0; i < journal_size; i++)
        for (size_t k = 0; k < sizeof changes; k++) {
            ckks_error err;
            infer_stream_figures figures;
            size_t size;
            clean();
            journal_text[i] = (char)(journal_text[i] ^ changes[k]);
            spill(part_path, part_text, part_size);
            spill(journal_path, journal_text, journal_size);
            journal_text[i] = (char)(journal_text[i] ^ changes[k]);
            const ckks_status rc = run(1, &figures, &err);
            if (rc == CKKS_OK) {
                char *text = slurp(output, &size);
                if (!text || strcmp(text, undisturbed) != 0)
                    fail_msg("byte %zu changed by %02x: other results", i, changes[k]);
                free(text);
                harmless++;
                continue;
            }
            assert_int_equal(rc, CKKS_FAILED_PRECONDITION);
            assert_non_null(strstr(err.message, "to begin again"));
            char *now = slurp(part_path, &size); /* nothing is lost by looking */
            assert_int_equal(size, part_size);
            assert_memory_equal(now, part_text, part_size);
            free(now);
            refused++;
        }
    printf("%lu altered journals refused, %lu gone on with\n", refused, harmless);
    assert_true(refused > 50 * harmless);
    free(journal_text), free(part_text);
}

/* each line good in itself: one of an earlier place where a later one was would give rows twice */
static void lines_of_a_journal_in_another_order_are_refused(void **state) {
    (void)state;
    char *journal_text, *part_text;
    size_t journal_size, part_size, count = 0;
    ckks_error err;
    infer_stream_figures figures;
    two_parts(&journal_text, &journal_size, &part_text, &part_size);
    const char *last = journal_text, *last_but_one = journal_text;
    for (const char *at = journal_text; *at; at = strchr(at, '\n') + 1, count++)
        last_but_one = last, last = at;
    assert_true(journal_text[journal_size - 1] == '\n');
    assert_true(count >= 3);
    const size_t before = (size_t)(last_but_one - journal_text), first = (size_t)(last - last_but_one),
                 second = journal_size - before - first;
    char *swapped = malloc(journal_size);
    assert_non_null(swapped);
    memcpy(swapped, journal_text, before);
    memcpy(swapped + before, last, second);
    memcpy(swapped + before + second, last_but_one, first);
    clean();
    spill(part_path, part_text, part_size);
    spill(journal_path, swapped, journal_size);
    assert_int_equal(run(1, &figures, &err), CKKS_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "to begin again"));
    free(swapped), free(journal_text), free(part_text);
}

/* The last line of a journal, made anew with these numbers as a journal of `identity` would have it. */
static ckks_status open_with_last_line(const char *identity, uint64_t row, uint64_t bytes) {
    size_t size;
    ckks_error err = {0};
    journal *j = NULL;
    rows_place *places = NULL, place = {.row = 5, .offset = 50, .line = 6};
    uint32_t count = 0;
    char line[240], digest[65], check[33];
    uint8_t sum[32];
    clean();
    assert_int_equal(journal_open(&j, &places, &count, output, "mine\n", "head\n", &err), CKKS_OK);
    assert_int_equal(journal_append(j, "0123456789", 10, &place, &err), CKKS_OK);
    place.row = 7;
    assert_int_equal(journal_append(j, "abcdefghij", 10, &place, &err), CKKS_OK);
    journal_close(j);
    free(places);
    char *text = slurp(journal_path, &size);
    assert_non_null(text);
    text[size - 1] = 0;
    char *last = strrchr(text, '\n') + 1;
    const int length = snprintf(line, sizeof line, "%llu %llu 50 6 %s ", (unsigned long long)row,
                                (unsigned long long)bytes, hex_encode(digest, place.digest, 32));
    hash_state *hash = hash_create();
    assert_non_null(hash);
    hash_update(hash, identity, strlen(identity));
    hash_update(hash, line, (size_t)length);
    hash_finish(hash, sum);
    hash_destroy(hash);
    snprintf(line + length, sizeof line - (size_t)length, "%s\n", hex_encode(check, sum, 8));
    const size_t kept = (size_t)(last - text);
    char *forged = malloc(kept + sizeof line);
    assert_non_null(forged);
    memcpy(forged, text, kept);
    snprintf(forged + kept, sizeof line, "%s", line);
    spill(journal_path, forged, kept + strlen(line));
    const ckks_status rc = journal_open(&j, &places, &count, output, "mine\n", "head\n", &err);
    if (rc == CKKS_OK) journal_close(j);
    if (rc != CKKS_OK) assert_non_null(strstr(err.message, "is damaged"));
    free(places), free(text), free(forged);
    clean();
    return rc;
}

static void a_line_must_be_of_this_journal_and_count_on_from_the_one_before(void **state) {
    (void)state;
    const uint64_t bytes = 5 + 10 + 10; /* head and two parts */
    assert_int_equal(open_with_last_line("mine\n", 7, bytes), CKKS_OK);
    assert_int_equal(open_with_last_line("mine\n", 5, bytes - 10), CKKS_OK); /* a part of no rows */
    assert_int_equal(open_with_last_line("yours\n", 7, bytes), CKKS_FAILED_PRECONDITION);
    assert_int_equal(open_with_last_line("mine\n", 4, bytes), CKKS_FAILED_PRECONDITION);
    assert_int_equal(open_with_last_line("mine\n", 7, bytes - 11), CKKS_FAILED_PRECONDITION);
}

static void a_journal_of_another_model_key_or_rounding_is_refused_and_kept(void **state) {
    (void)state;
    char *journal_text, *part_text, *now;
    size_t journal_size, part_size, size;
    ckks_error err;
    infer_stream_figures figures;
    client_model other = *model;
    two_parts(&journal_text, &journal_size, &part_text, &part_size);
    other.has_digest = true;
    memset(other.digest, 7, sizeof other.digest);
    assert_int_equal(run_with(&other, 1e-3, 1, &figures, &err), CKKS_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "is of another run"));
    other = *model;
    other.params.id[0] ^= 1; /* keys belong to parameters */
    assert_int_equal(run_with(&other, 1e-3, 1, &figures, &err), CKKS_FAILED_PRECONDITION);
    assert_int_equal(run_with(model, 1e-2, 1, &figures, &err), CKKS_FAILED_PRECONDITION);
    wanted_top = 1; /* other columns */
    assert_int_equal(run(1, &figures, &err), CKKS_FAILED_PRECONDITION);
    wanted_top = 0;
    now = slurp(journal_path, &size);
    assert_int_equal(size, journal_size);
    assert_memory_equal(now, journal_text, size);
    free(now), free(journal_text), free(part_text);
    must_go_on("four refusals");
}

static void rows_that_changed_since_are_refused_and_so_are_results_that_went(void **state) {
    (void)state;
    char *journal_text, *part_text;
    size_t journal_size, part_size;
    ckks_error err;
    infer_stream_figures figures;
    two_parts(&journal_text, &journal_size, &part_text, &part_size);
    write_rows_file(ROWS, 2);
    assert_int_equal(run(1, &figures, &err), CKKS_DIGEST_MISMATCH);
    write_rows_file(100, 1); /* shorter than what was done */
    assert_int_equal(run(1, &figures, &err), CKKS_DIGEST_MISMATCH);
    write_rows_file(ROWS, 1);
    spill(part_path, part_text, part_size - 1);
    assert_int_equal(run(1, &figures, &err), CKKS_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "counts more results than there are"));
    spill(part_path, part_text, part_size);
    free(journal_text), free(part_text);
    must_go_on("rows that came back");
}

static void a_journal_without_results_is_said_to_be_left_over(void **state) {
    (void)state;
    char *journal_text, *part_text;
    size_t journal_size, part_size;
    ckks_error err;
    infer_stream_figures figures;
    two_parts(&journal_text, &journal_size, &part_text, &part_size);
    assert_int_equal(unlink(part_path), 0); /* it got its name, and then the power failed */
    assert_int_equal(run(1, &figures, &err), CKKS_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "left over"));
    spill(part_path, part_text, part_size);
    free(journal_text), free(part_text);
    must_go_on("results that came back");
}

static void two_runs_on_one_file_do_not_mix(void **state) {
    (void)state;
    char *journal_text, *part_text, *text;
    size_t journal_size, part_size, size;
    ckks_error err;
    infer_stream_figures figures;
    two_parts(&journal_text, &journal_size, &part_text, &part_size);
    for (int begun = 1; begun >= 0; begun--) { /* the other is in the middle, or at its very beginning */
        if (!begun) assert_int_equal(unlink(journal_path), 0);
        const int other = open(part_path, O_WRONLY | O_CLOEXEC);
        assert_true(other >= 0 && flock(other, LOCK_EX | LOCK_NB) == 0);
        assert_int_equal(run(1, &figures, &err), CKKS_FAILED_PRECONDITION);
        assert_non_null(strstr(err.message, "another run"));
        assert_non_null(text = slurp(part_path, &size));
        assert_true(size == part_size && !memcmp(text, part_text, size));
        free(text);
        close(other);
    }
    free(journal_text), free(part_text);
    must_go_on("a rival");
}

/* The steps at a run's end, made by another one while this one opens its files. */
static int others_part;
static void other_ends(uint32_t number) {
    if (number == 0) assert_int_equal(rename(part_path, output), 0);
    if (number == 1) assert_int_equal(unlink(journal_path), 0);
    if (number == 2) close(others_part);
}

static void a_run_that_comes_while_another_ends_is_refused_or_begins_anew(void **state) {
    (void)state;
    enum { CALLS = 10 };
    uint32_t refused = 0, begun = 0;
    for (uint64_t a = 1; a <= CALLS; a++)
        for (uint64_t b = a; b <= CALLS; b++)
            for (uint64_t c = b; c <= CALLS; c++) {
                char *journal_text, *part_text, *text;
                size_t journal_size, part_size, size;
                ckks_error err;
                infer_stream_figures figures;
                two_parts(&journal_text, &journal_size, &part_text, &part_size);
                others_part = open(part_path, O_WRONLY | O_CLOEXEC);
                assert_true(others_part >= 0 && flock(others_part, LOCK_EX | LOCK_NB) == 0);
                memcpy(meanwhile.at, (uint64_t[]){a, b, c}, sizeof meanwhile.at);
                meanwhile.calls = 0, meanwhile.step = other_ends;
                const ckks_status rc = run(1, &figures, &err);
                while (meanwhile.calls < CALLS) a_moment(); /* it ends afterwards */
                meanwhile.step = NULL;
                if (rc != CKKS_OK && (rc != CKKS_FAILED_PRECONDITION || !strstr(err.message, "another run")))
                    fail_msg("before calls %lu, %lu, %lu: %s: %s", a, b, c, ckks_status_name(rc),
                             err.message);
                assert_non_null(text = slurp(output, &size));
                if (strcmp(text, rc == CKKS_OK ? undisturbed : part_text) != 0)
                    fail_msg("before calls %lu, %lu, %lu: other results", a, b, c);
                refused += rc != CKKS_OK, begun += rc == CKKS_OK;
                assert_true(access(part_path, F_OK) != 0 && access(journal_path, F_OK) != 0);
                free(journal_text), free(part_text), free(text);
            }
    printf("  %u refused, %u begun anew\n", refused, begun);
    assert_true(refused > 0 && begun > 0);
    must_go_on("one that ended");
}

static void a_bad_row_is_named_and_what_came_before_it_stays(void **state) {
    (void)state;
    ckks_error err;
    infer_stream_figures figures;
    clean();
    write_rows_file(ROWS, 1);
    size_t size;
    char *text = slurp(input, &size), *line = text;
    for (int i = 0; i < 150; i++) line = strchr(line, '\n') + 1; /* row 150 */
    *line = 'x';
    spill(input, text, size);
    assert_int_not_equal(run(1, &figures, &err), CKKS_OK);
    assert_non_null(strstr(err.message, "151"));
    assert_int_equal(figures.rows, 128);
    only_rows_may_be_left(128);
    clean();
    line = strchr(text, '\n') + 1;
    *line = 'x';
    spill(input, text, size);
    assert_int_not_equal(run(1, &figures, &err), CKKS_OK);
    only_rows_may_be_left(0);
    free(text);
    write_rows_file(ROWS, 1);
    must_go_on("a bad row");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_undisturbed_run_has_every_row_once_in_order),
        cmocka_unit_test(the_largest_values_are_those_of_a_sort_and_of_equals_the_first),
        cmocka_unit_test(of_each_row_the_largest_values_alone_are_written_when_asked_for),
        cmocka_unit_test(a_disk_that_is_full_at_any_call_costs_no_result),
        cmocka_unit_test(an_allocation_that_fails_costs_no_result),
        cmocka_unit_test(a_request_that_fails_ends_the_run_and_the_next_one_goes_on),
        cmocka_unit_test(an_interrupt_finishes_the_parts_under_way_and_says_where_it_stopped),
        cmocka_unit_test(a_journal_cut_anywhere_is_gone_on_with),
        cmocka_unit_test(a_journal_altered_anywhere_is_refused_or_does_no_harm),
        cmocka_unit_test(lines_of_a_journal_in_another_order_are_refused),
        cmocka_unit_test(a_line_must_be_of_this_journal_and_count_on_from_the_one_before),
        cmocka_unit_test(a_journal_of_another_model_key_or_rounding_is_refused_and_kept),
        cmocka_unit_test(rows_that_changed_since_are_refused_and_so_are_results_that_went),
        cmocka_unit_test(a_journal_without_results_is_said_to_be_left_over),
        cmocka_unit_test(two_runs_on_one_file_do_not_mix),
        cmocka_unit_test(a_run_that_comes_while_another_ends_is_refused_or_begins_anew),
        cmocka_unit_test(a_bad_row_is_named_and_what_came_before_it_stays),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
