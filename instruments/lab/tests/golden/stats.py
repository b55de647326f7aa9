"""Prints the golden values of the lab's statistics: python3 stats.py > stats.json

Made with Python 3, NumPy 2 and SciPy 1.17.1 (pip install scipy). Nothing of it is linerate's own: each
value is SciPy's, or follows from its distributions in one line. `linerate_lab::analysis::golden` compares.
"""

import json
import numpy as np
from scipy import stats

random = np.random.default_rng(20260101)


def signed_rank():
    for n, shift in [(6, 0.0), (9, 0.5), (15, 0.3), (25, -0.4), (60, 0.1)]:
        differences = np.round(random.normal(shift, 1.0, n), 6)
        yield list(differences), stats.wilcoxon(differences, method="exact").pvalue
    # Ties and zeros, ranked as Pratt does; all signs flipped.
    differences = [0.3, -0.1, 0.7, 0.7, -0.2, 0.9, 0.0, 1.4, 0.2, 0.0, -0.3, 1.1]
    every = stats.PermutationMethod(n_resamples=np.inf)
    yield differences, stats.wilcoxon(differences, zero_method="pratt", method=every).pvalue


def median_interval():
    """Order statistics of n values 1..n, as few as hold the level; ours is interpolated within."""
    for n in [6, 9, 15, 30, 60, 240]:
        for level in [0.95, 0.99]:
            k = int(stats.binom.ppf((1 - level) / 2, n, 0.5))
            outer = 1 - 2 * stats.binom.cdf(k - 1, n, 0.5)
            if k == 0 or outer < level:
                continue
            inner = 1 - 2 * stats.binom.cdf(k, n, 0.5)
            part = (outer - level) / (outer - inner)
            weight = (n - k) * part / (k + (n - 2 * k) * part)
            yield n, level, float(k + weight)


def ratio_of_sums():
    for n in [8, 20]:
        a, b = random.poisson(30, n), random.poisson(24, n)
        off = b / b.mean() - a / a.mean()
        half = stats.t.ppf(0.975, n - 1) * off.std(ddof=1) / np.sqrt(n)
        log = np.log(b.sum() / a.sum())
        yield a.tolist(), b.tolist(), float(log - half), float(log + half)


def none_of(k, level):
    """The highest rate beside another that was seen k times: Clopper and Pearson's share of k."""
    share = stats.binomtest(0, k).proportion_ci(level, method="exact").high
    return float(share / (1 - share))


golden = {
    "signed_rank": [[list(map(float, d)), float(p)] for d, p in signed_rank()],
    "student": [
        [n, level, float(stats.t.ppf((1 + level) / 2, n))]
        for n in [1, 2, 3, 5, 8, 14, 59, 239]
        for level in [0.95, 0.99, 0.998]
    ],
    "median_interval": list(median_interval()),
    "ratio_of_sums": list(ratio_of_sums()),
    "none_of": [[k, level, none_of(k, level)] for k in [1, 3, 6, 10, 100] for level in [0.95, 0.99]],
    # Of p in this order, over a family of six: each times what is left, never below one before.
    "holm": [[0.01, 0.04, 0.03, 0.005], 6, [0.05, 0.12, 0.12, 0.03]],
}
print("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(of)}" for name, of in golden.items()) + "\n}")
