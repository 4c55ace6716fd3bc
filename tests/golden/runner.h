/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GOLDEN_RUNNER_H
#define TESTS_GOLDEN_RUNNER_H

/*
 * Runs recordings of other systems (Paddle, MindSpore, PyTorch) against this one: `make golden`.
 *
 * kinds.c is the table: a pattern of paths below the recordings' folder and the reader of such
 * files. runner.c finds the files, gives each to its reader in a process of its own (so a crash is
 * one failure) and adds up. A reader knows a format, never a case: it takes sizes, names and
 * hyper-parameters from the file.
 *
 * A reader calls golden_case() for every case of its file. What happens inside decides:
 *
 *     golden_fail()   the case disagrees, or the file is not what its format says: a failure
 *     golden_skip()   a variant that we do not have, or decided otherwise: a skip with the reason
 *     return          passed
 *
 * Both jump out of the case; outside of a case they jump out of the file. Memory that was allocated
 * in the case is not freed before the process ends.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "libfleet/checkpoint/safetensors.h"

struct golden_file {
    const char *folder; /* of all recordings */
    const char *name;   /* "paddle/optimizer/adam.json", relative to it */
    const char *path;   /* of the file */
};

typedef void (*golden_reader)(const struct golden_file *file);

struct golden_kind {
    const char *pattern; /* fnmatch() over golden_file.name; the first that matches counts */
    golden_reader read;  /* NULL: see below */
    const char *why;     /* read is NULL: why its cases are skipped. NULL too: the file is a part of
                            what another one records, and is read with it */
};

/* Ends with pattern NULL. */
extern const struct golden_kind golden_kinds[];

/* The file at work, and its folder joined with another name (static, until the next call). */
const struct golden_file *golden_at_work(void);
const char *golden_beside(const char *name);

/* Run one case: `run(context)`. The name is for messages. */
void golden_case(void (*run)(void *context), void *context, const char *name, ...)
    __attribute__((format(printf, 3, 4)));

_Noreturn void golden_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void golden_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define golden_check(condition)                                                     \
    do {                                                                            \
        if (!(condition))                                                           \
            golden_fail("%s:%d: %s does not hold", __FILE__, __LINE__, #condition); \
    } while (0)

/* |actual - expected| <= tolerance, NaN equals NaN, an infinity itself. */
void golden_close(const char *what, double actual, double expected, double tolerance);

/* Under a sanitizer errors of memory are looked for, and one level of arithmetic is enough. */
bool golden_is_brief(void);

/* ---- files: a failure with the path when they are missing or broken -------------------------- */

/* The bytes of a file, with a final NUL; the caller frees. */
char *golden_text(const char *path, size_t *out_size);
cJSON *golden_json(const char *path);
bool golden_exists(const char *path);

/* An open safetensors file, to be released, and a tensor of it. */
void golden_tensors(const char *path, struct safetensors_file *out);
const struct safetensors_tensor *golden_tensor(const struct safetensors_file *file,
                                               const char *name);
/* Its values, converted; the caller frees. */
float *golden_floats(const struct safetensors_tensor *tensor);
int32_t *golden_integers(const struct safetensors_tensor *tensor);

/* ---- members of an object: a failure with the key when they are missing or of another type --- */

const cJSON *golden_at(const cJSON *object, const char *key);
const char *golden_string(const cJSON *object, const char *key);
double golden_number(const cJSON *object, const char *key);
double golden_number_or(const cJSON *object, const char *key, double otherwise);
int golden_int(const cJSON *object, const char *key);
bool golden_bool_or(const cJSON *object, const char *key, bool otherwise);
const cJSON *golden_array(const cJSON *object, const char *key);
double golden_item(const cJSON *array, int i); /* a number */

/* Keys of `object` must be among `known` (ends with NULL): another one is a variant we lack. */
void golden_known_keys(const cJSON *object, const char *const *known);

#endif
