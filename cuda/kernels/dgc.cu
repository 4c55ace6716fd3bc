/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Deep gradient compression of one tensor, with the steps and the bits of the CPU back end (dgc.h
 * there). u and v may not change before the commit of the update. So each pass over the elements
 * computes the corrected u and v again from the gradient.
 *
 * Floor: DGC_SELECT would read gradient, u and v once (12 bytes an element, 16 with decay) and
 * write the message, 8 bytes for each element that is sent. It makes five passes instead: three
 * histograms of magnitudes (11, 10 and 10 bits), one that counts, one that writes. DGC reads 16 and
 * writes 16 bytes an element, and reads the messages once. It clears and reads the gradient once
 * more, 8 bytes. The messages may lie in pinned memory of the host. Kernels read and write them in
 * order, so the bus carries them once.
 * Grid: 256 threads for each 4096 elements, for a histogram at most HISTOGRAM_BLOCKS blocks. One
 * block finds a bin, and one block places the blocks of elements. One launch for each rank adds the
 * message of that rank.
 * Determinism: histograms count whole numbers, so the order of their atomic additions does not
 * matter. The place of an element in the message is the number of sent elements in front of it. The
 * launches add the messages in the order of the ranks. The indices of a message are ascending, so a
 * launch adds to an element once.
 */
#include "cuda/kernels/squares.cuh"

#define THREADS          256
#define WARPS            (THREADS / WARP)
#define HISTOGRAM_BLOCKS 1024
#define BINS             GPU_SCRATCH_DGC_BINS
#define MAGNITUDE        0x7fffffffu /* the bits of a magnitude; if all are set, it is a NaN */
#define INFINITE         0x7f800000u

/* The numbers that all elements share. They lie at the front of the scratch. */
struct dgc_numbers {
    float clip;     /* factor that clips the own gradient */
    float factor;   /* factor of the gradient: ranks / leaves, clipped, rescaled */
    unsigned found; /* the bits of the threshold that are known so far … */
    unsigned mask;  /* … and their places */
    unsigned rank;  /* the threshold is the rank-th largest magnitude with these bits, from 1 */
    unsigned taken; /* number of elements in the message */
};
static_assert(sizeof(struct dgc_numbers) <= GPU_SCRATCH_DGC_NUMBERS, "as the plan counts");

__host__ __device__ static __forceinline__ struct dgc_numbers *
numbers_of(const struct fleet_cuda_dgc &d)
{
    return static_cast<struct dgc_numbers *>(d.scratch);
}

__host__ __device__ static __forceinline__ unsigned *bins_of(const struct fleet_cuda_dgc &d)
{
    return reinterpret_cast<unsigned *>(static_cast<char *>(d.scratch) + GPU_SCRATCH_DGC_NUMBERS);
}

/* [blocks of elements] */
__host__ __device__ static __forceinline__ double *squares_of(const struct fleet_cuda_dgc &d)
{
    return reinterpret_cast<double *>(bins_of(d) + BINS);
}

/* [blocks of elements]: the elements of a block that are above the threshold, and those equal to
 * it; later the numbers of such elements in front of the block */
struct tally {
    unsigned above, at;
};

__host__ __device__ static __forceinline__ struct tally *tallies_of(const struct fleet_cuda_dgc &d)
{
    return reinterpret_cast<struct tally *>(squares_of(d) + blocks_of(d.count));
}

/* ---- elements -------------------------------------------------------------------------------- */

struct corrected {
    float u, v;
};

/* u and v of element i as the update will have them: momentum correction. */
__device__ static __forceinline__ struct corrected correct(const struct fleet_cuda_dgc &d,
                                                           float factor, int64_t i)
{
    float g = d.gradient[i] * factor, u = d.u[i], v = d.v[i];

    if (d.l2 != 0 || d.l1 != 0) {
        float p = d.param[i];
        g = fmaf(d.l2, p, g);
        g = g + (0.0f < p ? d.l1 : 0.0f);
        g = g - (p < 0.0f ? d.l1 : 0.0f);
    }
    if (d.nesterov) {
        u = d.momentum * (u + g);
        v = (v + u) + g;
    } else {
        u = fmaf(d.momentum, u, g);
        v = v + u;
    }
    return {u, v};
}

/* The bits of a magnitude, in the order of magnitudes; a NaN is above all numbers. */
__device__ static __forceinline__ unsigned key_of(float value)
{
    unsigned bits = __float_as_uint(value) & MAGNITUDE;

    return bits > INFINITE ? MAGNITUDE : bits;
}

/* ---- what the elements share ----------------------------------------------------------------- */

__global__ void __launch_bounds__(SQUARES_THREADS) dgc_squares_kernel(const struct fleet_cuda_dgc d)
{
    int64_t block = (int64_t)blockIdx.x * SQUARES_OF_BLOCK + threadIdx.x / SQUARES_LANES;
    bool is_block = block < blocks_of(d.count);
    float scale = (float)d.scalars->gradient_scale;
    double sum = 0;

    if (is_block) {
        int64_t from = block * FLEET_CUDA_BLOCK;
        int64_t to = from + FLEET_CUDA_BLOCK < d.count ? from + FLEET_CUDA_BLOCK : d.count;
        for (int64_t i = from + threadIdx.x % SQUARES_LANES; i < to; i += SQUARES_LANES) {
            float x = d.gradient[i] * scale;
            sum += (double)x * (double)x;
        }
    }
    sum = squares_sum(sum);
    if (is_block && threadIdx.x % SQUARES_LANES == 0)
        squares_of(d)[block] = sum;
}

__global__ void __launch_bounds__(SQUARES_THREADS) dgc_numbers_kernel(const struct fleet_cuda_dgc d)
{
    double clip = 1;

    for (int b = (int)threadIdx.x; b < BINS; b += SQUARES_THREADS)
        bins_of(d)[b] = 0;
    if (d.clips)
        squares_tree(squares_of(d), blocks_of(d.count));
    if (threadIdx.x != 0)
        return;
    if (d.clips) {
        double limit = d.clip_limit / sqrt((double)d.ranks), norm = sqrt(squares_of(d)[0]);
        clip = norm > limit ? limit / norm : 1;
    }
    struct dgc_numbers n = {};
    n.clip = (float)clip;
    n.factor = (float)(d.scalars->gradient_scale * d.ranks * clip * d.rescale);
    n.rank = (unsigned)d.wanted;
    *numbers_of(d) = n;
}

cudaError_t fleet_cuda_dgc_numbers(cudaStream_t stream, const struct fleet_cuda_dgc *d)
{
    cudaError_t status = cudaSuccess;

    if (d->count < 1 || d->count > INT32_MAX || d->ranks < 1)
        return cudaErrorInvalidValue;
    if (d->clips)
        status =
            CUDA_LAUNCH(dgc_squares_kernel, dim3(blocks_for(blocks_of(d->count), SQUARES_OF_BLOCK)),
                        dim3(SQUARES_THREADS), 0, stream, *d);
    return status == cudaSuccess
               ? CUDA_LAUNCH(dgc_numbers_kernel, dim3(1), dim3(SQUARES_THREADS), 0, stream, *d)
               : status;
}

/* ---- the threshold --------------------------------------------------------------------------- */

/* Elements among which the threshold is looked for. */
__host__ __device__ static __forceinline__ int64_t looked_at(const struct fleet_cuda_dgc &d)
{
    return d.sampled > 0 ? d.sampled : d.count;
}

/* Count the `bits` bits of magnitudes from `shift` on, of those that have the bits found so far. */
__global__ void __launch_bounds__(THREADS)
    dgc_histogram_kernel(const struct fleet_cuda_dgc d, int shift, int bits)
{
    CUDA_SHARED(unsigned, bins, [BINS]);
    const struct dgc_numbers n = *numbers_of(d);
    const int64_t count = looked_at(d), step = (int64_t)gridDim.x * THREADS;
    const unsigned last = (1u << bits) - 1;

    for (unsigned b = threadIdx.x; b <= last; b += THREADS)
        bins[b] = 0;
    __syncthreads();
    for (int64_t j = (int64_t)blockIdx.x * THREADS + threadIdx.x; j < count; j += step) {
        unsigned key = key_of(correct(d, n.factor, d.sampled > 0 ? j * d.count / count : j).v);
        if ((key & n.mask) == n.found)
            atomicAdd(&bins[key >> shift & last], 1u);
    }
    __syncthreads();
    for (unsigned b = threadIdx.x; b <= last; b += THREADS)
        if (bins[b] > 0)
            atomicAdd(&bins_of(d)[b], bins[b]);
}

/* Go from the largest bin down to the one with number `rank`; rank becomes its number in there. */
__global__ void __launch_bounds__(THREADS)
    dgc_find_kernel(const struct fleet_cuda_dgc d, int shift, int bits)
{
    CUDA_SHARED(unsigned, held, [BINS]);
    CUDA_SHARED(unsigned, sums, [THREADS]);
    const unsigned count = 1u << bits, each = count / THREADS;
    unsigned first = count - (threadIdx.x + 1) * each, sum = 0, rank, bin, t = 0;

    for (unsigned b = first; b < first + each; b++) {
        held[b] = bins_of(d)[b];
        sum += held[b];
        bins_of(d)[b] = 0; /* for the next histogram */
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    rank = numbers_of(d)->rank;
    for (; t < THREADS - 1 && rank > sums[t]; t++)
        rank -= sums[t];
    for (bin = count - t * each - 1; bin > 0 && rank > held[bin]; bin--)
        rank -= held[bin];
    numbers_of(d)->found |= bin << shift;
    numbers_of(d)->mask |= (count - 1) << shift;
    numbers_of(d)->rank = rank;
}

static cudaError_t find_threshold(cudaStream_t stream, const struct fleet_cuda_dgc *d)
{
    static const int bits[] = {11, 10, 10};
    unsigned blocks = blocks_for(looked_at(*d), FLEET_CUDA_BLOCK);
    cudaError_t status = cudaSuccess;
    int shift = 31;

    blocks = blocks < HISTOGRAM_BLOCKS ? blocks : HISTOGRAM_BLOCKS;
    for (int i = 0; i < 3 && status == cudaSuccess; i++) {
        shift -= bits[i];
        status = CUDA_LAUNCH(dgc_histogram_kernel, dim3(blocks), dim3(THREADS), 0, stream, *d,
                             shift, bits[i]);
        if (status == cudaSuccess)
            status =
                CUDA_LAUNCH(dgc_find_kernel, dim3(1), dim3(THREADS), 0, stream, *d, shift, bits[i]);
    }
    return status;
}

/* ---- the message ----------------------------------------------------------------------------- */

/* Elements on the threshold that are sent at most: of a sample's all, while there is room. */
__device__ static __forceinline__ unsigned ties_of(const struct fleet_cuda_dgc &d,
                                                   const struct dgc_numbers &n)
{
    return d.sampled > 0 ? (unsigned)d.kept : n.rank;
}

__host__ __device__ static __forceinline__ uint32_t *part_of(const struct fleet_cuda_dgc &d,
                                                             int rank)
{
    return d.part + rank * d.stride;
}

__host__ __device__ static __forceinline__ uint32_t *indices_of(const struct fleet_cuda_dgc &d,
                                                                int rank)
{
    return part_of(d, rank) + (d.sampled > 0);
}

__global__ void __launch_bounds__(THREADS) dgc_tally_kernel(const struct fleet_cuda_dgc d)
{
    CUDA_SHARED(unsigned, above_of, [WARPS]);
    CUDA_SHARED(unsigned, at_of, [WARPS]);
    const struct dgc_numbers n = *numbers_of(d);
    int64_t from = (int64_t)blockIdx.x * FLEET_CUDA_BLOCK;
    int64_t to = from + FLEET_CUDA_BLOCK < d.count ? from + FLEET_CUDA_BLOCK : d.count;
    unsigned above = 0, at = 0;

    for (int64_t i = from + threadIdx.x; i < to; i += THREADS) {
        unsigned key = key_of(correct(d, n.factor, i).v);
        above += key > n.found;
        at += key == n.found;
    }
    above = __reduce_add_sync(LANES, above);
    at = __reduce_add_sync(LANES, at);
    if (threadIdx.x % WARP == 0) {
        above_of[threadIdx.x / WARP] = above;
        at_of[threadIdx.x / WARP] = at;
    }
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (int w = 1; w < WARPS; w++) {
        above += above_of[w];
        at += at_of[w];
    }
    tallies_of(d)[blockIdx.x] = {above, at};
}

/* Tallies become those of all blocks in front. A thread has neighbouring blocks. */
__global__ void __launch_bounds__(THREADS) dgc_place_kernel(const struct fleet_cuda_dgc d)
{
    CUDA_SHARED(struct tally, of_threads, [THREADS]);
    struct tally *tallies = tallies_of(d), sum = {};
    const int64_t blocks = blocks_of(d.count), each = (blocks + THREADS - 1) / THREADS;
    const int64_t first = threadIdx.x * each;
    const int64_t end = first + each < blocks ? first + each : blocks;

    for (int64_t b = first; b < end; b++) {
        sum.above += tallies[b].above;
        sum.at += tallies[b].at;
    }
    of_threads[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        struct dgc_numbers &n = *numbers_of(d);
        unsigned kept = (unsigned)d.kept, ties = ties_of(d, n);
        sum = {};
        for (int t = 0; t < THREADS; t++) {
            struct tally here = of_threads[t];
            of_threads[t] = sum;
            sum.above += here.above;
            sum.at += here.at;
        }
        n.taken = min(sum.above + min(sum.at, ties), kept);
        if (d.sampled > 0)
            *part_of(d, d.rank) = n.taken;
    }
    __syncthreads();
    sum = of_threads[threadIdx.x];
    for (int64_t b = first; b < end; b++) {
        struct tally here = tallies[b];
        tallies[b] = sum;
        sum.above += here.above;
        sum.at += here.at;
    }
}

__global__ void __launch_bounds__(THREADS) dgc_take_kernel(const struct fleet_cuda_dgc d)
{
    CUDA_SHARED(struct tally, of_warps, [WARPS]);
    const struct dgc_numbers n = *numbers_of(d);
    const unsigned ties = ties_of(d, n), lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const unsigned lanes_before = (1u << lane) - 1;
    uint32_t *indices = indices_of(d, d.rank), *sent = indices + d.kept;
    int64_t from = (int64_t)blockIdx.x * FLEET_CUDA_BLOCK;
    const int64_t to = from + FLEET_CUDA_BLOCK < d.count ? from + FLEET_CUDA_BLOCK : d.count;
    struct tally front = tallies_of(d)[blockIdx.x]; /* of these THREADS elements */

    for (; from < to; from += THREADS) {
        int64_t i = from + threadIdx.x;
        float value = i < to ? correct(d, n.factor, i).v : 0.0f;
        bool is_above = i < to && key_of(value) > n.found;
        bool is_tie = i < to && key_of(value) == n.found;
        unsigned above = __ballot_sync(LANES, is_above), at = __ballot_sync(LANES, is_tie);
        struct tally mine = front;

        if (lane == 0)
            of_warps[warp] = {(unsigned)__popc(above), (unsigned)__popc(at)};
        __syncthreads();
        for (unsigned w = 0; w < WARPS; w++) {
            struct tally here = of_warps[w];
            front.above += here.above;
            front.at += here.at;
            if (w < warp) {
                mine.above += here.above;
                mine.at += here.at;
            }
        }
        mine.above += (unsigned)__popc(above & lanes_before);
        mine.at += (unsigned)__popc(at & lanes_before);
        unsigned place = mine.above + min(mine.at, ties);
        if ((is_above || (is_tie && mine.at < ties)) && place < (unsigned)d.kept) {
            indices[place] = (uint32_t)i;
            sent[place] = __float_as_uint(value);
        }
        __syncthreads(); /* of_warps is written again */
    }
}

/* What a sample leaves unused is sent, too: zeros. */
__global__ void __launch_bounds__(THREADS) dgc_unused_kernel(const struct fleet_cuda_dgc d)
{
    int64_t j = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (j < numbers_of(d)->taken || j >= d.kept)
        return;
    indices_of(d, d.rank)[j] = 0;
    indices_of(d, d.rank)[d.kept + j] = 0;
}

cudaError_t fleet_cuda_dgc_select(cudaStream_t stream, const struct fleet_cuda_dgc *d)
{
    dim3 grid(blocks_for(d->count, FLEET_CUDA_BLOCK));
    cudaError_t status = fleet_cuda_dgc_numbers(stream, d);

    if (status == cudaSuccess)
        status = find_threshold(stream, d);
    if (status == cudaSuccess)
        status = CUDA_LAUNCH(dgc_tally_kernel, grid, dim3(THREADS), 0, stream, *d);
    if (status == cudaSuccess)
        status = CUDA_LAUNCH(dgc_place_kernel, dim3(1), dim3(THREADS), 0, stream, *d);
    if (status == cudaSuccess)
        status = CUDA_LAUNCH(dgc_take_kernel, grid, dim3(THREADS), 0, stream, *d);
    if (status == cudaSuccess && d->sampled > 0)
        status = CUDA_LAUNCH(dgc_unused_kernel, dim3(blocks_for(d->kept, THREADS)), dim3(THREADS),
                             0, stream, *d);
    return status;
}

/* ---- the update ------------------------------------------------------------------------------ */

__device__ static __forceinline__ bool is_voted(const struct fleet_cuda_dgc &d)
{
    return d.scalars->votes == d.scalars->world;
}

__global__ void __launch_bounds__(THREADS) dgc_correct_kernel(const struct fleet_cuda_dgc d)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i >= d.count || !is_voted(d))
        return;
    struct corrected next = correct(d, numbers_of(d)->factor, i);
    d.u[i] = next.u;
    d.v[i] = next.v;
    d.gradient[i] = 0.0f;
}

/* Add what a rank sent. Of our own, u and v are rid of it. */
__global__ void __launch_bounds__(THREADS) dgc_add_kernel(const struct fleet_cuda_dgc d, int rank)
{
    int64_t j = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const uint32_t *indices = indices_of(d, rank);

    if (j >= d.kept || (d.sampled > 0 && j >= *part_of(d, rank)) || !is_voted(d))
        return;
    uint32_t i = indices[j];
    d.gradient[i] = d.gradient[i] + __uint_as_float(indices[d.kept + j]);
    if (rank == d.rank) {
        d.u[i] = 0.0f;
        d.v[i] = 0.0f;
    }
}

/* What is left in the gradient is multiplied by gradient_scale later on. */
__global__ void __launch_bounds__(THREADS) dgc_apply_kernel(const struct fleet_cuda_dgc d)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i >= d.count || !is_voted(d))
        return;
    float g = d.gradient[i] * (float)(1.0 / d.ranks);
    d.param[i] = d.param[i] - (float)d.scalars->learning_rate * g;
    d.gradient[i] = g * (float)(1 / d.scalars->gradient_scale);
}

cudaError_t fleet_cuda_dgc(cudaStream_t stream, const struct fleet_cuda_dgc *d)
{
    dim3 grid(blocks_for(d->count, THREADS));
    cudaError_t status = fleet_cuda_dgc_numbers(stream, d);

    if (status == cudaSuccess)
        status = CUDA_LAUNCH(dgc_correct_kernel, grid, dim3(THREADS), 0, stream, *d);
    for (int rank = 0; rank < d->ranks && status == cudaSuccess; rank++)
        status = CUDA_LAUNCH(dgc_add_kernel, dim3(blocks_for(d->kept, THREADS)), dim3(THREADS), 0,
                             stream, *d, rank);
    return status == cudaSuccess ? CUDA_LAUNCH(dgc_apply_kernel, grid, dim3(THREADS), 0, stream, *d)
                                 : status;
}
