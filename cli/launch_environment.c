/* SPDX-License-Identifier: Apache-2.0 */

/* The variables of Paddle's launcher for servers and workers. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/launch_endpoints.h"
#include "cli/launch_servers.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/memory.h"

struct list {
    char **items;
    size_t count; /* without the NULL at the end */
};

static bool has_name(const struct list *list, const char *entry)
{
    size_t size = strcspn(entry, "=") + 1;

    for (size_t i = 0; i < list->count; i++)
        if (strncmp(list->items[i], entry, size) == 0)
            return true;
    return false;
}

__attribute__((format(printf, 2, 3))) static void add(struct list *list, const char *format, ...)
{
    struct fleet_strbuf text = {0};
    va_list args;

    va_start(args, format);
    fleet_strbuf_appendv(&text, format, args);
    va_end(args);
    list->items = fleet_grow(list->items, list->count, sizeof(*list->items));
    list->items[list->count++] = fleet_strbuf_take(&text);
}

/* As Paddle's launcher: processes of one job do not talk through a proxy. */
static bool is_hidden(const char *entry)
{
    static const char *const names[] = {
        "http_proxy=", "https_proxy=", "HTTP_PROXY=", "HTTPS_PROXY="};

    for (size_t i = 0; i < FLEET_COUNT(names); i++)
        if (strncmp(entry, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

char **launch_environment(const struct launch_options *options,
                          const struct launch_endpoints *endpoints, const char *secret,
                          bool is_server, int index, char *const *own)
{
    const struct fleet_strbuf *addresses = is_server ? &endpoints->servers : &endpoints->workers;
    const char *role = is_server ? "PSERVER" : "TRAINER";
    FLEET_AUTO_FREE char *host = NULL, *port = NULL;
    struct list list = {0};

    launch_endpoints_at(addresses, index, &host, &port);
    add(&list, "PADDLE_PSERVERS_IP_PORT_LIST=%s", endpoints->servers.text);
    add(&list, "PADDLE_TRAINER_ENDPOINTS=%s", endpoints->workers.text);
    add(&list, "PADDLE_TRAINERS_NUM=%d", options->workers);
    add(&list, "PADDLE_ROLE=%s", role);
    add(&list, "TRAINING_ROLE=%s", role);
    add(&list, "POD_IP=%s", host);
    add(&list, "PADDLE_PORT=%s", port);
    add(&list, "PADDLE_JOB_ID=%s", options->job_id);
    add(&list, "PADDLE_WITH_GLOO=0"); /* workers exchange by fleet_env_init() */
    if (!is_server)
        add(&list, "PADDLE_TRAINER_ID=%d", index);
    if (!is_server && options->devices)
        add(&list, "CUDA_VISIBLE_DEVICES=%s", options->devices);
    if (options->log_folder)
        add(&list, "PADDLE_LOG_DIR=%s", options->log_folder);
    for (; own && *own; own++)
        if (!has_name(&list, *own))
            add(&list, "%s", *own);
    if (!getenv("FLEET_WORLD_SECRET") && !has_name(&list, "FLEET_WORLD_SECRET="))
        add(&list, "FLEET_WORLD_SECRET=%s", secret);
    for (char **entry = environ; *entry; entry++)
        if (!is_hidden(*entry) && !has_name(&list, *entry) &&
            (!is_server || strncmp(*entry, "PADDLE_TRAINER_ID=", 18) != 0))
            add(&list, "%s", *entry);
    list.items = fleet_grow(list.items, list.count, sizeof(*list.items));
    list.items[list.count] = NULL;
    return list.items;
}

void launch_free_environment(char **environment)
{
    for (char **entry = environment; *entry; entry++)
        free(*entry);
    free(environment);
}
