/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_FILES_STRATEGY_FILE_H
#define LIBFLEET_AUTOPARALLEL_FILES_STRATEGY_FILE_H

/*
 * Strategy files as MindSpore writes and reads them (strategy_ckpt_config): the strategies of
 * operators and the layouts of parameters. A name that ends in ".json" means JSON:
 *
 *     {"current_stage": 1,
 *      "parallel_strategy_item":
 *        {"MatMulInfo00": {"stage": 0, "parallel_strategy": [[2,1],[1,4]]}},
 *      "parallel_layout_item":
 *        {"fc1.weight": {"dev_matrix": [2,1,4], "tensor_map": [1,0], "tensor_shape": [512,2048],
 *          "field": 0, "opt_weight_shard_step": 0, "opt_weight_shard_size": 0}}}
 *
 * any other the message ParallelStrategyMap of mindspore/train/node_strategy.proto, which has no
 * tensor_shape. A layout may have param_split_shape and indices_offset, of equal length: the uneven
 * parts of an embedding table.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/autoparallel/files/numbers.h"

struct fleet_error;
struct fleet_strbuf;
struct layout;

#define STRATEGY_FILE_SIZE_MAX   (64u << 20)
#define STRATEGY_FILE_ITEMS_MAX  1000000 /* operators, layouts */
#define STRATEGY_FILE_TUPLES_MAX 64      /* inputs of an operator */
#define STRATEGY_FILE_DIMS_MAX   16      /* numbers of a tuple, a matrix, a map, a shape */
#define STRATEGY_FILE_PARTS_MAX  65536   /* of a table: param_split_shape, indices_offset */
#define STRATEGY_FILE_NAME_MAX   1024    /* bytes */

struct strategy_file_operator {
    char *name;
    int64_t stage;
    struct numbers *tuples; /* one an input */
    size_t tuple_count;
};

struct strategy_file_layout {
    char *name; /* of the parameter */
    struct numbers device_matrix, tensor_map;
    struct numbers shape; /* empty in the binary form */
    struct numbers param_split_shape, indices_offset;
    int64_t field, opt_weight_shard_step, opt_weight_shard_size;
};

struct strategy_file {
    int64_t current_stage; /* grows with each save of a process */
    struct strategy_file_operator *operators;
    size_t operator_count;
    struct strategy_file_layout *layouts;
    size_t layout_count;
};

/* Does a file of that name hold JSON? */
bool strategy_file_is_json(const char *path);

/*
 * Read a file into *out, to be released. -EINVAL names the member: not JSON, not a message, a
 * required member that is missing, a number out of range (parts 1 … 65536, map -1 … 15), a name
 * twice, lists whose lengths do not fit; -E2BIG: more of something than the limits above; -EFBIG:
 * a file above STRATEGY_FILE_SIZE_MAX. Members that are not known are passed over in both forms.
 */
int strategy_file_decode(const void *bytes, size_t size, bool is_json, struct strategy_file *out,
                         struct fleet_error *err);

/* Append the file. Both forms are what MindSpore reads; operators and layouts stay in order. */
void strategy_file_encode(const struct strategy_file *file, bool is_json, struct fleet_strbuf *out);

/*
 * Does the file fit a stage of so many devices? -EINVAL names the layout whose device matrix has
 * another product, or the operator whose tuple has more parts.
 */
int strategy_file_check(const struct strategy_file *file, int64_t devices, struct fleet_error *err);

/* The layout as one of layout.h, for a tensor of `dims` dimensions. -EINVAL if its lists do not fit
 * that, or they are no layout (layout_check()). */
int strategy_file_layout_of(const struct strategy_file_layout *layout, int dims,
                            const int64_t *shape, struct layout *out, struct fleet_error *err);

/* The operator of that name, or NULL. */
const struct strategy_file_operator *strategy_file_find(const struct strategy_file *file,
                                                        const char *name);

void strategy_file_release(struct strategy_file *file);

#endif
