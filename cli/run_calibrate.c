/* SPDX-License-Identifier: Apache-2.0 */

/* `fleetjob run --calibrate`: measured rates in place of the constants of a search. */
#include <errno.h>

#include "agent/runtime/calibrate/calibrate.h"
#include "cli/links_file.h"
#include "cli/plan_calibrate.h"
#include "cli/run_internal.h"
#include "libfleet/autoparallel/context.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"

static int may_calibrate(const struct fleetjob *job, struct fleet_errors *errors)
{
    if (!job->spec.has_training || !context_is_full(job->spec.auto_parallel))
        fleet_errors_add(errors, "--calibrate",
                         "no search of this job uses rates: give spec.autoParallel.search: full");
    else if (fleet_json_at(job->spec.auto_parallel, "links"))
        fleet_errors_add(errors, "--calibrate",
                         "spec.autoParallel.links has the rates already; give one of the two");
    return errors->count > 0 ? -EINVAL : 0;
}

int run_calibrate(struct run *run, struct fleet_errors *errors)
{
    int ranks = job_file_world(&run->job);
    struct plan_calibrate_options options = {
        .devices = ranks < CALIBRATE_RANKS_MAX ? ranks : CALIBRATE_RANKS_MAX,
        .is_quiet = run->arguments.is_json};
    FLEET_AUTO_FREE char *place = NULL;
    struct fleet_error err;
    struct links links;

    if (may_calibrate(&run->job, errors) < 0 || plan_calibrate(&run->job, &options, errors) < 0)
        return -EINVAL;
    if (links_file_place(&place, &err) < 0) {
        fleet_errors_add(errors, "--calibrate", "%s", err.text);
        return -EINVAL;
    }
    if (links_file_read(place, &links, errors) < 0)
        return -EINVAL;
    run->links = fleet_object_encode(&links_type, &links);
    run->arguments.changes.links = run->links;
    return 0;
}
