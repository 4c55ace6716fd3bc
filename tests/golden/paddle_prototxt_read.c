/* SPDX-License-Identifier: Apache-2.0 */

/*
 * paddle/prototxt_read.json: what load_from_prototxt() made of a text: accepted or not, the values
 * afterwards, the place of an error.
 *
 * The recorded reader is Python's; our grammar is that of the C++ reader. The table `forms` says
 * what a text looks like that the two judge differently, and what ours does then.
 */
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/strategy/knobs.h"
#include "libfleet/strategy/prototxt.h"
#include "tests/golden/paddle_strategy.h"
#include "tests/golden/readers.h"
#include "tests/golden/runner.h"

#define NAMED_GROUPS 3

enum verdict {
    ACCEPTED,
    REFUSED,
    EITHER, /* depends on more than the form */
};

static const struct {
    const char *pattern; /* extended regular expression; group 1: the name of a field */
    enum knob_kind kind; /* that the field must have; KNOB_MESSAGES: any */
    enum verdict ours;
} forms[] = {
    {"([A-Za-z_]+) *: *- +[0-9.]", KNOB_MESSAGES, ACCEPTED},
    {"([A-Za-z_]+) *: *\\+", KNOB_MESSAGES, REFUSED},
    {"([A-Za-z_]+) *: *-?[0-9.]+_", KNOB_MESSAGES, REFUSED},
    {"([A-Za-z_]+) *: *-?0[oObB][0-9]", KNOB_MESSAGES, REFUSED},
    {"([A-Za-z_]+) *: *-?0[0-9]+([^0-9.eE]|$)", KNOB_FLOAT, REFUSED},
    {"([A-Za-z_]+) *: *-?(inf|nan|infinity|INF|NAN|Inf|NaN)[fF]", KNOB_FLOAT, REFUSED},
    {"([A-Za-z_]+) *: *-?[0-9.]+F", KNOB_FLOAT, ACCEPTED},
    {"([A-Za-z_]+) *: *(0+[01]|0x0*[01])([^0-9]|$)", KNOB_BOOL, ACCEPTED},
    {"([A-Za-z_]+) *: *\\[", KNOB_BOOL, EITHER},
    {"([A-Za-z_]+) *: *\\[", KNOB_INT, EITHER},
    {"([A-Za-z_]+) *: *\\[", KNOB_FLOAT, EITHER},
    {"\\\\[uU]", KNOB_MESSAGES, EITHER},
    {"\\\\[4-7][0-7][0-7]", KNOB_MESSAGES, REFUSED},
    {"\\\\[^abfnrtv?0-7xXuU\\\\'\"]", KNOB_MESSAGES, REFUSED},
    {"\xc2\xa0", KNOB_MESSAGES, REFUSED},
    {"#[^\n]*\r", KNOB_MESSAGES, EITHER},
    {"(micro_batch|fuse_broadcast_MB|sharding_group_size) *:", KNOB_MESSAGES, ACCEPTED},
};

/* The kind of the field called so, in any message; KNOB_MESSAGES: there is none. */
static enum knob_kind kind_of(const struct knob_message *message, const char *name)
{
    const struct knob_field *field = knobs_find(message, name, NULL);
    enum knob_kind kind = field ? field->kind : KNOB_MESSAGES;

    for (size_t i = 0; i < message->count && kind == KNOB_MESSAGES; i++)
        if (message->fields[i].kind == KNOB_MESSAGE)
            kind = kind_of(message->fields[i].message(), name);
    return kind;
}

static bool has_form(const char *text, size_t form)
{
    regmatch_t groups[NAMED_GROUPS];
    regex_t pattern;
    bool found;
    char name[64];

    golden_check(regcomp(&pattern, forms[form].pattern, REG_EXTENDED) == 0);
    found = regexec(&pattern, text, NAMED_GROUPS, groups, 0) == 0;
    regfree(&pattern);
    if (!found || forms[form].kind == KNOB_MESSAGES)
        return found;
    (void)snprintf(name, sizeof(name), "%.*s", (int)(groups[1].rm_eo - groups[1].rm_so),
                   text + groups[1].rm_so);
    return kind_of(knobs_root(), name) == forms[form].kind;
}

/* The form that makes the two readers differ, -1: none. */
static int form_of(const char *text)
{
    for (size_t i = 0; i < FLEET_COUNT(forms); i++)
        if (has_form(text, i))
            return (int)i;
    return -1;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* The JSON reader gives no NUL: it is read as U+E000 instead (see read_rows). */
static size_t restore_nul(char *text)
{
    size_t size = 0;

    for (const char *c = text; *c;) {
        if (strncmp(c, "\xee\x80\x80", 3) == 0) {
            text[size++] = '\0';
            c += 3;
        } else {
            text[size++] = *c++;
        }
    }
    text[size] = '\0';
    return size;
}

static void expect_position(const struct fleet_error *err, const cJSON *row)
{
    char wanted[48];

    (void)snprintf(wanted, sizeof(wanted), "f:%d:%d: ", golden_int(row, "line"),
                   golden_int(row, "column"));
    if (strncmp(err->text, wanted, strlen(wanted)) != 0)
        golden_fail("refused at \"%s\", recorded at %s", err->text, wanted);
}

static void check_row(void *context)
{
    const cJSON *row = context;
    FLEET_AUTO_FREE char *text = strdup(golden_string(row, "text"));
    bool recorded = strcmp(golden_string(row, "result"), "accepted") == 0, accepted;
    int form = form_of(text);
    enum verdict wanted = form >= 0 ? forms[form].ours : recorded ? ACCEPTED : REFUSED;
    STRATEGY_AUTO struct strategy s = {0}, values = {0};
    struct fleet_error err = {0};
    size_t size = restore_nul(text);

    strategy_init(&s);
    accepted = prototxt_merge(&s, "f", text, size, &err) == 0;
    if (wanted != EITHER && accepted != (wanted == ACCEPTED) &&
        (form < 0 || accepted != recorded)) /* the form may stand where it does not matter */
        golden_fail("ours %s: %s", accepted ? "accepts" : "refuses", err.text);
    if (form >= 0)
        return;
    if (!accepted) {
        expect_position(&err, row);
        return;
    }
    recorded_strategy(golden_at(row, "set_after"), &values);
    recorded_expect_same(&s, &values);
}

static cJSON *read_rows(const char *path)
{
    struct fleet_error err;
    cJSON *root = NULL;
    size_t size;
    char *text = golden_text(path, &size);

    for (char *at = text; (at = strstr(at, "\\u0000")); at += 6)
        if (at == text || at[-1] != '\\')
            memcpy(at, "\\ue000", 6);
    if (fleet_json_parse(text, size, size, &root, &err) < 0)
        golden_fail("%s: %s", path, err.text);
    free(text);
    return root;
}

void golden_paddle_prototxt_read(const struct golden_file *file)
{
    cJSON *root = read_rows(file->path), *row;

    cJSON_ArrayForEach(row, golden_array(root, "rows"))
        golden_case(check_row, row, "%s", golden_string(row, "text"));
    cJSON_Delete(root);
}
