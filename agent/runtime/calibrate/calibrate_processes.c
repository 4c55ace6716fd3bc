/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/runtime/calibrate/calibrate_internal.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

void *calibrate_shared(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    fleet_assert(memory != MAP_FAILED);
    return memory;
}

struct outcome {
    int rc;
    struct fleet_error err;
};

/* In the new process. */
static void run(int number, calibrate_work work, void *context, struct outcome *outcome)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)setsid(); /* as trainers: the kernel's autogroups share processors between sessions */
    outcome->rc = work(context, number, &outcome->err);
    _exit(0);
}

static void wait_for(pid_t pid, struct outcome *outcome)
{
    int status;

    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (WIFSIGNALED(status) && outcome->rc == 0)
        outcome->rc = fleet_error(&outcome->err, -EIO, "a measuring process ended by signal %d",
                                  WTERMSIG(status));
}

int calibrate_processes(int count, calibrate_work work, void *context, struct fleet_error *err)
{
    struct outcome *outcomes = calibrate_shared((size_t)count * sizeof(*outcomes));
    pid_t *pids = calloc((size_t)count, sizeof(*pids));
    int started = 0, rc = 0;

    fleet_assert(pids);
    for (; started < count; started++) {
        pids[started] = fork();
        if (pids[started] == 0)
            run(started, work, context, &outcomes[started]);
        if (pids[started] < 0)
            break;
    }
    if (started < count) {
        rc = fleet_error(err, -errno, "start a measuring process: %s", strerror(errno));
        for (int i = 0; i < started; i++)
            (void)kill(pids[i], SIGKILL);
    }
    for (int i = 0; i < started; i++) {
        wait_for(pids[i], &outcomes[i]);
        if (outcomes[i].rc < 0 && rc == 0)
            rc = fleet_error(err, outcomes[i].rc, "%s", outcomes[i].err.text);
    }
    free(pids);
    (void)munmap(outcomes, (size_t)count * sizeof(*outcomes));
    return rc;
}
