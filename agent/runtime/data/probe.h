/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_DATA_PROBE_H
#define AGENT_RUNTIME_DATA_PROBE_H

/*
 * Checks that a job can train on its data. Opens the files as the trainer does, but reads only some
 * samples. `fleetjob validate` calls it, and `fleetjob run` before it starts processes.
 *
 * Errors: those of dataset_open() (missing, unreadable, empty, too short for one sample, not in the
 * tokenizer's format); a token or label that the model does not have; a tokenizer with more tokens
 * than model.vocabulary. Warnings: fewer samples than a batch.
 */

struct fleet_errors;
struct training_config;

#define PROBE_SAMPLES 64 /* number of samples read, from the first to the last */

/* `config` has passed its checks, and its paths are those of this machine
 * (training_config_resolve_paths()). Both lists get full paths of fields,
 * "spec.training.data.path". */
void probe_data(const struct training_config *config, struct fleet_errors *errors,
                struct fleet_errors *warnings);

#endif
