// Squared W2 of one output inside many balls, with its gradient: one block of threads per ball and batch entry.
//
// The ranks of the ball's rows (their places in one sort of all rows, hence distinct) are sorted in shared
// memory, all draws at once, by a bitonic network of WIDTH places per draw. Then the k-th smallest values meet.
// Gradients are added to the rows atomically, hence in no fixed order.
//
// Draw s of batch entry b is column s * entries + b of ranks, order and ordered (columns, rows).

#ifndef REAL
#define REAL float
#endif
#define NOBODY 0x7fffffff  // padding sorts last

// Sort each run of `width` integers, a power of two; `total` is a multiple of it.
__device__ inline void sort_runs(int *items, int width, int total) {
    for (int size = 2; size <= width; size <<= 1) {
        for (int stride = size >> 1; stride > 0; stride >>= 1) {
            // The pairs of a warp lie within 64 neighbours for strides up to 32, and wait for none but themselves.
            if (stride > 32 || (stride == 32 && size > 64)) __syncthreads();
            else __syncwarp();
            for (int pair = threadIdx.x; pair < total / 2; pair += blockDim.x) {
                int low = 2 * pair - (pair & (stride - 1)), high = low + stride;
                bool up = ((low & (width - 1)) & size) == 0;
                int a = items[low], b = items[high];
                if ((a > b) == up) items[low] = b, items[high] = a;
            }
        }
    }
    __syncthreads();
}

extern "C" __global__ void match_balls(
    const int *ranks, const long long *order, const REAL *ordered,  // (draws * entries, rows)
    const REAL *targets,                                           // (entries, edges), ascending in each ball
    const int *rows, const long long *starts, const int *balls,    // edges; balls; those of this launch
    const REAL *factors,                                           // (entries, balls): 2 scale / size
    REAL *values, REAL *gradient,                                  // (entries, balls), (draws * entries, rows)
    int n_rows, int n_balls, int n_draws, int width, int debiased) {
    extern __shared__ int items[];
    __shared__ REAL sums[32];
    const int ball = balls[blockIdx.x], entry = blockIdx.y, entries = gridDim.y;
    const long long start = starts[ball], edges = starts[n_balls];
    const int size = (int)(starts[ball + 1] - start);
    for (int place = threadIdx.x; place < n_draws * width; place += blockDim.x) {
        int draw = place / width, k = place - draw * width;
        const int *rank = ranks + (long long)(draw * entries + entry) * n_rows;
        items[place] = k < size ? rank[rows[start + k]] : NOBODY;
    }
    __syncthreads();
    sort_runs(items, width, n_draws * width);

    const REAL *target = targets + entry * edges + start;
    const REAL factor = factors[(long long)entry * n_balls + ball];
    const REAL each = (REAL)1 / n_draws, pairs = n_draws > 1 ? (REAL)1 / (n_draws * (n_draws - 1)) : 0;
    REAL cost = 0;
    for (int k = threadIdx.x; k < size; k += blockDim.x) {
        REAL y = target[k], mean = 0;
        for (int draw = 0; draw < n_draws; draw++)
            mean += ordered[(long long)(draw * entries + entry) * n_rows + items[draw * width + k]] * each;
        if (debiased) cost += (mean - y) * (mean - y);
        for (int draw = 0; draw < n_draws; draw++) {
            long long at = (long long)(draw * entries + entry) * n_rows, place = at + items[draw * width + k];
            REAL value = ordered[place], spread = value - mean, gap = value - y;
            cost += debiased ? -spread * spread * pairs : gap * gap * each;
            REAL pull = debiased ? (mean - y) * each - spread * pairs : gap * each;
            atomicAdd(gradient + at + order[place], factor * pull);
        }
    }
    for (int step = 16; step; step >>= 1) cost += __shfl_xor_sync(0xffffffffu, cost, step);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = cost;
    __syncthreads();
    if (threadIdx.x == 0) {
        cost = 0;
        for (int warp = 0; warp < (blockDim.x + 31) / 32; warp++) cost += sums[warp];
        values[(long long)entry * n_balls + ball] = cost / size;
    }
}
