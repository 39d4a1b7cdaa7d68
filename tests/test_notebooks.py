"""Notebooks: they run, their kept outputs are what they say now, they use the public API alone."""

import ast
import math
import os
import platform
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import otdd_flash

TOP = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((TOP / "notebooks").glob("*.ipynb"))
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
# another number of threads rounds sums in another order, and a solver that stops at a tolerance
# then stops elsewhere below it: numbers are to show the same thing, not the same bits
NEAR, TINY = 0.05, 1e-4


def read(path):
    return nbformat.read(path, as_version=4)


def code(book):
    return [cell for cell in book.cells if cell.cell_type == "code"]


def told(cell):
    """What a cell printed and the text of its value; pictures have none."""
    return "".join(
        output.text if output.output_type == "stream" else output.data["text/plain"]
        for output in cell.outputs
        if output.output_type == "stream" or "image/png" not in output.data
    )


def same(kept: str, now: str) -> bool:
    """Whether two texts are the same but for what numbers owe to rounding."""
    if NUMBER.sub("#", kept).split() != NUMBER.sub("#", now).split():
        return False
    pairs = zip(*(NUMBER.findall(text) for text in (kept, now)), strict=True)
    numbers = ([float(text.replace(",", "")) for text in pair] for pair in pairs)
    return all(math.isclose(a, b, rel_tol=NEAR, abs_tol=TINY) for a, b in numbers)


def test_texts_are_told_apart():
    assert same("S 12.345, error 7e-10\n", "S  12.346, error 3e-9")
    assert not same("S 12.345", "S 13.345") and not same("0 -> Coat 51%", "0 -> Bag 51%")
    assert not same("1 2", "1 2 3") and not same("n = 1,000", "n = 2,000")
    assert not same("converged True", "converged False")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_says_what_it_is_kept_with(path, tmp_path):
    kept, book = read(path), read(path)
    client = NotebookClient(
        book, timeout=300, coalesce_streams=True, resources={"metadata": {"path": str(tmp_path)}}
    )
    # on a shared machine small pieces on several threads wait for time slices at each barrier
    client.execute(env={**os.environ, "OMP_NUM_THREADS": "1"})
    for number, (old, new) in enumerate(zip(code(kept), code(book), strict=True)):
        before, now = told(old), told(new)
        assert same(before, now), f"cell {number} of {path.name}: {before!r} is now {now!r}"
        pictures = [
            sum("data" in o and "image/png" in o.data for o in c.outputs) for c in (old, new)
        ]
        assert pictures[0] == pictures[1], f"cell {number} of {path.name}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_small_and_tells_nothing_of_its_machine(path):
    text = re.sub(r'"image/png": ".*"', "", path.read_text("utf-8"))
    assert path.stat().st_size < 400_000 and len(text) < 40_000
    assert not re.search(r"/(home|root|tmp|usr|work|Users)/|[A-Z]:\\\\", text)
    assert platform.node() not in text or len(platform.node()) < 5
    book = read(path)
    assert [cell.execution_count for cell in code(book)] == list(range(1, len(code(book)) + 1))
    for cell in code(book):
        assert not any(output.get("name") == "stderr" for output in cell.outputs), cell.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_uses_public_names_alone(path):
    tree = ast.parse("\n".join(cell.source for cell in code(read(path))))
    used = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.startswith("otdd_flash"):
                    assert (name.name, name.asname) == ("otdd_flash", "otdd")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("otdd_flash"):
            pytest.fail(f"imports from {node.module}; write otdd.<name>")
        elif isinstance(node, ast.Attribute):
            assert not (node.attr.startswith("_") and not node.attr.startswith("__")), node.attr
            if isinstance(node.value, ast.Name) and node.value.id == "otdd":
                used.add(node.attr)
    assert used and used <= set(otdd_flash.__all__), used - set(otdd_flash.__all__)
