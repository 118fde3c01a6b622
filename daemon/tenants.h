/*
 * Tenants and their tokens. A tenant lives until the daemon ends, so that what it queued and stored keeps an
 * owner over a reload. Loop thread only.
 */
#ifndef CKKSD_TENANTS_H
#define CKKSD_TENANTS_H

#include "daemon/scheduler.h"
#include "proto/token.h"

typedef struct tenant_account {
    list_node link;
    char name[TOKEN_NAME_MAX + 1];
    token_quota quota; /* the largest that any of its tokens states; 0 = default */
    scheduler_tenant schedule;
} tenant_account;

typedef struct tenant_registry {
    list_node all;
    token_table tokens;
    tenant_account **owners; /* [tokens.count] */
} tenant_registry;

void tenants_init(tenant_registry *t);
void tenants_fini(tenant_registry *t);

/* tenants_replace takes over a parsed table (zeroing *table) and makes tenants for new names. On failure
 * nothing changes. CKKS_RESOURCE_EXHAUSTED. */
ckks_status tenants_replace(tenant_registry *t, token_table *table, ckks_error *err);

/* tenants_verify: CKKS_AUTH without saying what was wrong with the token. Then the scope: a missing one is
 * CKKS_PERMISSION_DENIED naming it. scope 0 = any good token. */
ckks_status tenants_verify(tenant_registry *t, tenant_account **out, const char *token, uint32_t scope,
                           ckks_error *err);

/* tenants_find: NULL for a name that no token has had since the start. */
const tenant_account *tenants_find(const tenant_registry *t, const char *name);
/* tenants_count: of those that have a token now. */
uint32_t tenants_count(const tenant_registry *t);

#endif
