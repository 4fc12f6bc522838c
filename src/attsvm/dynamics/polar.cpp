// Polar factors U Vᵀ of many small matrices U S Vᵀ, a vector of trials side by side, with the trial last.
//
// G = Q R by Gram-Schmidt with pivoted columns, twice, so that Q stays orthonormal. Then Jacobi rotations make the rows
// of R orthogonal and take the columns of Q along; the lengths of the rows are the singular values. A trial whose
// rotation is done is rotated by 0, which keeps its bits: it ends where it would end alone.

#include <cmath>
#include <vector>

namespace {

// A vector of the machine: of longer ones the compiler makes code that takes five times as long.
#ifdef __AVX512F__
constexpr long WIDTH = 8;
#else
constexpr long WIDTH = 4;
#endif
typedef double Lanes __attribute__((vector_size(WIDTH * sizeof(double)), aligned(8)));
constexpr int SWEEPS = 40;

Lanes root(Lanes x) {
    for (long l = 0; l < WIDTH; l++) x[l] = std::sqrt(x[l]);
    return x;
}

Lanes dot(const Lanes *x, const Lanes *y, long n) {
    Lanes sum = {};
    for (long i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

template <typename Mask> bool any(Mask mask) {
    long long found = 0;
    for (long l = 0; l < WIDTH; l++) found |= mask[l];
    return found != 0;
}

void rotate(Lanes *x, Lanes *y, long n, Lanes c, Lanes s) {
    for (long i = 0; i < n; i++) {
        Lanes turned = c * x[i] - s * y[i];
        y[i] = s * x[i] + c * y[i];
        x[i] = turned;
    }
}

// Largest absolute entry of every trial, NaN where the matrix is not finite.
Lanes largest(const Lanes *x, long n) {
    Lanes most = {}, bad = {};
    for (long i = 0; i < n; i++) {
        Lanes size = x[i] < 0 ? -x[i] : x[i];
        most = size > most ? size : most;
        bad += x[i] * 0;
    }
    return most + bad;
}

// The polar factor of the columns of G, e of them of length d, in place, or only its part u₁v₁ᵀ of the largest singular
// value. Singular values up to noise times the largest one are taken for 0.
void polar(Lanes *G, Lanes *Q, Lanes *R, long d, long e, double noise, bool largest_only) {
    const Lanes zero = {}, one = zero + 1;
    Lanes size = largest(G, d * e);
    Lanes scale = size > 0 ? one / size : zero;
    for (long i = 0; i < d * e; i++) G[i] *= scale;
    long rank = 0;
    Lanes least = zero;
    for (; rank < (d < e ? d : e); rank++) {
        Lanes *q = Q + rank * d, *r = R + rank * e, best = zero;
        for (long i = 0; i < d; i++) q[i] = zero;
        for (long c = 0; c < e; c++) {
            Lanes length = dot(G + c * d, G + c * d, d);
            auto longer = length > best;
            best = longer ? length : best;
            for (long i = 0; i < d; i++) q[i] = longer ? G[c * d + i] : q[i];
        }
        if (rank == 0) least = best * (noise * noise / 16);
        auto live = best > least;
        if (!any(live)) break;
        for (long m = 0; m < rank; m++) {
            Lanes along = dot(Q + m * d, q, d);
            for (long i = 0; i < d; i++) q[i] -= along * Q[m * d + i];
        }
        Lanes length = dot(q, q, d);
        Lanes share = (live & (length > 0)) ? one / root(length) : zero;
        for (long i = 0; i < d; i++) q[i] *= share;
        for (long c = 0; c < e; c++) {
            r[c] = dot(q, G + c * d, d);
            for (long i = 0; i < d; i++) G[c * d + i] -= r[c] * q[i];
        }
    }
    const double straight = e * 0x1p-52;
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        bool turned = false;
        for (long a = 0; a < rank; a++)
            for (long b = a + 1; b < rank; b++) {
                Lanes *x = R + a * e, *y = R + b * e;
                Lanes xx = dot(x, x, e), yy = dot(y, y, e), xy = dot(x, y, e);
                auto turn = xy * xy > straight * straight * xx * yy;
                if (!any(turn)) continue;
                turned = true;
                Lanes tangent = (yy - xx) / (2 * xy);
                Lanes far = tangent < 0 ? -tangent : tangent;
                Lanes t = one / (far + root(1 + far * far));
                t = turn ? (tangent < 0 ? -t : t) : zero;
                Lanes c = one / root(1 + t * t), s = c * t;
                rotate(x, y, e, c, s);
                rotate(Q + a * d, Q + b * d, d, c, s);
            }
        if (!turned) break;
    }
    Lanes top = zero;
    for (long a = 0; a < rank; a++) {
        Lanes length = dot(R + a * e, R + a * e, e);
        top = length > top ? length : top;
    }
    for (long i = 0; i < d * e; i++) G[i] = size * 0;  // NaN stays NaN
    Lanes left = one;
    for (long a = 0; a < rank; a++) {
        Lanes length = dot(R + a * e, R + a * e, e);
        auto taken = largest_only ? (length == top) & (left > 0) & (length > 0) : length > noise * noise * top;
        Lanes share = taken ? one / root(length) : zero;
        left = largest_only && any(taken) ? (taken ? zero : left) : left;
        for (long c = 0; c < e; c++) {
            Lanes weight = share * R[a * e + c];
            for (long i = 0; i < d; i++) G[c * d + i] += weight * Q[a * d + i];
        }
    }
}

// Some steps of X ← aX + (bA + cA²)X with A = XᵀX, on the columns of X/‖X‖_F; k is the smaller side.
void quintic(Lanes *X, Lanes *A, Lanes *P, long d, long e, long steps, const double *abc) {
    const Lanes zero = {}, one = zero + 1;
    Lanes size = largest(X, d * e);
    Lanes scale = size > 0 ? one / size : zero;
    for (long i = 0; i < d * e; i++) X[i] *= scale;
    Lanes length = dot(X, X, d * e);
    scale = (length > 0 ? one / root(length) : zero) + size * 0;
    for (long i = 0; i < d * e; i++) X[i] *= scale;
    for (long step = 0; step < steps; step++) {
        for (long i = 0; i < e; i++)
            for (long j = i; j < e; j++) A[i * e + j] = A[j * e + i] = dot(X + i * d, X + j * d, d);
        for (long i = 0; i < e; i++)
            for (long j = i; j < e; j++) {
                Lanes square = dot(A + i * e, A + j * e, e);
                P[i * e + j] = P[j * e + i] = abc[1] * A[i * e + j] + abc[2] * square + (i == j ? abc[0] : 0.0);
            }
        // X ← X P, row by row of X.
        for (long i = 0; i < d; i++) {
            for (long j = 0; j < e; j++) A[j] = X[j * d + i];
            for (long j = 0; j < e; j++) X[j * d + i] = dot(A, P + j * e, e);
        }
    }
}

Lanes load(const double *x, long count) {
    Lanes lanes = {};
    for (long l = 0; l < count; l++) lanes[l] = x[l];
    return lanes;
}

}  // namespace

// out = the polar factors of G (d, e, trials): exact for steps = 0, by so many quintic steps otherwise; or the part of
// the largest singular value alone.
extern "C" void polar_factors(
    const double *G, double *out, long d, long e, long trials, double noise, long steps, const double *abc,
    int largest_only) {
    // The columns of X are the shorter list.
    const bool flip = e > d;
    const long rows = flip ? e : d, columns = flip ? d : e;
    std::vector<Lanes> X(rows * columns), first(rows * columns), second(rows * columns);
    for (long b = 0; b < trials; b += WIDTH) {
        const long count = trials - b < WIDTH ? trials - b : WIDTH;
        for (long i = 0; i < d; i++)
            for (long j = 0; j < e; j++)
                X[flip ? i * rows + j : j * rows + i] = count == WIDTH ? *(const Lanes *)(G + (i * e + j) * trials + b)
                                                                       : load(G + (i * e + j) * trials + b, count);
        if (steps)
            quintic(X.data(), first.data(), second.data(), rows, columns, steps, abc);
        else
            polar(X.data(), first.data(), second.data(), rows, columns, noise, largest_only != 0);
        for (long i = 0; i < d; i++)
            for (long j = 0; j < e; j++) {
                Lanes x = X[flip ? i * rows + j : j * rows + i];
                for (long l = 0; l < count; l++) out[(i * e + j) * trials + b + l] = x[l];
            }
    }
}
