/* SPDX-License-Identifier: Apache-2.0 */

/* A job on this machine (cli/local_job.h) whose private folder is on a disk that is full. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/local_job.h"
#include "libfleet/api/fleetjob.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"

static char full[64]; /* this path takes ten bytes in all; "" = none */

static bool is_full(int fd)
{
    char link[64], path[128];
    ssize_t size;

    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    size = readlink(link, path, sizeof(path) - 1);
    return full[0] && size == (ssize_t)strlen(full) && strncmp(path, full, (size_t)size) == 0;
}

/* In place of the C library's. */
/* NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name) */
ssize_t write(int fd, const void *data, size_t size)
{
    off_t room;

    if (!is_full(fd))
        return syscall(SYS_write, fd, data, size);
    room = 10 - lseek(fd, 0, SEEK_CUR);
    if (room <= 0) {
        errno = ENOSPC;
        return -1;
    }
    return syscall(SYS_write, fd, data, size < (size_t)room ? size : (size_t)room);
}

/* Half a token is none: the workers would be refused, and nobody would know why. */
static void test_local_job__half_a_secret_is_an_error(void **state)
{
    static const char *const names[] = {"token", "ca.pem"};
    char folder[] = "/tmp/fleetjob-local-job-XXXXXX";

    (void)state;
    assert_non_null(mkdtemp(folder));
    for (size_t i = 0; i < FLEET_COUNT(names); i++) {
        struct fleetjob job = {.metadata.name = (char *)"gpt"};
        struct local_job_config config = {.job = &job, .folder = folder, .agent_path = "/bin/true"};
        struct local_job *local = NULL;
        struct fleet_error err;
        (void)snprintf(full, sizeof(full), "%s/%s", folder, names[i]);
        assert_int_equal(local_job_new(&config, &local, &err), -ENOSPC);
        assert_null(local);
        if (!strstr(err.text, full))
            fail_msg("expected %s in: %s", full, err.text);
        for (size_t name = 0; name < FLEET_COUNT(names); name++) {
            FLEET_AUTO_FREE char *path = fleet_file_join(folder, names[name]);
            (void)unlink(path);
        }
    }
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_local_job__half_a_secret_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
