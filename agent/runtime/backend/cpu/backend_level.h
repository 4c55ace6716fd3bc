/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_BACKEND_LEVEL_H
#define AGENT_RUNTIME_BACKEND_CPU_BACKEND_LEVEL_H

/* The level of isa.h that an x86 processor has. */

#include "libfleet/base/isa.h"

struct fleet_error;

/* The highest level of this machine: by CPUID, and by what the kernel allows. AMX needs the
 * kernel's permission; this function requests it. */
enum fleet_isa backend_level_of_machine(void);

/* -EINVAL with the names of all levels if the environment variable FLEET_ISA is none of them. */
int backend_level_check(struct fleet_error *err);

/* The level of the machine, or that of FLEET_ISA if it is lower. */
enum fleet_isa backend_level_detect(void);

#endif
