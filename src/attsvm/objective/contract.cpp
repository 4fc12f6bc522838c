// Sums of products of two tensors with the trial last, as in "ntdB,nkdB->nktB": what einsum computes, but no product is
// kept in memory. Every trial is summed on its own in one order, so its bits do not depend on the others.

namespace {

// Sizes of three axes of the result and of two summed ones, and how far a step along each goes in a, in b and in the
// result.
struct Plan {
    long size[5], in_a[5], in_b[5], in_out[5], lanes;
};

// For COUNT vectors of WIDTH trials.
template <int WIDTH, int COUNT, typename Real>
void sums(const Real *a, const Real *b, Real *out, const Plan &plan) {
    typedef Real Lanes __attribute__((vector_size(WIDTH * sizeof(Real)), aligned(sizeof(Real))));
    Lanes sum[COUNT] = {};
    for (long s = 0; s < plan.size[3]; s++) {
        const Real *x = a + s * plan.in_a[3], *y = b + s * plan.in_b[3];
        for (long t = 0; t < plan.size[4]; t++, x += plan.in_a[4], y += plan.in_b[4])
#pragma GCC unroll 8
            for (int i = 0; i < COUNT; i++) sum[i] += *(const Lanes *)(x + i * WIDTH) * *(const Lanes *)(y + i * WIDTH);
    }
#pragma GCC unroll 8
    for (int i = 0; i < COUNT; i++) *(Lanes *)(out + i * WIDTH) = sum[i];
}

template <typename Real> void contract(const Real *a, const Real *b, Real *out, const Plan &plan) {
    constexpr int WIDTH = 32 / sizeof(Real), COUNT = 8;
    const long *size = plan.size, *in_a = plan.in_a, *in_b = plan.in_b, *in_out = plan.in_out;
    for (long first = 0, width; first < plan.lanes; first += width) {
        width = plan.lanes - first >= WIDTH * COUNT ? WIDTH * COUNT : 1;
        auto of_these = width > 1 ? sums<WIDTH, COUNT, Real> : sums<1, 1, Real>;
        for (long i = 0; i < size[0]; i++)
            for (long j = 0; j < size[1]; j++)
                for (long k = 0; k < size[2]; k++)
                    of_these(a + first + i * in_a[0] + j * in_a[1] + k * in_a[2],
                             b + first + i * in_b[0] + j * in_b[1] + k * in_b[2],
                             out + first + i * in_out[0] + j * in_out[1] + k * in_out[2], plan);
    }
}

}  // namespace

extern "C" {
void contract_double(const double *a, const double *b, double *out, const Plan *plan) { contract(a, b, out, *plan); }
void contract_float(const float *a, const float *b, float *out, const Plan *plan) { contract(a, b, out, *plan); }
}
