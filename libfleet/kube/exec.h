/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_KUBE_EXEC_H
#define LIBFLEET_KUBE_EXEC_H

#include <stdbool.h>
#include <stdint.h>

struct fleet_error;
struct kube_config;
struct kube_exec_run;

/*
 * The credential plug-in of a configuration (client.authentication.k8s.io ExecCredential). It may
 * call a server and take long, so a run has three parts. Only the middle one waits:
 *
 *     run = kube_exec_prepare(config);        on the loop: what the plug-in is asked
 *     kube_exec_perform(run);                 on another thread: touches nothing but `run`
 *     rc = kube_exec_take(run, config, &err); on the loop: what it answered
 *     kube_exec_free(run);
 */

/* Must the plug-in run: is there no credential, or does it expire within a minute? *out_is_urgent:
 * there is no valid one, so nothing can be sent before. */
bool kube_exec_is_due(const struct kube_config *config, int64_t now_wall_ms, bool *out_is_urgent);

/* Never NULL. `config` is borrowed for the call. */
struct kube_exec_run *kube_exec_prepare(const struct kube_config *config);
void kube_exec_free(struct kube_exec_run *run); /* NULL is fine; not while it is performed */

/* Waits for the plug-in, KUBE_EXEC_TIMEOUT_MS at most. */
void kube_exec_perform(struct kube_exec_run *run);

/* From any thread: kube_exec_perform() kills the plug-in and returns soon. */
void kube_exec_stop(struct kube_exec_run *run);

/*
 * Put its token or client certificate into `config`, with the time when that expires. A
 * negative value of kind KUBE_ERROR_CREDENTIAL: it failed (its words are on stderr) or was killed;
 * -EINVAL: its answer is not an ExecCredential, or holds neither. Nothing is changed then.
 */
int kube_exec_take(struct kube_exec_run *run, struct kube_config *config, struct fleet_error *err);

/* All of it, waiting. */
int kube_exec_run_now(struct kube_config *config, struct fleet_error *err);

#endif
