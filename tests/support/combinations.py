"""Which combinations of a test's parameters are run each time: not all, where there are many.

What goes wrong where three parameters meet, and where no two of them do, is rare; a covering array
finds the rest at a fraction of the time (Cohen et al. 1997, "The AETG system", section 2).
"""

import itertools
from collections import defaultdict


def beyond_the_cover(items, strength):
    """The items without which each combination of `strength` parameters of a test is still run.

    Parameters that one `parametrize` gives together are one. Greedy: the item that adds the most
    comes next, the first of several, so that all processes choose alike.
    """
    tests = defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    found = []
    for several in tests.values():
        adds = {item: _combinations(_values(item), strength) for item in several}
        missing = set().union(*adds.values())
        while missing:
            best = max(adds, key=lambda item: len(adds[item] & missing))
            missing -= adds.pop(best)
        found += adds
    return found


def _combinations(values, strength):
    return set(itertools.combinations(values, min(strength, len(values))))


def _values(item):
    """What each `parametrize`, and each fixture with parameters, gives the item."""
    if not hasattr(item, "callspec"):
        return ()
    given = {name: id(value) for name, value in item.callspec.params.items()}
    values = []
    for mark in item.iter_markers("parametrize"):
        names = mark.kwargs["argnames"] if "argnames" in mark.kwargs else mark.args[0]
        if isinstance(names, str):
            names = [name.strip() for name in names.split(",")]
        values.append(tuple((name, given.pop(name)) for name in names))
    return (*values, *given.items())
