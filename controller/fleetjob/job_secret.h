/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_JOB_SECRET_H
#define CONTROLLER_FLEETJOB_JOB_SECRET_H

/*
 * The Secret of a job, which its pods mount: the address of the hub, the token that lets it verify
 * them, the CA that lets them verify it, job.json for the trainer, and environment for the agents;
 * for a job with servers also the secret of servers and workers. All of it is a function of the job
 * and of the installation, so the controller creates job Secrets and reads none. If the content has
 * to change (a new installation, another address), the Secret is deleted and created again under
 * the same name: kubelets bring the new content to pods that run, and their agents find the hub by
 * that (agent/settings.h).
 *
 * Its name holds a part of the job's UID: a job made again under an old name never meets the Secret
 * of its predecessor.
 */

#include <stdbool.h>

#include <cjson/cJSON.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/base/digest.h"

/* <job>-<last part of the UID>, heap. */
char *job_secret_name(const struct fleetjob *job);

/* Is the job's data encrypted? `encrypts` applies to jobs whose dataEncryption is Auto. */
bool job_secret_encrypts(const struct fleetjob *job, bool encrypts);

/* The whole Secret. `encrypts` applies to jobs whose dataEncryption is Auto. Owned by the
 * caller. */
cJSON *job_secret_build(const struct fleetjob *job, const char *hub_address, const char *token,
                        const char *ca_pem, bool encrypts);

/* Digest of the content of a Secret that job_secret_build() made. It reveals nothing of the token,
 * which is as long as the digest and random. */
void job_secret_digest(const cJSON *secret, char out[FLEET_SHA256_HEX_SIZE]);

/* job.json (libfleet/training/trainer_file.h); relative paths start at `base_folder`. Heap. */
char *job_secret_trainer_file(const struct fleetjob *job, const char *base_folder, bool encrypts);

#endif
