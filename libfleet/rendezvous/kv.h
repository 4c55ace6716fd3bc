/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_RENDEZVOUS_KV_H
#define LIBFLEET_RENDEZVOUS_KV_H

/*
 * The store of one generation: opaque bytes by key, put by any member, waited for by any member
 * (the NCCL unique id, addresses of own trainers). It forgets everything when a newer generation
 * begins, so a member of an old generation can neither read nor write values of the new one.
 *
 *  (1) Only the current generation's puts and gets have an effect.
 *  (2) A get is answered exactly once: at once if the key is there, else by the put that brings it.
 *  (3) The last put of a key wins; answers given before are not repeated.
 */

#include <stddef.h>
#include <stdint.h>

#include "libfleet/base/generation.h"
#include "libfleet/base/limits.h"

struct fleet_error;

#define KV_ENTRIES_MAX FLEET_WORLD_MAX /* keys of a generation: one a rank */
#define KV_WAITERS_MAX FLEET_WORLD_MAX /* gets that wait */
#define KV_BYTES_MAX   (64u << 20)     /* keys and values of a generation */

struct kv;

/* An empty store of no generation. */
struct kv *kv_new(void);
void kv_free(struct kv *kv); /* NULL is fine */

/* Forget everything; from now on `generation` counts. */
void kv_begin(struct kv *kv, struct fleet_generation generation);

/*
 * Store [size] bytes and call `answer` for each member that waits for the key. -ESTALE: another
 * generation; -ENOSPC: a limit above; nothing is stored then.
 */
int kv_put(struct kv *kv, struct fleet_generation generation, const char *key, const void *value,
           size_t size, void (*answer)(void *user, uint64_t waiter), void *user,
           struct fleet_error *err);

/*
 * 1 and the value (borrowed until the next call) if the key is there; 0 if `waiter` now waits for
 * it (asking twice is one wait); -ESTALE, -ENOSPC as above.
 */
int kv_get(struct kv *kv, struct fleet_generation generation, const char *key, uint64_t waiter,
           const void **out_value, size_t *out_size, struct fleet_error *err);

/* Forget the waits of `waiter` (its connection is gone). */
void kv_forget(struct kv *kv, uint64_t waiter);

#endif
