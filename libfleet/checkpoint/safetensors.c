/* SPDX-License-Identifier: Apache-2.0 */

/* Open files of the format, read the bytes of tensors and their values as fp32 or int32. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/memory.h"
#include "libfleet/checkpoint/safetensors_internal.h"

#define CHUNK_SIZE 16384 /* bytes on the stack that are converted at once; a multiple of 8 */

/* An open file that tensors are read from. */
struct safetensors_source {
    int fd;
    char *path;
};

static void source_free(struct safetensors_source *source)
{
    if (!source)
        return;
    (void)close(source->fd);
    free(source->path);
    free(source);
}

void safetensors_release(struct safetensors_file *file)
{
    for (size_t i = 0; file->tensors && i < file->count; i++)
        free(file->tensors[i].name);
    for (size_t i = 0; i < file->metadata_count; i++) {
        free(file->metadata[i].key);
        free(file->metadata[i].value);
    }
    free(file->tensors);
    free(file->metadata);
    source_free(file->source);
    memset(file, 0, sizeof(*file));
}

static int source_open(const char *path, struct safetensors_source **out, uint64_t *out_size,
                       struct fleet_error *err)
{
    FLEET_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return fleet_error(err, -errno, "open %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return fleet_error(err, -EINVAL, "open %s: not a regular file", path);
    *out = calloc(1, sizeof(**out));
    fleet_assert(*out);
    (*out)->path = fleet_dup_text(path);
    (*out)->fd = fd;
    fd = -1;
    *out_size = (uint64_t)st.st_size;
    return 0;
}

/* Bytes [first, first + size) of the file. */
static int source_read(const struct safetensors_source *source, uint64_t first, void *out,
                       size_t size, struct fleet_error *err)
{
    uint8_t *to = out;

    while (size > 0) {
        ssize_t got = pread(source->fd, to, size, (off_t)first);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fleet_error(err, -errno, "read %s: %s", source->path, strerror(errno));
        if (got == 0)
            return fleet_error(
                err, -EIO, "read %s: it was truncated meanwhile, it ends at or before byte %llu",
                source->path, (unsigned long long)first);
        to += got;
        first += (uint64_t)got;
        size -= (size_t)got;
    }
    return 0;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Length and header of a file of `size` bytes. If the file is too short, what it has; the decoder
 * then reports the error. On success the caller frees *out. */
static int read_header(const struct safetensors_source *source, uint64_t size, uint8_t **out,
                       size_t *out_size, struct fleet_error *err)
{
    uint8_t length[SAFETENSORS_LENGTH_SIZE] = {0};
    size_t want = (size_t)smaller(size, SAFETENSORS_LENGTH_SIZE);
    uint8_t *header;
    int rc = source_read(source, 0, length, want, err);

    if (rc < 0)
        return rc;
    if (size > SAFETENSORS_LENGTH_SIZE)
        want += (size_t)smaller(smaller(safetensors_header_length(length), SAFETENSORS_HEADER_MAX),
                                size - SAFETENSORS_LENGTH_SIZE);
    header = calloc(want + 1, 1);
    fleet_assert(header);
    rc = source_read(source, 0, header, want, err);
    if (rc < 0) {
        free(header);
        return rc;
    }
    *out = header;
    *out_size = want;
    return 0;
}

int safetensors_open(const char *path, struct safetensors_file *out, struct fleet_error *err)
{
    FLEET_AUTO_FREE uint8_t *header = NULL;
    struct safetensors_file file = {0};
    struct safetensors_source *source = NULL;
    uint64_t size = 0;
    size_t header_size = 0;
    int rc = source_open(path, &source, &size, err);

    if (rc < 0)
        return rc;
    rc = read_header(source, size, &header, &header_size, err);
    if (rc == 0) {
        rc = safetensors_header_decode(header, header_size, size, &file, err);
        if (rc < 0)
            (void)fleet_error_wrap(err, "%s", path);
    }
    if (rc < 0) {
        source_free(source);
        return rc;
    }
    file.source = source;
    for (size_t i = 0; i < file.count; i++)
        file.tensors[i].source = source;
    *out = file;
    return 0;
}

static uint32_t f32_bits_of_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31;
    uint32_t fraction = half & 0x3ff;

    if (exponent == 31)
        return sign | 0x7f800000u | fraction << 13;
    if (exponent == 0 && fraction == 0)
        return sign;
    if (exponent == 0) { /* subnormal: shift its leading bit to the implicit place */
        exponent = 1;
        while (!(fraction & 0x400)) {
            fraction <<= 1;
            exponent--; /* wraps below zero; the sum below is right again */
        }
        fraction &= 0x3ff;
    }
    return sign | (exponent + 112) << 23 | fraction << 13;
}

int safetensors_read(const struct safetensors_tensor *tensor, uint64_t first, void *out,
                     size_t size, struct fleet_error *err)
{
    int rc = 0;

    fleet_assert(first <= tensor->bytes && size <= tensor->bytes - first);
    if (size && tensor->source)
        rc = source_read(tensor->source, tensor->offset + first, out, size, err);
    else if (size)
        memcpy(out, tensor->data + first, size);
    if (rc < 0)
        (void)fleet_error_wrap(err, "tensor %.100s", tensor->name);
    return rc;
}

static float f32_of(enum safetensors_type type, const uint8_t *p)
{
    uint16_t half;
    uint32_t bits;
    double wide;
    float value;

    if (type == SAFETENSORS_F64) {
        memcpy(&wide, p, sizeof(wide));
        return (float)wide;
    }
    memcpy(&half, p, sizeof(half));
    bits = type == SAFETENSORS_BF16 ? (uint32_t)half << 16 : f32_bits_of_f16(half);
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static int32_t i32_of(enum safetensors_type type, const uint8_t *p)
{
    int16_t half;
    int32_t value;

    switch (type) {
    case SAFETENSORS_U8:
        return p[0];
    case SAFETENSORS_I8:
        return (int8_t)p[0];
    case SAFETENSORS_I32:
        memcpy(&value, p, sizeof(value));
        return value;
    default:
        memcpy(&half, p, sizeof(half));
        return type == SAFETENSORS_U16 ? (uint16_t)half : half;
    }
}

/* Elements [first, first + count), a chunk at a time; each as fp32 into `floats` or as int32 into
 * `integers`. */
static int convert(const struct safetensors_tensor *tensor, int64_t first, int64_t count,
                   float *floats, int32_t *integers, struct fleet_error *err)
{
    const size_t size = safetensors_type_size(tensor->type);
    uint8_t chunk[CHUNK_SIZE];

    for (int64_t at = 0; at < count;) {
        int64_t some =
            count - at < (int64_t)(CHUNK_SIZE / size) ? count - at : (int64_t)(CHUNK_SIZE / size);
        int rc = safetensors_read(tensor, (uint64_t)(first + at) * size, chunk, (size_t)some * size,
                                  err);
        if (rc < 0)
            return rc;
        for (int64_t i = 0; i < some; i++)
            if (floats)
                floats[at + i] = f32_of(tensor->type, chunk + (size_t)i * size);
            else if (integers)
                integers[at + i] = i32_of(tensor->type, chunk + (size_t)i * size);
        at += some;
    }
    return 0;
}

static int refuse_type(const struct safetensors_tensor *tensor, const char *wanted,
                       struct fleet_error *err)
{
    return fleet_error(err, -EINVAL, "tensor %.100s: type %s, expected %s", tensor->name,
                       safetensors_type_name(tensor->type), wanted);
}

int safetensors_read_f32(const struct safetensors_tensor *tensor, int64_t first, int64_t count,
                         float *out, struct fleet_error *err)
{
    fleet_assert(first >= 0 && count >= 0 && first + count <= safetensors_elements(tensor));
    switch (tensor->type) {
    case SAFETENSORS_F32:
        return safetensors_read(tensor, 4 * (uint64_t)first, out, 4 * (size_t)count, err);
    case SAFETENSORS_F16:
    case SAFETENSORS_BF16:
    case SAFETENSORS_F64:
        return convert(tensor, first, count, out, NULL, err);
    default:
        return refuse_type(tensor, "F32, BF16, F16 or F64", err);
    }
}

int safetensors_read_i32(const struct safetensors_tensor *tensor, int64_t first, int64_t count,
                         int32_t *out, struct fleet_error *err)
{
    fleet_assert(first >= 0 && count >= 0 && first + count <= safetensors_elements(tensor));
    switch (tensor->type) {
    case SAFETENSORS_I32:
    case SAFETENSORS_U8:
    case SAFETENSORS_I8:
    case SAFETENSORS_U16:
    case SAFETENSORS_I16:
        return convert(tensor, first, count, NULL, out, err);
    default:
        return refuse_type(tensor, "I32, U8, I8, U16 or I16", err);
    }
}
