/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/rendezvous/failure_rules.h"

#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/memory.h"

static bool lists_code(const struct failure_rule *rule, int exit_code)
{
    for (size_t i = 0; i < rule->exit_code_count; i++)
        if (rule->exit_codes[i] == exit_code)
            return true;
    return rule->exit_code_count == 0;
}

static bool lists_cause(const struct failure_rule *rule, const char *cause)
{
    for (size_t i = 0; i < rule->cause_count; i++)
        if (strcmp(rule->causes[i], cause) == 0)
            return true;
    return rule->cause_count == 0;
}

const struct failure_rule *failure_rules_find(const struct failure_rules *rules, int exit_code,
                                              const char *cause)
{
    for (size_t i = 0; i < rules->count; i++)
        if (lists_code(&rules->items[i], exit_code) && lists_cause(&rules->items[i], cause))
            return &rules->items[i];
    return NULL;
}

enum failure_action failure_rules_action(const struct failure_rules *rules, int exit_code,
                                         const char *cause)
{
    const struct failure_rule *rule = failure_rules_find(rules, exit_code, cause);

    return rule ? rule->action : FAILURE_RESTART;
}

/* ---- values ---------------------------------------------------------------------------------- */

static bool is_same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool is_same_rule(const struct failure_rule *a, const struct failure_rule *b)
{
    if (a->action != b->action || !is_same_text(a->name, b->name) ||
        a->exit_code_count != b->exit_code_count || a->cause_count != b->cause_count)
        return false;
    for (size_t i = 0; i < a->exit_code_count; i++)
        if (a->exit_codes[i] != b->exit_codes[i])
            return false;
    for (size_t i = 0; i < a->cause_count; i++)
        if (strcmp(a->causes[i], b->causes[i]) != 0)
            return false;
    return true;
}

bool failure_rules_equal(const struct failure_rules *a, const struct failure_rules *b)
{
    if (a->count != b->count)
        return false;
    for (size_t i = 0; i < a->count; i++)
        if (!is_same_rule(&a->items[i], &b->items[i]))
            return false;
    return true;
}

static void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count + 1, size);

    fleet_assert(memory);
    return memory;
}

static struct failure_rule copy_rule(const struct failure_rule *from)
{
    int64_t *codes = allocate(from->exit_code_count, sizeof(*codes));
    char **causes = allocate(from->cause_count, sizeof(*causes));

    for (size_t i = 0; i < from->exit_code_count; i++)
        codes[i] = from->exit_codes[i];
    for (size_t i = 0; i < from->cause_count; i++)
        causes[i] = fleet_dup_text(from->causes[i]);
    return (struct failure_rule){.name = fleet_dup_text(from->name),
                                 .action = from->action,
                                 .exit_codes = codes,
                                 .exit_code_count = from->exit_code_count,
                                 .causes = (const char *const *)causes,
                                 .cause_count = from->cause_count};
}

void failure_rules_copy(const struct failure_rules *from, struct failure_rules *out)
{
    *out = (struct failure_rules){0};
    if (from->count == 0)
        return;
    out->items = allocate(from->count, sizeof(*out->items));
    for (size_t i = 0; i < from->count; i++)
        out->items[i] = copy_rule(&from->items[i]);
    out->count = from->count;
}

void failure_rules_release(struct failure_rules *rules)
{
    for (size_t i = 0; i < rules->count; i++) {
        struct failure_rule *rule = &rules->items[i];
        for (size_t c = 0; c < rule->cause_count; c++)
            free((char *)rule->causes[c]);
        free((char **)rule->causes);
        free((int64_t *)rule->exit_codes);
        free((char *)rule->name);
    }
    free(rules->items);
    *rules = (struct failure_rules){0};
}
