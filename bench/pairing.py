"""Runs of several contenders taken in turn, and what they say: best, median and worst of each, ratios, whether the
machine was quiet. Knows no engine: a contender is anything with a label and measure(cell) -> Run. Standard library
only."""

import dataclasses
import statistics
from typing import List, Optional

QUIET = 0.05  # best and worst of a quiet machine differ by no more
CONFIRMED = 0.02  # a best that no other run comes this close to may be an accident, or the one run left in peace
DISTURBED = 0.10  # of the processors, by somebody else
BEATEN, RUNS_TO_BE_BEATEN = 0.85, 2  # a setting below that part of its side's best behind so many runs is out


@dataclasses.dataclass
class Run:
    rate: float  # tokens a second
    peak_bytes: int  # of the whole process
    others: Optional[float] = None  # share of the processors that something else had meanwhile

    def __post_init__(self):
        if not self.rate > 0:
            raise ValueError(f"a rate of {self.rate} tokens a second")


@dataclasses.dataclass
class Series:
    """The runs of one contender in one cell."""

    label: str
    runs: List[Run] = dataclasses.field(default_factory=list)

    @property
    def rates(self):
        return [run.rate for run in self.runs]

    @property
    def best(self):
        return max(self.rates)

    @property
    def median(self):
        return statistics.median(self.rates)

    @property
    def worst(self):
        return min(self.rates)

    @property
    def spread(self):
        return (self.best - self.worst) / self.best

    @property
    def quiet(self):
        return len(self.runs) > 1 and self.spread <= QUIET

    @property
    def confirmed(self):
        first, *others = sorted(self.rates, reverse=True)
        return bool(others) and (first - others[0]) / first <= CONFIRMED

    @property
    def peak_bytes(self):
        return max(run.peak_bytes for run in self.runs)

    @property
    def others(self):
        known = [run.others for run in self.runs if run.others is not None]
        return statistics.median(known) if known else None

    def document(self):
        return {
            "label": self.label,
            "best": self.best,
            "median": self.median,
            "worst": self.worst,
            "spread": self.spread,
            "quiet": self.quiet,
            "confirmed": self.confirmed,
            "peak_bytes": self.peak_bytes,
            "others_share": self.others,
            "runs": [dataclasses.asdict(run) for run in self.runs],
        }


@dataclasses.dataclass
class Side:
    """What stands on one side of a ratio: a program in one or several settings, of which the fastest counts."""

    name: str
    settings: List[Series]

    @property
    def series(self):
        return max((s for s in self.settings if s.runs), key=lambda series: series.best)

    def beaten(self, series):
        """Whether that setting cannot be the fastest any more but by a noise the table would not call quiet: with long
        contexts every run of it would be minutes for nothing."""
        return len(series.runs) >= RUNS_TO_BE_BEATEN and series.best < BEATEN * self.series.best


@dataclasses.dataclass
class Result:
    """One cell of one model: the first side is the one that is judged, the others are what it is held against."""

    model: str
    cell: str
    sides: List[Side]

    def pairs(self):
        return [Pair(self.model, self.cell, self.sides[0], other) for other in self.sides[1:]]

    @property
    def confirmed(self):
        return all(side.series.confirmed for side in self.sides)

    def document(self):
        return {
            "model": self.model,
            "cell": self.cell,
            "sides": [
                {"name": s.name, "chosen": s.series.label, "settings": [series.document() for series in s.settings]}
                for s in self.sides
            ],
            "pairs": [pair.document() for pair in self.pairs()],
        }


@dataclasses.dataclass
class Pair:
    model: str
    cell: str
    ours: Side
    other: Side

    @property
    def ratio(self):
        """Of the bests: what each does when it is left alone."""
        return self.ours.series.best / self.other.series.best

    @property
    def ratio_of_medians(self):
        return self.ours.series.median / self.other.series.median

    @property
    def quiet(self):
        return self.ours.series.quiet and self.other.series.quiet

    @property
    def confirmed(self):
        return self.ours.series.confirmed and self.other.series.confirmed

    @property
    def verdict(self):
        """One cell of the table: whether this is a result of a quiet machine, and what speaks against it."""
        if self.quiet and self.confirmed:
            return "yes"
        both = (self.ours.series, self.other.series)
        reasons = []
        if not self.quiet:
            reasons.append("worst " + " and ".join(f"{100 * s.spread:.0f} %" for s in both) + " below best")
        if not self.confirmed:
            reasons.append("best seen once")
        disturbed = max((s.others for s in both if s.others is not None), default=0)
        if disturbed > DISTURBED:
            reasons.append(f"others had {100 * disturbed:.0f} % of the processors")
        return "no: " + ", ".join(reasons)

    def document(self):
        return {
            "other": self.other.name,
            "ratio_of_bests": self.ratio,
            "ratio_of_medians": self.ratio_of_medians,
            "quiet": self.quiet,
            "confirmed": self.confirmed,
        }


def take_turns(cell, contenders, result, rounds, max_rounds, rest, say):
    """A B A B ...: fills the series of the result, which lie in the order of the contenders; rest() comes before every
    run. After `rounds` it goes on, up to max_rounds, as long as a best is not confirmed. A setting that another one of
    its side has beaten takes no further turns."""
    settings = [(side, series) for side in result.sides for series in side.settings]
    if len(settings) != len(contenders):
        raise ValueError(f"{len(contenders)} contenders for {len(settings)} series")
    for done in range(max(rounds, max_rounds)):
        if done >= rounds and result.confirmed:
            break
        for (side, series), contender in zip(settings, contenders):
            if side.beaten(series):
                continue
            rest()
            run = contender.measure(cell)
            series.runs.append(run)
            others = "" if run.others is None else f", others had {100 * run.others:.0f} % of the processors"
            say(f"{result.model} {result.cell}, round {done + 1}: {series.label} {run.rate:.1f} tokens/s{others}")


def worst_ratio(results):
    """The pair with the smallest ratio of bests; None without pairs."""
    return min((pair for result in results for pair in result.pairs()), key=lambda pair: pair.ratio, default=None)


def mebibytes(n_bytes):
    return f"{n_bytes / 2**20:.0f}"


def table(results):
    """Markdown. Rates are tokens a second as best (median, worst); memory is the peak of the process."""
    lines = [
        "| model | cell | kvc | against | | ratio of bests | of medians | MiB | quiet |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for pair in (pair for result in results for pair in result.pairs()):
        ours, other = pair.ours.series, pair.other.series
        rates = [f"{s.best:.1f} ({s.median:.1f}, {s.worst:.1f})" for s in (ours, other)]
        memory = f"{mebibytes(ours.peak_bytes)} : {mebibytes(other.peak_bytes)}"
        cells = [pair.model, pair.cell, rates[0], other.label, rates[1], f"{pair.ratio:.2f}"]
        cells += [f"{pair.ratio_of_medians:.2f}", memory, pair.verdict]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
