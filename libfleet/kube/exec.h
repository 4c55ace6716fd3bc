/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_KUBE_EXEC_H
#define LIBFLEET_KUBE_EXEC_H

#include <stdint.h>

struct fleet_error;
struct kube_exec;

/*
 * Run a credential plug-in (client.authentication.k8s.io ExecCredential) and take its token, heap
 * text. Waits for it, KUBE_EXEC_TIMEOUT_MS at most: such configurations belong to people's shells;
 * a controller in a cluster has none.
 *
 * -EACCES: it failed or gave no token; its words are on stderr; -ETIMEDOUT: it was
 * killed; -EINVAL: its answer is not an ExecCredential, or holds a client certificate instead.
 */
int kube_exec_run(struct kube_exec *exec, char **out_token, struct fleet_error *err);

#endif
