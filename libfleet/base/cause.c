/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/base/cause.h"

#include <string.h>

static const char *const words[FLEET_CAUSES] = {
    [FLEET_CAUSE_NONE] = "",
    [FLEET_CAUSE_OTHER] = "",
    [FLEET_CAUSE_MEMBER_LOST] = "MemberLost",
    [FLEET_CAUSE_POD_GONE] = "PodGone",
    [FLEET_CAUSE_MEMBER_LEFT] = "MemberLeft",
    [FLEET_CAUSE_RESIZE] = "Resize",
    [FLEET_CAUSE_PEER_UNREACHABLE] = "PeerUnreachable",
    [FLEET_CAUSE_ISOLATED] = "Isolated",
    [FLEET_CAUSE_WRONG_STATE] = "WrongState",
    [FLEET_CAUSE_STATE_LOST] = "StateLost",
    [FLEET_CAUSE_SUPERSEDED] = "Superseded",
    [FLEET_CAUSE_UNKNOWN] = "Unknown",
    [FLEET_CAUSE_FAILURE_POLICY] = "FailurePolicy",
    [FLEET_CAUSE_FAILED] = "Failed",
    [FLEET_CAUSE_MIXED_BACKENDS] = "MixedBackends",
    [FLEET_CAUSE_PREEMPTED] = "Preempted",
    [FLEET_CAUSE_EVICTED] = "Evicted",
    [FLEET_CAUSE_OOM_KILLED] = "OOMKilled",
    [FLEET_CAUSE_TRAINER_FAILED] = "TrainerFailed",
    [FLEET_CAUSE_KILLED] = "Killed",
    [FLEET_CAUSE_CANNOT_START] = "CannotStart",
    [FLEET_CAUSE_BAD_ENTRYPOINT] = "BadEntrypoint",
    [FLEET_CAUSE_RESTART_REQUESTED] = "RestartRequested",
    [FLEET_CAUSE_CHECKPOINT_FAILED] = "CheckpointFailed",
    [FLEET_CAUSE_STORE_REFUSED] = "StoreRefused",
};

const char *fleet_cause_word(enum fleet_cause cause)
{
    return words[cause];
}

enum fleet_cause fleet_cause_find(const char *word)
{
    if (!word || !word[0])
        return FLEET_CAUSE_NONE;
    for (int cause = FLEET_CAUSE_OTHER + 1; cause < FLEET_CAUSES; cause++)
        if (strcmp(words[cause], word) == 0)
            return (enum fleet_cause)cause;
    return FLEET_CAUSE_OTHER;
}

bool fleet_cause_is_wanted(enum fleet_cause cause)
{
    switch (cause) {
    case FLEET_CAUSE_RESIZE:
    case FLEET_CAUSE_MEMBER_LEFT:
    case FLEET_CAUSE_PREEMPTED:
    case FLEET_CAUSE_EVICTED:
        return true;
    default:
        return false;
    }
}
