/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The condition Accepted. A job with an invalid spec gets no pods; if an earlier spec of the job
 * was valid, its pods stay. The condition's message contains warnings about a valid spec. Keys of
 * spec.autoParallel without an effect have their own condition, KeyIgnored, because MindSpore
 * ignores them silently.
 */
#include <string.h>

#include "controller/fleetjob/policy.h"
#include "controller/fleetjob/status.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/errors.h"

/* Append each as a line, without a final line feed. */
static void append_lines(const struct fleet_errors *errors, struct fleet_strbuf *out)
{
    fleet_errors_print(errors, out);
    while (out->length > 0 && out->text[out->length - 1] == '\n')
        out->text[--out->length] = '\0';
}

/* All warnings below this block are about such keys (libfleet/api/validation_internal.h). */
static void state_ignored_keys(struct pass *pass)
{
    static const char block[] = "spec.autoParallel.";
    const struct fleet_errors *warnings = pass->in->warnings;
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    for (size_t i = 0; warnings && i < warnings->count && i < FLEET_ERRORS_MAX; i++)
        if (strncmp(warnings->items[i].path, block, sizeof(block) - 1) == 0)
            fleet_strbuf_appendf(&text, "%s%s: %s", text.length ? "\n" : "",
                                 warnings->items[i].path, warnings->items[i].message);
    if (text.length > 0)
        (void)status_set(pass, WELLKNOWN_CONDITION_KEY_IGNORED, true, WELLKNOWN_REASON_NO_EFFECT,
                         text.text);
    else
        (void)status_clear(pass, WELLKNOWN_CONDITION_KEY_IGNORED, WELLKNOWN_REASON_ALL_ACT,
                           "every key of spec.autoParallel fits its parallel_mode");
}

static void accept(struct pass *pass, bool is_edited)
{
    const struct fleet_errors *warnings = pass->in->warnings;
    bool was_refused = status_is_false(pass->status, WELLKNOWN_CONDITION_ACCEPTED);
    FLEET_AUTO_STRBUF struct fleet_strbuf odd = {0}, text = {0};

    fleet_strbuf_append(&text, "valid");
    if (warnings && warnings->count > 0) {
        append_lines(warnings, &odd);
        fleet_strbuf_appendf(&text, ", with warnings:\n%s", odd.text);
    }
    /* Most jobs are valid at once. Their condition is enough; an event for each would be costly. */
    if (status_set(pass, WELLKNOWN_CONDITION_ACCEPTED, true, WELLKNOWN_REASON_VALID, text.text) &&
        was_refused)
        pass_event(pass, false, WELLKNOWN_EVENT_ACCEPTED, "The job is valid");
    state_ignored_keys(pass);
    if (odd.length > 0 && is_edited)
        pass_event(pass, true, WELLKNOWN_EVENT_SPEC_WARNING, "%s", odd.text);
}

bool acceptance_check(struct pass *pass)
{
    const struct fleet_errors *errors = pass->in->errors;
    bool is_edited = pass->status->observed_generation != pass->in->job->metadata.generation;
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (!errors || errors->count == 0) {
        accept(pass, is_edited);
        return true;
    }
    append_lines(errors, &text);
    /* report again after an edit: the errors may have changed */
    if (status_set(pass, WELLKNOWN_CONDITION_ACCEPTED, false, WELLKNOWN_REASON_INVALID_SPEC,
                   text.text) ||
        is_edited)
        pass_event(pass, true, WELLKNOWN_EVENT_INVALID, "%s", text.text);
    pass->status->observed_generation = pass->in->job->metadata.generation;
    return false;
}
