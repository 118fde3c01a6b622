#include "daemon/models.h"

#include "daemon/clock.h"
#include "daemon/fault.h"
#include "daemon/inference.h"
#include "daemon/logging.h"
#include "daemon/program.h"
#include "daemon/server.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char *model_state_name(model_state state) {
    static const char *const names[] = {"LOADING", "LOADING", "READY", "UNAVAILABLE", "RETIRING", "RETIRED"};
    return names[state];
}

/* ---- the loader thread ---- */

static model *next_to_load(model_registry *m) {
    model *next = NULL;
    pthread_mutex_lock(&m->lock);
    while (list_is_empty(&m->load_queue) && !m->is_stopping) pthread_cond_wait(&m->wake, &m->lock);
    if (!m->is_stopping) {
        next = LIST_ENTRY(m->load_queue.next, model, load_link);
        list_remove(&next->load_link);
    }
    pthread_mutex_unlock(&m->lock);
    return next;
}

static void load(model *m) {
    char path[2 * CONFIG_TEXT_MAX + 2 * MODEL_NAME_MAX];
    const server *s = m->server;
    snprintf(path, sizeof path, "%s/%s/%s/%s", s->config.models, m->name, m->version, MODEL_FILE);
    memset(&m->load_err, 0, sizeof m->load_err);
    m->load_rc = package_load(&m->load_package, path, s->config.allow_insecure, &m->load_err);
    if (m->load_rc == CKKS_OK)
        m->load_rc =
            workload_prepare(&m->load_workload, s->device, &m->load_package->plan, NULL, &m->load_err);
    if (m->load_rc == CKKS_RESOURCE_EXHAUSTED && !strcmp(m->load_err.field, "bytes")) {
        const ckks_error cause = m->load_err;
        m->load_err = (ckks_error){0};
        ckks_error_set(&m->load_err, cause.code, "memory_bytes",
                       "its weights do not fit on the device: %.200s (memory_bytes in [device])",
                       cause.message);
    }
}

static void *loader_main(void *argument) {
    model_registry *all = argument;
    model *m;
    pthread_setname_np(pthread_self(), "loader");
    while ((m = next_to_load(all)) != NULL) {
        load(m);
        loop_post(&m->server->loop, &m->loaded);
    }
    return NULL;
}

ckks_status models_init(model_registry *m, ckks_error *err) {
    list_init(&m->all);
    list_init(&m->load_queue);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->wake, NULL);
    if (pthread_create(&m->loader, NULL, loader_main, m) != 0)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "cannot start the loader thread");
    m->has_loader = true;
    return CKKS_OK;
}

bool models_stop(model_registry *m, uint64_t limit_ns) {
    struct timespec until;
    if (!m->has_loader) return true;
    pthread_mutex_lock(&m->lock);
    m->is_stopping = true;
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(limit_ns / NS_PER_S) + 1;
    if (pthread_timedjoin_np(m->loader, NULL, &until) != 0) return false;
    m->has_loader = false;
    return true;
}

/* What the loader made is the loop's. */
static void take_over(model *m) {
    m->package = m->load_package, m->load_package = NULL;
    m->workload = m->load_workload, m->load_workload = NULL;
}

static void release_memory(model *m) {
    workload_destroy(m->workload);
    package_destroy(m->package);
    m->workload = NULL, m->package = NULL;
}

void models_fini(model_registry *m) {
    if (!m->all.next) return;
    LIST_EACH_SAFE(link, &m->all) {
        model *one = LIST_ENTRY(link, model, link);
        list_remove(link);
        if (one->load_package) take_over(one); /* the loop ended before it heard */
        release_memory(one);
        free(one);
    }
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->wake);
}

/* ---- states ---- */

/* A device error may pass; what is wrong with a package, or does not fit, stays so. */
static void plan_retry(model *m) {
    const server *s = m->server;
    if (m->error.code != CKKS_DEVICE_ERROR || device_is_lost(s->device) || s->phase >= SERVER_LINGERING)
        return;
    if (m->retries == MODEL_RETRIES_MAX) {
        log_write(
            LOG_LEVEL_ERROR,
            "event=model_given_up model=%s version=%s retries=%u message=\"no try follows by itself: load "
            "it again when the device is well\"",
            m->name, m->version, m->retries);
        return;
    }
    const uint64_t pause_ns = MODEL_RETRY_NS << m->retries;
    m->retry_ns = clock_now_ns() + pause_ns;
    log_write(LOG_LEVEL_NOTICE, "event=model_retry model=%s version=%s retry=%u of=%u in_ms=%llu", m->name,
              m->version, m->retries + 1, MODEL_RETRIES_MAX, (unsigned long long)(pause_ns / NS_PER_MS));
}

static void set_unavailable(model *m, const ckks_error *cause) {
    m->state = MODEL_UNAVAILABLE;
    m->error = *cause;
    m->retry_ns = 0;
    char message[400], field[96];
    log_write(LOG_LEVEL_ERROR,
              "event=model_unavailable model=%s version=%s error=%s stage=\"%s\" field=%s message=%s",
              m->name, m->version, ckks_status_name(cause->code), cause->stage,
              log_quote(field, sizeof field, cause->field),
              log_quote(message, sizeof message, cause->message));
    metrics_set_cause(m->metrics->cause, message);
    plan_retry(m);
}

/* Before anything is captured: arenas (if they are not there yet) and programs of all slots, with what a
 * capture takes meanwhile, in what the device has left. Weights are there already. */
static void check_budget(const model *m, ckks_error *err) {
    const server *s = m->server;
    const double mib = 1048576.0;
    device_memory_account account;
    device_memory(s->device, &account);
    uint64_t arena = s->slots.count ? 0 : s->config.arena_bytes, programs = m->memory.program_bytes;
    if (!s->slots.count && m->memory.arena_bytes > arena) arena = m->memory.arena_bytes;
    LIST_EACH(link, &s->models.all) {
        const model *other = LIST_ENTRY(link, model, link);
        if (other == m || other->state != MODEL_CAPTURING || other->slot_jobs_pending) continue;
        programs += other->memory.program_bytes; /* prepared, and not captured yet */
        if (!s->slots.count && other->memory.arena_bytes > arena) arena = other->memory.arena_bytes;
    }
    const uint64_t need = server_slot_count(s) * (arena + programs) + m->memory.capture_bytes;
    const uint64_t left = account.bytes_max > account.bytes_used ? account.bytes_max - account.bytes_used : 0;
    if (need <= left) return;
    ckks_error_set(
        err, CKKS_RESOURCE_EXHAUSTED, "memory_bytes",
        "%u slots of %.1f MiB arena and %.1f MiB programs, and %.1f MiB to capture, do not fit: the "
        "device has %.1f MiB left of %.1f: fewer slots (count in [slots]) or more memory_bytes in "
        "[device]",
        server_slot_count(s), (double)arena / mib, (double)programs / mib,
        (double)m->memory.capture_bytes / mib, (double)left / mib, (double)account.bytes_max / mib);
}

static void check_fits(model *m, ckks_error *err) {
    const server *s = m->server;
    if (s->slots.count && m->memory.arena_bytes > s->config.arena_bytes)
        ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "arena_bytes",
                       "the model needs an arena of %llu bytes, slots have %llu: set arena_bytes in [slots]",
                       (unsigned long long)m->memory.arena_bytes, (unsigned long long)s->config.arena_bytes);
    else if (!s->slots.count && s->config.arena_bytes && m->memory.arena_bytes > s->config.arena_bytes)
        ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "arena_bytes",
                       "the model needs an arena of %llu bytes, arena_bytes in [slots] allows %llu",
                       (unsigned long long)m->memory.arena_bytes, (unsigned long long)s->config.arena_bytes);
    else
        check_budget(m, err);
}

static void capture(model *m);

static void on_loaded(loop_event *event) {
    model *m = LIST_ENTRY(event, model, loaded);
    server *s = m->server;
    ckks_error err = m->load_err;
    s->models.load_pending--;
    take_over(m);
    if (m->load_rc == CKKS_OK) {
        workload_memory_account(m->workload, &m->memory);
        workload_program_config(m->workload, &m->program);
        m->program.execution_eager = s->config.execution == EXECUTION_EAGER;
        check_fits(m, &err);
    } else if (err.code == CKKS_OK) {
        err.code = m->load_rc;
    }
    if (err.code != CKKS_OK) {
        release_memory(m);
        set_unavailable(m, &err);
    } else {
        log_write(LOG_LEVEL_NOTICE,
                  "event=model_prepared model=%s version=%s weights_bytes=%llu arena_bytes=%llu "
                  "program_bytes=%llu keys_bytes=%llu",
                  m->name, m->version, (unsigned long long)m->memory.weights_bytes,
                  (unsigned long long)m->memory.arena_bytes, (unsigned long long)m->memory.program_bytes,
                  (unsigned long long)m->memory.keys_bytes);
        m->state = MODEL_CAPTURING;
        if (s->slots.count) capture(m);
    }
    if (s->models.load_pending == 0) server_models_loaded(s);
    server_check_ready(s);
}

/* ---- capture on every slot ---- */

static void run_capture(slot_job *job) {
    model_slot_job *mine = LIST_ENTRY(job, model_slot_job, job);
    model *m = mine->model;
    fault_capture(m->server->device);
    job->rc = program_bring_up(job->slot, m, (int32_t)m->server->config.warmup, &job->err);
    fault_capture_end(m->server->device);
}

static void run_take_down(slot_job *job) {
    program_take_down(job->slot, LIST_ENTRY(job, model_slot_job, job)->model);
}

/* Lost slots take programs down like the others: nobody may hold what a model's memory is freed with. */
static void submit_all(model *m, void (*run)(slot_job *), void (*done)(loop_event *)) {
    server *s = m->server;
    for (uint32_t i = 0; i < s->slots.count; i++) {
        model_slot_job *mine = &m->slot_jobs[i];
        if (s->slots.slots[i].state == SLOT_LOST && run != run_take_down) continue;
        mine->model = m;
        mine->job.limit_ns = MODEL_CAPTURE_LIMIT;
        mine->job.run = run;
        mine->job.done.run = done;
        m->slot_jobs_pending++;
        slot_submit(&s->slots.slots[i], &mine->job);
    }
}

static void on_taken_down(loop_event *event) {
    model_slot_job *mine = LIST_ENTRY(event, model_slot_job, job.done);
    model *m = mine->model;
    slot_job_finished(&mine->job);
    if (--m->slot_jobs_pending > 0) return;
    release_memory(m);
    if (m->state == MODEL_RETIRING) {
        m->state = MODEL_RETIRED;
        m->retired_ns = clock_now_ns();
        log_write(LOG_LEVEL_NOTICE, "event=model_retired model=%s version=%s", m->name, m->version);
        if (m->comes_back) (void)models_load(m->server, m->name, m->version, NULL);
    }
    inference_pump(m->server);
    server_check_ready(m->server);
}

static void on_captured(loop_event *event) {
    model_slot_job *mine = LIST_ENTRY(event, model_slot_job, job.done);
    model *m = mine->model;
    server *s = m->server;
    slot_job_finished(&mine->job);
    /* the slot failed for another reason before this was heard of: its recovery takes all programs down, and
     * knows nothing of this one */
    if (mine->job.slot->state == SLOT_QUARANTINED &&
        (mine->job.rc == CKKS_OK || mine->job.rc == CKKS_DEVICE_ERROR)) {
        slot_submit(mine->job.slot, &mine->job);
        return;
    }
    if (mine->job.rc == CKKS_OK) mine->job.slot->has_program[m->index] = true;
    if (mine->job.rc != CKKS_OK && m->error.code == CKKS_OK) m->error = mine->job.err;
    if (mine->job.rc == CKKS_DEVICE_ERROR) server_quarantine(s, mine->job.slot, mine->job.err.message);
    if (--m->slot_jobs_pending > 0) return;
    workload_self_test_end(m->workload);
    if (m->error.code == CKKS_OK) {
        m->state = MODEL_READY;
        m->retries = 0;
        log_write(LOG_LEVEL_NOTICE, "event=model_ready model=%s version=%s slots=%u", m->name, m->version,
                  s->slots.count);
        server_check_ready(s);
        if (m->is_unwanted) models_retire(s, m);
    } else {
        const ckks_error cause = m->error;
        set_unavailable(m, &cause);
        for (uint32_t i = 0; i < s->slots.count; i++) s->slots.slots[i].has_program[m->index] = false;
        submit_all(m, run_take_down, on_taken_down);
    }
    inference_pump(s);
}

static void capture(model *m) {
    m->error = (ckks_error){0};
    submit_all(m, run_capture, on_captured);
}

void models_capture_all(server *s) {
    LIST_EACH(link, &s->models.all) {
        model *m = LIST_ENTRY(link, model, link);
        if (m->state == MODEL_CAPTURING && m->slot_jobs_pending == 0) capture(m);
    }
}

bool models_are_settled(const server *s) {
    LIST_EACH(link, &s->models.all) {
        const model *m = LIST_ENTRY(link, model, link);
        if (m->state == MODEL_LOADING || m->state == MODEL_CAPTURING) return false;
        if (m->state == MODEL_UNAVAILABLE && m->slot_jobs_pending) return false;
    }
    return true;
}

bool model_is_expected(const model *m) {
    return m->state != MODEL_RETIRING && m->state != MODEL_RETIRED;
}

uint32_t model_slot_count(const server *s, const model *m) {
    uint32_t count = 0;
    if (m->state != MODEL_READY) return 0;
    for (uint32_t i = 0; i < s->slots.count; i++)
        count += slot_in_service(&s->slots.slots[i]) && s->slots.slots[i].has_program[m->index];
    return count;
}

void models_publish(server *s) {
    LIST_EACH(link, &s->models.all) {
        model *m = LIST_ENTRY(link, model, link);
        atomic_store(&m->metrics->slots, model_slot_count(s, m));
        atomic_store(&m->metrics->retry, m->retries + 1);
        atomic_store(&m->metrics->retry_of, MODEL_RETRIES_MAX);
        atomic_store(&m->metrics->retry_ns, m->retry_ns);
        atomic_store(&m->metrics->state, model_is_expected(m) ? model_state_name(m->state) : NULL);
    }
}

uint64_t models_arena_bytes(const server *s) {
    uint64_t largest = 0;
    LIST_EACH(link, &s->models.all) {
        const model *m = LIST_ENTRY(link, model, link);
        if (m->state == MODEL_CAPTURING && m->memory.arena_bytes > largest) largest = m->memory.arena_bytes;
    }
    return largest;
}

/* ---- retiring ---- */

void models_retire_step(server *s, model *m) {
    if (m->state != MODEL_RETIRING || !list_is_empty(&m->inferences) || m->slot_jobs_pending) return;
    for (uint32_t i = 0; i < s->slots.count; i++) s->slots.slots[i].has_program[m->index] = false;
    submit_all(m, run_take_down, on_taken_down);
}

void models_retire(server *s, model *m) {
    if (m->state != MODEL_READY) return;
    log_write(LOG_LEVEL_NOTICE, "event=model_retiring model=%s version=%s", m->name, m->version);
    m->state = MODEL_RETIRING;
    models_retire_step(s, m);
}

/* ---- finding ---- */

static model *find_exact(const server *s, const char *name, const char *version) {
    LIST_EACH(link, &s->models.all) {
        model *m = LIST_ENTRY(link, model, link);
        if (strcmp(m->name, name) == 0 && strcmp(m->version, version) == 0) return m;
    }
    return NULL;
}

static model *find_newest(const server *s, const char *name, bool must_be_ready) {
    model *newest = NULL;
    LIST_EACH(link, &s->models.all) {
        model *m = LIST_ENTRY(link, model, link);
        if (strcmp(m->name, name) != 0 || (must_be_ready && m->state != MODEL_READY)) continue;
        if (!newest || strverscmp(m->version, newest->version) > 0) newest = m;
    }
    return newest;
}

ckks_status models_find(server *s, model **out, const char *name, const char *version, bool any_state,
                        ckks_error *err) {
    char quoted[160], version_quoted[80];
    const bool is_exact = version && version[0];
    model *m = is_exact ? find_exact(s, name, version) : find_newest(s, name, true);
    if (!m && !is_exact) m = find_newest(s, name, false);
    if (!m)
        return ckks_error_set(err, CKKS_NOT_FOUND, "model", "there is no model %s%s%s",
                              log_quote(quoted, sizeof quoted, name), is_exact ? " of version " : "",
                              is_exact ? log_quote(version_quoted, sizeof version_quoted, version) : "");
    *out = m;
    if (m->state == MODEL_READY || any_state) return CKKS_OK;
    if (!model_is_expected(m))
        return ckks_error_set(err, CKKS_CONFIG_RETIRED, "version", "%s/%s was retired", m->name, m->version);
    if (m->state == MODEL_UNAVAILABLE)
        return ckks_error_set(err, CKKS_UNAVAILABLE, "model", "%s/%s is unavailable: %.200s", m->name,
                              m->version, m->error.message);
    return ckks_error_set(err, CKKS_UNAVAILABLE, "model", "%s/%s is still loading", m->name, m->version);
}

/* ---- the repository ---- */

/* Names travel in requests, logs and metrics: letters, digits, '-', '_' and inner dots. */
static bool name_is_valid(const char *name) {
    const size_t length = strlen(name);
    if (length == 0 || length > MODEL_NAME_MAX || name[0] == '.') return false;
    for (size_t i = 0; i < length; i++) {
        const char c = name[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
              c == '_' || c == '.'))
            return false;
    }
    return true;
}

static bool file_is_there(const server *s, const char *name, const char *version) {
    struct stat st;
    char path[2 * CONFIG_TEXT_MAX + 2 * MODEL_NAME_MAX];
    snprintf(path, sizeof path, "%s/%s/%s/%s", s->config.models, name, version, MODEL_FILE);
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* A model of no index yet, or NULL: there is no place left. The one that retired first makes place. */
static model *find_place(model_registry *all, ckks_error *err) {
    model *m = NULL;
    if (all->count < SLOT_MODELS_MAX) {
        if (!(m = calloc(1, sizeof *m)))
            ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
        else
            m->index = all->count++, list_init(&m->link);
        return m;
    }
    LIST_EACH(link, &all->all) {
        model *one = LIST_ENTRY(link, model, link);
        if (one->state != MODEL_RETIRED) continue;
        if (!m || one->retired_ns < m->retired_ns) m = one;
    }
    if (!m)
        ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "models", "at most %u model versions", SLOT_MODELS_MAX);
    else
        log_write(LOG_LEVEL_INFO, "event=model_forgotten model=%s version=%s", m->name, m->version);
    return m;
}

static bool comes_before(const model *a, const model *b) {
    const int order = strcmp(a->name, b->name);
    return order ? order < 0 : strverscmp(a->version, b->version) < 0;
}

/* The model takes a name, and its place in the list. */
static void register_as(model *m, server *s, const char *name, const char *version) {
    model_registry *all = &s->models;
    const uint32_t index = m->index;
    metrics_model *counted = m->metrics;
    list_remove(&m->link);
    memset(m, 0, sizeof *m);
    snprintf(m->name, sizeof m->name, "%s", name);
    snprintf(m->version, sizeof m->version, "%s", version);
    m->server = s, m->index = index;
    if (counted)
        metrics_model_replace(m->metrics = counted, name, version);
    else
        m->metrics = metrics_model_add(name, version);
    CKKS_ASSERT(m->metrics);
    list_init(&m->inferences);
    list_init(&m->load_link);
    m->loaded.run = on_loaded;
    list_node *at = all->all.next;
    while (at != &all->all && comes_before(LIST_ENTRY(at, model, link), m)) at = at->next;
    list_insert_before(at, &m->link);
}

static void queue_load(model *m) {
    model_registry *all = &m->server->models;
    m->state = MODEL_LOADING;
    m->is_unwanted = m->comes_back = false;
    m->error = (ckks_error){0};
    m->retry_ns = 0;
    metrics_set_cause(m->metrics->cause, NULL);
    all->load_pending++;
    pthread_mutex_lock(&all->lock);
    list_append(&all->load_queue, &m->load_link);
    pthread_cond_signal(&all->wake);
    pthread_mutex_unlock(&all->lock);
    log_write(LOG_LEVEL_INFO, "event=model_loading model=%s version=%s", m->name, m->version);
}

ckks_status models_load(server *s, const char *name, const char *version, ckks_error *err) {
    model_registry *all = &s->models;
    if (!name_is_valid(name) || !name_is_valid(version) || !file_is_there(s, name, version))
        return ckks_error_set(err, CKKS_NOT_FOUND, "model", "the repository has no such model version");
    model *m = find_exact(s, name, version);
    if (m && m->state != MODEL_UNAVAILABLE && m->state != MODEL_RETIRED)
        return ckks_error_set(err, CKKS_ALREADY_EXISTS, "model", "%s/%s is %s", name, version,
                              model_state_name(m->state));
    if (m && m->slot_jobs_pending)
        return ckks_error_set(err, CKKS_UNAVAILABLE, "model", "its last load is being undone");
    if (!m) {
        ckks_error cause = {0};
        if (!(m = find_place(all, &cause))) {
            if (err) *err = cause;
            return cause.code;
        }
        register_as(m, s, name, version);
    }
    m->retries = 0;
    queue_load(m);
    return CKKS_OK;
}

void models_tick(server *s, uint64_t now_ns) {
    if (s->phase != SERVER_READY) return; /* who starts with what works is ready before */
    LIST_EACH(link, &s->models.all) {
        model *m = LIST_ENTRY(link, model, link);
        if (m->state != MODEL_UNAVAILABLE || !m->retry_ns || now_ns < m->retry_ns || m->slot_jobs_pending)
            continue;
        m->retry_ns = 0;
        if (!file_is_there(s, m->name, m->version)) continue;
        m->retries++;
        atomic_fetch_add(&m->metrics->retries, 1);
        queue_load(m);
    }
}

static void scan_versions(server *s, const char *folder, const char *name) {
    char path[CONFIG_TEXT_MAX + MODEL_NAME_MAX + 2];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    DIR *versions = opendir(path);
    if (!versions) return; /* a file beside the models is none of ours */
    for (struct dirent *one; (one = readdir(versions)) != NULL;) { /* NOLINT(concurrency-mt-unsafe) */
        ckks_error err = {0};
        if (one->d_name[0] == '.' || !file_is_there(s, name, one->d_name)) continue;
        if (models_load(s, name, one->d_name, &err) != CKKS_OK && err.code != CKKS_ALREADY_EXISTS)
            log_error(LOG_LEVEL_WARNING, "model_skipped", &err);
    }
    closedir(versions);
}

ckks_status models_scan(server *s, bool retire_missing, ckks_error *err) {
    DIR *names = opendir(s->config.models);
    if (!names) return ckks_error_set(err, CKKS_IO, "models", "%s: %s", s->config.models, strerror(errno));
    for (struct dirent *one; (one = readdir(names)) != NULL;) { /* NOLINT(concurrency-mt-unsafe) */
        if (one->d_name[0] == '.') continue;
        if (name_is_valid(one->d_name))
            scan_versions(s, s->config.models, one->d_name);
        else
            log_write(LOG_LEVEL_WARNING, "event=model_skipped message=\"a folder's name is no model name\"");
    }
    closedir(names);
    if (!retire_missing) return CKKS_OK;
    LIST_EACH(link, &s->models.all) {
        model *m = LIST_ENTRY(link, model, link);
        const bool is_there = file_is_there(s, m->name, m->version);
        m->is_unwanted = !is_there && (m->state == MODEL_LOADING || m->state == MODEL_CAPTURING);
        m->comes_back = is_there && m->state == MODEL_RETIRING;
        if (!is_there) models_retire(s, m);
    }
    return CKKS_OK;
}
