/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_KUBECTL_H
#define CLI_KUBECTL_H

/*
 * Runs kubectl, which handles the user's configuration, credentials and proxies.
 *
 * Ctrl-C ends the running kubectl and makes these functions return -EINTR; kubectl_is_interrupted()
 * then stays true. kubectl_cleanup() works after Ctrl-C, too.
 */

#include <stdbool.h>

#include <cjson/cJSON.h>

struct fleet_error;

#define KUBECTL_ARGUMENTS_MAX 32
#define KUBECTL_OUTPUT_MAX    (64u << 20) /* bytes of a JSON answer */

/* Where commands go; NULL = kubectl's own choice. */
struct kubectl {
    const char *namespace_, *context, *kubeconfig;
};

/* Take SIGINT, SIGTERM and SIGHUP from now on. */
void kubectl_catch_signals(void);
bool kubectl_is_interrupted(void);

/* Run `kubectl [where] arguments…` (NULL at the end) with `input` on standard input (NULL: none)
 * and parse what it prints. -ENOENT if there is no kubectl; -EIO with what kubectl says; -EINTR. */
int kubectl_json(const struct kubectl *kubectl, const char *const *arguments, const char *input,
                 cJSON **out, struct fleet_error *err);

/* The same without an answer, and even after an interrupt: for clean-up. */
int kubectl_cleanup(const struct kubectl *kubectl, const char *const *arguments,
                    struct fleet_error *err);

/*
 * The same with standard output to `out_fd`, or to a pipe that `read` reads until it returns. What
 * it prints to standard error goes to ours. -EIO with the exit code; errors of `read`.
 */
struct kubectl_reader {
    int (*read)(void *context, int fd, struct fleet_error *err); /* NULL: write to out_fd */
    void *context;
    int out_fd;
};
int kubectl_stream(const struct kubectl *kubectl, const char *const *arguments,
                   const struct kubectl_reader *reader, struct fleet_error *err);

#endif
