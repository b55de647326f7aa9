"""Prints the golden values of the noise between runs: python3 runs.py > runs.json

Made with Python 3, NumPy 2, SciPy 1.17.1 and statsmodels 0.15.0 (pip install scipy statsmodels). Nothing of it is
linerate's own. `linerate_prof::diff::golden` compares.

A case: by what counts are divided; of each side its counts and seconds, a number a run; half of the interval of 95 %
about the difference of the sides.
"""

import json
import numpy as np
import statsmodels.api as sm
from scipy import stats

random = np.random.default_rng(20260102)


def counts(n, mean):
    return np.round(random.normal(mean, mean / 20, n)).astype(int)


def sums():
    """As they are: n times the difference of means, by Student's test of two samples that spread alike."""
    for n, one, other in [(2, 900, 700), (3, 500, 580), (8, 12_000, 11_000)]:
        a, b = counts(n, one), counts(n, other)
        ends = stats.ttest_ind(a, b, equal_var=True).confidence_interval(0.95)
        yield "as_they_are", (a, np.ones(n)), (b, np.ones(n)), n * (ends.high - ends.low) / 2


def rates():
    """Per second, all runs of one length: the same test of the rates."""
    for n, m, seconds in [(2, 5, 2), (6, 4, 10)]:
        a, b = counts(n, 3000), counts(m, 2500)
        ends = stats.ttest_ind(a / seconds, b / seconds, equal_var=True).confidence_interval(0.95)
        yield "second", (a, np.full(n, seconds)), (b, np.full(m, seconds)), (ends.high - ends.low) / 2


def weighed():
    """Per second, runs of unequal length: a side's rate is that of all its time, so that a run weighs by its length.
    The variance of a weighed mean is that of one run, here of the regression on the sides, times the sum of the
    squared weights (Scheffe, The Analysis of Variance, 1959)."""
    for lengths in [([1, 10], [1, 10]), ([2, 3, 5], [4, 4, 8, 1]), ([60, 10, 10, 10], [15, 30])]:
        sides = [(counts(len(seconds), 400) * np.array(seconds), np.array(seconds)) for seconds in lengths]
        a_side = np.repeat([0, 1], [len(seconds) for seconds in lengths])
        fit = sm.OLS(np.concatenate([k / seconds for k, seconds in sides]), sm.add_constant(a_side)).fit()
        squares = sum(((seconds / seconds.sum()) ** 2).sum() for _, seconds in sides)
        yield "second", *sides, stats.t.ppf(0.975, fit.df_resid) * np.sqrt(fit.mse_resid * squares)


def plain(side):
    return [part.tolist() for part in side]


cases = [[by, plain(a), plain(b), float(half)] for of in (sums, rates, weighed) for by, a, b, half in of()]
print("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]")
