/* The table of operators for people: made of the rows that the compiler works with. */
#include "client/compile/operator.h"

#include <stdlib.h>
#include <string.h>

typedef enum place { PLACE_ENCRYPTED, PLACE_CLIENT, PLACE_CONSTANT, PLACE_REFUSED, PLACE_COUNT } place;

static const char *const place_names[] = {"encrypted", "client", "constants", "refused"};

#define LINES_MAX 512u

typedef struct line {
    place place;
    const char *domain, *type, *note, *way_out;
} line;

static place place_of(const operator_row *row) {
    if (row->flags & OPERATOR_CLIENT_SIDE) return PLACE_CLIENT;
    if (row->flags & OPERATOR_REFUSED) return PLACE_REFUSED;
    if (row->flags & (OPERATOR_CONSTANT_ONLY | OPERATOR_SHAPE_ONLY)) return PLACE_CONSTANT;
    return PLACE_ENCRYPTED;
}

static int by_place_and_name(const void *left, const void *right) {
    const line *a = left, *b = right;
    if (a->place != b->place) return a->place < b->place ? -1 : 1;
    const int domains = strcmp(a->domain, b->domain);
    return domains ? domains : strcmp(a->type, b->type);
}

static uint32_t list_lines(line lines[LINES_MAX]) {
    uint32_t count = 0;
    const operator_row *row;
    for (; count < LINES_MAX && (row = operator_row_at(count)); count++)
        lines[count] = (line){place_of(row), row->domain, row->type, row->note ? row->note : "", ""};
    line refused = {.place = PLACE_REFUSED, .domain = ""};
    for (uint32_t i = 0; operator_refusals(i, &refused.type, &refused.note, &refused.way_out) > i; i++)
        if (count < LINES_MAX) lines[count++] = refused;
    qsort(lines, count, sizeof *lines, by_place_and_name);
    return count;
}

/* names and texts are our own: there is nothing to escape */
static void print_json(FILE *to, const line *l, bool is_first) {
    fprintf(to, "%s{\"operator\":\"%s%s%s\",\"where\":\"%s\",\"note\":\"%s\"", is_first ? "" : ",", l->domain,
            *l->domain ? "." : "", l->type, place_names[l->place], l->note);
    if (*l->way_out) fprintf(to, ",\"way_out\":\"%s\"", l->way_out);
    fprintf(to, "}");
}

static void print_row(FILE *to, const line *l) {
    fprintf(to, "| %s%s%s | %s | %s%s%s |\n", l->domain, *l->domain ? "." : "", l->type,
            place_names[l->place], l->note, *l->way_out ? ": " : "", l->way_out);
}

void compile_operators_print(FILE *to, bool is_json) {
    line lines[LINES_MAX];
    const uint32_t count = list_lines(lines);
    fprintf(to, is_json ? "{\"operators\":["
                        : "| operator | where | what of it, or the way out |\n| --- | --- | --- |\n");
    for (uint32_t i = 0; i < count; i++) {
        if (is_json)
            print_json(to, &lines[i], i == 0);
        else
            print_row(to, &lines[i]);
    }
    if (is_json) fprintf(to, "]}\n");
}
