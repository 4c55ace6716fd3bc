/* SPDX-License-Identifier: Apache-2.0 */

/* The agent's log names the worker that prints the steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/journal.h"

/* What the log gets when worker `first` is rank 0, worker `second` the next, and this is the one at
 * `place`. */
static void log_assign(int first, int second, int place, char *out, size_t size)
{
    const struct message_member members[] = {{.index = first, .processes = 2},
                                             {.index = second, .processes = 2}};
    const struct message_assign assign = {
        .generation = {1, 1}, .members = members, .member_count = 2, .world = 4, .step = -1};
    const struct member_action action = {
        .type = MEMBER_ASSIGN, .assign = &assign, .place = place, .first_rank = 2 * place};
    struct journal journal = {.pod_name = "w"};
    FILE *file = tmpfile();
    int before = dup(STDERR_FILENO);

    assert_non_null(file);
    assert_true(before >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    journal_order(&journal, &action, 5);
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    (void)close(before);
    rewind(file);
    out[fread(out, 1, size - 1, file)] = '\0';
    (void)fclose(file);
}

static void test_journal__worker_0_names_the_log_that_has_the_steps(void **state)
{
    char text[2048];

    (void)state;
    log_assign(3, 0, 1, text, sizeof(text));
    assert_non_null(strstr(text, "Joined a generation"));
    assert_non_null(strstr(text, " pod=\"w\" rank=2 generation=1 "));
    assert_non_null(strstr(text, "Rank 0, whose log has the step lines, is another worker"));
    assert_non_null(strstr(text, "worker=3"));
}

static void test_journal__other_workers_name_no_worker(void **state)
{
    char text[2048];

    (void)state;
    log_assign(0, 1, 0, text, sizeof(text));
    assert_null(strstr(text, "another worker"));
    log_assign(0, 1, 1, text, sizeof(text));
    assert_null(strstr(text, "another worker"));
    log_assign(3, 0, 0, text, sizeof(text));
    assert_null(strstr(text, "another worker"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_journal__worker_0_names_the_log_that_has_the_steps),
        cmocka_unit_test(test_journal__other_workers_name_no_worker),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
