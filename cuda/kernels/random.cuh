/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_KERNELS_RANDOM_CUH
#define CUDA_KERNELS_RANDOM_CUH

/* Philox4x32-10 as libfleet/base/random.h, so with the same bits. */

#include "cuda/kernels/device.cuh"

struct words {
    unsigned at[4];
};

__device__ static __forceinline__ struct words philox(unsigned k0, unsigned k1, uint64_t high,
                                                      uint64_t low)
{
    unsigned c0 = (unsigned)low, c1 = (unsigned)(low >> 32);
    unsigned c2 = (unsigned)high, c3 = (unsigned)(high >> 32);

#pragma unroll
    for (int round = 0; round < 10; round++) {
        unsigned h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
        unsigned h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
        c0 = h1 ^ c1 ^ k0;
        c1 = l1;
        c2 = h0 ^ c3 ^ k1;
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

#endif
