/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_RENDEZVOUS_FAILURE_RULES_H
#define LIBFLEET_RENDEZVOUS_FAILURE_RULES_H

/*
 * What a failure means for the job: runPolicy.failurePolicy as the hub knows it. The hub asks the
 * rules before it counts a restart, so a failure that ends the job, or does not count, is never
 * counted first.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum failure_action {
    FAILURE_RESTART, /* start again, and count it */
    FAILURE_IGNORE,  /* restart, and count it separately: never against maxRestarts */
    FAILURE_FAIL,    /* the job has failed */
};

/* Matches a failure whose exit code and cause are both listed; an empty list matches any. */
struct failure_rule {
    const char *name; /* for messages; NULL = without one */
    enum failure_action action;
    const int64_t *exit_codes; /* [exit_code_count] 128 + signal if ended by one */
    size_t exit_code_count;
    const char *const *causes; /* [cause_count] CamelCase */
    size_t cause_count;
};

/* All zero: no rule, every failure is a restart that counts. */
struct failure_rules {
    struct failure_rule *items; /* [count], the first that matches decides */
    size_t count;
};

/* The rule that decides, or NULL if none matches. Borrowed. */
const struct failure_rule *failure_rules_find(const struct failure_rules *rules, int exit_code,
                                              const char *cause);

/* What to do about the failure: FAILURE_RESTART without a rule. */
enum failure_action failure_rules_action(const struct failure_rules *rules, int exit_code,
                                         const char *cause);

bool failure_rules_equal(const struct failure_rules *a, const struct failure_rules *b);

/* A copy that owns all it points to; free it with failure_rules_release(). */
void failure_rules_copy(const struct failure_rules *from, struct failure_rules *out);
void failure_rules_release(struct failure_rules *rules);

#endif
