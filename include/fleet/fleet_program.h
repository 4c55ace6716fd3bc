/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FLEET_FLEET_PROGRAM_H
#define FLEET_FLEET_PROGRAM_H

/*
 * Programs: the forward part of a model as operators, which the library runs, differentiates and
 * saves. It has the kernels of the built-in trainer. Paddle's to_static(), save_inference_model()
 * and load_inference_model().
 *
 *     const char *fetches[] = {"logits"};
 *     struct fleet_program_options options = {.fetches = fetches, .fetch_count = 1};
 *     fleet_program_compile(text, &options, &program, &err);
 *     tensors = fleet_program_tensors(program, &count);        parameters and their gradients
 *     each step:
 *         fleet_program_run(program, FLEET_PROGRAM_TRAIN, feeds, 2, results, 1, &err);
 *         fleet_all_reduce_gradients(tensors, count, NULL, &err);
 *         … the optimizer changes tensors[i].value …
 *     fleet_save_inference_model(program, "mine.model", NULL, 0, NULL, 0, &err);
 *
 * The text of a program has a line for itself, one for each variable and one for each operator:
 *
 *     program classifier micro_batch_size=4 loss=loss
 *     var x fp32 input [4,8]
 *     var labels int32 input [4]
 *     var w fp32 parameter [8,3] trained initial=normal deviation=0.1
 *     var b fp32 parameter [3] trained
 *     var logits fp32 activation [?]
 *     var loss fp32 activation [?]
 *     var lse fp32 activation [?]
 *     forward linear x w b -> logits - ;
 *     forward cross_entropy logits labels - -> loss lse ; ignore_index=-1
 *
 * Types are fp32, bf16, fp16, int32 and uint8. Roles are input, parameter (fp32), buffer and
 * activation. [?] is a shape that follows from the operator that writes the variable. "-" is an
 * operand that is absent. Attributes of an operator follow the semicolon. `fleetjob plan JOB.yaml
 * --program` prints such a text for the model of a job, from the line that begins with `program`;
 * lines of other sections are left out here. docs/programs.md lists the operators.
 *
 * Errors are those of fleet.h, and the ones at the functions. Threads: one at a time uses a
 * program; programs are independent of each other. No function but fleet_save_inference_model()
 * needs a world, and none communicates.
 */

#include "fleet.h"
#include "fleet_ddp.h"

#ifdef __cplusplus
extern "C" {
#endif

struct fleet_program;

#define FLEET_PROGRAM_NAMES_MAX 64 /* feeds; fetches */

enum fleet_program_mode {
    FLEET_PROGRAM_HIGHEST, /* in options: TRAIN if the text has a loss, else PREDICT */
    FLEET_PROGRAM_PREDICT, /* what is fetched, without the loss */
    FLEET_PROGRAM_EVAL,    /* and the loss; dropout copies, batch_norm uses its running values */
    FLEET_PROGRAM_TRAIN,   /* and the gradients of all trained parameters */
};

/* All 0: the defaults. */
struct fleet_program_options {
    const char *const *fetches; /* [fetch_count] variables that runs return, beside the loss. With
                                   none the text needs a loss */
    int fetch_count;
    enum fleet_program_mode highest; /* the highest mode that runs will have */
    uint64_t seed;                   /* of initial values and dropout */
    int threads;                     /* 0: what the CPU quota allows */
};

/*
 * to_static(): check the text, add its backward part (FLEET_PROGRAM_TRAIN), lay out its memory and
 * set all parameters to their initial values, which the seed, their names and places decide.
 * Operators that neither the fetches nor the loss need are left out.
 * -EINVAL: an error in the text, with its line; a mode that needs a loss, of a text without one; an
 * operator that communicates; a fetch that no operator writes; a trained parameter that the loss
 * does not reach. -ENOTSUP: an operator has no kernel for its types. -ENOMEM.
 */
int fleet_program_compile(const char *text, const struct fleet_program_options *options,
                          struct fleet_program **out, struct fleet_error *err);
void fleet_program_free(struct fleet_program *program); /* NULL is fine */

/* The highest mode. */
enum fleet_program_mode fleet_program_highest(const struct fleet_program *program);

/*
 * Parameters and buffers, for fleet_ddp_new(), fleet_distributed_optimizer(), fleet_state_set() and
 * others; *count is their number. The list and the memory are the program's; the caller reads and
 * changes the values between runs. Trained parameters of a program that trains are FLEET_DDP_DENSE
 * and have a gradient, all others are FLEET_DDP_FIXED.
 */
const struct fleet_ddp_tensor *fleet_program_tensors(const struct fleet_program *program,
                                                     int *count);

/* Input number i that a run in this mode must be given, and result number i that it returns: name,
 * type and shape, without data. False: there is none. The loss is the last result. */
bool fleet_program_feed(const struct fleet_program *program, enum fleet_program_mode mode, int i,
                        struct fleet_state_entry *out);
bool fleet_program_fetch(const struct fleet_program *program, enum fleet_program_mode mode, int i,
                         struct fleet_state_entry *out);

/*
 * Run once in `mode` (FLEET_PROGRAM_HIGHEST: the highest one). feeds[feed_count] are inputs by
 * name, each once, with all values; results[result_count] are filled: all that the mode returns, or
 * some. Type and shape must be the program's. FLEET_PROGRAM_TRAIN overwrites the gradients, and
 * folds the statistics of batch_norm into their buffers; each of its runs has another dropout.
 * -EINVAL: a mode above the highest one; a feed that is missing or unknown, of another type or
 * shape; an int32 value that is no row of its table; a result that the mode does not have.
 */
int fleet_program_run(struct fleet_program *program, enum fleet_program_mode mode,
                      const struct fleet_state_entry *feeds, int feed_count,
                      const struct fleet_state_entry *results, int result_count,
                      struct fleet_error *err);

/* ---- models for inference -------------------------------------------------------------------- */

/*
 * Write the part of the program that computes fetches[fetch_count] from feeds[feed_count], with the
 * present weights, to one file: Paddle's save_inference_model(). No feeds: the inputs that are
 * needed. No fetches: those of the program. Any variable that these or the loss need can be named.
 * The file is that of `fleetjob export --inference`; a SHA-256 covers it. It is replaced as a whole
 * or not at all.
 *
 * Only rank 0 writes, and only it can see errors of the file; the others return 0. The rank is that
 * of the world, before fleet_env_init() that of the variables.
 * -ENOENT: the program has no variable of a name. -EINVAL: a fetch is no result of the forward
 * part; a name appears twice; an input is needed and not fed. -errno with the path.
 */
int fleet_save_inference_model(const struct fleet_program *program, const char *path,
                               const char *const *feeds, int feed_count, const char *const *fetches,
                               int fetch_count, struct fleet_error *err);

/*
 * Read such a file, also one of `fleetjob export --inference`: load_inference_model(). The program
 * has the mode FLEET_PROGRAM_PREDICT; its feeds and fetches are those of the file, in their order.
 * On processors of the same instruction-set level results have the bits that the saved program
 * gives. threads: 0 = what the CPU quota allows. -EINVAL: it is no such file; -EBADMSG: it is
 * damaged; -ENOMEM; -errno with the path.
 */
int fleet_load_inference_model(const char *path, int threads, struct fleet_program **out,
                               struct fleet_error *err);

#ifdef __cplusplus
}
#endif

#endif
