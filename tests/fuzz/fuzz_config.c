/* Configuration and token files: what an administrator's editor, or worse, may leave behind. First byte:
 * which of the two. */
#include "daemon/config.h"
#include "proto/token.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_token(const char *text, size_t size) {
    token_table table;
    ckks_error err = {0};
    char line[TOKEN_LINE_MAX], line_again[TOKEN_LINE_MAX];
    if (token_table_parse(&table, text, size, "tokens", &err) != CKKS_OK) {
        CKKS_ASSERT(err.code != CKKS_OK && err.message[0] && !table.entries);
        return;
    }
    for (size_t i = 0; i < table.count; i++) { /* what was read can be written and read again */
        token_table again;
        token_entry_print(&table.entries[i], line);
        CKKS_ASSERT(token_table_parse(&again, line, strlen(line), "line", NULL) == CKKS_OK);
        CKKS_ASSERT(again.count == 1 && strcmp(token_entry_print(again.entries, line_again), line) == 0);
        token_table_fini(&again);
        CKKS_ASSERT(!token_table_verify(&table, table.entries[i].id));
    }
    char *token = malloc(size + 1);
    CKKS_ASSERT(token);
    memcpy(token, text, size);
    token[size] = 0;
    CKKS_ASSERT(!token_table_verify(&table, token));
    free(token);
    token_table_fini(&table);
}

static void fuzz_configuration(const char *text, size_t size) {
    ckks_error err = {0};
    config *c = calloc(1, sizeof *c);
    CKKS_ASSERT(c);
    if (config_parse(c, text, size, "conf", &err) != CKKS_OK)
        CKKS_ASSERT(err.code != CKKS_OK && strncmp(err.message, "conf", 4) == 0);
    else
        CKKS_ASSERT(c->control.count >= 1 && c->bulk.count >= 1 && c->bytes_max >= c->bulk_message_bytes);
    free(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    char *text = malloc(size); /* exactly as long as the input, so that a read past it is seen */
    CKKS_ASSERT(text);
    memcpy(text, data + 1, size - 1);
    if (data[0] & 1)
        fuzz_token(text, size - 1);
    else
        fuzz_configuration(text, size - 1);
    free(text);
    return 0;
}
