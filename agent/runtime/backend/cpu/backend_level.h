/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_BACKEND_LEVEL_H
#define AGENT_RUNTIME_BACKEND_CPU_BACKEND_LEVEL_H

/* Which of the levels of isa.h an x86 processor has. */

#include "libfleet/base/isa.h"

struct fleet_error;

/* The highest level this machine has (CPUID and what the kernel lets us use, which for AMX is
 * asked for here). */
enum fleet_isa backend_level_of_machine(void);

/* -EINVAL with the names of all levels if the environment variable FLEET_ISA is none of them. */
int backend_level_check(struct fleet_error *err);

/* The machine's, lowered by FLEET_ISA if that is set to a lower one. */
enum fleet_isa backend_level_detect(void);

#endif
