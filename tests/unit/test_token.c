/* Tokens: made once, verified in constant time, kept in a file that says at which line it is wrong. */
#include "proto/token.h"

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "tests/support/alloc_fault.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define HEX "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static ckks_status parse(token_table *out, const char *text, ckks_error *err) {
    return token_table_parse(out, text, strlen(text), "tokens", err);
}

static void a_generated_token_is_verified_by_its_line(void **state) {
    (void)state;
    char text[TOKEN_TEXT_SIZE], line[TOKEN_LINE_MAX];
    token_entry entry;
    token_table table = {0};
    assert_int_equal(
        token_generate(text, &entry, "alice-1", "acme", TOKEN_SCOPE_INFER | TOKEN_SCOPE_ADMIN, NULL),
        CKKS_OK);
    entry.quota = (token_quota){.key_bytes = 5u << 20, .key_sets = 3, .queued = 7, .key_days = 90};
    assert_int_equal(parse(&table, token_entry_print(&entry, line), NULL), CKKS_OK);
    const token_entry *found = token_table_verify(&table, text);
    assert_non_null(found);
    assert_string_equal(found->tenant, "acme");
    assert_int_equal(found->scopes, TOKEN_SCOPE_INFER | TOKEN_SCOPE_ADMIN);
    assert_int_equal(found->quota.key_bytes, 5u << 20);
    assert_int_equal(found->quota.key_days, 90);
    assert_int_equal(found->quota.key_sets, 3);
    assert_int_equal(found->quota.queued, 7);
    token_table_fini(&table);
}

static void a_token_holds_32_random_bytes_and_its_line_only_their_hash(void **state) {
    (void)state;
    char text[TOKEN_TEXT_SIZE], other[TOKEN_TEXT_SIZE], line[TOKEN_LINE_MAX];
    uint8_t secret[32], digest[32];
    token_entry entry;
    assert_int_equal(token_generate(text, &entry, "a", "t", TOKEN_SCOPE_INFER, NULL), CKKS_OK);
    assert_true(hex_decode(secret, sizeof secret, text + 2));
    sha256(digest, secret, sizeof secret);
    assert_memory_equal(digest, entry.digest, 32);
    assert_null(strstr(token_entry_print(&entry, line), text + 2));
    assert_int_equal(token_generate(other, &entry, "a", "t", TOKEN_SCOPE_INFER, NULL), CKKS_OK);
    assert_string_not_equal(text, other);
}

static void wrong_tokens_are_refused_whatever_is_wrong(void **state) {
    (void)state;
    char good[TOKEN_TEXT_SIZE], line[TOKEN_LINE_MAX], bad[200];
    token_entry entry;
    token_table table = {0}, empty = {0};
    token_generate(good, &entry, "bob", "t", TOKEN_SCOPE_INFER, NULL);
    parse(&table, token_entry_print(&entry, line), NULL);
    assert_null(token_table_verify(&empty, good));
    assert_null(token_table_verify(&table, ""));
    assert_null(token_table_verify(&table, "bob"));
    assert_null(token_table_verify(&table, "bob."));
    assert_null(token_table_verify(&table, "." HEX));
    assert_null(token_table_verify(&table, "bob." HEX));
    snprintf(bad, sizeof bad, "bo%s", good + 3); /* another id */
    assert_null(token_table_verify(&table, bad));
    snprintf(bad, sizeof bad, "%s0", good); /* longer */
    assert_null(token_table_verify(&table, bad));
    for (size_t i = 4; i < strlen(good); i++) { /* each digit counts */
        memcpy(bad, good, sizeof good);
        bad[i] = bad[i] == '0' ? '1' : '0';
        assert_null(token_table_verify(&table, bad));
    }
    memset(bad, 'x', sizeof bad - 1), bad[sizeof bad - 1] = 0;
    assert_null(token_table_verify(&table, bad));
    for (size_t i = 0; i < sizeof table.entries[0].digest; i++) { /* and each byte of what is kept of it */
        table.entries[0].digest[i] ^= 0x80;
        assert_null(token_table_verify(&table, good));
        table.entries[0].digest[i] ^= 0x80;
    }
    assert_non_null(token_table_verify(&table, good));
    token_table_fini(&table);
}

static void a_wrong_line_is_named_by_file_and_line(void **state) {
    (void)state;
    static const struct {
        const char *text, *message, *field;
        ckks_status code;
    } cases[] = {
        {"\n# comment\nalice\n", "tokens:3: expected: id sha256", "line", CKKS_MALFORMED},
        {"a " HEX " t infer\nal!ce " HEX " t infer\n", "tokens:2: id must be", "id", CKKS_MALFORMED},
        {"a 0123 t infer\n", "tokens:1: expected 64 hexadecimal", "sha256", CKKS_MALFORMED},
        {"a " HEX " t/u infer\n", "tokens:1: tenant must be", "tenant", CKKS_MALFORMED},
        {"a " HEX " t infer,rule\n", "tokens:1: unknown scope 'rule'", "scopes", CKKS_MALFORMED},
        {"a " HEX " t ,\n", "tokens:1: unknown scope ''", "scopes", CKKS_MALFORMED},
        {"a " HEX " t infer quota=speed:3\n", "tokens:1: unknown quota 'speed'", "quota", CKKS_MALFORMED},
        {"a " HEX " t infer quota=queued:0\n", "tokens:1: quota queued needs", "quota", CKKS_MALFORMED},
        {"a " HEX " t infer quota=queued:4294967296\n", "quota queued needs", "quota", CKKS_MALFORMED},
        {"a " HEX " t infer quota=key_bytes:99999999999T\n", "quota key_bytes needs", "quota",
         CKKS_MALFORMED},
        {"a " HEX " t infer limit=1\n", "expected quota=", "quota", CKKS_MALFORMED},
        {"a " HEX " t infer quota=queued:1 more\n", "more than five words", "line", CKKS_MALFORMED},
        {"a " HEX " t infer\nb " HEX " t infer\na " HEX " u infer\n", "'a' stands twice", "id",
         CKKS_ALREADY_EXISTS},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        token_table table;
        ckks_error err = {0};
        assert_int_equal(parse(&table, cases[i].text, &err), cases[i].code);
        if (!strstr(err.message, cases[i].message)) fail_msg("case %zu: %s", i, err.message);
        assert_string_equal(err.field, cases[i].field);
        assert_null(table.entries);
    }
}

static void comments_blank_lines_and_carriage_returns_are_no_tokens(void **state) {
    (void)state;
    token_table table;
    assert_int_equal(
        parse(&table, "# x\r\n\r\n   \n\tb " HEX "  t\tinfer,key-write # why\r\na " HEX " t admin", NULL),
        CKKS_OK);
    assert_int_equal(table.count, 2);
    assert_string_equal(table.entries[0].id, "a"); /* sorted */
    assert_int_equal(table.entries[1].scopes, TOKEN_SCOPE_INFER | TOKEN_SCOPE_KEY_WRITE);
    token_table_fini(&table);
}

static void a_name_has_at_most_63_plain_characters(void **state) {
    (void)state;
    char name[80];
    memset(name, 'a', sizeof name);
    name[63] = 0;
    assert_true(token_name_is_valid(name));
    name[63] = 'a', name[64] = 0;
    assert_false(token_name_is_valid(name));
    assert_false(token_name_is_valid(""));
    assert_false(token_name_is_valid("a.b"));
    assert_false(token_name_is_valid("a b"));
    assert_false(token_name_is_valid("\xc3\xa4"));
}

static void generating_refuses_bad_names_and_no_scopes(void **state) {
    (void)state;
    char text[TOKEN_TEXT_SIZE];
    token_entry entry;
    ckks_error err = {0};
    assert_int_equal(token_generate(text, &entry, "a.b", "t", TOKEN_SCOPE_INFER, &err),
                     CKKS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "id");
    memset(&err, 0, sizeof err);
    assert_int_equal(token_generate(text, &entry, "a", "", TOKEN_SCOPE_INFER, &err), CKKS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "tenant");
    memset(&err, 0, sizeof err);
    assert_int_equal(token_generate(text, &entry, "a", "t", 0, &err), CKKS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "scopes");
    assert_int_equal(token_generate(text, &entry, "a", "t", 8, NULL), CKKS_INVALID_ARGUMENT);
}

/* ---- files ---- */

static char folder[] = "/tmp/test-token.XXXXXX";
static char path[64];

static int make_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/tokens", folder);
    return 0;
}
static int drop_folder(void **state) {
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static void adding_keeps_comments_refuses_known_ids_and_sets_the_mode(void **state) {
    (void)state;
    char text[TOKEN_TEXT_SIZE], content[4096] = "";
    struct stat st;
    token_entry entry;
    token_table table;
    ckks_error err = {0};
    FILE *file = fopen(path, "w");
    fputs("# who may talk to us\nold " HEX " t infer # no newline after this", file);
    fclose(file);
    chmod(path, 0600);
    token_generate(text, &entry, "new", "acme", TOKEN_SCOPE_INFER, NULL);
    assert_int_equal(token_file_add(path, &entry, &err), CKKS_OK);
    assert_int_equal(token_file_add(path, &entry, &err), CKKS_ALREADY_EXISTS);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0640);
    file = fopen(path, "r");
    assert_true(fread(content, 1, sizeof content - 1, file) > 0);
    fclose(file);
    assert_non_null(strstr(content, "# who may talk to us\n"));
    assert_non_null(strstr(content, "# no newline after this\nnew "));
    assert_int_equal(token_table_load(&table, path, NULL), CKKS_OK);
    assert_non_null(token_table_verify(&table, text));
    token_table_fini(&table);
    unlink(path);
}

static void adding_to_no_file_makes_one(void **state) {
    (void)state;
    char text[TOKEN_TEXT_SIZE];
    token_entry entry;
    token_table table;
    token_generate(text, &entry, "first", "acme", TOKEN_SCOPE_INFER, NULL);
    assert_int_equal(token_file_add(path, &entry, NULL), CKKS_OK);
    assert_int_equal(token_table_load(&table, path, NULL), CKKS_OK);
    assert_int_equal(table.count, 1);
    token_table_fini(&table);
    unlink(path);
}

static void a_file_that_lets_others_in_is_refused(void **state) {
    (void)state;
    static const mode_t modes[] = {0644, 0660, 0642, 0641};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        token_table table;
        ckks_error err = {0};
        FILE *file = fopen(path, "w");
        fclose(file);
        chmod(path, modes[i]);
        assert_int_equal(token_table_load(&table, path, &err), CKKS_PERMISSION_DENIED);
        unlink(path);
    }
}

static void a_missing_file_is_not_found_and_a_folder_is_no_file(void **state) {
    (void)state;
    token_table table;
    assert_int_equal(token_table_load(&table, "/nonexistent/tokens", NULL), CKKS_NOT_FOUND);
    assert_int_equal(token_table_load(&table, folder, NULL), CKKS_IO);
}

static void every_failing_allocation_is_reported_and_leaks_nothing(void **state) {
    (void)state;
    char text[8192] = "";
    for (int i = 0; i < 40; i++) {
        char line[128];
        snprintf(line, sizeof line, "id%d " HEX " t infer\n", i);
        strcat(text, line);
    }
    uint32_t failures = 0;
    for (uint64_t n = 1; n < 100; n++) {
        token_table table;
        alloc_fault_set(n);
        const ckks_status rc = parse(&table, text, NULL);
        const uint64_t calls = alloc_fault_calls();
        alloc_fault_set(0);
        token_table_fini(&table);
        if (rc == CKKS_OK && calls < n) break;
        if (rc != CKKS_OK) failures++;
    }
    assert_true(failures >= 2);
}

static void tokens_added_at_the_same_time_are_all_there(void **state) {
    (void)state;
    enum { WRITERS = 6, EACH = 25 };
    char shared[] = "/tmp/ckks-tokens-race-XXXXXX", id[TOKEN_NAME_MAX + 1], text[TOKEN_TEXT_SIZE];
    const int fd = mkstemp(shared);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(chmod(shared, 0640), 0);
    for (int w = 0; w < WRITERS; w++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child) continue;
        for (int i = 0; i < EACH; i++) {
            token_entry entry;
            snprintf(id, sizeof id, "writer-%d-%d", w, i);
            if (token_generate(text, &entry, id, "tenant", TOKEN_SCOPE_INFER, NULL) != CKKS_OK ||
                token_file_add(shared, &entry, NULL) != CKKS_OK)
                _exit(1);
        }
        _exit(0);
    }
    for (int w = 0, status; w < WRITERS; w++) {
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    token_table table = {0};
    assert_int_equal(token_table_load(&table, shared, NULL), CKKS_OK);
    assert_int_equal(table.count, WRITERS * EACH);
    token_table_fini(&table);
    (void)unlink(shared);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_generated_token_is_verified_by_its_line),
        cmocka_unit_test(a_token_holds_32_random_bytes_and_its_line_only_their_hash),
        cmocka_unit_test(wrong_tokens_are_refused_whatever_is_wrong),
        cmocka_unit_test(a_wrong_line_is_named_by_file_and_line),
        cmocka_unit_test(comments_blank_lines_and_carriage_returns_are_no_tokens),
        cmocka_unit_test(a_name_has_at_most_63_plain_characters),
        cmocka_unit_test(generating_refuses_bad_names_and_no_scopes),
        cmocka_unit_test(adding_keeps_comments_refuses_known_ids_and_sets_the_mode),
        cmocka_unit_test(adding_to_no_file_makes_one),
        cmocka_unit_test(a_file_that_lets_others_in_is_refused),
        cmocka_unit_test(a_missing_file_is_not_found_and_a_folder_is_no_file),
        cmocka_unit_test(every_failing_allocation_is_reported_and_leaks_nothing),
        cmocka_unit_test(tokens_added_at_the_same_time_are_all_there),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
