# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The vocabulary: one table of organs, the only place that knows an organ's name, number, color and codes.

Free of torch, so that a command line can import it at no cost.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bundle.errors import InputError

__all__ = [
    "AMBIGUOUS",
    "BACKGROUND",
    "IGNORED",
    "ORGANS",
    "UNKNOWN",
    "WHOLE_VOCABULARY",
    "Organ",
    "Vocabulary",
    "find_organ",
    "normalize",
    "similar_organ",
]

BACKGROUND = 0  # in a loaded label map: known to be no organ of the vocabulary
UNKNOWN = 255  # in a loaded label map: not annotated; a pseudo-label may fill it in
IGNORED = 254  # in a loaded label map: the annotators excluded this voxel; it is neither learned from nor scored


@dataclass(frozen=True)
class Organ:
    """An entry of the vocabulary.

    Args:
        name: the name used everywhere in this project.
        value: the value in BTCV's label maps.
        aliases: what public datasets call it.
        color: display color as red, green, blue in 0..255.
        snomed: SNOMED-CT code.
        volume_ml: usual volumes, ill people included, wide; a label map with others should be reviewed.
    """

    name: str
    value: int
    aliases: tuple[str, ...]
    color: tuple[int, int, int]
    snomed: str
    volume_ml: tuple[float, float]

    @property
    def rgb(self) -> tuple[float, float, float]:
        """The color in 0..1, as matplotlib takes it."""
        red, green, blue = self.color
        return red / 255, green / 255, blue / 255


ORGANS: tuple[Organ, ...] = (
    Organ("spleen", 1, ("spl", "milz"), (157, 78, 221), "78961009", (20, 1500)),
    Organ(
        "right kidney", 2, ("kidney right", "kidney r", "rkid", "rk", "r kidney"), (255, 190, 11), "9846003", (40, 500)
    ),
    Organ("left kidney", 3, ("kidney left", "kidney l", "lkid", "lk", "l kidney"), (251, 86, 7), "18639004", (40, 500)),
    Organ("gallbladder", 4, ("gall bladder", "gall", "gbd", "gb"), (56, 176, 0), "28231008", (1, 250)),
    Organ("esophagus", 5, ("oesophagus", "eso"), (141, 110, 99), "32849002", (2, 120)),
    Organ("liver", 6, ("liv", "hepar"), (193, 18, 31), "10200004", (400, 4500)),
    Organ("stomach", 7, ("sto", "stom"), (255, 143, 171), "69695003", (20, 2500)),
    Organ("aorta", 8, ("aor", "arota", "abdominal aorta"), (255, 0, 84), "15825003", (15, 600)),
    Organ(
        "inferior vena cava",
        9,
        ("ivc", "postcava", "vena cava", "vena cava inferior"),
        (58, 134, 255),
        "64131007",
        (10, 250),
    ),
    Organ(
        "portal and splenic vein",
        10,
        ("portal vein and splenic vein", "portal vein splenic vein", "veins", "psv", "pv sv"),
        (0, 187, 249),
        "32764006",
        (4, 120),
    ),
    Organ("pancreas", 11, ("pan", "panc"), (241, 227, 58), "15776009", (15, 250)),
    Organ(
        "right adrenal gland",
        12,
        ("adrenal gland right", "right adrenal", "adrenal right", "rad", "rag"),
        (0, 245, 212),
        "29392005",
        (0.8, 25),
    ),
    Organ(
        "left adrenal gland",
        13,
        ("adrenal gland left", "left adrenal", "adrenal left", "lad", "lag"),
        (112, 224, 0),
        "38360003",
        (0.8, 25),
    ),
)

# Names that cover two organs, or a part of one. Such voxels are neither background nor surely one organ: unknown.
AMBIGUOUS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("kidney", "kidneys", "both kidneys"), ("right kidney", "left kidney")),
    **dict.fromkeys(
        ("adrenal", "adrenals", "adrenal gland", "adrenal glands"), ("right adrenal gland", "left adrenal gland")
    ),
    **dict.fromkeys(("portal vein", "splenic vein"), ("portal and splenic vein",)),
    **dict.fromkeys(("hepatic vessel", "hepatic vessels", "liver vessel", "liver vessels", "vessel"), ("liver",)),
}


def normalize(name: str) -> str:
    """Lower case, words separated by single spaces: ``Kidney_Left`` and ``kidney left`` are one name."""
    return " ".join(re.split(r"[\W_]+", name.lower())).strip()


_BY_NAME = {normalize(alias): organ for organ in ORGANS for alias in (organ.name, *organ.aliases)}


def find_organ(name: str) -> Organ | None:
    """The organ with this name or alias, or None.

    >>> find_organ("Kidney_Left").name
    'left kidney'
    """
    return _BY_NAME.get(normalize(name))


def similar_organ(name: str) -> str | None:
    """The organ's name or alias that an unknown name is probably a misspelling of, or None.

    Aliases of up to four letters ("rk") are left out: too many words resemble them.
    """
    names = [known for known in (*_BY_NAME, *AMBIGUOUS) if len(known) > 4]
    close = difflib.get_close_matches(normalize(name), names, n=1, cutoff=0.86)
    return close[0] if close else None


class Vocabulary:
    """The organs of a run, in order; channel 0 is the background and organ ``i`` is channel ``i + 1``.

    Args:
        names: names or aliases of organs, a list or separated by commas; None means all of them.

    Raises:
        InputError: for a name the table does not know, or one given twice.

    Example:
        >>> vocabulary = Vocabulary("liver,spleen")
        >>> vocabulary.channel_names
        ['background', 'liver', 'spleen']
        >>> vocabulary.channel("spleen")
        2
    """

    def __init__(self, names: str | Sequence[str] | None = None) -> None:
        if isinstance(names, str):
            names = names.split(",")
        names = [organ.name for organ in ORGANS] if names is None else list(names)
        self.organs: tuple[Organ, ...] = tuple(self._find(name) for name in names)
        if not self.organs or len(set(self.organs)) < len(self.organs):
            raise InputError(f"organs: expected a list of different organ names, found {names}")
        self._channels = {organ.name: channel for channel, organ in enumerate(self.organs, start=1)}

    @staticmethod
    def _find(name: str) -> Organ:
        organ = find_organ(str(name))
        if organ is None:
            known = ", ".join(organ.name for organ in ORGANS)
            raise InputError(f'organs: "{name}" is not in the vocabulary; choose from: {known}')
        return organ

    @property
    def names(self) -> list[str]:
        """Names of the organs, in the order of their channels."""
        return [organ.name for organ in self.organs]

    @property
    def channel_names(self) -> list[str]:
        """Names of the network's output channels, background first."""
        return ["background", *self.names]

    @property
    def out_channels(self) -> int:
        """Number of the network's output channels: the organs and the background."""
        return len(self.organs) + 1

    @property
    def channel_def(self) -> dict[str, str]:
        """`channel_def` of metadata.json."""
        return {str(channel): name for channel, name in enumerate(self.channel_names)}

    def channel(self, name: str) -> int | None:
        """Channel of the organ with this name or alias; None when the run does not have it."""
        organ = find_organ(name)
        return None if organ is None else self._channels.get(organ.name)

    def __iter__(self) -> Iterator[Organ]:
        return iter(self.organs)

    def __len__(self) -> int:
        return len(self.organs)

    def __contains__(self, name: str) -> bool:
        return self.channel(name) is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.organs == other.organs

    def __hash__(self) -> int:
        return hash(self.organs)

    def __repr__(self) -> str:
        return f"Vocabulary({self.names})"


WHOLE_VOCABULARY = Vocabulary()
