/* The page of `ckksctl explain --html`: the layers from left to right, as wide as they take time, as high as
 * their levels; the same figures as a table below. One file, no scripts, no references. */
#include "client/ctl/explain.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PICTURE_WIDTH  960.0
#define PICTURE_HEIGHT 260.0
#define LAYER_WIDTH    14.0 /* at least */

/* names come from a file: nothing of them is markup */
static void put_text(FILE *to, const char *text) {
    for (; *text; text++) switch (*text) {
        case '<':
            fputs("&lt;", to);
            break;
        case '>':
            fputs("&gt;", to);
            break;
        case '&':
            fputs("&amp;", to);
            break;
        case '"':
            fputs("&quot;", to);
            break;
        default:
            fputc((unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text, to);
        }
}

static double weight_of(const explain_row *r) {
    return r->measured_ms >= 0    ? r->measured_ms
           : r->predicted_ms >= 0 ? r->predicted_ms
                                  : 1 + (double)(r->rotations + r->key_switches);
}

static const char *colour_of(const explain_row *r) {
    if (r->degree) return "#c46a2b";
    if (r->rotations) return "#2f6f9f";
    return r->key_switches ? "#7a4f9a" : "#5d8a4a";
}

static void put_layer(FILE *to, const explain_row *r, double x, double width, double step) {
    const double top = PICTURE_HEIGHT - 40 - step * (r->level_in + 0.4);
    const double height = fmax(step * (r->level_in + 0.4 - r->level_out), 6);
    fprintf(to, "<g><title>");
    put_text(to, r->source);
    fprintf(to, " (%s): levels %u to %u, %u rotations", r->kind, r->level_in, r->level_out, r->rotations);
    if (r->measured_ms >= 0) fprintf(to, ", %.3f ms", r->measured_ms);
    fprintf(to, "</title><rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"3\" fill=\"%s\"/>",
            x, top, width - 2, height, colour_of(r));
    if (width > 60) {
        fprintf(to, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"11\" text-anchor=\"middle\">", x + width / 2,
                PICTURE_HEIGHT - 22);
        put_text(to, r->source);
        fprintf(to, "</text>");
        if (r->measured_ms >= 0)
            fprintf(to,
                    "<text x=\"%.1f\" y=\"%.1f\" font-size=\"11\" text-anchor=\"middle\" fill=\"#666\">%.2f "
                    "ms</text>",
                    x + width / 2, PICTURE_HEIGHT - 8, r->measured_ms);
    }
    fprintf(to, "</g>\n");
}

static void put_picture(FILE *to, const explanation *e) {
    double total = 0, x = 40;
    uint32_t levels = 1;
    for (uint32_t i = 0; i < e->count; i++) {
        total += weight_of(&e->rows[i]);
        if (e->rows[i].level_in > levels) levels = e->rows[i].level_in;
    }
    const double room = fmax(PICTURE_WIDTH - 50 - LAYER_WIDTH * e->count, 0);
    const double full = PICTURE_WIDTH - 50 - room + room, step = (PICTURE_HEIGHT - 70) / (levels + 1);
    fprintf(to,
            "<svg viewBox=\"0 0 %.0f %.0f\" width=\"100%%\" role=\"img\" "
            "aria-label=\"layers by time and level\" font-family=\"sans-serif\">\n",
            fmax(PICTURE_WIDTH, full + 50), PICTURE_HEIGHT);
    for (uint32_t level = 0; level <= levels; level++) {
        const double y = PICTURE_HEIGHT - 40 - step * level;
        fprintf(
            to,
            "<line x1=\"36\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/><text x=\"30\" y=\"%.1f\" "
            "font-size=\"11\" text-anchor=\"end\" fill=\"#666\">%u</text>\n",
            fmax(PICTURE_WIDTH, full + 50) - 8, y, y, y + 4, level);
    }
    fprintf(to, "<text x=\"6\" y=\"14\" font-size=\"11\" fill=\"#666\">level</text>\n");
    for (uint32_t i = 0; i < e->count; i++) {
        const double width = LAYER_WIDTH + (total > 0 ? room * weight_of(&e->rows[i]) / total : 0);
        put_layer(to, &e->rows[i], x, width, step);
        x += width;
    }
    fprintf(to, "</svg>\n");
}

static void put_time(FILE *to, double ms) {
    if (ms < 0)
        fprintf(to, "<td>&#8211;</td>");
    else
        fprintf(to, "<td>%.3f</td>", ms);
}

static void put_table(FILE *to, const explanation *e) {
    char bytes[32];
    fprintf(to, "<table><thead><tr><th>layer</th><th>kind</th><th>elements</th><th>ciphertexts &#215; "
                "slots</th><th>levels</th><th>scale</th><th>diagonals</th><th>rotations</th><th>measured "
                "ms</th><th>predicted ms</th><th>weights</th></tr></thead><tbody>\n");
    for (uint32_t i = 0; i < e->count; i++) {
        const explain_row *r = &e->rows[i];
        fprintf(to, "<tr><td>");
        put_text(to, r->source);
        fprintf(to, "</td><td>");
        put_text(to, r->kind);
        if (r->degree)
            fprintf(to, ", degree %u on [%.4g, %.4g]", r->degree, r->interval_low, r->interval_high);
        char layout[32];
        explain_layout(layout, r);
        fprintf(to,
                "</td><td>%u &#8594; %u</td><td>%s</td><td>%u &#8594; "
                "%u</td><td>2<sup>%.1f</sup></td><td>%u</td><td>%u</td>",
                r->elements_in, r->elements_out, layout, r->level_in, r->level_out, r->scale_log2,
                r->diagonals, r->rotations);
        put_time(to, r->measured_ms);
        put_time(to, r->predicted_ms);
        fprintf(to, "<td>%s</td></tr>\n", ctl_bytes(bytes, r->weight_bytes));
    }
    fprintf(to, "<tr><th colspan=\"8\">whole program</th>");
    put_time(to, e->measured_ms);
    put_time(to, e->predicted_ms);
    fprintf(to, "<td>%s</td></tr></tbody></table>\n",
            e->has_memory ? ctl_bytes(bytes, e->memory.weights_bytes) : "");
}

static void put_page(FILE *to, const explanation *e) {
    const Ckksd__V1__ModelDescription *d = e->package->manifest->description;
    fprintf(to, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>");
    put_text(to, d->name);
    fprintf(
        to,
        "</title><style>body{font:15px sans-serif;margin:2em auto;max-width:64em;color:#222}"
        "table{border-collapse:collapse;font-size:13px;width:100%%}td,th{padding:.3em .6em;border-bottom:1px "
        "solid #ddd;text-align:right}td:first-child,th:first-child,td:nth-child(2),th:nth-child(2)"
        "{text-align:left}.key span{margin-right:1.5em}.key i{display:inline-block;width:.8em;height:.8em;"
        "margin-right:.4em}</style></head><body><h1>");
    put_text(to, d->name);
    fprintf(to, "</h1><p>N = 2<sup>%u</sup>, %u levels, %u operations", e->package->plan.params->log_n,
            e->package->plan.params->q_count - 1, e->package->plan.operation_count);
    if (e->device[0]) {
        fprintf(to, "; measured on ");
        put_text(to, e->device);
    }
    fprintf(to,
            ".</p>\n<p>Layers from left to right, as wide as they take time; each takes the value from the "
            "level at its top to the one at its bottom.</p>\n");
    put_picture(to, e);
    fprintf(to, "<p class=\"key\"><span><i style=\"background:#2f6f9f\"></i>dense</span><span><i "
                "style=\"background:#c46a2b\"></i>polynomial</span><span><i "
                "style=\"background:#7a4f9a\"></i>product</span><span><i "
                "style=\"background:#5d8a4a\"></i>other</span></p>\n");
    put_table(to, e);
    fprintf(to, "</body></html>\n");
}

ckks_status explain_html(char **out, size_t *size, const explanation *e, ckks_error *err) {
    *out = NULL;
    FILE *to = open_memstream(out, size);
    if (!to) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a page");
    put_page(to, e);
    if (fclose(to) == 0 && *out) return CKKS_OK;
    free(*out);
    *out = NULL;
    return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a page");
}
