// Exact optimal assignment for many small square cost matrices, one block of threads per problem.
//
// Shortest augmenting paths (Jonker and Volgenant): column reduction sets the prices of columns, augmenting
// row reduction places most rows, and Dijkstra searches over reduced costs place the rest. Column j belongs to thread
// j % threads, which keeps its price and distance in registers; who is paired with whom is in shared memory.
// All in float64. Keys order any double, NaN too, so that every search ends and the result is a permutation.
//
// costs (problems, stride, stride), of which the first sizes[p] rows and columns count; columns (problems,
// stride) gets the column of each row. Shared memory: 20 bytes per column. Threads: at least stride / SLOTS.

#ifndef SLOTS
#define SLOTS 4  // columns per thread
#endif

typedef unsigned long long Key;
#define ALL 0xffffffffu
#define NO_KEY 0xffffffffffffffffull

__device__ inline Key key_of(double value) {
    long long bits = __double_as_longlong(value);
    return bits < 0 ? ~(Key)bits : (Key)bits | 0x8000000000000000ull;
}

__device__ inline double value_of(Key key) {
    return __longlong_as_double((long long)(key >> 63 ? key & 0x7fffffffffffffffull : ~key));
}

__device__ inline unsigned warp_min(unsigned value) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    return __reduce_min_sync(ALL, value);
#else
    for (int step = 16; step; step >>= 1) value = min(value, __shfl_xor_sync(ALL, value, step));
    return value;
#endif
}

// The least key of a warp and the lowest column that has it, for every lane.
__device__ inline void warp_least(Key &key, int &column) {
    unsigned high = (unsigned)(key >> 32), least_high = warp_min(high);
    unsigned low = high == least_high ? (unsigned)key : ALL, least_low = warp_min(low);
    bool mine = high == least_high && low == least_low;
    column = (int)warp_min(mine ? (unsigned)column : ALL);
    key = (Key)least_high << 32 | least_low;
}

// The same over all warps of the block. Alternating between two buffers needs one barrier per call instead of two.
__device__ inline void block_least(Key &key, int &column, int &turn) {
    __shared__ Key keys[2][32];
    __shared__ int holders[2][32];
    warp_least(key, column);
    int warps = (blockDim.x + 31) / 32;
    if (warps == 1) return;
    turn ^= 1;
    if (threadIdx.x % 32 == 0) {
        keys[turn][threadIdx.x / 32] = key;
        holders[turn][threadIdx.x / 32] = column;
    }
    __syncthreads();
    int lane = threadIdx.x % 32;
    key = lane < warps ? keys[turn][lane] : NO_KEY;
    column = lane < warps ? holders[turn][lane] : 0x7fffffff;
    warp_least(key, column);
}

extern "C" __global__ void assign_balls(const double *costs, const int *sizes, int *columns, int stride) {
    extern __shared__ double shared[];
    const int n = sizes[blockIdx.x], first = threadIdx.x, threads = blockDim.x;
    const double *cost = costs + (long long)blockIdx.x * stride * stride;
    double *u = shared;  // prices of rows
    int *row_of = (int *)(u + stride), *column_of = row_of + stride;
    short *parent = (short *)(column_of + stride);
    double v[SLOTS], distance[SLOTS];
    int turn = 0;

    // Column reduction: the price of a column is its least cost; a row keeps one of the columns that want it.
    int wanted[SLOTS];
#pragma unroll
    for (int k = 0; k < SLOTS; k++) v[k] = 0, wanted[k] = 0;
    for (int j = first; j < n; j += threads) column_of[j] = -1;
#pragma unroll 4
    for (int i = 0; i < n; i++) {
#pragma unroll
        for (int k = 0; k < SLOTS; k++) {
            int j = k * threads + first;
            if (j < n) {
                double c = cost[i * stride + j];
                if (i == 0 || c < v[k]) v[k] = c, wanted[k] = i;
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < SLOTS; k++) {
        int j = k * threads + first;
        if (j < n) atomicMax(&column_of[wanted[k]], j);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < SLOTS; k++) {
        int j = k * threads + first;
        if (j < n) row_of[j] = column_of[wanted[k]] == j ? wanted[k] : -1;
    }
    __syncthreads();

    // Augmenting row reduction: a free row takes its best column and lowers that price by the gain over the
    // second best; whom it displaces goes on. Rounding could make that endless, hence the bound.
    int left = n > 1 ? 4 * n : 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int start = 0; start < n; start++) {
            for (int row = start; column_of[row] < 0 && left > 0; left--) {
                Key key = NO_KEY, key2 = NO_KEY;
                int best = 0x7fffffff, second = 0x7fffffff;
#pragma unroll
                for (int k = 0; k < SLOTS; k++) {
                    int j = k * threads + first;
                    if (j < n) {
                        Key mine = key_of(cost[row * stride + j] - v[k]);
                        if (mine < key) key2 = key, second = best, key = mine, best = j;
                        else if (mine < key2) key2 = mine, second = j;
                    }
                }
                Key least = key;
                int own = best;
                block_least(least, best, turn);
                if (own == best) key = key2, own = second;
                second = own;
                block_least(key, second, turn);
                double gain = value_of(key) - value_of(least);
                bool strict = gain > 0;
                int taken = row_of[best];
                if (!strict && taken >= 0) best = second, taken = row_of[best];
                __syncthreads();
                if (strict) {
#pragma unroll
                    for (int k = 0; k < SLOTS; k++)
                        if (k * threads + first == best) v[k] -= gain;
                }
                if (first == 0) {
                    row_of[best] = row, column_of[row] = best;
                    if (taken >= 0) column_of[taken] = -1;
                }
                __syncthreads();
                if (taken < 0 || !strict) break;
                row = taken;
            }
        }
    }

#pragma unroll
    for (int k = 0; k < SLOTS; k++) {
        int j = k * threads + first;
        if (j < n) {
            if (row_of[j] >= 0) u[row_of[j]] = cost[row_of[j] * stride + j] - v[k];
            if (column_of[j] < 0) u[j] = 0;
        }
    }
    __syncthreads();

    // A shortest path from every row that is still free to a free column.
    for (int start = 0; start < n; start++) {
        if (column_of[start] >= 0) continue;
        bool reached[SLOTS];
#pragma unroll
        for (int k = 0; k < SLOTS; k++) reached[k] = false;
        int row = start, sink;
        double shortest = 0;
        while (true) {
            Key key = NO_KEY;
            int best = 0x7fffffff;
            double base = shortest - u[row];
#pragma unroll
            for (int k = 0; k < SLOTS; k++) {
                int j = k * threads + first;
                if (j < n && !reached[k]) {
                    double reach = base + (cost[row * stride + j] - v[k]);
                    if (row == start || reach < distance[k]) distance[k] = reach, parent[j] = (short)row;
                    Key mine = key_of(distance[k]);
                    if (mine < key) key = mine, best = j;
                }
            }
            block_least(key, best, turn);
            shortest = value_of(key);
#pragma unroll
            for (int k = 0; k < SLOTS; k++)
                if (k * threads + first == best) reached[k] = true;
            row = row_of[best];
            if (row < 0) {
                sink = best;
                break;
            }
        }
#pragma unroll
        for (int k = 0; k < SLOTS; k++) {
            int j = k * threads + first;
            if (reached[k] && j != sink) {
                double change = shortest - distance[k];
                v[k] -= change;
                u[row_of[j]] += change;
            }
        }
        __syncthreads();
        if (first == 0) {
            u[start] += shortest;
            for (int j = sink, i = -1; i != start;) {
                i = parent[j];
                row_of[j] = i;
                int next = column_of[i];
                column_of[i] = j;
                j = next;
            }
        }
        __syncthreads();
    }
    for (int i = first; i < n; i += threads) columns[(long long)blockIdx.x * stride + i] = column_of[i];
}
