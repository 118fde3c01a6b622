/*
 * Classes from scores of pairs of them: votes, and the probabilities that agree best with the shares of all
 * pairs (T.-F. Wu, C.-J. Lin, R. C. Weng: Probability estimates for multi-class classification by pairwise
 * coupling, 2004, second method). Pairs come as (0, 1), (0, 2), ..., (1, 2), ...
 */
#include "client/lib/crypto.h"
#include "client/lib/wipe.h"

#include <math.h>
#include <stdlib.h>

#define SHARE_LEAST 1e-7

uint32_t client_pair_classes(uint64_t pair_count) {
    for (uint32_t k = 2; k <= CLIENT_CLASSES_MAX; k++)
        if ((uint64_t)k * (k - 1) / 2 == pair_count) return k;
    return 0;
}

uint32_t client_pair_winner(const double *scores, uint32_t class_count) {
    uint32_t votes[CLIENT_CLASSES_MAX] = {0}, best = 0;
    for (uint32_t i = 0; i < class_count; i++)
        for (uint32_t j = i + 1; j < class_count; j++) votes[*scores++ > 0 ? i : j]++;
    for (uint32_t i = 1; i < class_count; i++)
        if (votes[i] > votes[best]) best = i;
    return best;
}

double client_pair_share(double score, double scale, double offset) {
    const double share = 1 / (1 + exp(scale * score + offset));
    return fmin(fmax(share, SHARE_LEAST), 1 - SHARE_LEAST);
}

/* q[s][t]: what the probabilities p minimise is p' q p, with their sum one */
static void couple_matrix(double *q, const double *shares, uint32_t k) {
    for (uint32_t i = 0; i < k; i++)
        for (uint32_t j = i + 1; j < k; j++) {
            const double first = *shares++, second = 1 - first;
            q[i * k + j] = q[j * k + i] = -first * second;
            q[i * k + i] += second * second;
            q[j * k + j] += first * first;
        }
}

ckks_status client_pair_couple(double *p, const double *shares, uint32_t class_count, ckks_error *err) {
    const uint32_t k = class_count, rounds = k > 100 ? k : 100;
    double *q = calloc((size_t)k * k + k, sizeof *q);
    if (!q) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for probabilities");
    double *qp = q + (size_t)k * k;
    couple_matrix(q, shares, k);
    for (uint32_t t = 0; t < k; t++) p[t] = 1.0 / k;
    for (uint32_t round = 0; round < rounds; round++) {
        double total = 0, worst = 0;
        for (uint32_t t = 0; t < k; t++) {
            qp[t] = 0;
            for (uint32_t j = 0; j < k; j++) qp[t] += q[t * k + j] * p[j];
            total += p[t] * qp[t];
        }
        for (uint32_t t = 0; t < k; t++) worst = fmax(worst, fabs(qp[t] - total));
        if (worst < 0.005 / k) break;
        for (uint32_t t = 0; t < k; t++) {
            const double step = (total - qp[t]) / q[t * k + t], shrink = 1 / (1 + step);
            p[t] += step;
            total = (total + step * (step * q[t * k + t] + 2 * qp[t])) * shrink * shrink;
            for (uint32_t j = 0; j < k; j++) {
                qp[j] = (qp[j] + step * q[t * k + j]) * shrink;
                p[j] *= shrink;
            }
        }
    }
    wipe_free(q);
    return CKKS_OK;
}
