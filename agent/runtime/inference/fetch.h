/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_INFERENCE_FETCH_H
#define AGENT_RUNTIME_INFERENCE_FETCH_H

/*
 * Trained weights in a store (agent/runtime/store/store.h), for programs that read local files.
 */

struct fleet_error;

/*
 * Bring a checkpoint to this machine. `url` names one, or the place that
 * spec.training.checkpoint.path names: then it is the newest one whose files are as its manifest
 * says. *out (heap) is its folder in the cache (FLEET_CACHE), where it stays. A second call finds
 * it there, and goes on with what an interrupted one has read. Errors: those of store.h and of the
 * cache (cache.h); -ENOENT: there is no checkpoint; -EBADMSG: its files are damaged.
 */
int fetch_checkpoint(const char *url, char **out, struct fleet_error *err);

#endif
