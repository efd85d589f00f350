"""The page's colours, each with its twin for dark surroundings.

Text in any of the inks reads on any of the grounds with a contrast of 4.5 to 1 or more, as
WCAG asks for, and what is drawn stands out from its ground with 3 to 1.
"""

from __future__ import annotations

# name: (light, dark)
GROUNDS = {
    "ground": ("#fbfaf8", "#14171a"),
    "panel": ("#ffffff", "#1b1f24"),
    "sunken": ("#f3f1ed", "#20252b"),
}
INKS = {
    "ink": ("#1e2329", "#e7e5e0"),
    "muted": ("#5a6068", "#a6abb2"),
    "accent": ("#14568f", "#86bdf2"),
    "loss": ("#9a3c0c", "#f2a272"),
    "bad": ("#a11220", "#ff9a9a"),
    "good": ("#1c6b3c", "#7fd39f"),
}
LINES = {
    "rule": ("#dedad3", "#343a42"),
    "soft": ("#d5e2ee", "#2a4057"),
    "edge": ("#c9c4bb", "#0a0c0e"),
}
SERIES = {
    "series-1": ("#14568f", "#86bdf2"),
    "series-2": ("#b4531a", "#f2a272"),
    "series-3": ("#1c7a55", "#74cfa5"),
    "series-4": ("#86408f", "#d6a0de"),
    "series-5": ("#7a6500", "#dcc35a"),
    "series-6": ("#a3246b", "#f390c2"),
    "series-7": ("#0f7285", "#6fcbdc"),
    "series-8": ("#5c5c5c", "#b8b8b8"),
    "series-9": ("#4b3f9e", "#b3abf5"),
    "series-10": ("#6b4a2b", "#cfa983"),
}
N_SERIES = len(SERIES)

# From nothing to everything, in steps; `cold` are those of losses.
RAMPS = {
    "heat": (("#eef3f8", "#0c3f6e"), ("#22282f", "#a9d2fb")),
    "cold": (("#faf0ea", "#7d2f08"), ("#2b2521", "#f6b68f")),
}
RAMP_STEPS = 11


def _mixed(first: str, last: str, share: float) -> str:
    parts = [
        round(int(first[i : i + 2], 16) * (1 - share) + int(last[i : i + 2], 16) * share)
        for i in (1, 3, 5)
    ]
    return "#" + "".join(f"{part:02x}" for part in parts)


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """From 1, the same, to 21, black on white."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _on(colour: str) -> str:
    """Black or white, whichever reads better."""
    return max(("#000000", "#ffffff"), key=lambda ink: contrast(ink, colour))


def _ramp() -> dict[str, tuple[str, str]]:
    """The steps, and the ink for text on each of them."""
    found = {}
    for name, (of_light, of_dark) in RAMPS.items():
        for step in range(RAMP_STEPS):
            share = step / (RAMP_STEPS - 1)
            light, dark = _mixed(*of_light, share), _mixed(*of_dark, share)
            found[f"{name}-{step}"] = (light, dark)
            found[f"on-{name}-{step}"] = (_on(light), _on(dark))
    return found


def _on_series() -> dict[str, tuple[str, str]]:
    """The ink for text on each colour of a series."""
    return {f"on-{name}": (_on(light), _on(dark)) for name, (light, dark) in SERIES.items()}


COLOURS = {**GROUNDS, **INKS, **LINES, **SERIES, **_on_series(), **_ramp()}


def heat(share: float, ramp: str = "heat") -> str:
    """The step of a ramp for a share."""
    return f"{ramp}-{min(RAMP_STEPS - 1, max(0, round(share * (RAMP_STEPS - 1))))}"


def series(index: int) -> str:
    """The colour of one of several series; after the last the first comes again."""
    return f"series-{index % N_SERIES + 1}"


def variables(dark: bool) -> str:
    """The colours as CSS custom properties."""
    return "".join(f"--{name}:{twins[dark]};" for name, twins in COLOURS.items())


def paints() -> str:
    """CSS that gives drawings their colours: `f-` fills, `s-` strokes."""
    return "".join(
        f".f-{name}{{fill:var(--{name})}}.s-{name}{{stroke:var(--{name})}}" for name in COLOURS
    )
