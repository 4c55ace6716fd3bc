/* SPDX-License-Identifier: Apache-2.0 */

/* Accepted: a spec that makes no sense gets no pods; one that made sense before keeps what it has. */
#include "controller/fleetjob/pass.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/errors.h"

bool acceptance_check(struct pass *pass)
{
    const struct fleet_errors *errors = pass->in->errors;
    bool is_edited = pass->status->observed_generation != pass->in->job->metadata.generation;
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (!errors || errors->count == 0) {
        if (status_set(pass, WELLKNOWN_CONDITION_ACCEPTED, true, WELLKNOWN_REASON_VALID,
                       "the spec makes sense"))
            pass_event(pass, false, WELLKNOWN_EVENT_ACCEPTED, "The job is valid");
        return true;
    }
    fleet_errors_print(errors, &text);
    while (text.length > 0 && text.text[text.length - 1] == '\n')
        text.text[--text.length] = '\0';
    /* told again when an edit did not help: what is wrong now may be something else */
    if (status_set(pass, WELLKNOWN_CONDITION_ACCEPTED, false, WELLKNOWN_REASON_INVALID_SPEC,
                   text.text) ||
        is_edited)
        pass_event(pass, true, WELLKNOWN_EVENT_INVALID, "%s", text.text);
    pass->status->observed_generation = pass->in->job->metadata.generation;
    return false;
}
