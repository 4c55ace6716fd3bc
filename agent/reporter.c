/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The termination message, which Kubernetes keeps of an ended container. It is the only way in
 * which a cause reaches the controller if there was no hub to report to.
 */
#include "agent/reporter.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "libfleet/base/cause.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/log.h"

static int exit_code_of(const struct member_failure *failure)
{
    return failure->signal ? 128 + failure->signal : failure->exit_code;
}

static const char *cause_of(const struct member_failure *failure)
{
    return failure->cause[0] ? failure->cause
           : failure->signal ? fleet_cause_word(FLEET_CAUSE_KILLED)
                             : fleet_cause_word(FLEET_CAUSE_TRAINER_FAILED);
}

static void format_with_lines(const struct member_failure *failure, const char *text,
                              const char *lines, struct fleet_strbuf *out)
{
    FLEET_AUTO_JSON cJSON *json = fleet_json_new_object();

    fleet_json_set_string(json, "cause", cause_of(failure));
    fleet_json_set_number(json, "localRank", failure->local_rank);
    fleet_json_set_number(json, "exitCode", exit_code_of(failure));
    fleet_json_set_bool(json, "permanent", failure->fatal);
    fleet_json_set_string(json, "message", text);
    fleet_json_set_string(json, "lines", lines);
    fleet_json_append(out, json);
}

void reporter_format(const struct member_failure *failure, const char *text,
                     struct fleet_strbuf *out)
{
    const char *lines = failure->lines;

    for (;;) {
        const char *newline = strchr(lines, '\n');
        fleet_strbuf_clear(out);
        format_with_lines(failure, text, lines, out);
        if (out->length <= REPORTER_TERMINATION_SIZE_MAX || !lines[0])
            return;
        lines = newline ? newline + 1 : lines + strlen(lines);
    }
}

/* Written in place, because a rename cannot replace a mounted file. */
static int write_in_place(const char *path, const struct fleet_strbuf *text)
{
    FLEET_AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    return fd < 0 ? -errno : fleet_file_write_all(fd, text->text, text->length);
}

void reporter_write(const char *termination_file, const struct member_failure *failure,
                    const char *text)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf message = {0};

    fleet_log_info("Trainer failed", FLEET_STR("cause", cause_of(failure)),
                   FLEET_INT("localRank", failure->local_rank),
                   FLEET_INT("exitCode", exit_code_of(failure)), FLEET_STR("err", text));
    if (!termination_file)
        return;
    reporter_format(failure, text, &message);
    if (write_in_place(termination_file, &message) < 0)
        fleet_log_error("Could not write the termination message",
                        FLEET_STR("path", termination_file), FLEET_STR("err", strerror(errno)));
}
