/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_STEP_TIMES_H
#define LIBFLEET_BASE_STEP_TIMES_H

/* How one rank spent the time of a step, or of several, in seconds. The rest of the whole time is
 * bookkeeping. */
struct fleet_step_times {
    double data_s, forward_s, backward_s;
    double exchange_s; /* waiting for communication and votes, and so for slower ranks */
    double optimizer_s;
    double hidden_s; /* communication that ran beside all this; no part of the whole time */
};

/* Their names in messages: TIME(object, name, member) for each of `times`, a member of `object`. */
/* NOLINTBEGIN(bugprone-macro-parentheses) */
#define FLEET_STEP_TIMES(TIME, object, times)           \
    TIME(object, "dataSeconds", times.data_s)           \
    TIME(object, "forwardSeconds", times.forward_s)     \
    TIME(object, "backwardSeconds", times.backward_s)   \
    TIME(object, "exchangeSeconds", times.exchange_s)   \
    TIME(object, "optimizerSeconds", times.optimizer_s) \
    TIME(object, "hiddenSeconds", times.hidden_s)
/* NOLINTEND(bugprone-macro-parentheses) */

#endif
