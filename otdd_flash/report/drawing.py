"""Figures and pictures as parts of a page: SVG in its colours, PNG in its text."""

from __future__ import annotations

import base64
import io
import re
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

# a scatter of more points is drawn as pixels: an SVG needs 100 bytes a point
MOST_MARKS = 300
PIXELS_PER_INCH = 144
# the class of texts on lines, in `page.html`
OUTLINED = "outlined"
# how matplotlib names fonts, by itself or, before 3.10, in the shorthand
FAMILY = re.compile(r"font-family:[^;]*;?\s*")
SHORTHAND = re.compile(r"(font:[^;]*?px)[^;]*")


def inline_svg(figure: Figure) -> str:
    """Return a figure as an ``svg`` element that takes its ink and its paper from the page.

    What matplotlib draws in pure black, texts and lines alike, gets the colour of the page's text;
    the paper is left out. On a ground of its own colour write in ``ON_LIGHT`` or white, which stay.
    """
    for axes in figure.axes:
        for marks in axes.collections:
            if (
                isinstance(marks, PathCollection)
                and len(np.asarray(marks.get_offsets())) > MOST_MARKS
            ):
                marks.set_rasterized(True)
        if (legend := axes.get_legend()) is not None:
            legend.get_frame().set(facecolor="none", edgecolor="none")
    for text in figure.findobj(Text):
        # an outline turns a text into curves; the page's style draws one in the colour of its paper
        if isinstance(text, Text) and text.get_path_effects():
            text.set(path_effects=[], gid=OUTLINED)
    drawn = io.BytesIO()
    # text as text, and the same names of clip paths each time
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "otdd-flash"}):
        figure.savefig(
            drawn,
            format="svg",
            transparent=True,
            dpi=PIXELS_PER_INCH,
            metadata={"Date": None},
        )
    root = ElementTree.fromstring(drawn.getvalue())
    # HTML wants no namespaces, and the page's width decides the size
    for element in root.iter():
        _adapt(element)
    for part in [part for part in root if part.tag == "metadata"]:
        root.remove(part)
    for size in ("width", "height"):
        root.attrib.pop(size, None)
    return ElementTree.tostring(root, encoding="unicode")


def _adapt(element: ElementTree.Element) -> None:
    """Strip namespaces, fonts and names of groups; turn black into the colour of the text."""
    element.tag = element.tag.rpartition("}")[2]
    attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
    if element.tag == "g":
        name = attributes.pop("id", None)
        if name == OUTLINED:
            attributes["class"] = OUTLINED
    if "style" in attributes:
        style = FAMILY.sub("", attributes["style"]).replace("#000000", "currentColor")
        attributes["style"] = SHORTHAND.sub(r"\1 system-ui, sans-serif", style)
    element.attrib.clear()
    element.attrib.update(attributes)
    if element.tag != "text" and element.tag != "tspan":
        element.text = (element.text or "").strip() or None
    element.tail = (element.tail or "").strip() or None


def picture_uri(
    pixels: np.ndarray,  # (h, w, 3) float in [0, 1]
) -> str:
    """Return a picture as the address of a PNG that holds it."""
    levels = np.rint(255 * np.clip(pixels, 0, 1)).astype(np.uint8)
    grey = bool((levels == levels[..., :1]).all())
    file = io.BytesIO()
    Image.fromarray(levels[..., 0] if grey else levels).save(file, format="png", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
