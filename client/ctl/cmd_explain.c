/* ckksctl explain: where the time, the levels and the memory of a package go. */
#include "client/ctl/explain.h"

#include <stdlib.h>
#include <string.h>

typedef struct arguments {
    ctl_options common;
    const char *package, *html;
    explain_options explain;
} arguments;

enum { OPTION_HTML = CTL_KEY_FIRST, OPTION_DEVICE, OPTION_NO_MEASURE, OPTION_CALIBRATE };
static const struct argp_option options[] = {
    {"html", OPTION_HTML, "FILE", 0, "also write a page with a picture: one file, nothing to load", 0},
    {"device", OPTION_DEVICE, "KIND", 0, "cpu (default), cuda or auto", 0},
    {"no-measure", OPTION_NO_MEASURE, 0, 0, "predict only", 0},
    {"calibrate", OPTION_CALIBRATE, 0, 0, "measure this machine's cost model anew", 0},
    {0}};

static error_t parse(int key, char *argument, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        a->explain = (explain_options){.device_kind = DEVICE_CPU, .measures = true, .predicts = true};
        return 0;
    case OPTION_HTML:
        a->html = ctl_take_output(state, argument, "html");
        return 0;
    case OPTION_DEVICE:
        a->explain.device_kind = ctl_take_device(state, argument);
        return 0;
    case OPTION_NO_MEASURE:
        a->explain.measures = false;
        return 0;
    case OPTION_CALIBRATE:
        a->explain.calibrates = true;
        return 0;
    case ARGP_KEY_ARG:
        ctl_take_one(state, &a->package, argument);
        return 0;
    case ARGP_KEY_END:
        ctl_need(state, a->package, "MODEL.ckm", "the package to explain");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp parser = {
    options,
    parse,
    "MODEL.ckm",
    "Say layer by layer what a package does: shape, layout, levels, scale, diagonals, rotations, time and "
    "memory.\v"
    "Measured times are shortest replays of each layer alone, with keys made for the purpose; the whole "
    "program "
    "is measured as well, and may take less than the sum, since values stay in caches. Predicted times come "
    "from a cost model that is measured once for each parameter set on this machine (some seconds) and kept "
    "in "
    "the user's cache folder.\n\n"
    "Examples:\n"
    "  ckksctl explain mnist.ckm\n"
    "  ckksctl explain mnist.ckm --html mnist.html\n"
    "  ckksctl explain mnist.ckm --no-measure --json\n",
    ctl_common_children,
    0,
    0};

int command_explain(int argc, char **argv) {
    arguments a = {0};
    ckks_error err = {0};
    package *p = NULL;
    explanation e = {0};
    char *page = NULL;
    size_t size = 0;
    argp_parse(&parser, argc, argv, 0, NULL, &a);
    a.explain.common = &a.common;
    ckks_status rc = ctl_check_output(a.html, &err);
    if (rc == CKKS_OK) rc = package_load(&p, a.package, a.common.allow_insecure, &err);
    if (rc == CKKS_OK) rc = explain_package(&e, p, &a.explain, &err);
    if (rc == CKKS_OK && a.html) {
        rc = explain_html(&page, &size, &e, &err);
        if (rc == CKKS_OK) rc = file_write(a.html, (const uint8_t *)page, size, 0644, true, &err);
    }
    if (rc == CKKS_OK && a.common.json)
        explain_json(&e);
    else if (rc == CKKS_OK)
        explain_print(&e);
    if (rc == CKKS_OK && a.html) ctl_note(&a.common, "%s written", a.html);
    free(page);
    explanation_fini(&e);
    package_destroy(p);
    return rc == CKKS_OK ? EXIT_GOOD : ctl_fail(&a.common, &err);
}
