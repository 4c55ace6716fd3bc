/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Goal: the kernel's count of processes killed for lack of memory is found in either generation of
 * control groups, in a container and out of one. Method: a folder in place of the root.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "agent/memory_events.h"
#include "libfleet/base/cleanup.h"

static void write_file(const char *root, const char *path, const char *text)
{
    char full[512];
    FLEET_AUTO_FCLOSE FILE *file = NULL;

    assert_true(snprintf(full, sizeof(full), "%s%s", root, path) < (int)sizeof(full));
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        (void)mkdir(full, 0777);
    }
    file = fopen(full, "we");
    assert_non_null(file);
    fputs(text, file);
}

static void expect_kills(const char *groups, const char *path, const char *text, int64_t wanted)
{
    char root[] = "/tmp/fleetjob-memory-XXXXXX", remove[64];

    assert_non_null(mkdtemp(root));
    if (groups)
        write_file(root, "/proc/self/cgroup", groups);
    if (path)
        write_file(root, path, text);
    assert_int_equal(memory_events_kills(root), wanted);
    (void)snprintf(remove, sizeof(remove), "rm -r %s", root);
    assert_int_equal(system(remove), 0); /* NOLINT(cert-env33-c) */
}

static void test_memory_events__are_found(void **state)
{
    static const char v1[] = "9:name=systemd:/pod/x\n4:memory:/pod/x\n0::/pod/x\n";
    static const char control[] = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
    static const char events[] = "low 0\nmax 7\noom 2\noom_kill 2\noom_group_kill 0\n";

    (void)state;
    expect_kills(v1, "/sys/fs/cgroup/memory/pod/x/memory.oom_control", control, 3);
    expect_kills(v1, "/sys/fs/cgroup/memory/memory.oom_control", control, 3);
    expect_kills("0::/pod/x\n", "/sys/fs/cgroup/pod/x/memory.events", events, 2);
    expect_kills("0::/\n", "/sys/fs/cgroup/memory.events", events, 2);
}

static void test_memory_events__are_none_where_nothing_says_so(void **state)
{
    (void)state;
    expect_kills(NULL, NULL, NULL, 0);
    expect_kills("0::/\n", NULL, NULL, 0);
    expect_kills("nonsense\n4:memory\n", "/sys/fs/cgroup/memory.events", "oom 1\n", 0);
    expect_kills("0::/\n", "/sys/fs/cgroup/memory.events", "oom_kill -4\n", 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_events__are_found),
        cmocka_unit_test(test_memory_events__are_none_where_nothing_says_so),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
