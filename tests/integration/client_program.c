/*
 * A program of a client developer: libckksclient alone, as it is installed. It keeps its secret key in a
 * file, registers the evaluation keys, and prints a label and values for each row of a CSV table (standard
 * input, names of columns in the first line, no quotes).
 *
 *   cc client_program.c $(pkg-config --cflags --libs ckksclient) -o predict
 *   predict tcp://host:7000 token-file model key-file <rows.csv
 *
 * Plain C99 that is C++ as well. Exit codes are those of ckksctl: a ckksc_status.
 */
#include <ckksclient.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE_BYTES  65536
#define COLUMNS_MAX 1024

static int fail(const char *what, const ckksc_error *error) {
    fprintf(stderr, "%s: %s%s%s (%s)\n", what, error->field, error->field[0] ? ": " : "", error->message,
            error->code);
    return (int)error->status;
}

static int complain(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    return CKKSC_OTHER;
}

/* the first line, without its end */
static int read_token(char *token, size_t capacity, const char *path) {
    FILE *file = fopen(path, "r");
    if (!file || !fgets(token, (int)capacity, file)) {
        if (file) fclose(file);
        return complain(path);
    }
    fclose(file);
    token[strcspn(token, "\r\n")] = 0;
    return CKKSC_OK;
}

static int load_key(ckksc_secret_key **key, int fd, const char *path, ckksc_error *error) {
    struct stat st;
    if (fstat(fd, &st) != 0) return complain(path);
    const size_t bytes = (size_t)st.st_size;
    void *image = malloc(bytes ? bytes : 1);
    const ssize_t got = image ? read(fd, image, bytes) : -1;
    int code = got == (ssize_t)bytes ? CKKSC_OK : complain(path);
    if (code == CKKSC_OK && ckksc_secret_key_import(key, image, bytes, NULL, 0, error) != CKKSC_OK)
        code = fail(path, error);
    ckksc_free(image, bytes); /* ours, and wiped */
    return code;
}

static int make_key(ckksc_secret_key **key, const char *path, const ckksc_model *model, ckksc_error *error) {
    uint8_t *image = NULL;
    size_t bytes = 0;
    if (ckksc_secret_key_generate(key, model, error) != CKKSC_OK ||
        ckksc_secret_key_export(&image, &bytes, *key, NULL, error) != CKKSC_OK)
        return fail("secret key", error);
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    const int is_written = fd >= 0 && write(fd, image, bytes) == (ssize_t)bytes && fsync(fd) == 0;
    if (fd >= 0) close(fd);
    ckksc_free(image, bytes);
    return is_written ? CKKSC_OK : complain(path);
}

static int open_key(ckksc_secret_key **key, const char *path, const ckksc_model *model, ckksc_error *error) {
    const int fd = open(path, O_RDONLY);
    if (fd < 0) return errno == ENOENT ? make_key(key, path, model, error) : complain(path);
    const int code = load_key(key, fd, path, error);
    close(fd);
    return code;
}

/* a number, NAN where there is none, or the number of a text that the model knows */
static double cell_value(const ckksc_model *model, uint32_t column, const char *cell) {
    if (!ckksc_model_category(model, column, 0)) return cell[0] ? strtod(cell, NULL) : NAN;
    for (uint32_t k = 0; ckksc_model_category(model, column, k); k++)
        if (!strcmp(ckksc_model_category(model, column, k), cell)) return k;
    return -1;
}

/* cells of a line, cut in place */
static uint32_t split(char **cells, char *line) {
    uint32_t count = 0;
    line[strcspn(line, "\r\n")] = 0;
    for (char *at = line; at && count < COLUMNS_MAX; count++) {
        cells[count] = at;
        if ((at = strchr(at, ',')) != NULL) *at++ = 0;
    }
    return count;
}

typedef struct table {
    char line[LINE_BYTES];
    char *cells[COLUMNS_MAX];
    uint32_t place[COLUMNS_MAX]; /* of each of the model's columns in a line */
} table;

static int read_head(table *t, const ckksc_model *model, uint32_t input_count) {
    const uint32_t count = fgets(t->line, LINE_BYTES, stdin) ? split(t->cells, t->line) : 0;
    for (uint32_t i = 0; i < input_count; i++) {
        const char *name = ckksc_model_column(model, i);
        for (t->place[i] = 0; t->place[i] < count && (!name || strcmp(t->cells[t->place[i]], name) != 0);)
            t->place[i]++;
        if (t->place[i] < count) continue;
        fprintf(stderr, "there is no column %s\n", name ? name : "(the model takes a tensor)");
        return CKKSC_INPUT;
    }
    return CKKSC_OK;
}

static int predict(ckksc_connection *server, const ckksc_model *model, const ckksc_secret_key *key,
                   const ckksc_key_set *keys, ckksc_error *error) {
    ckksc_model_info info = CKKSC_MODEL_INFO_INIT;
    if (ckksc_model_describe(&info, model, error) != CKKSC_OK) return fail("model", error);
    table *t = (table *)calloc(1, sizeof *t);
    double *row = (double *)calloc(info.input_count, sizeof *row);
    double *scores = (double *)calloc(2 * (size_t)info.score_count + 2, sizeof *scores),
           *values = scores + info.score_count;
    int code = t && row && scores && info.input_count <= COLUMNS_MAX ? read_head(t, model, info.input_count)
                                                                     : CKKSC_OTHER;
    while (code == CKKSC_OK && fgets(t->line, LINE_BYTES, stdin)) {
        uint32_t value_count = 0;
        char label[128];
        const uint32_t count = split(t->cells, t->line);
        for (uint32_t i = 0; i < info.input_count; i++)
            row[i] = t->place[i] < count ? cell_value(model, i, t->cells[t->place[i]]) : NAN;
        if (ckksc_infer(scores, server, model, key, ckksc_key_set_id(keys), row, error) != CKKSC_OK ||
            ckksc_classify(values, info.score_count + 2, &value_count, label, sizeof label, model, scores,
                           error) != CKKSC_OK) {
            code = fail("row", error);
            break;
        }
        printf("%s", label);
        for (uint32_t i = 0; i < value_count; i++) printf("\t%.3f", values[i]);
        printf("\n");
    }
    ckksc_free(row, info.input_count * sizeof *row);
    ckksc_free(scores, (2 * (size_t)info.score_count + 2) * sizeof *scores);
    ckksc_free(t, sizeof *t);
    return code;
}

int main(int argc, char **argv) {
    char token[256];
    ckksc_error error = CKKSC_ERROR_INIT;
    ckksc_connect_options where = CKKSC_CONNECT_OPTIONS_INIT;
    ckksc_connection *server = NULL;
    ckksc_model *model = NULL;
    ckksc_secret_key *key = NULL;
    ckksc_key_set *keys = NULL;
    if (argc != 5) {
        fprintf(stderr, "usage: %s ADDRESS TOKEN-FILE MODEL KEY-FILE (libckksclient %s)\n", argv[0],
                ckksc_version());
        return CKKSC_USAGE;
    }
    int code = read_token(token, sizeof token, argv[2]);
    where.address = argv[1], where.token = token;
    if (code == CKKSC_OK && ckksc_connect(&server, &where, &error) != CKKSC_OK) code = fail(argv[1], &error);
    if (code == CKKSC_OK && ckksc_model_fetch(&model, server, argv[3], NULL, NULL, &error) != CKKSC_OK)
        code = fail(argv[3], &error);
    if (code == CKKSC_OK) code = open_key(&key, argv[4], model, &error);
    ckksc_model_info info = CKKSC_MODEL_INFO_INIT;
    if (code == CKKSC_OK && ckksc_model_describe(&info, model, &error) != CKKSC_OK)
        code = fail(argv[3], &error);
    if (code == CKKSC_OK && info.key_count &&
        (ckksc_key_set_generate(&keys, key, &model, 1, &error) != CKKSC_OK ||
         ckksc_register(server, keys, &error) != CKKSC_OK))
        code = fail("keys", &error);
    if (code == CKKSC_OK) code = predict(server, model, key, keys, &error);
    ckksc_key_set_destroy(keys);
    ckksc_secret_key_destroy(key);
    ckksc_model_destroy(model);
    ckksc_disconnect(server);
    return code;
}
