/* ckksctl keygen: secret keys, and the evaluation keys that one or several models need. */
#include "client/ctl/ctl.h"

#include "kernels/base/bytes.h"
#include "proto/packing.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODELS_MAX 64u

typedef struct arguments {
    ctl_options common;
    const char *models[MODELS_MAX];
    uint32_t model_count;
    bool dry_run, seal, fresh;
} arguments;

enum { OPTION_FOR = CTL_KEY_FIRST, OPTION_DRY_RUN, OPTION_PASSPHRASE, OPTION_NEW_KEYS };
static const struct argp_option options[] = {
    {"for", OPTION_FOR, "MODEL", 0,
     "model of the server, saved metadata or package file; several times: all their needs", 0},
    {"dry-run", OPTION_DRY_RUN, 0, 0, "print what would be made and how large; make nothing", 0},
    {"passphrase", OPTION_PASSPHRASE, 0, 0, "seal a new secret key (Argon2id, XChaCha20-Poly1305)", 0},
    {"renew", OPTION_NEW_KEYS, 0, 0, "make the evaluation keys again even if those at hand are enough", 0},
    {0}};

static error_t parse(int key, char *argument, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        return 0;
    case OPTION_FOR:
    case ARGP_KEY_ARG:
        if (a->model_count == MODELS_MAX) ctl_refuse_more(state, argument);
        a->models[a->model_count++] = ctl_take_model(state, argument);
        return 0;
    case OPTION_DRY_RUN:
        a->dry_run = true;
        return 0;
    case OPTION_PASSPHRASE:
        a->seal = true;
        return 0;
    case OPTION_NEW_KEYS:
        a->fresh = true;
        return 0;
    case ARGP_KEY_END:
        ctl_need(state, a->models[0], "--for MODEL", "the model that keys are to be made for");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp parser = {options,
                                   parse,
                                   "--for MODEL [--for MODEL...]",
                                   "Make a secret key and the evaluation keys that models need.\v"
                                   "Keys belong to parameters, not to models: models of the same parameters "
                                   "share a secret key and one set of "
                                   "evaluation keys with the union of their needs. An existing secret key is "
                                   "kept and used; ckksctl never overwrites "
                                   "one. Files: ID.secret (mode 0600: never give it away), ID.keys (to be "
                                   "uploaded), ID.public (others can encrypt for "
                                   "you with it), in the profile's key folder or under --key.\n\n"
                                   "Examples:\n"
                                   "  ckksctl keygen --for mnist --for breast-cancer --dry-run\n"
                                   "  ckksctl keygen --for mnist --passphrase\n"
                                   "  ckksctl metadata mnist -o mnist.meta        (online)\n"
                                   "  ckksctl keygen --for mnist.meta --key alice (offline, later)\n",
                                   ctl_common_children,
                                   0,
                                   0};

/* Models of one parameter set. */
typedef struct group {
    ckks_params params;
    key_requirement *keys;
    uint32_t key_count;
    uint64_t key_bytes;
    char models[512];
} group;

static ckks_status add_model(group *groups, uint32_t *count, const client_model *m, ckks_error *err) {
    ckks_status rc;
    group *g = NULL;
    for (uint32_t i = 0; i < *count && !g; i++)
        if (!memcmp(groups[i].params.id, m->params.id, CKKS_PARAMETER_ID_BYTES)) g = &groups[i];
    if (!g) {
        g = &groups[(*count)++];
        *g = (group){.params = m->params};
    }
    if ((rc = client_requirements_add(&g->keys, &g->key_count, m->keys, m->key_count, err)) != CKKS_OK)
        return rc;
    const size_t used = strlen(g->models);
    snprintf(g->models + used, sizeof g->models - used, "%s%s", used ? ", " : "", m->description->name);
    if (!packing_key_set_bytes(&g->key_bytes, &g->params, g->keys, g->key_count))
        return ckks_error_set(err, CKKS_TOO_LARGE, "keys", "their size overflows");
    return CKKS_OK;
}

static ckks_status collect(group *groups, uint32_t *count, const arguments *a, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    rpc_connection *connection = NULL;
    for (uint32_t i = 0; i < a->model_count && rc == CKKS_OK; i++) {
        client_model *m = NULL;
        if ((rc = ctl_model(&m, &connection, &a->common, a->models[i], NULL, err)) == CKKS_OK)
            rc = add_model(groups, count, m, err);
        client_model_destroy(m);
    }
    rpc_close(connection);
    return rc;
}

typedef struct made {
    bool secret, keys, public;
    uint8_t id[32];
} made;

static void print_group(json_writer *j, const group *g, const key_paths *paths, const made *m,
                        const ctl_options *o, bool is_dry) {
    const uint32_t bits = params_security_bits(&g->params);
    char text[32];
    if (o->json) {
        json_object(j, NULL);
        json_string(j, "models", g->models);
        json_hex(j, "parameter_id", g->params.id, sizeof g->params.id);
        json_integer(j, "log_n", g->params.log_n);
        json_integer(j, "log_qp", params_log_qp(&g->params));
        json_integer(j, "security_bits", bits);
        json_integer(j, "key_count", g->key_count);
        json_integer(j, "key_bytes", g->key_bytes);
        json_integer(j, "secret_bytes", params_n(&g->params));
        json_string(j, "secret_file", paths->secret);
        json_string(j, "key_file", paths->keys);
        json_bool(j, "made_secret", m->secret);
        json_bool(j, "made_keys", m->keys);
        if (!is_dry) json_hex(j, "key_set", m->id, sizeof m->id);
        json_close_object(j);
        return;
    }
    printf("%s\n", g->models);
    printf("  parameters   N = 2^%u, log QP = %u, %s%u bits of security\n", g->params.log_n,
           params_log_qp(&g->params), bits ? "" : "INSECURE: ", bits);
    printf("  keys         %u, %s to upload\n", g->key_count, ctl_bytes(text, g->key_bytes));
    if (is_dry) {
        printf("  would make   %s\n               %s\n               %s\n", paths->secret, paths->keys,
               paths->public);
        return;
    }
    printf("  secret key   %s (%s)\n", paths->secret,
           m->secret ? "new: keep it, nobody can restore it" : "kept");
    printf("  key set      %s (%s)\n", paths->keys, m->keys ? "new" : "was enough");
    printf("  public key   %s\n", paths->public);
}

static ckks_status load_existing(client_secret_key **out, const group *g, const key_paths *paths,
                                 const arguments *a, ckks_error *err) {
    const ckks_status rc = ctl_load_secret(out, &a->common, paths->secret, err);
    if (rc != CKKS_OK) return rc;
    if (memcmp(context_params((*out)->context)->id, g->params.id, CKKS_PARAMETER_ID_BYTES) != 0)
        return ckks_error_set(err, CKKS_PARAMS_MISMATCH, "key",
                              "%s was made for other parameters: give another --key", paths->secret);
    return CKKS_OK;
}

static ckks_status open_secret(client_secret_key **out, bool *is_new, const group *g, const key_paths *paths,
                               const arguments *a, ckks_error *err) {
    ckks_status rc;
    ckks_error inner = {0};
    passphrase p = {0};
    *is_new = access(paths->secret, F_OK) != 0;
    if (!*is_new) return load_existing(out, g, paths, a, err);
    if (a->common.passphrase_file)
        rc = passphrase_from_file(&p, a->common.passphrase_file, err);
    else
        rc = a->seal ? passphrase_from_tty(&p, "Passphrase for the new secret key: ", true, err) : CKKS_OK;
    if (rc == CKKS_OK) rc = client_secret_key_generate(out, &g->params, err);
    if (rc == CKKS_OK && (rc = secret_file_write(paths->secret, *out, &p, &inner)) != CKKS_OK && err &&
        err->code == CKKS_OK)
        *err = inner;
    passphrase_fini(&p);
    if (rc != CKKS_ALREADY_EXISTS || access(paths->secret, R_OK) != 0) return rc;
    /* another keygen was faster since we looked: its key is as good, and the one here was nobody's */
    client_secret_key_destroy(*out);
    *out = NULL, *is_new = false;
    if (err) *err = (ckks_error){0};
    return load_existing(out, g, paths, a, err);
}

static ckks_status make_public(const client_secret_key *sk, const char *path, ckks_error *err) {
    uint8_t *image = NULL;
    size_t size = 0;
    ckks_status rc = client_public_key_export(&image, &size, sk, err);
    if (rc == CKKS_OK) rc = file_write(path, image, size, 0644, true, err);
    free(image);
    return rc;
}

/* The keys at hand, if they are of this secret and enough. Their needs join the group's, so that none is
 * lost. */
static ckks_status look_at_keys(bool *is_enough, group *g, made *m, const client_secret_key *sk,
                                const key_paths *paths, const ctl_options *o, ckks_error *err) {
    client_key_set *have = NULL;
    *is_enough = false;
    if (access(paths->keys, F_OK) != 0) return CKKS_OK;
    ckks_status rc = key_set_file_peek(&have, paths->keys, o->allow_insecure, NULL);
    if (rc != CKKS_OK) {
        ctl_warn("%s cannot be used and is made again", paths->keys);
        return CKKS_OK;
    }
    if (!memcmp(have->lineage, secret_key_lineage(sk->key), LINEAGE_BYTES)) {
        *is_enough =
            client_requirements_cover(have->keys, have->key_count, g->keys, g->key_count, NULL) == CKKS_OK;
        memcpy(m->id, have->id, sizeof m->id);
        if (!*is_enough)
            rc = client_requirements_add(&g->keys, &g->key_count, have->keys, have->key_count, err);
        if (rc == CKKS_OK && !packing_key_set_bytes(&g->key_bytes, &g->params, g->keys, g->key_count))
            rc = ckks_error_set(err, CKKS_TOO_LARGE, "keys", "their size overflows");
    }
    client_key_set_destroy(have);
    return rc;
}

static ckks_status make_group(group *g, made *m, const key_paths *paths, const arguments *a,
                              ckks_error *err) {
    ckks_status rc;
    client_secret_key *sk = NULL;
    client_key_set *set = NULL;
    bool is_enough = false;
    ctl_bar bar;
    if ((rc = open_secret(&sk, &m->secret, g, paths, a, err)) != CKKS_OK) goto out;
    if (!m->secret && (rc = look_at_keys(&is_enough, g, m, sk, paths, &a->common, err)) != CKKS_OK) goto out;
    if (m->secret || access(paths->public, F_OK) != 0) {
        if ((rc = make_public(sk, paths->public, err)) != CKKS_OK) goto out;
        m->public = true;
    }
    if ((is_enough && !a->fresh) || g->key_count == 0) goto out;
    ctl_bar_begin(&bar, &a->common, "making keys", false);
    rc = client_key_set_generate(&set, sk, g->keys, g->key_count, ctl_bar_update, &bar, err);
    ctl_bar_end(&bar);
    if (rc == CKKS_OK) rc = key_set_file_write(paths->keys, set, true, err);
    if (rc == CKKS_OK) m->keys = true, memcpy(m->id, set->id, sizeof m->id);
out:
    client_key_set_destroy(set);
    client_secret_key_destroy(sk);
    return rc;
}

int command_keygen(int argc, char **argv) {
    arguments a = {0};
    ckks_error err = {0};
    argp_parse(&parser, argc, argv, 0, NULL, &a);
    const ctl_options *o = &a.common;
    group groups[MODELS_MAX];
    uint32_t count = 0;
    json_writer j;
    ckks_status rc = ctl_resolve(&a.common, &err);
    if (rc == CKKS_OK) rc = collect(groups, &count, &a, &err);
    if (rc == CKKS_OK && count > 1 && o->profile.key[0] &&
        o->profile.key[strlen(o->profile.key) - 1] != '/') {
        key_paths first, second;
        key_paths_for(&first, o->profile.key, &groups[0].params, NULL);
        key_paths_for(&second, o->profile.key, &groups[1].params, NULL);
        if (!strcmp(first.secret, second.secret))
            rc = ckks_error_set(
                &err, CKKS_INVALID_ARGUMENT, "key",
                "these models have %u parameter sets: give a folder (ending in /), not a prefix", count);
    }
    json_begin(&j);
    if (o->json && rc == CKKS_OK) json_list(&j, NULL);
    for (uint32_t i = 0; i < count && rc == CKKS_OK; i++) {
        key_paths paths;
        made m = {0};
        if ((rc = key_paths_for(&paths, o->profile.key, &groups[i].params, &err)) != CKKS_OK) break;
        if (!a.dry_run && (rc = make_group(&groups[i], &m, &paths, &a, &err)) != CKKS_OK) break;
        print_group(&j, &groups[i], &paths, &m, o, a.dry_run);
    }
    if (o->json && rc == CKKS_OK) {
        json_close_list(&j);
        json_end(&j);
    }
    json_discard(&j);
    for (uint32_t i = 0; i < count; i++) free(groups[i].keys);
    if (rc != CKKS_OK) return ctl_fail(o, &err);
    if (!a.dry_run) ctl_note(o, "next: ckksctl register%s%s", o->key ? " --key " : "", o->key ? o->key : "");
    return EXIT_GOOD;
}
