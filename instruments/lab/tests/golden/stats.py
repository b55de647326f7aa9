"""Prints the golden values of the lab's statistics: python3 stats.py > stats.json

Made with Python 3, NumPy 2, SciPy 1.17.1 and statsmodels 0.15.0 (pip install scipy statsmodels). Tests,
distributions, regressions and the intervals of a rate and of a difference of rates are SciPy's and statsmodels'.
Formulas that they have no public function for are written here, from the papers that are named beside them:
`lower_rank`, `ratio_of_sums`, `none_of`, `none_beside`, `mover` and the corrections of `ratio_of_rates`. Linerate's
own are the choices which of them a statistic uses (`middle`, `unpaired`, `least`), and the values of `holm` are made by
hand. No code is shared with the crate. `linerate_lab::analysis::golden` compares.
"""

import json
import numpy as np
import statsmodels.api as sm
from scipy import stats
from statsmodels.stats.rates import confint_poisson, confint_poisson_2indep

random = np.random.default_rng(20260101)


def signed_rank():
    for n, shift in [(6, 0.0), (9, 0.5), (15, 0.3), (25, -0.4), (60, 0.1)]:
        differences = np.round(random.normal(shift, 1.0, n), 6)
        yield list(differences), stats.wilcoxon(differences, method="exact").pvalue
    # Ties and zeros, ranked as Pratt does; all signs flipped.
    differences = [0.3, -0.1, 0.7, 0.7, -0.2, 0.9, 0.0, 1.4, 0.2, 0.0, -0.3, 1.1]
    every = stats.PermutationMethod(n_resamples=np.inf)
    yield differences, stats.wilcoxon(differences, zero_method="pratt", method=every).pvalue


def lower_rank(n, level):
    """The rank at which an interval of the median of n values begins (Hettmansperger and Sheather 1986)."""
    k = int(stats.binom.ppf((1 - level) / 2, n, 0.5))
    outer = 1 - 2 * stats.binom.cdf(k - 1, n, 0.5)
    if k == 0 or outer < level:
        return None
    inner = 1 - 2 * stats.binom.cdf(k, n, 0.5)
    part = (outer - level) / (outer - inner)
    return float(k + (n - k) * part / (k + (n - 2 * k) * part))


def median_interval():
    """Order statistics of n values 1..n, as few as hold the level; ours is interpolated within."""
    for n in [6, 9, 15, 30, 60, 240]:
        for level in [0.95, 0.99]:
            if rank := lower_rank(n, level):
                yield n, level, rank


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


def counts(n, mean, shape):
    """Events that come in bursts, n set-ups of unequal length: negative binomial."""
    lengths = random.integers(800, 1600, n)
    return random.negative_binomial(shape, shape / (shape + mean * lengths / 1200)), lengths


def rate(events, lengths, level):
    """The logarithm of a rate and its interval: Poisson regression with the errors that the set-ups show, and
    Student's t (White, Econometrica 48, 1980; Liang and Zeger, Biometrika 73, 1986)."""
    n = len(events)
    model = sm.GLM(events, np.ones(n), family=sm.families.Poisson(), offset=np.log(lengths))
    # Each set-up is a cluster: with the type HC1, statsmodels leaves out the correction n/(n - 1) for a GLM.
    fit = model.fit(tol=1e-14, cov_type="cluster", cov_kwds={"groups": np.arange(n)}, use_t=True)
    return [float(fit.params[0]), *map(float, fit.conf_int(alpha=1 - level)[0])]


def rates():
    for n, mean, shape, level in [(8, 40, 5, 0.95), (15, 6, 2, 0.99), (30, 90, 1, 0.95)]:
        events, lengths = counts(n, mean, shape)
        yield events.tolist(), lengths.tolist(), level, *rate(events, lengths, level)


def ratio_of_rates():
    """The same of two sides that were set up together: the windows of both in a set-up are a cluster."""
    for n, level in [(8, 0.95), (16, 0.99)]:
        (a, a_lengths), (b, b_lengths) = counts(n, 50, 4), counts(n, 30, 4)
        side = np.column_stack([np.ones(2 * n), np.repeat([0, 1], n)])
        offset = np.log(np.concatenate([a_lengths, b_lengths]))
        model = sm.GLM(np.concatenate([a, b]), side, family=sm.families.Poisson(), offset=offset)
        # statsmodels' own correction counts windows beside set-ups, (2n - 1)/(2n - 2); ours is of set-ups alone.
        groups = {"groups": np.tile(np.arange(n), 2), "use_correction": False}
        fit = model.fit(tol=1e-14, cov_type="cluster", cov_kwds=groups)
        half = stats.t.ppf((1 + level) / 2, n - 1) * fit.bse[1] * np.sqrt(n / (n - 1))
        log = float(fit.params[1])
        parts = [part.tolist() for part in (a, a_lengths, b, b_lengths)]
        yield *parts, level, log, float(log - half), float(log + half)


def none_beside(events, lengths, other, level):
    """The highest ratio to `events` of a side that has none in a time of `other`: Clopper and Pearson's share, of as
    many events as the bursts are worth (Korn and Graubard, Survey Methodology 24, 1998)."""
    model = sm.GLM(events, np.ones(len(events)), family=sm.families.Poisson(), offset=np.log(lengths))
    worth = events.sum() / max(1, model.fit(tol=1e-14, scale="X2").scale)
    share = stats.beta.ppf((1 + level) / 2, 1, worth)
    return float(share / (1 - share) * lengths.sum() / other)


def none_of_bursts():
    for n, mean, shape, level in [(10, 8, 1, 0.95), (20, 30, 2, 0.99), (12, 4, 1000, 0.95)]:
        events, lengths = counts(n, mean, shape)
        other = random.integers(800, 1600, n)
        parts = [part.tolist() for part in (events, lengths, other)]
        yield *parts, level, none_beside(events, lengths, other.sum(), level)


def mover(one, other):
    """The interval of a difference of two figures, each with its interval [figure, low, high] (Zou and Donner,
    Statistics in Medicine 27, 2008). statsmodels has it for rates and shares only."""
    low = np.sqrt((one[0] - one[1]) ** 2 + (other[0] - other[2]) ** 2)
    high = np.sqrt((one[0] - one[2]) ** 2 + (other[0] - other[1]) ** 2)
    return one[0] - other[0] - low, one[0] - other[0] + high


def difference():
    """Two rates with their intervals, and the interval of their difference (MOVER: Zou and Donner 2008)."""
    for (one, first), (other, second) in [((9, 2), (4, 3)), ((40, 10), (3, 0.5)), ((1, 1), (25, 4))]:
        each = [
            [float(x) for x in (k / time, *confint_poisson(k, time, method="score"))]
            for k, time in [(one, first), (other, second)]
        ]
        both = confint_poisson_2indep(one, first, other, second, compare="diff", method="mover", method_mover="score")
        yield *each, *map(float, both)


def middle(set_ups, level):
    """The median of logarithms and its interval; a set-up counts as its own median."""
    logs = np.sort([np.median([np.log(over / under) for over, under in windows]) for windows in set_ups])
    rank = lower_rank(len(logs), level)
    ends = np.interp([rank, len(logs) + 1 - rank], np.arange(1, len(logs) + 1), logs)
    return np.median(logs), *ends


def unpaired():
    """Two runs side by side, in a family of two cells: 97.5 %. [over, under] of the windows of each set-up."""
    level = 1 - 0.05 / 2

    def windows(n, each, cost):
        under = random.integers(800, 1600, (n, each))
        over = np.round(under * cost * random.lognormal(0, 0.05, (n, each)), 3)
        return np.stack([over, under], 2).tolist()

    def change(one, other):
        return [float(100 * np.expm1(log)) for log in (other[0] - one[0], *mover(other, one))]

    for n, m, each in [(12, 15, 1), (9, 10, 3), (30, 8, 2)]:
        one, other = windows(n, each, 0.2), windows(m, each, 0.21)
        yield "ratios", one, other, *change(middle(one, level), middle(other, level))

    def events(n, mean):
        return [[[float(k), int(length)]] for k, length in zip(*counts(n, mean, 6))]

    def side(set_ups):
        return rate(*np.array(set_ups)[:, 0, :].T, level)

    one, other = events(12, 60), events(10, 45)
    yield "sums", one, other, *change(side(one), side(other))
    one, other = events(14, 20), [[[0.0, 1000]]] * 11
    k, length = np.array(one)[:, 0, :].T
    # One event over all that was looked at is what is reported of none.
    least = 1 / 11_000 / (k.sum() / length.sum())
    yield "events", one, other, 100 * (least - 1), -100.0, 100 * (none_beside(k, length, 11_000, level) - 1)


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
    "rate": list(rates()),
    "ratio_of_rates": list(ratio_of_rates()),
    "none_of_bursts": list(none_of_bursts()),
    "difference": list(difference()),
    "unpaired": list(unpaired()),
}
print("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(of)}" for name, of in golden.items()) + "\n}")
