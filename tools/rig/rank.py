"""Which of several subjects are better than others, as far as several runs of each can tell.

The runs of the same number met the same conditions (the same round, or the same seed), so their differences vary less than
they do: two subjects are told apart if the 95% confidence interval of the mean difference (Student's t) does not have 0 in it,
as crates/lamina/src/predict/rank.rs has it. Otherwise they are tied.
"""

import itertools
import math
import statistics

# Two-sided 95% quantiles of Student's t by degrees of freedom, from 1.
T = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262]


def interval(values):
    """The mean, and half of its 95% confidence interval: infinite for one value, from the table's last entry for many."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, math.inf
    quantile = T[min(len(values) - 2, len(T) - 1)]
    return mean, quantile * statistics.stdev(values) / math.sqrt(len(values))


def told_apart(ones, others):
    """1 if the first are larger, -1 if the others are, 0 if nobody can tell."""
    mean, half = interval([one - other for one, other in zip(ones, others)])
    return (mean > half) - (mean < -half)


def order(runs, more):
    """The subjects of `runs` (name: values) by their means, the best first, with `=` between two that are tied; `more` is
    better, or less."""
    names = sorted(runs, key=lambda name: statistics.mean(runs[name]), reverse=more)
    text = names[0]
    for better, worse in itertools.pairwise(names):
        sign = "=" if not told_apart(runs[better], runs[worse]) else ">" if more else "<"
        text += f" {sign} {worse}"
    return text


def disputed(measured, predicted):
    """The pairs of subjects that were measured to be apart, and predicted to be the other way round, or tied."""
    def is_disputed(one, other):
        found = told_apart(measured[one], measured[other])
        return found and found != told_apart(predicted[one], predicted[other])

    return [pair for pair in itertools.combinations(measured, 2) if is_disputed(*pair)]


def contradicted(values, predicted):
    """The pairs of subjects that are predicted to be apart, and are the other way round in `values`, one of each."""
    def is_contradicted(one, other):
        return told_apart(predicted[one], predicted[other]) * (values[one] - values[other]) < 0

    return [pair for pair in itertools.combinations(values, 2) if is_contradicted(*pair)]
