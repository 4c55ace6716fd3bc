/* SPDX-License-Identifier: Apache-2.0 */

/* The settings of a worker, by Paddle's names: strategy.md 20. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/ps/client.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/variable.h"

#define VALUE_MAX 64

void fleet_ps_options_init(struct fleet_ps_options *options)
{
    if (!options)
        return;
    *options = (struct fleet_ps_options){.mode = FLEET_PS_SYNC,
                                         .k_steps = 1,
                                         .max_merge_var_num = 1,
                                         .send_queue_size = 16,
                                         .send_wait_times = 1,
                                         .launch_barrier = true};
}

/* What this parameter server does not have: the only value that is allowed, and the reason. */
static const struct {
    const char *name, *value, *reason;
} refused[] = {
    {"independent_recv_thread", "false", "each pull of a dense table asks the servers"},
    {"min_send_grad_num_before_recv", "1", "it belongs to independent_recv_thread"},
    {"thread_pool_size", "1", "one thread sends"},
    {"runtime_split_send_recv", "false", "tables are always divided over the servers"},
    {"heter_worker_device_guard", "\"cpu\"", "there are no heterogeneous workers"},
    {"lr_decay_steps", "10", "a table's learning_rate does not change by itself"},
    {"use_ps_gpu", "0", "tables lie in the servers' memory"},
    {"heter_ccl_mode", "false", "there are no heterogeneous workers"},
    {"is_fl_ps_mode", "false", "there is no federated learning"},
    {"with_coordinator", "false", "there is no federated learning"},
    {"is_with_coordinator", "false", "there is no federated learning"},
    {"adam_d2sum", "false", "use the rule FLEET_PS_ADAM"},
};

static int read_bool(const char *name, const char *value, bool *out, struct fleet_error *err)
{
    if (strcmp(value, "true") != 0 && strcmp(value, "false") != 0)
        return fleet_error(err, -EINVAL, "%s is %.40s, allowed: true, false", name, value);
    *out = value[0] == 't';
    return 0;
}

static int set_k_steps(struct fleet_ps_options *options, const char *value, struct fleet_error *err)
{
    int steps, rc = fleet_variable_parse("k_steps", value, -1, INT_MAX, &steps, err);

    if (rc < 0)
        return rc;
    if (steps > 0) {
        options->mode = FLEET_PS_GEO;
        options->k_steps = steps;
    } else if (options->mode == FLEET_PS_GEO) {
        options->mode = FLEET_PS_ASYNC;
    }
    return 0;
}

static int set_mode(struct fleet_ps_options *options, const char *value, struct fleet_error *err)
{
    static const char *const names[] = {"\"sync\"", "\"half_async\"", "\"async\"", "\"geo\""};

    for (int i = 0; i < 4; i++)
        if (strcmp(names[i], value) == 0) {
            options->mode = (enum fleet_ps_mode)i;
            return 0;
        }
    return fleet_error(err, -EINVAL,
                       "mode is %.40s, allowed: \"sync\", \"half_async\", \"async\", \"geo\"",
                       value);
}

int fleet_ps_option_set(struct fleet_ps_options *options, const char *name, const char *value,
                        struct fleet_error *err)
{
    const struct {
        const char *name;
        int *out, max;
    } numbers[] = {{"max_merge_var_num", &options->max_merge_var_num, 1 << 16},
                   {"send_queue_size", &options->send_queue_size, 1 << 16},
                   {"send_wait_times", &options->send_wait_times, 1 << 16}};
    bool is_async;
    int given = argument_check(options, "fleet_ps_option_set", "options", err);

    if (given == 0)
        given = argument_check(name, "fleet_ps_option_set", "name", err);
    if (given == 0)
        given = argument_check(value, "fleet_ps_option_set", "value", err);
    if (given < 0)
        return given;
    if (strcmp(name, "a_sync") == 0) {
        int rc = read_bool(name, value, &is_async, err);
        if (rc == 0)
            options->mode = is_async ? FLEET_PS_ASYNC : FLEET_PS_SYNC;
        return rc;
    }
    if (strcmp(name, "k_steps") == 0)
        return set_k_steps(options, value, err);
    if (strcmp(name, "mode") == 0)
        return set_mode(options, value, err);
    if (strcmp(name, "launch_barrier") == 0)
        return read_bool(name, value, &options->launch_barrier, err);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (strcmp(numbers[i].name, name) == 0)
            return fleet_variable_parse(name, value, i < 2, numbers[i].max, numbers[i].out, err);
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        if (strcmp(refused[i].name, name) == 0)
            return strcmp(refused[i].value, value) == 0
                       ? 0
                       : fleet_error(err, -ENOTSUP, "%s is %.40s, allowed: %s, because %s", name,
                                     value, refused[i].value, refused[i].reason);
    return fleet_error(err, -EINVAL, "%.60s is no setting of a parameter server", name);
}

/* ---- a strategy's text ----------------------------------------------------------------------- */

/* The value behind "key": in [text, end): a word, number or string. False: it is not there. */
static bool find_value(const char *text, const char *end, const char *key, char out[VALUE_MAX])
{
    size_t length = strlen(key);

    for (const char *at = text; (at = strchr(at, '"')) != NULL && at < end; at++) {
        const char *value;
        size_t size;
        if (strncmp(at + 1, key, length) != 0 || at[length + 1] != '"')
            continue;
        value = at + length + 2;
        value += strspn(value, " \t\r\n");
        if (*value != ':')
            continue;
        value++;
        value += strspn(value, " \t\r\n");
        size = *value == '"' ? strcspn(value + 1, "\"") + 2 : strcspn(value, ",} \t\r\n");
        if (size >= VALUE_MAX)
            size = VALUE_MAX - 1;
        memcpy(out, value, size);
        out[size] = '\0';
        return true;
    }
    return false;
}

int fleet_ps_options_read(struct fleet_ps_options *options, const char *strategy,
                          struct fleet_error *err)
{
    static const char *const top[] = {"a_sync",           "heter_ccl_mode",      "is_fl_ps_mode",
                                      "with_coordinator", "is_with_coordinator", "adam_d2sum"};
    static const char *const keys[] = {"k_steps",
                                       "max_merge_var_num",
                                       "send_queue_size",
                                       "send_wait_times",
                                       "launch_barrier",
                                       "independent_recv_thread",
                                       "min_send_grad_num_before_recv",
                                       "thread_pool_size",
                                       "runtime_split_send_recv",
                                       "heter_worker_device_guard",
                                       "lr_decay_steps",
                                       "use_ps_gpu"};
    const char *configs, *end, *open, *close;
    char value[VALUE_MAX];
    int rc = argument_check(options, "fleet_ps_options_read", "options", err);

    if (rc == 0)
        rc = argument_check(strategy, "fleet_ps_options_read", "strategy", err);
    if (rc < 0)
        return rc;
    configs = strstr(strategy, "\"a_sync_configs\"");
    end = strategy + strlen(strategy);
    for (size_t i = 0; rc == 0 && i < sizeof(top) / sizeof(top[0]); i++)
        if (find_value(strategy, end, top[i], value))
            rc = fleet_ps_option_set(options, top[i], value, err);
    open = configs ? strchr(configs, '{') : NULL;
    close = open ? strchr(open, '}') : NULL;
    for (size_t i = 0; rc == 0 && close && i < sizeof(keys) / sizeof(keys[0]); i++)
        if (find_value(open, close, keys[i], value)) {
            rc = fleet_ps_option_set(options, keys[i], value, err);
            if (rc < 0)
                return fleet_error_wrap(err, "a_sync_configs");
        }
    return rc;
}

int ps_options_check(const struct fleet_ps_options *options, struct fleet_error *err)
{
    const struct {
        const char *name;
        int value, min;
    } numbers[] = {{"k_steps", options->k_steps, 1},
                   {"max_merge_var_num", options->max_merge_var_num, 1},
                   {"send_queue_size", options->send_queue_size, 1},
                   {"send_wait_times", options->send_wait_times, 0},
                   {"timeout_ms", options->timeout_ms, 0}};

    if ((unsigned)options->mode > FLEET_PS_GEO)
        return fleet_error(err, -EINVAL, "mode is %d, allowed: 0 to %d", (int)options->mode,
                           FLEET_PS_GEO);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (numbers[i].value < numbers[i].min)
            return fleet_error(err, -EINVAL, "%s is %d, allowed: %d or more", numbers[i].name,
                               numbers[i].value, numbers[i].min);
    return 0;
}
