"""Times that were measured more than once, and what follows from them. The median is what a target is told by, and
it is met where it would be by the slower tenth as well (one of two times: by its slower tenth beside the other's
faster one)."""

import dataclasses

UNDECIDED = "undecided"  # measured, but the target is among what was measured


@dataclasses.dataclass(frozen=True)
class Spread:
    """What a tenth of the measurements is not above, the median, and what a tenth is not below."""

    p10: float
    median: float
    p90: float

    def __truediv__(self, other):
        """By a number, or by another time: from the smallest to the largest that it may be."""
        if isinstance(other, Spread):
            return Spread(self.p10 / other.p90, self.median / other.median, self.p90 / other.p10)
        return Spread(self.p10 / other, self.median / other, self.p90 / other)

    def __rtruediv__(self, number):
        """How often in so much."""
        return Spread(number / self.p90, number / self.median, number / self.p10)

    def at_most(self, limit):
        """True, False or UNDECIDED."""
        return verdict(self.median <= limit, self.p90 <= limit)

    def at_least(self, limit):
        return verdict(self.median >= limit, self.p10 >= limit)


def verdict(usual, worse):
    """Of whether the median is good enough, and whether the worse tenth is."""
    return (True if worse else UNDECIDED) if usual else False


def together(*verdicts):
    """Of what has several conditions."""
    return False if False in verdicts else UNDECIDED if UNDECIDED in verdicts else True


def of_row(row):
    """Of an operation's row, or a comparator's."""
    return Spread(row["seconds_p10"], row["seconds"], row["seconds_p90"])


def once(seconds):
    return Spread(seconds, seconds, seconds)
