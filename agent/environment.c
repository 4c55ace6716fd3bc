/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One function for each framework. It sets the variables of that framework's own launcher, with the
 * names and forms that Paddle, PyTorch and MindSpore read. A framework ignores unknown variables,
 * so all are always set.
 */
#include "agent/environment.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "agent/generation_channel.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/strbuf.h"

static const char *const hidden[] = {"http_proxy",
                                     "https_proxy",
                                     "HTTP_PROXY",
                                     "HTTPS_PROXY",
                                     "FLEET_CA_FILE",
                                     "FLEET_TOKEN_FILE",
                                     "FLEET_HUB_FILE",
                                     "FLEET_HUB",
                                     "FLEET_TERMINATION_FILE",
                                     "FLEET_ENVIRONMENT_FILE",
                                     WELLKNOWN_ENV_AGENT};

struct list {
    char **items; /* NULL-terminated */
    size_t count;
};

static size_t name_size(const char *entry)
{
    return strcspn(entry, "=");
}

static bool has_name(const char *entry, const char *name)
{
    return name_size(entry) == strlen(name) && strncmp(entry, name, strlen(name)) == 0;
}

static char **find(struct list *list, const char *name)
{
    for (size_t i = 0; i < list->count; i++)
        if (has_name(list->items[i], name))
            return &list->items[i];
    return NULL;
}

/* Takes `entry`. */
static void append(struct list *list, char *entry)
{
    list->items = realloc(list->items, (list->count + 2) * sizeof(*list->items));
    fleet_assert(list->items && entry);
    list->items[list->count++] = entry;
    list->items[list->count] = NULL;
}

__attribute__((format(printf, 3, 4))) static void set(struct list *list, const char *name,
                                                      const char *format, ...)
{
    struct fleet_strbuf entry = {0};
    char **old = find(list, name);
    va_list args;

    fleet_strbuf_appendf(&entry, "%s=", name);
    va_start(args, format);
    fleet_strbuf_appendv(&entry, format, args);
    va_end(args);
    if (old) {
        free(*old);
        *old = fleet_strbuf_take(&entry);
    } else {
        append(list, fleet_strbuf_take(&entry));
    }
}

/* As set(), for what the user may choose. */
static void set_default(struct list *list, const char *name, const char *value)
{
    if (!find(list, name))
        set(list, name, "%s", value);
}

/* The user's own LD_PRELOAD, which the pod has under another name, because ours had that name until
 * now. */
static void restore_preload(struct list *list)
{
    char **kept = find(list, WELLKNOWN_ENV_PRELOAD);
    char *entry = kept ? *kept : NULL;

    if (!entry)
        return;
    *kept = list->items[--list->count];
    list->items[list->count] = NULL;
    set(list, "LD_PRELOAD", "%s", entry + strlen(WELLKNOWN_ENV_PRELOAD) + 1);
    free(entry);
}

static struct list inherit(char *const *base)
{
    struct list list = {0};

    for (; *base; base++) {
        bool is_hidden = false;
        for (size_t h = 0; h < FLEET_COUNT(hidden); h++)
            is_hidden = is_hidden || has_name(*base, hidden[h]);
        if (!is_hidden)
            append(&list, strdup(*base));
    }
    restore_preload(&list);
    return list;
}

/* host:port of local process `process` of member `m`. */
static void append_endpoint(struct fleet_strbuf *out, const struct message_member *m, int process)
{
    bool has_colon = strchr(m->address, ':') != NULL;

    fleet_strbuf_appendf(out, "%s%s%s:%d", has_colon ? "[" : "", m->address, has_colon ? "]" : "",
                         m->ports[process]);
}

static void set_endpoints(struct list *list, const struct environment_input *in)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf all = {0}, own = {0};

    append_endpoint(&own, &in->assign->members[in->place], in->local_rank);
    for (size_t m = 0; m < in->assign->member_count; m++)
        for (int p = 0; p < in->assign->members[m].processes; p++) {
            if (all.length > 0)
                fleet_strbuf_append_char(&all, ',');
            append_endpoint(&all, &in->assign->members[m], p);
        }
    set(list, "PADDLE_CURRENT_ENDPOINT", "%s", own.text);
    set(list, "PADDLE_TRAINER_ENDPOINTS", "%s", all.text);
}

/* The address of rank 0's own store, under the name that each framework has for it. */
static void set_master(struct list *list, const struct environment_input *in)
{
    const struct message_member *first = &in->assign->members[0];
    FLEET_AUTO_STRBUF struct fleet_strbuf endpoint = {0};

    append_endpoint(&endpoint, first, 0);
    set(list, "PADDLE_MASTER", "%s", endpoint.text);
    set_default(list, "PADDLE_MASTER_ENDPOINT", endpoint.text); /* its name for init_rpc() */
    if (!find(list, "MASTER_ADDR") || !find(list, "MASTER_PORT")) {
        set(list, "MASTER_ADDR", "%s", first->address);
        set(list, "MASTER_PORT", "%d", first->ports[0]);
    }
    set(list, "MS_SCHED_HOST", "%s", first->address);
    set(list, "MS_SCHED_PORT", "%d", first->ports[0]);
}

/* Does the container have a device? The names are those that Paddle's launcher and Kubernetes'
 * device plugins use. CUDA_VISIBLE_DEVICES decides alone, as in the CUDA library. */
static bool has_device(struct list *list)
{
    static const char *const names[] = {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
                                        "XPU_VISIBLE_DEVICES", "XPULINK_VISIBLE_DEVICES"};
    static const char *const nothing[] = {"", "-1", "none", "void", "NoDevFiles"};

    for (size_t n = 0; n < FLEET_COUNT(names); n++) {
        char **entry = find(list, names[n]);
        bool is_device = entry != NULL;
        for (size_t i = 0; entry && i < FLEET_COUNT(nothing); i++)
            is_device = is_device && strcmp(*entry + strlen(names[n]) + 1, nothing[i]) != 0;
        if (is_device || (entry && n == 0))
            return is_device;
    }
    return false;
}

static void set_paddle(struct list *list, const struct environment_input *in, int rank)
{
    const struct message_assign *assign = in->assign;

    set(list, "PADDLE_TRAINER_ID", "%d", rank);
    set(list, "PADDLE_TRAINERS_NUM", "%d", assign->world);
    set(list, "PADDLE_RANK_IN_NODE", "%d", in->local_rank);
    set(list, "PADDLE_LOCAL_RANK", "%d", in->local_rank);
    set(list, "PADDLE_LOCAL_SIZE", "%d", assign->members[in->place].processes);
    set(list, "PADDLE_GLOBAL_SIZE", "%d", assign->world);
    set(list, "PADDLE_GLOBAL_RANK", "%d", rank);
    set(list, "PADDLE_NNODES", "%zu", assign->member_count);
    set(list, "PADDLE_JOB_ID", "%s", in->job_id);
    set(list, "POD_NAME", "%s", in->pod_name);
    if (!has_device(list))
        set_default(list, "PADDLE_DISTRI_BACKEND", "gloo");
    set_default(list, "OMP_NUM_THREADS", "1");
    set_default(list, "PADDLE_PG_TIMEOUT", "1800000");
    set_default(list, "FLAGS_stop_check_timeout", "900");
    set_default(list, "PADDLE_AUTO_CLUSTER", "0");
    set(list, "FLAGS_selected_gpus", "%d", in->local_rank);
}

static void set_torch(struct list *list, const struct environment_input *in, int rank)
{
    const struct message_assign *assign = in->assign;

    set(list, "RANK", "%d", rank);
    set(list, "WORLD_SIZE", "%d", assign->world);
    set(list, "LOCAL_RANK", "%d", in->local_rank);
    set(list, "LOCAL_WORLD_SIZE", "%d", assign->members[in->place].processes);
    set(list, "GROUP_RANK", "%d", in->place);
    set(list, "GROUP_WORLD_SIZE", "%zu", assign->member_count);
}

static void set_mindspore(struct list *list, const struct environment_input *in, int rank)
{
    set(list, "MS_ROLE", "MS_WORKER");
    set(list, "MS_WORKER_NUM", "%d", in->assign->world);
    set(list, "MS_NODE_ID", "%d", rank);
    set(list, "RANK_ID", "%d", rank);
    set(list, "RANK_SIZE", "%d", in->assign->world);
    set(list, "DEVICE_ID", "%d", in->local_rank);
}

static void set_files(struct list *list, const struct environment_input *in)
{
    if (in->folder)
        set_default(list, "PADDLE_LOG_DIR", in->folder);
    if (in->strategy_file)
        set(list, "FLEET_STRATEGY_FILE", "%s", in->strategy_file);
    if (in->strategy_json)
        set(list, "FLEET_STRATEGY_JSON", "%s", in->strategy_json);
    if (in->rank_table_file)
        set(list, "RANK_TABLE_FILE", "%s", in->rank_table_file);
    if (in->nccl_rings > 0)
        set(list, "FLAGS_nccl_nrings", "%d", in->nccl_rings);
    if (in->auto_parallel_json)
        set(list, "FLEET_AUTO_PARALLEL_JSON", "%s", in->auto_parallel_json);
    if (in->auto_parallel_file)
        set(list, "FLEET_AUTO_PARALLEL_FILE", "%s", in->auto_parallel_file);
    if (in->progress_file)
        set(list, "FLEET_PROGRESS_FILE", "%s", in->progress_file);
    if (in->generation_pipe)
        set(list, GENERATION_PIPE_ENV, "%s", in->generation_pipe);
}

/* The checkpoint that the job reported last. Before the first one, the user's own value stays. */
static void set_resume(struct list *list, const struct message_assign *assign)
{
    if (assign->checkpoint_step == 0)
        return;
    set(list, "FLEET_RESUME_STEP", "%lld", (long long)assign->checkpoint_step);
    set(list, "FLEET_RESUME_PATH", "%s", assign->checkpoint_path);
}

/* All ranks of a generation have its key, and no other process has it. A user's own value stays:
 * with FLEET_DATA_ENCRYPTION=None a trainer may use parameter servers that do not encrypt. */
static void set_encryption(struct list *list, const struct environment_input *in)
{
    char secret[2 * MESSAGE_SECRET_SIZE + 1];

    if (!in->encrypts)
        return;
    fleet_hex_encode(in->assign->key, MESSAGE_SECRET_SIZE, secret);
    if (!find(list, "FLEET_DATA_ENCRYPTION"))
        set(list, "FLEET_DATA_ENCRYPTION", "AES-GCM");
    if (!find(list, "FLEET_WORLD_SECRET"))
        set(list, "FLEET_WORLD_SECRET", "%s", secret);
}

char **environment_build(const struct environment_input *in)
{
    struct list list = inherit(in->base);
    int rank = in->first_rank + in->local_rank;

    set_endpoints(&list, in);
    set_master(&list, in);
    set_paddle(&list, in, rank);
    set_torch(&list, in, rank);
    set_mindspore(&list, in, rank);
    set_files(&list, in);
    set_resume(&list, in->assign);
    set_encryption(&list, in);
    set(&list, "FLEET_GENERATION", "%lld", (long long)in->assign->generation.counter);
    return list.items;
}

static size_t count_of(char *const *environment)
{
    size_t count = 0;

    while (environment[count])
        count++;
    return count;
}

char **environment_shorten(char **environment, char **out_json)
{
    cJSON *json = fleet_json_new_object();
    size_t kept = 0;

    for (size_t i = 0; environment[i]; i++) {
        char *entry = environment[i];
        if (strlen(entry) <= ENVIRONMENT_VALUE_SIZE_MAX) {
            environment[kept++] = entry;
            continue;
        }
        entry[name_size(entry)] = '\0';
        fleet_json_set_string(json, entry, entry + strlen(entry) + 1);
        free(entry);
    }
    environment[kept] = NULL;
    *out_json = json->child ? fleet_json_print(json) : NULL;
    cJSON_Delete(json);
    return environment;
}

char **environment_set(char **environment, const char *name, const char *value)
{
    struct list list = {environment, count_of(environment)};

    set(&list, name, "%s", value);
    return list.items;
}

char **environment_inherit(char *const *base)
{
    struct list list = inherit(base);

    if (!list.items)
        list.items = calloc(1, sizeof(*list.items));
    fleet_assert(list.items);
    return list.items;
}

static const char *value_of(char *const *environment, const char *name)
{
    size_t size = strlen(name);

    for (; environment && *environment; environment++)
        if (strncmp(*environment, name, size) == 0 && (*environment)[size] == '=')
            return *environment + size + 1;
    return NULL;
}

char **environment_choose_gpu(char **environment, int local_rank, int processes)
{
    const char *backend = value_of(environment, "FLEET_BACKEND");
    const char *visible = value_of(environment, "CUDA_VISIBLE_DEVICES");
    char chosen[128];

    if (processes < 2 || !backend || strcmp(backend, "cuda") != 0)
        return environment;
    (void)snprintf(chosen, sizeof(chosen), "%d", local_rank);
    if (visible) {
        for (int i = 0; i < local_rank && visible; i++)
            visible = strchr(visible, ',') ? strchr(visible, ',') + 1 : NULL;
        (void)snprintf(chosen, sizeof(chosen), "%.*s", visible ? (int)strcspn(visible, ",") : 0,
                       visible ? visible : "");
    }
    return environment_set(environment, "CUDA_VISIBLE_DEVICES", chosen);
}

void environment_free(char **environment)
{
    for (char **entry = environment; entry && *entry; entry++)
        free(*entry);
    free(environment);
}
