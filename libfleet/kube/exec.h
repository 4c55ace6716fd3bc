/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_KUBE_EXEC_H
#define LIBFLEET_KUBE_EXEC_H

struct fleet_error;
struct kube_config;

/*
 * Run the credential plug-in of `config` (client.authentication.k8s.io ExecCredential) and put its token
 * or client certificate into it, with the time when that expires. Waits for it, KUBE_EXEC_TIMEOUT_MS at
 * most: such configurations belong to people's shells; a controller in a cluster has none.
 *
 * -EACCES: it failed; its words are on stderr; -ETIMEDOUT: it was killed; -EINVAL: its answer is not an
 * ExecCredential, or holds neither. Nothing is changed then.
 */
int kube_exec_run(struct kube_config *config, struct fleet_error *err);

#endif
