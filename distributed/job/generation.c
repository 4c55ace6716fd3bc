/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Generations in process. A thread reads the lines of the agent (agent/generation_channel.h) and
 * aborts the world when its generation has ended, so that no operation waits for a rank that is
 * gone:
 *
 *   agent ── "end", "begin N" ──▶ listen() ── world_abort() ──▶ the operation fails
 *                                    │                              │
 *                                    └── changed ──▶ next() ◀── fleet_wait_generation()
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "distributed/job/job.h"
#include "include/fleet/fleet_job.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"

#define VARIABLES_MAX (64 << 20) /* bytes of all variables of a generation */

static struct {
    bool has_begun;
    char *pipe; /* NULL: no agent */
    int fd, stop;

    pthread_mutex_t lock; /* protects the members below */
    pthread_cond_t changed;
    int current;    /* the generation that this process is in */
    int64_t newest; /* that the agent has begun; 0: none since the start */
    bool has_ended; /* the newest one */
    bool is_lost;   /* the agent is gone */
} self = {
    .fd = -1, .stop = -1, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

int job_report(const char *line, struct fleet_error *err)
{
    const char *path = getenv("FLEET_PROGRESS_FILE");
    FLEET_AUTO_CLOSE int fd = -1;
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (!path || !path[0])
        return 0;
    fd = open(path, O_WRONLY | O_CLOEXEC | O_APPEND);
    fleet_strbuf_appendf(&text, "%s\n", line);
    if (fd < 0 || write(fd, text.text, text.length) != (ssize_t)text.length)
        return fleet_error(err, -errno, "%s: %s", path, strerror(errno));
    return 0;
}

/* ---- what the agent says --------------------------------------------------------------------- */

/* Under the lock. */
static bool is_over(void)
{
    return self.newest > self.current || self.has_ended || self.is_lost;
}

int generation_check(const char *what, struct fleet_error *err)
{
    bool over;

    if (!self.pipe)
        return 0;
    (void)pthread_mutex_lock(&self.lock);
    over = is_over();
    (void)pthread_mutex_unlock(&self.lock);
    return over ? fleet_error(err, -ECANCELED, "%s: the generation has ended", what) : 0;
}

/* Take what the agent says: a line, or NULL at its end. */
static void take(const char *line)
{
    int64_t number = 0;
    uint64_t one = 1;

    (void)pthread_mutex_lock(&self.lock);
    if (!line)
        self.is_lost = true;
    else if (strncmp(line, "begin ", 6) == 0)
        number = self.newest = strtoll(line + 6, NULL, 10);
    self.has_ended = number == 0;
    (void)!write(self.stop, &one, sizeof(one)); /* stops what connects */
    world_abort();
    (void)pthread_cond_broadcast(&self.changed);
    (void)pthread_mutex_unlock(&self.lock);
}

static void *listen_to_agent(void *data)
{
    FILE *file = fdopen(self.fd, "r");
    char line[64];
    sigset_t all;

    (void)data;
    (void)sigfillset(&all); /* signals are the program's */
    (void)pthread_sigmask(SIG_BLOCK, &all, NULL);
    while (file && fgets(line, sizeof(line), file))
        take(line);
    take(NULL);
    if (file)
        (void)fclose(file);
    return NULL;
}

static int begin(struct fleet_error *err)
{
    const char *path = getenv("FLEET_GENERATION_PIPE");
    pthread_t thread;

    if (!path || !path[0])
        return 0;
    self.pipe = strdup(path);
    self.fd = open(path, O_RDONLY | O_CLOEXEC);
    self.stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!self.pipe || self.fd < 0 || self.stop < 0)
        return fleet_error(err, -errno, "%s: %s", path, strerror(errno));
    if (pthread_create(&thread, NULL, listen_to_agent, NULL) != 0)
        return fleet_error(err, -EAGAIN, "cannot start a thread");
    (void)pthread_detach(thread);
    return job_report("{\"stays\": true}", err);
}

/* ---- the next generation --------------------------------------------------------------------- */

/* Wait for a generation after ours, which is ours from now on: its number in *out. */
static int wait_newer(int64_t *out, struct fleet_error *err)
{
    bool is_lost;

    (void)pthread_mutex_lock(&self.lock);
    while (self.newest <= self.current && !self.is_lost)
        (void)pthread_cond_wait(&self.changed, &self.lock);
    *out = self.newest;
    self.current = self.is_lost ? self.current : (int)self.newest;
    is_lost = self.is_lost;
    (void)pthread_mutex_unlock(&self.lock);
    return is_lost ? fleet_error(err, -EPIPE, "the agent of this worker is gone") : 0;
}

/* Take the variables of generation `number`. *out_taken false: it is not the newest one any more.
 * */
static int take_variables(int64_t number, bool *out_taken, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
    FLEET_AUTO_FREE char *text = NULL;
    size_t size = 0;
    int rc;

    fleet_strbuf_appendf(&path, "%s.%" PRId64, self.pipe, number);
    rc = fleet_file_read(fleet_strbuf_text(&path), VARIABLES_MAX, &text, &size, err);
    *out_taken = rc == 0;
    if (rc == -ENOENT)
        return 0; /* the agent has replaced it by that of a newer one */
    for (size_t at = 0; rc == 0 && at < size; at += strlen(text + at) + 1) {
        char *entry = text + at, *value = strchr(entry, '=');
        if (!value)
            return fleet_error(err, -EBADMSG, "%s: damaged", path.text);
        *value = '\0';
        if (setenv(entry, value + 1, 1) != 0)
            return fleet_error(err, -ENOMEM, "out of memory");
        *value = '=';
    }
    return rc;
}

/* Leave our generation, and take the variables of the next one. */
static int next(struct fleet_error *err)
{
    char line[48];
    int64_t number;
    bool is_taken = false;
    int rc;

    fleet_env_release();
    (void)snprintf(line, sizeof(line), "{\"waiting\": %d}", self.current);
    rc = job_report(line, err);
    while (rc == 0 && !is_taken) {
        rc = wait_newer(&number, err);
        if (rc == 0)
            rc = take_variables(number, &is_taken, err);
    }
    return rc;
}

/* Connect the ranks of our generation. */
static int join(struct fleet_error *err)
{
    uint64_t drained;
    bool over;
    int rc;

    (void)pthread_mutex_lock(&self.lock);
    if (self.pipe && !is_over())
        (void)!read(self.stop, &drained, sizeof(drained));
    (void)pthread_mutex_unlock(&self.lock);
    rc = world_connect(self.stop, err);
    (void)pthread_mutex_lock(&self.lock);
    over = self.pipe && is_over(); /* before the world could be aborted */
    (void)pthread_mutex_unlock(&self.lock);
    return rc == 0 && over ? fleet_error(err, -ECANCELED, "the generation has ended") : rc;
}

static bool is_end_of_generation(int rc)
{
    return rc == -ECANCELED || rc == -ECONNRESET || rc == -ETIMEDOUT || rc == -ECONNABORTED;
}

int fleet_wait_generation(struct fleet_error *err)
{
    struct fleet_env env;
    int rc = 0;

    if (self.has_begun && !self.pipe)
        return fleet_error(err, -ENOTSUP,
                           "fleet_wait_generation: no agent of a FleetJob has started this "
                           "process, so there is one generation");
    if (self.has_begun) {
        rc = next(err);
    } else {
        rc = fleet_env_read(&env, err);
        self.current = rc == 0 ? env.generation : 0;
        if (rc == 0)
            rc = begin(err);
        self.has_begun = rc == 0;
    }
    if (rc == 0)
        rc = join(err);
    while (self.pipe && is_end_of_generation(rc)) {
        rc = next(err);
        if (rc == 0)
            rc = join(err);
    }
    return rc < 0 ? fleet_error_wrap(err, "fleet_wait_generation") : 0;
}
