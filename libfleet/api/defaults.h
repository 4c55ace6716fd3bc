/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_API_DEFAULTS_H
#define LIBFLEET_API_DEFAULTS_H

/*
 * Defaults that depend on other fields. fleetjob_decode() fills them in, so that no reader needs a
 * fallback. Constant defaults are in the tables of fields.
 *
 *   metadata.namespace         "default"
 *   worker.minReplicas         replicas
 *   worker.maxReplicas         replicas
 *   worker.processesPerPod     GPUs asked for (any resource that ends in "/gpu", in limits or
 *                              requests, of `resources` or of the template's first container),
 *                              else 1
 */

struct fleetjob;

/* Fill in what is absent. Called by fleetjob_decode(). */
void defaults_apply(struct fleetjob *job);

#endif
