/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/base/isa.h"

#include <string.h>

const char *const fleet_isa_names[FLEET_ISA_COUNT + 1] = {
    [FLEET_ISA_PLAIN] = "plain",           [FLEET_ISA_AVX2] = "avx2", [FLEET_ISA_AVX512] = "avx512",
    [FLEET_ISA_AVX512BF16] = "avx512bf16", [FLEET_ISA_AMX] = "amx",
};

enum fleet_isa fleet_isa_parse(const char *name)
{
    enum fleet_isa isa = FLEET_ISA_PLAIN;

    while (isa < FLEET_ISA_COUNT && strcmp(name, fleet_isa_names[isa]) != 0)
        isa++;
    return isa;
}
