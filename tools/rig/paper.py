"""The figures of *Predicting Disk Scheduling Performance with Virtual Machines* (Geist, Jones, Westall), Tables 2 and 3."""

POLICIES = ["cats", "deadline", "cfq"]

# By workload and row, on the real drive and on the virtual one (k = 8), each for CATS, deadline and cfq. The rows are called
# as `lamina predict` calls them.
PAPER = {
    "web:direct": {
        "mean service, ms": [(1.96, 2.71, 1.39), (2.58, 3.24, 2.36)],
        "variance service, ms²": [(8.51, 9.76, 5.85), (9.03, 8.23, 7.78)],
        "mean response, ms": [(37.35, 59.87, 124.70), (53.79, 78.27, 117.13)],
        "variance response, ms²": [(6961.50, 561.15, 839270.49), (16641.07, 633.28, 28651.71)],
        "throughput, sectors/ms": [(8.19, 6.08, 2.19), (6.15, 5.06, 3.38)],
    },
    "web:cached": {
        "mean service, ms": [(6.53, 7.41, 7.80), (7.15, 7.60, 8.57)],
        "variance service, ms²": [(11.13, 8.80, 17.62), (6.22, 6.05, 10.30)],
        "mean response, ms": [(114.91, 121.87, 179.17), (189.45, 198.33, 258.75)],
        "variance response, ms²": [(8080.16, 3296.87, 35349.39), (19292.52, 6839.66, 65796.33)],
        "throughput, sectors/ms": [(12.00, 12.04, 9.08), (11.44, 11.68, 8.82)],
    },
}


def number(value):
    """A figure with three to five digits."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def more_is_better(row):
    """Whether a larger value of the row is better."""
    return row.startswith("throughput")


def ranked(values, row):
    """The policies in the order of their values, the best first."""
    more = more_is_better(row)
    names = sorted(POLICIES, key=dict(zip(POLICIES, values)).get, reverse=more)
    return (" > " if more else " < ").join(names)
