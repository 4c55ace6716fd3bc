/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_PROGRESS_LINE_H
#define AGENT_PROGRESS_LINE_H

/*
 * One line that an own trainer writes to FLEET_PROGRESS_FD or FLEET_PROGRESS_FILE: a JSON object
 * with at least one of these keys. docs/own-trainer.md says what each means to the user.
 *
 *   step             steps done so far                       steps            of the whole job
 *   loss             at that step                            gradNorm         at that step
 *   learningRate     at that step                            tokens           so far
 *   tokensPerSecond  now                                     evaluationLoss   on held-out data
 *   checkpoint       step of a checkpoint that is complete   path             its folder
 *   resumed          step that this process goes on from     ready            true: about to train
 *   stays            true: it joins later generations in process (fleet_job.h)
 *   waiting          number of the generation that it has left
 *
 * Other keys are ignored. NaN and Infinity, which Python's json module writes, are read as null. A
 * number that is null counts as absent.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_error;

#define PROGRESS_LINE_SIZE_MAX 4096 /* with the newline; a pipe never splits a write of this size */

struct progress_line {
    int64_t step;                                                 /* -1 = not said */
    int64_t steps;                                                /* 0 = not said */
    double loss, gradient_norm, learning_rate, tokens_per_second; /* NaN = not said */
    double evaluation_loss;                                       /* the same */
    int64_t tokens;                                               /* 0 = not said */
    int64_t checkpoint;                                           /* -1 = not said */
    char *path;                                                   /* heap; NULL = not said */
    int64_t resumed;                                              /* -1 = not said */
    bool is_ready, stays;
    int64_t left; /* "waiting"; -1 = not said */
};

/*
 * Read a line without its newline. The caller releases *out. -EINVAL with the reason: not JSON, not
 * an object, a value of another type or out of range, no key that is known; -EFBIG: too long.
 */
int progress_line_parse(const char *line, size_t size, struct progress_line *out,
                        struct fleet_error *err);

/* Free what it owns and zero it. */
void progress_line_release(struct progress_line *line);

#endif
