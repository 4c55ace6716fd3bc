/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/rpc/functions.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/rpc/frame.h"

struct function {
    struct function *next;
    fleet_rpc_function run;
    void *argument;
    char name[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct function *functions; /* until the process ends */

static struct function *find(const char *name)
{
    struct function *one = functions;

    while (one && strcmp(one->name, name) != 0)
        one = one->next;
    return one;
}

int fleet_rpc_register(const char *name, fleet_rpc_function function, void *argument,
                       struct fleet_error *err)
{
    struct function *one;
    int rc = rpc_name_check("fleet_rpc_register: name", name, err);

    if (rc < 0)
        return rc;
    if (!function)
        return fleet_error(err, -EINVAL, "fleet_rpc_register: function is NULL");
    (void)pthread_mutex_lock(&lock);
    one = find(name);
    if (!one && (one = calloc(1, sizeof(*one) + strlen(name) + 1)) != NULL) {
        memcpy(one->name, name, strlen(name) + 1);
        one->next = functions;
        functions = one;
    }
    if (one) {
        one->run = function;
        one->argument = argument;
    }
    (void)pthread_mutex_unlock(&lock);
    return one ? 0 : fleet_error(err, -ENOMEM, "fleet_rpc_register: out of memory");
}

int rpc_function_run(const char *name, const void *in, size_t in_bytes, void **out,
                     size_t *out_bytes, struct fleet_error *err)
{
    const struct function *found;
    struct function copy = {0};
    struct fleet_error own = {0};
    void *result = NULL;
    size_t bytes = 0;
    int rc;

    (void)pthread_mutex_lock(&lock);
    found = find(name);
    if (found) {
        copy.run = found->run;
        copy.argument = found->argument;
    }
    (void)pthread_mutex_unlock(&lock);
    if (!found)
        return fleet_error(err, -ENOENT, "there is no such function");
    rc = copy.run(in, in_bytes, &result, &bytes, copy.argument, &own);
    if (rc >= 0 && bytes > FLEET_RPC_BYTES_MAX)
        rc = fleet_error(&own, -EMSGSIZE, "the result has %zu bytes, allowed: %d", bytes,
                         FLEET_RPC_BYTES_MAX);
    if (rc < 0) {
        free(result);
        own.text[sizeof(own.text) - 1] = '\0';
        return fleet_error(err, rc, "%s", own.text[0] ? own.text : "it failed without a text");
    }
    *out = result;
    *out_bytes = result ? bytes : 0;
    return 0;
}
