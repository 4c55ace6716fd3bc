/* SPDX-License-Identifier: Apache-2.0 */

/* The keys are one table of fields, so that types and ranges are checked as everywhere. */
#include "agent/progress_line.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/field.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"

#define STEP_MAX      9007199254740991.0 /* 2^53 - 1: exact in JSON */
#define PATH_MAX_SIZE 3072               /* bytes; a whole line has PROGRESS_LINE_SIZE_MAX */

#define COUNT(name_, member, unset_)                                                   \
    {                                                                                  \
        .name = (name_), .kind = FLEET_FIELD_INT, .flags = FLEET_MIN | FLEET_MAX,      \
        .offset = offsetof(struct progress_line, member), .min = 0, .max = (STEP_MAX), \
        .unset = (unset_)                                                              \
    }
#define NUMBER(name_, member)                                          \
    {                                                                  \
        .name = (name_), .kind = FLEET_FIELD_NUMBER,                   \
        .offset = offsetof(struct progress_line, member), .unset = NAN \
    }

static const struct fleet_field fields[] = {
    COUNT("step", step, -1),
    COUNT("steps", steps, 0),
    COUNT("tokens", tokens, 0),
    COUNT("checkpoint", checkpoint, -1),
    COUNT("resumed", resumed, -1),
    COUNT("waiting", left, -1),
    NUMBER("loss", loss),
    NUMBER("gradNorm", gradient_norm),
    NUMBER("learningRate", learning_rate),
    NUMBER("tokensPerSecond", tokens_per_second),
    NUMBER("evaluationLoss", evaluation_loss),
    {.name = "path",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct progress_line, path),
     .count_max = PATH_MAX_SIZE},
    {.name = "ready", .kind = FLEET_FIELD_BOOL, .offset = offsetof(struct progress_line, is_ready)},
    {.name = "stays", .kind = FLEET_FIELD_BOOL, .offset = offsetof(struct progress_line, stays)},
    {0},
};

static const struct fleet_object line_type = {
    .name = "progress line", .fields = fields, .size = sizeof(struct progress_line), .open = true};

/*
 * Length of the word at `p` that Python writes for a number without a form in JSON (NaN); 0 = none.
 */
static size_t not_a_number(const char *at, size_t size)
{
    static const char *const words[] = {"NaN", "-Infinity", "Infinity"};

    for (size_t i = 0; i < FLEET_COUNT(words); i++)
        if (size >= strlen(words[i]) && memcmp(at, words[i], strlen(words[i])) == 0)
            return strlen(words[i]);
    return 0;
}

/* Replace such words outside of strings by null. */
static void copy_as_json(const char *line, size_t size, struct fleet_strbuf *out)
{
    bool is_string = false;

    for (size_t i = 0; i < size; i++) {
        size_t skip = is_string ? 0 : not_a_number(line + i, size - i);
        if (skip > 0) {
            fleet_strbuf_append(out, "null");
            i += skip - 1;
            continue;
        }
        if (line[i] == '"')
            is_string = !is_string;
        fleet_strbuf_append_char(out, line[i]);
        if (is_string && line[i] == '\\' && i + 1 < size)
            fleet_strbuf_append_char(out, line[++i]);
    }
}

static bool has_known_key(const cJSON *root)
{
    for (const cJSON *item = root->child; item; item = item->next)
        if (fleet_object_field(&line_type, item->string))
            return true;
    return false;
}

static int decode(const cJSON *root, struct progress_line *out, struct fleet_error *err)
{
    struct fleet_errors errors = {0};
    int rc = 0;

    if (!cJSON_IsObject(root))
        return fleet_error(err, -EINVAL, "not a JSON object");
    if (!has_known_key(root))
        return fleet_error(err, -EINVAL,
                           "none of its keys is known (step, steps, loss, checkpoint, path, "
                           "resumed, ready, …)");
    if (fleet_object_decode(&line_type, root, "", out, &errors) < 0) {
        rc = fleet_error(err, -EINVAL, "%s: %s", errors.items[0].path, errors.items[0].message);
        progress_line_release(out);
    }
    fleet_errors_release(&errors);
    return rc;
}

int progress_line_parse(const char *line, size_t size, struct progress_line *out,
                        struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    FLEET_AUTO_JSON cJSON *root = NULL;
    int rc;

    *out = (struct progress_line){0};
    if (size >= PROGRESS_LINE_SIZE_MAX)
        return fleet_error(err, -EFBIG, "longer than %d bytes", PROGRESS_LINE_SIZE_MAX);
    copy_as_json(line, size, &text);
    rc = fleet_json_parse(fleet_strbuf_text(&text), text.length, 2 * PROGRESS_LINE_SIZE_MAX, &root,
                          err);
    return rc < 0 ? rc : decode(root, out, err);
}

void progress_line_release(struct progress_line *line)
{
    fleet_object_release(&line_type, line);
}
