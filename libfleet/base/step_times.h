/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_STEP_TIMES_H
#define LIBFLEET_BASE_STEP_TIMES_H

/* Where the time of a step, or of several, went on the rank that measured it, in seconds. What is
 * left over of the whole time is bookkeeping. */
struct fleet_step_times {
    double data_s, forward_s, backward_s;
    double exchange_s; /* of gradients and votes, waiting for slower ranks included */
    double optimizer_s;
};

#endif
