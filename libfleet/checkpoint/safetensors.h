/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_CHECKPOINT_SAFETENSORS_H
#define LIBFLEET_CHECKPOINT_SAFETENSORS_H

/*
 * The safetensors format: 8 bytes of header length (little-endian), a JSON header that names every
 * tensor with type, shape and byte range, then the raw row-major little-endian data.
 *
 * Reading trusts nothing in the file, and does not map it: a file that is truncated meanwhile
 * is an error with its name (docs/decisions/data-is-read-not-mapped.md). Only the header is kept in
 * memory. After safetensors_open() or safetensors_header_decode() succeeded:
 *  (1) Every tensor's bytes are those of its type and shape and lie inside the file.
 *  (2) Tensors do not overlap and cover the data without a hole.
 *  (3) Names are unique; tensors are in ascending byte order of their names.
 *
 * Writing is two steps: safetensors_header_encode() says how the file begins, then the caller
 * writes the tensors' bytes in the order it gave. So a file of any size is written without a copy
 * of it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/base/strbuf.h"

struct fleet_error;

#define SAFETENSORS_HEADER_MAX  (32u << 20) /* bytes of JSON */
#define SAFETENSORS_TENSORS_MAX 200000
#define SAFETENSORS_NAME_MAX    512 /* bytes */
#define SAFETENSORS_DIMS_MAX    8

struct safetensors_source;

enum safetensors_type {
    SAFETENSORS_BOOL,
    SAFETENSORS_U8,
    SAFETENSORS_I8,
    SAFETENSORS_U16,
    SAFETENSORS_I16,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_U32,
    SAFETENSORS_I32,
    SAFETENSORS_F32,
    SAFETENSORS_U64,
    SAFETENSORS_I64,
    SAFETENSORS_F64,
};

struct safetensors_tensor {
    char *name;
    enum safetensors_type type;
    int ndim; /* 0 = a scalar */
    int64_t shape[SAFETENSORS_DIMS_MAX];
    const struct safetensors_source *source; /* borrowed from the file; NULL: in memory at `data` */
    const uint8_t
        *data;       /* any alignment; NULL where `source` is set, and after header_decode alone */
    uint64_t offset; /* from the start of the file */
    uint64_t bytes;
};

struct safetensors_file {
    struct safetensors_tensor *tensors; /* [count], by name */
    size_t count;
    struct safetensors_metadata {
        char *key, *value;
    } * metadata; /* [metadata_count], the strings of "__metadata__" */
    size_t metadata_count;
    struct safetensors_source *source; /* the open file; NULL after header_decode alone */
};

/*
 * Open `path`, which stays open until the release, and decode its header. -errno if it cannot be
 * read; -EINVAL with path and reason if it is not a sound safetensors file. On success release
 * *out.
 */
int safetensors_open(const char *path, struct safetensors_file *out, struct fleet_error *err);
void safetensors_release(struct safetensors_file *file);

/*
 * Decode the header of a file of `file_size` bytes whose first `size` bytes are `bytes` (they must
 * hold the whole header). Pure; `data` of the tensors stays NULL. -EINVAL with what is wrong in it.
 */
int safetensors_header_decode(const void *bytes, size_t size, uint64_t file_size,
                              struct safetensors_file *out, struct fleet_error *err);

/* The tensor, or NULL. Logarithmic. */
const struct safetensors_tensor *safetensors_find(const struct safetensors_file *file,
                                                  const char *name);

/* The metadata value, or NULL. */
const char *safetensors_metadata(const struct safetensors_file *file, const char *key);

/*
 * out[0 … size) = bytes first … of `tensor`, as they are in the file. The range must lie inside
 * (asserted). -EIO with the path if the file has become shorter since it was opened, -errno if it
 * cannot be read; `out` is then undefined.
 */
int safetensors_read(const struct safetensors_tensor *tensor, uint64_t first, void *out,
                     size_t size, struct fleet_error *err);

/*
 * out[0 … count) = elements first … of `tensor` as fp32: F32 as they are, F16 and BF16 exactly, F64
 * rounded once. Errors of safetensors_read(); -EINVAL for other types. Needs no memory of its own
 * but a few kilobytes of stack.
 */
int safetensors_read_f32(const struct safetensors_tensor *tensor, int64_t first, int64_t count,
                         float *out, struct fleet_error *err);

/* out[0 … count) likewise as int32; I32, U8, I8, U16, I16 only. */
int safetensors_read_i32(const struct safetensors_tensor *tensor, int64_t first, int64_t count,
                         int32_t *out, struct fleet_error *err);

/* Product of the dimensions (1 for a scalar); bytes of one element; "F32" as the header spells
 * it. */
int64_t safetensors_elements(const struct safetensors_tensor *tensor);
size_t safetensors_type_size(enum safetensors_type type);
const char *safetensors_type_name(enum safetensors_type type);

/* "[3, 4]"; appended. */
void safetensors_print_shape(const int64_t *shape, int ndim, struct fleet_strbuf *out);

/*
 * Append the length and the header of a file whose data follow in the order of `tensors` (name,
 * type, ndim and shape are read, the rest is not). Names must be unique (asserted). The length is
 * padded with spaces so that the data start at a multiple of 64 bytes. Returns the bytes of the
 * whole file.
 */
uint64_t safetensors_header_encode(const struct safetensors_tensor *tensors, size_t count,
                                   const struct safetensors_metadata *metadata,
                                   size_t metadata_count, struct fleet_strbuf *out);

#endif
