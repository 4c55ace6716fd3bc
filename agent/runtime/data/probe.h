/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_DATA_PROBE_H
#define AGENT_RUNTIME_DATA_PROBE_H

/*
 * Can a job train on its data? Opens the files as the trainer does, and reads some samples instead
 * of all. `fleetjob validate` and `fleetjob run` call it before they start processes.
 *
 * Errors: what dataset_open() refuses (missing, unreadable, empty, too short for one sample, not of
 * the tokenizer's format); a token or label that the model does not have; a tokenizer with more
 * tokens than model.vocabulary. Warnings: fewer samples than a batch.
 */

struct fleet_errors;
struct training_config;

#define PROBE_SAMPLES 64 /* looked at, from the first to the last */

/* `config` has passed its checks, and its paths are this machine's
 * (training_config_resolve_paths()). Both lists get fields with full paths,
 * "spec.training.data.path". */
void probe_data(const struct training_config *config, struct fleet_errors *errors,
                struct fleet_errors *warnings);

#endif
