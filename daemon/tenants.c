#include "daemon/tenants.h"

#include <stdlib.h>
#include <string.h>

void tenants_init(tenant_registry *t) {
    memset(t, 0, sizeof *t);
    list_init(&t->all);
}

void tenants_fini(tenant_registry *t) {
    if (!t->all.next) return;
    LIST_EACH_SAFE(link, &t->all) {
        list_remove(link);
        free(LIST_ENTRY(link, tenant_account, link));
    }
    token_table_fini(&t->tokens);
    free(t->owners);
    t->owners = NULL;
}

static tenant_account *find(const tenant_registry *t, const char *name) {
    LIST_EACH(link, &t->all) {
        tenant_account *one = LIST_ENTRY(link, tenant_account, link);
        if (strcmp(one->name, name) == 0) return one;
    }
    return NULL;
}

const tenant_account *tenants_find(const tenant_registry *t, const char *name) {
    return find(t, name);
}

static tenant_account *find_or_add(tenant_registry *t, const char *name) {
    tenant_account *one = find(t, name);
    if (one || !(one = calloc(1, sizeof *one))) return one;
    memcpy(one->name, name, strlen(name) + 1);
    scheduler_tenant_init(&one->schedule, 1, 0);
    list_append(&t->all, &one->link);
    return one;
}

static void widen(token_quota *quota, const token_quota *by) {
    if (by->key_bytes > quota->key_bytes) quota->key_bytes = by->key_bytes;
    if (by->key_sets > quota->key_sets) quota->key_sets = by->key_sets;
    if (by->queued > quota->queued) quota->queued = by->queued;
    if (by->key_days > quota->key_days) quota->key_days = by->key_days;
}

ckks_status tenants_replace(tenant_registry *t, token_table *table, ckks_error *err) {
    tenant_account **owners = calloc(table->count + 1, sizeof(tenant_account *));
    if (!owners) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "tokens", "out of memory");
    for (size_t i = 0; i < table->count; i++)
        if (!(owners[i] = find_or_add(t, table->entries[i].tenant))) {
            free(owners);
            return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "tokens", "out of memory");
        }
    LIST_EACH(link, &t->all) LIST_ENTRY(link, tenant_account, link)->quota = (token_quota){0};
    for (size_t i = 0; i < table->count; i++) widen(&owners[i]->quota, &table->entries[i].quota);
    LIST_EACH(link, &t->all) {
        tenant_account *one = LIST_ENTRY(link, tenant_account, link);
        one->schedule.items_max = one->quota.queued;
    }
    token_table_fini(&t->tokens);
    free(t->owners);
    t->tokens = *table, t->owners = owners;
    *table = (token_table){0};
    return CKKS_OK;
}

ckks_status tenants_verify(tenant_registry *t, tenant_account **out, const char *token, uint32_t scope,
                           ckks_error *err) {
    char names[64];
    const token_entry *entry = token_table_verify(&t->tokens, token);
    if (!entry) return ckks_error_set(err, CKKS_AUTH, "token", "the token is missing, unknown or wrong");
    if (scope && !(entry->scopes & scope))
        return ckks_error_set(err, CKKS_PERMISSION_DENIED, "token", "the token lacks the scope %s",
                              token_scopes_print(scope, names, sizeof names));
    *out = t->owners[entry - t->tokens.entries];
    return CKKS_OK;
}

uint32_t tenants_count(const tenant_registry *t) {
    uint32_t count = 0;
    for (size_t i = 0; i < t->tokens.count; i++) {
        bool is_first = true;
        for (size_t k = 0; k < i && is_first; k++) is_first = t->owners[k] != t->owners[i];
        count += is_first;
    }
    return count;
}
