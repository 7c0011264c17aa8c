"""One colour for one variant in every picture: along a ladder of shades, from the fastest to the most accurate."""

from __future__ import annotations

from collections.abc import Sequence

# Light enough for dark letters, and far enough apart for eight of them.
SHADES = ((70, 105, 180), (60, 160, 190), (85, 190, 150), (165, 205, 95), (245, 205, 80), (245, 150, 75), (225, 95, 95))


def ladder_colour(place: int, count: int) -> tuple[int, int, int]:
    """Of the variant at `place` among `count`, evenly along the shades; red, green and blue up to 255."""
    at = place / max(1, count - 1) * (len(SHADES) - 1)
    low = min(int(at), len(SHADES) - 2)
    red, green, blue = (round(a + (b - a) * (at - low)) for a, b in zip(SHADES[low], SHADES[low + 1], strict=True))
    return red, green, blue


def variant_colours(variants: Sequence[str]) -> dict[str, str]:
    """As matplotlib takes them, by name; `variants` are all of an application's, from the fastest on."""
    colours = (ladder_colour(place, len(variants)) for place in range(len(variants)))
    return {name: "#{:02x}{:02x}{:02x}".format(*colour) for name, colour in zip(variants, colours, strict=True)}
