/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_MACHINERY_BACKGROUND_H
#define CONTROLLER_MACHINERY_BACKGROUND_H

/*
 * Work that takes long, on a thread beside the loop.
 *
 *     background_run ─▶ work(arg) on another thread ─▶ done(arg) on the loop
 *
 * `arg` belongs to the work until `done` is called, which happens exactly once. Work cannot be
 * called off: a loop ends only after the work that it has begun.
 */

#include <uv.h>

/* One kind of background; a test has others. */
struct background {
    /* Called on the loop; returns at once. */
    void (*run)(struct background *self, void (*work)(void *arg), void (*done)(void *arg),
                void *arg);
};

/* On threads of the loop's pool. The caller frees it with free() after the loop has ended. */
struct background *background_new(uv_loop_t *loop);

#endif
