/* What training in bf16 computes beside matrix products, in one pass each where torch takes many. See kernels.py.

   A bf16 is the upper half of a float. Rows are frames, columns features. Sums over rows are cut into parts that do not
   depend on the number of threads, so that results do not. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint16_t bf16;
typedef long long count;

#define BLOCK 512

static inline float up(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline bf16 down(float value) { /* to the nearest, ties to even; NaN stays NaN */
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40;
    return (bf16)((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

static inline float exponential(float x) { /* of -87 to 87, to 2e-7 */
    float turns = x * 1.44269504f;
    float whole = rintf(turns);
    float f = turns - whole;
    float value = 1.535336188e-4f;
    value = value * f + 1.339887440e-3f;
    value = value * f + 9.618437357e-3f;
    value = value * f + 5.550332548e-2f;
    value = value * f + 2.402264791e-1f;
    value = value * f + 6.931472028e-1f;
    value = value * f + 1.0f;
    int32_t bits = ((int32_t)whole + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return value * power;
}

/* GELUs of x, by their tanh form, and their derivatives; 0 where a random number is below `least`. */
void gelu(count n, const bf16 *restrict x, const int16_t *restrict numbers, int least, bf16 *restrict activated, bf16 *restrict slopes, int threads) {
    count blocks = (n + BLOCK - 1) / BLOCK;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (count b = 0; b < blocks; b++) {
        count from = b * BLOCK, size = n - from < BLOCK ? n - from : BLOCK;
        float value[BLOCK], slope[BLOCK];
        for (count i = 0; i < size; i++) value[i] = up(x[from + i]);
        for (count i = 0; i < size; i++) {
            float a = value[i], square = a * a;
            float v = a * (1.5957691216f + 0.0713548162726f * square);
            v = v > 87.0f ? 87.0f : v;
            v = v < -87.0f ? -87.0f : v;
            float power = exponential(-v), s = 1.0f / (1.0f + power);
            value[i] = a * s;
            slope[i] = s + s * s * power * a * (1.5957691216f + 0.2140644488178f * square);
        }
        for (count i = 0; i < size; i++) activated[from + i] = down(value[i]);
        for (count i = 0; i < size; i++) slopes[from + i] = down(slope[i]);
        if (numbers) {
            for (count i = 0; i < size; i++) {
                bf16 kept = numbers[from + i] >= least ? 0xffff : 0;
                activated[from + i] &= kept;
                slopes[from + i] &= kept;
            }
        }
    }
}

/* gradient *= slopes, and its sums over rows. */
void slopes_product(count rows, count columns, bf16 *restrict gradient, const bf16 *restrict slopes, float *restrict sums, int threads) {
    count blocks = (columns + BLOCK / 4 - 1) / (BLOCK / 4);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (count b = 0; b < blocks; b++) {
        count from = b * (BLOCK / 4), size = columns - from < BLOCK / 4 ? columns - from : BLOCK / 4;
        float total[BLOCK / 4] = {0};
        for (count r = 0; r < rows; r++) {
            bf16 *restrict g = gradient + r * columns + from;
            const bf16 *restrict s = slopes + r * columns + from;
            for (count i = 0; i < size; i++) {
                float product = up(g[i]) * up(s[i]);
                g[i] = down(product);
                total[i] += product;
            }
        }
        memcpy(sums + from, total, size * sizeof(float));
    }
}

/* A float gradient as bf16, and its sums over rows. */
void narrowed(count rows, count columns, const float *restrict gradient, bf16 *restrict narrow, float *restrict sums, int threads) {
    count blocks = (columns + BLOCK / 4 - 1) / (BLOCK / 4);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (count b = 0; b < blocks; b++) {
        count from = b * (BLOCK / 4), size = columns - from < BLOCK / 4 ? columns - from : BLOCK / 4;
        float total[BLOCK / 4] = {0};
        for (count r = 0; r < rows; r++) {
            const float *restrict g = gradient + r * columns + from;
            bf16 *restrict out = narrow + r * columns + from;
            for (count i = 0; i < size; i++) {
                out[i] = down(g[i]);
                total[i] += g[i];
            }
        }
        memcpy(sums + from, total, size * sizeof(float));
    }
}

/* out = before + change. */
void added(count n, const float *restrict before, const bf16 *restrict change, float *restrict out, int threads) {
#pragma omp parallel for simd num_threads(threads) schedule(static)
    for (count i = 0; i < n; i++) out[i] = before[i] + up(change[i]);
}

/* Gradients of taps (taps, columns) with which each column of items (frames, columns) was convolved alone, and of biases,
   in parts (items, taps + 1, columns). */
void depthwise_backward(count items, count frames, count columns, count taps, count past, const bf16 *restrict gradient,
                        const bf16 *restrict x, float *restrict parts, int threads) {
#pragma omp parallel num_threads(threads)
    {
        float *restrict row = malloc(columns * sizeof(float));
#pragma omp for schedule(static)
        for (count item = 0; item < items; item++) {
            float *restrict sums = parts + item * (taps + 1) * columns, *of_bias = sums + taps * columns;
            memset(sums, 0, (taps + 1) * columns * sizeof(float));
            for (count frame = 0; frame < frames; frame++) {
                const bf16 *restrict g = gradient + (item * frames + frame) * columns;
                for (count i = 0; i < columns; i++) of_bias[i] += row[i] = up(g[i]);
                for (count k = 0; k < taps; k++) {
                    count other = frame + k - past;
                    if (other < 0 || other >= frames) continue;
                    const bf16 *restrict from = x + (item * frames + other) * columns;
                    float *restrict tap = sums + k * columns;
                    for (count i = 0; i < columns; i++) tap[i] += row[i] * up(from[i]);
                }
            }
        }
        free(row);
    }
}
