/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fleetjob-train: one rank. Started by the agent, which speaks to it over an inherited socket
 * (agent/link.h); generation after generation it joins, trains, and waits for the next.
 *
 *            ┌──────────── aborted, peer lost: WAITING ─────────────┐
 *            ▼                                                      │
 *   open ─▶ wait ── assign ─▶ join (elastic.c) ─▶ step (train.c) ───┤
 *            │                                                      └─ complete ─▶ finished ─▶ wait
 *            ├─ leave ─▶ checkpoint ─▶ exit 0
 *            ├─ done ─▶ exit 0
 *            └─ agent gone ─▶ exit 1
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/runtime/backend/cpu/backend_level.h"
#include "agent/runtime/join/elastic.h"
#include "agent/runtime/save/whole.h"
#include "agent/runtime/train.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cause.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/log.h"

/* Errors after which a new generation can go on; any other one ends the process. */
static bool is_interruption(int code)
{
    return code == -ECANCELED || code == -ECONNRESET || code == -ECONNABORTED ||
           code == -ETIMEDOUT || code == -ECONNREFUSED || code == -EPIPE;
}

static void say_hello(struct trainer *trainer)
{
    struct link_message message = {.kind = LINK_HELLO};

    message.hello.port = trainer->net.port;
    message.hello.level = backend_level_detect();
    message.hello.pid = getpid();
    control_send(trainer->control, &message);
}

/* A restart cannot help if the job or its data are wrong, or if its last checkpoint is lost. */
static void say_failed(struct control *control, const struct trainer *trainer,
                       const struct fleet_error *err, bool permanent)
{
    struct link_message message = {.kind = LINK_FAILED};
    enum fleet_cause cause = err->code == -ENOTRECOVERABLE ? FLEET_CAUSE_CHECKPOINT_FAILED
                             : trainer->store_refused      ? FLEET_CAUSE_STORE_REFUSED
                                                           : FLEET_CAUSE_NONE;

    (void)snprintf(message.failed.cause, sizeof(message.failed.cause), "%s",
                   fleet_cause_word(cause));
    (void)snprintf(message.failed.text, sizeof(message.failed.text), "%s", err->text);
    message.failed.permanent = permanent;
    control_send(control, &message);
    fleet_log_error("Training failed", FLEET_STR("err", err->text));
}

static void say_peer_lost(struct trainer *trainer, const struct fleet_error *err)
{
    struct link_message message = {.kind = LINK_PEER_LOST, .generation = trainer->generation.id};

    if (atomic_load(control_stop(trainer->control)) || trainer->generation.failed_rank < 0)
        return;
    message.peer_lost.rank = trainer->generation.failed_rank;
    message.peer_lost.at_ms = fleet_monotonic_ms();
    (void)snprintf(message.peer_lost.text, sizeof(message.peer_lost.text), "%s", err->text);
    control_send(trainer->control, &message);
}

/* All ranks call it: they share the weights. */
static int say_finished(struct trainer *trainer, struct fleet_error *err)
{
    struct link_message message = {.kind = LINK_FINISHED, .generation = trainer->generation.id};

    message.finished.steps = trainer->job.config.steps;
    message.finished.loss = trainer->report.last_loss;
    if (whole_weights_sha256(trainer, message.finished.weights_sha256, err) < 0)
        return err->code;
    control_send(trainer->control, &message);
    return 0;
}

/* One generation, from its assign to its end. 0: wait for the next order. */
static int run_generation(struct trainer *trainer, const struct link_message *assign,
                          struct fleet_error *err)
{
    int rc;

    fleet_log_set_context(
        (const struct fleet_log_pair[]){FLEET_STR("pod", getenv("FLEET_POD_NAME")),
                                        FLEET_INT("rank", assign->assign.rank),
                                        FLEET_INT("generation", assign->generation.counter),
                                        {.key = NULL}});
    trainer->generation.failed_rank = -1;
    rc = elastic_join(trainer, assign, err);
    if (rc == 0)
        rc = train_run(trainer, err);
    if (rc == 0)
        rc = say_finished(trainer, err);
    if (trainer->net.comm)
        trainer->generation.failed_rank = trainer->net.comm->failed_rank;
    if (is_interruption(rc)) {
        say_peer_lost(trainer, err);
        save_abandon(trainer);
    }
    elastic_leave(trainer);
    if (rc == 0 || rc == -EINTR)
        return 0;
    if (!is_interruption(rc))
        return rc;
    trainer_announce(trainer, FLEET_PHASE_WAITING);
    return 0;
}

static int serve(struct trainer *trainer, struct fleet_error *err)
{
    for (;;) {
        struct link_message assign;
        int rc;

        switch (control_next(trainer->control, &assign)) {
        case CONTROL_LEAVE:
            save_before_leaving(trainer);
            return 0;
        case CONTROL_DONE:
            return 0;
        case CONTROL_GONE:
            return fleet_error(err, -EPIPE, "the agent is gone");
        case CONTROL_ASSIGN:
            rc = run_generation(trainer, &assign, err);
            link_message_release(&assign);
            if (rc < 0)
                return rc;
        }
    }
}

int main(int argc, char **argv)
{
    static struct trainer trainer;
    struct control *control = NULL;
    struct fleet_error err;
    struct link link;
    const char *job_file = getenv(LINK_JOB_FILE_ENV);
    enum fleet_log_form form;
    int rc;

    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        (void)puts("fleetjob-train " FLEET_VERSION);
        return 0;
    }
    if (fleet_log_form_read(&form, &err) < 0) {
        (void)fprintf(stderr, "fleetjob-train: %s\n", err.text);
        return 2;
    }
    fleet_log_setup(form, 0);
    fleet_log_set_context(
        (const struct fleet_log_pair[]){FLEET_STR("pod", getenv("FLEET_POD_NAME")), {.key = NULL}});
    (void)signal(SIGPIPE, SIG_IGN);
    if (!job_file || link_init_from_environment(&link, &err) < 0) {
        (void)fprintf(stderr,
                      "fleetjob-train is started by fleetjob-agent, which sets %s and %s; to train "
                      "on this machine use: fleetjob run JOB.yaml\n",
                      LINK_JOB_FILE_ENV, LINK_FD_ENV);
        return 2;
    }
    if (control_start(&link, &control, &err) < 0) {
        fleet_log_error("Training failed", FLEET_STR("err", err.text));
        return 1;
    }
    rc = trainer_open(&trainer, job_file, &err);
    if (rc < 0) {
        say_failed(control, &trainer, &err, rc != -ENOMEM && rc != -EAGAIN);
    } else {
        trainer.control = control;
        say_hello(&trainer);
        rc = serve(&trainer, &err);
        if (rc < 0 && rc != -EPIPE)
            say_failed(control, &trainer, &err, rc != -ENOMEM && rc != -EIO && rc != -EAGAIN);
        trainer_close(&trainer);
    }
    control_free(control);
    return rc < 0 ? 1 : 0;
}
