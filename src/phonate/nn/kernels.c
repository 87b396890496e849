/* What training in bf16 computes beside matrix products, in one pass each where torch takes many. See kernels.py.

   A bf16 is the upper half of a float. Rows are frames, columns features. Sums over rows are cut into parts that do not
   depend on the number of threads, so that results do not. */

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint16_t bf16;
typedef long long count;

#define BLOCK 512
#define PART 256

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

static inline void narrow(count n, const float *restrict values, bf16 *restrict out) {
    count i = 0;
#ifdef __AVX512BF16__
    for (; i + 16 <= n; i += 16) _mm256_storeu_si256((__m256i *)(out + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(values + i)));
#endif
    for (; i < n; i++) out[i] = down(values[i]);
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

static inline uint64_t drawn(uint64_t seed, count number) { /* SplitMix64 (Steele et al. 2014) */
    uint64_t z = seed + (uint64_t)(number + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* GELUs of so many values, by their tanh form, and their derivatives; 0 with a probability of `zeros` / 65,536. */
static inline void gelus(count size, const bf16 *restrict x, uint64_t seed, count draw, int zeros, float *restrict value, float *restrict slope) {
    for (count i = 0; i < size; i++) {
        float a = up(x[i]), square = a * a;
        float v = a * (1.5957691216f + 0.0713548162726f * square);
        v = v > 87.0f ? 87.0f : v;
        v = v < -87.0f ? -87.0f : v;
        float power = exponential(-v), s = 1.0f / (1.0f + power);
        value[i] = a * s;
        slope[i] = s + s * s * power * a * (1.5957691216f + 0.2140644488178f * square);
    }
    if (zeros) {
        uint64_t draws[BLOCK / 4];
        uint16_t numbers[BLOCK];
        for (count i = 0; i < BLOCK / 4; i++) draws[i] = drawn(seed, draw + i);
        memcpy(numbers, draws, sizeof(numbers));
        for (count i = 0; i < size; i++) {
            value[i] = numbers[i] >= zeros ? value[i] : 0.0f;
            slope[i] = numbers[i] >= zeros ? slope[i] : 0.0f;
        }
    }
}

/* GELUs of rows of x, with zeros as `seed` draws them. */
void gelu(count rows, count columns, const bf16 *restrict x, uint64_t seed, int zeros, bf16 *restrict activated, int threads) {
    count blocks = (columns + BLOCK - 1) / BLOCK;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (count b = 0; b < rows * blocks; b++) {
        count from = b % blocks * BLOCK, place = b / blocks * columns + from;
        float value[BLOCK], slope[BLOCK];
        count size = columns - from < BLOCK ? columns - from : BLOCK;
        gelus(size, x + place, seed, b * (BLOCK / 4), zeros, value, slope);
        narrow(size, value, activated + place);
    }
}

/* The same again, and gradient *= their derivatives, whose sums are in parts (rows / PART, columns). */
void gelu_backward(count rows, count columns, const bf16 *restrict x, uint64_t seed, int zeros, bf16 *restrict activated,
                   bf16 *restrict gradient, float *restrict parts, int threads) {
    count blocks = (columns + BLOCK - 1) / BLOCK;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (count part = 0; part < (rows + PART - 1) / PART; part++) {
        float *restrict sums = parts + part * columns;
        memset(sums, 0, columns * sizeof(float));
        for (count r = part * PART; r < rows && r < (part + 1) * PART; r++)
            for (count b = 0; b < blocks; b++) {
                count from = b * BLOCK, place = r * columns + from, size = columns - from < BLOCK ? columns - from : BLOCK;
                float value[BLOCK], slope[BLOCK];
                gelus(size, x + place, seed, (r * blocks + b) * (BLOCK / 4), zeros, value, slope);
                narrow(size, value, activated + place);
                for (count i = 0; i < size; i++) {
                    slope[i] *= up(gradient[place + i]);
                    sums[from + i] += slope[i];
                }
                narrow(size, slope, gradient + place);
            }
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

/* out = before + change, the latter only in rows that are `real`, if that is given. */
void added(count rows, count columns, const float *restrict before, const bf16 *restrict change, const uint8_t *restrict real,
           float *restrict out, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (count r = 0; r < rows; r++) {
        const float *restrict b = before + r * columns;
        const bf16 *restrict c = change + r * columns;
        float *restrict o = out + r * columns;
        if (real && !real[r]) memcpy(o, b, columns * sizeof(float));
        else
            for (count i = 0; i < columns; i++) o[i] = b[i] + up(c[i]);
    }
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

static inline void widened(const void *restrict x, int wide, count from, count n, float *restrict row) {
    if (wide) memcpy(row, (const float *)x + from, n * sizeof(float));
    else
        for (count i = 0; i < n; i++) row[i] = up(((const bf16 *)x)[from + i]);
}

/* Rows of floats (`wide`) or bf16, less their means, over their deviations, times weights, plus biases; and what
   `normed_backward` needs of them. */
void normed(count rows, count columns, const void *restrict x, int wide, const float *restrict weight, const float *restrict bias,
            double least, bf16 *restrict out, float *restrict means, float *restrict factors, int threads) {
#pragma omp parallel num_threads(threads)
    {
        float *restrict row = malloc(columns * sizeof(float));
#pragma omp for schedule(static)
        for (count r = 0; r < rows; r++) {
            widened(x, wide, r * columns, columns, row);
            float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
            for (count i = 0; i < columns; i++) sum += row[i];
            float mean = sum / columns;
#pragma omp simd reduction(+ : squares)
            for (count i = 0; i < columns; i++) squares += (row[i] - mean) * (row[i] - mean);
            float factor = 1.0f / sqrtf(squares / columns + (float)least);
            for (count i = 0; i < columns; i++) row[i] = (row[i] - mean) * factor * weight[i] + bias[i];
            narrow(columns, row, out + r * columns);
            means[r] = mean;
            factors[r] = factor;
        }
        free(row);
    }
}

/* The gradient of x plus `other`, where that is given, both in the format of x; and gradients of weights and biases, in
   parts (rows / PART, 2, columns). */
void normed_backward(count rows, count columns, const bf16 *restrict gradient, const void *restrict x, int wide,
                     const float *restrict weight, const float *restrict means, const float *restrict factors,
                     const void *restrict other, void *restrict of_x, float *restrict parts, int threads) {
#pragma omp parallel num_threads(threads)
    {
        float *restrict row = malloc(3 * columns * sizeof(float)), *restrict scaled = row + columns, *restrict more = row + 2 * columns;
#pragma omp for schedule(static)
        for (count part = 0; part < (rows + PART - 1) / PART; part++) {
            float *restrict of_weight = parts + 2 * part * columns, *restrict of_bias = of_weight + columns;
            memset(of_weight, 0, 2 * columns * sizeof(float));
            for (count r = part * PART; r < rows && r < (part + 1) * PART; r++) {
                const bf16 *restrict g = gradient + r * columns;
                float mean = means[r], factor = factors[r], sum = 0, along = 0;
                widened(x, wide, r * columns, columns, row);
#pragma omp simd reduction(+ : sum, along)
                for (count i = 0; i < columns; i++) {
                    float one = up(g[i]), normal = (row[i] - mean) * factor;
                    of_bias[i] += one;
                    of_weight[i] += one * normal;
                    row[i] = normal;
                    scaled[i] = one * weight[i];
                    sum += scaled[i];
                    along += scaled[i] * normal;
                }
                sum /= columns;
                along /= columns;
                for (count i = 0; i < columns; i++) row[i] = factor * (scaled[i] - sum - row[i] * along);
                if (other) {
                    widened(other, wide, r * columns, columns, more);
                    for (count i = 0; i < columns; i++) row[i] += more[i];
                }
                if (wide) memcpy((float *)of_x + r * columns, row, columns * sizeof(float));
                else narrow(columns, row, (bf16 *)of_x + r * columns);
            }
        }
        free(row);
    }
}

/* Queries, keys and values (3, items, heads, frames, size) of packed ones (items, frames, 3, heads, size), or back:
   queries times `scale`, each pair of the halves of queries and keys turned by the angle of its frame, if there are any. */
void heads(count items, count frames, count heads, count size, bf16 *restrict packed, const float *restrict cosines,
           const float *restrict sines, double scale, bf16 *restrict apart, int back, int threads) {
    count half = size / 2;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (count item = 0; item < items; item++)
        for (count part = 0; part < 3; part++)
            for (count head = 0; head < heads; head++)
                for (count frame = 0; frame < frames; frame++) {
                    bf16 *one = packed + (((item * frames + frame) * 3 + part) * heads + head) * size;
                    bf16 *other = apart + (((part * items + item) * heads + head) * frames + frame) * size;
                    const bf16 *restrict from = back ? other : one;
                    bf16 *restrict to = back ? one : other;
                    float factor = part ? 1.0f : (float)scale;
                    if (part == 2) memcpy(to, from, size * sizeof(bf16));
                    else if (!cosines)
                        for (count i = 0; i < size; i++) to[i] = down(factor * up(from[i]));
                    else
                        for (count i = 0; i < half; i++) {
                            float cosine = factor * cosines[frame * half + i], sine = factor * sines[frame * half + i];
                            float first = up(from[i]), second = up(from[half + i]);
                            sine = back ? -sine : sine;
                            to[i] = down(first * cosine - second * sine);
                            to[half + i] = down(first * sine + second * cosine);
                        }
                }
}

/* Softmax of scores (items, heads, frames, columns) in place, of those that are `allowed` (items, frames, columns), with
   steps from an item or a frame to the next; of all in rows where none is. */
void softmax(count items, count heads, count frames, count columns, bf16 *restrict scores, const uint8_t *restrict allowed,
             count item_step, count frame_step, int threads) {
#pragma omp parallel num_threads(threads)
    {
        float *restrict row = malloc(columns * sizeof(float));
#pragma omp for schedule(static)
        for (count r = 0; r < items * heads * frames; r++) {
            bf16 *restrict score = scores + r * columns;
            float most = -3e38f, sum = 0;
            for (count i = 0; i < columns; i++) row[i] = up(score[i]);
            if (allowed) {
                const uint8_t *restrict one = allowed + r / (heads * frames) * item_step + r % frames * frame_step;
                for (count i = 0; i < columns; i++) row[i] = one[i] ? row[i] : -3e38f;
            }
#pragma omp simd reduction(max : most)
            for (count i = 0; i < columns; i++) most = row[i] > most ? row[i] : most;
#pragma omp simd reduction(+ : sum)
            for (count i = 0; i < columns; i++) {
                float below = row[i] - most;
                row[i] = below < -87.0f ? 0.0f : exponential(below);
                sum += row[i];
            }
            for (count i = 0; i < columns; i++) row[i] /= sum;
            narrow(columns, row, score);
        }
        free(row);
    }
}

/* Leaky ReLUs of rows, each with zeros before and after. */
void leaky(count rows, count columns, const bf16 *restrict x, double slope, bf16 *restrict padded, count before, count after, int threads) {
    count step = before + columns + after;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (count r = 0; r < rows; r++) {
        const bf16 *restrict from = x + r * columns;
        bf16 *restrict to = padded + r * step + before;
        memset(to - before, 0, before * sizeof(bf16));
        memset(to + columns, 0, after * sizeof(bf16));
        for (count i = 0; i < columns; i++) to[i] = (from[i] & 0x8000) ? down(up(from[i]) * (float)slope) : from[i];
    }
}

/* The gradient of leaky ReLUs with these results from one or two (or NULL), in rows with steps from each to the next. */
void leaky_backward(count rows, count columns, const bf16 *one, count one_step, const bf16 *other, count other_step,
                    const bf16 *results, count step, double slope, bf16 *restrict of_x, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (count r = 0; r < rows; r++) {
        const bf16 *restrict a = one + r * one_step, *restrict b = other + r * other_step, *restrict result = results + r * step;
        bf16 *restrict out = of_x + r * columns;
        if (other)
            for (count i = 0; i < columns; i++) out[i] = down((up(a[i]) + up(b[i])) * (up(result[i]) > 0 ? 1.0f : (float)slope));
        else
            for (count i = 0; i < columns; i++) out[i] = down(up(a[i]) * (up(result[i]) > 0 ? 1.0f : (float)slope));
    }
}

/* Signs of differences of rows, and the sums of their sizes for each item. */
void differences(count items, count rows, count columns, const bf16 *one, count one_step, const bf16 *other, count other_step,
                 int8_t *restrict signs, float *restrict sums, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (count item = 0; item < items; item++) {
        double total = 0;
        for (count r = item * rows; r < (item + 1) * rows; r++) {
            const bf16 *restrict a = one + r * one_step, *restrict b = other + r * other_step;
            int8_t *restrict sign = signs + r * columns;
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (count i = 0; i < columns; i++) {
                float difference = up(a[i]) - up(b[i]);
                sum += fabsf(difference);
                sign[i] = (difference > 0) - (difference < 0);
            }
            total += sum;
        }
        sums[item] = (float)total;
    }
}

/* Signs times `size`. */
void signed_sizes(count n, const int8_t *restrict signs, double size, bf16 *restrict out, int threads) {
    bf16 plus = down((float)size);
#pragma omp parallel for simd num_threads(threads) schedule(static)
    for (count i = 0; i < n; i++) out[i] = signs[i] > 0 ? plus : signs[i] < 0 ? plus ^ 0x8000 : 0;
}
