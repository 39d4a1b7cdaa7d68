"""The house rules that a parser can check: imports go down, only the command talks."""

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[1]
# a part may import from the floors below its own and from its own floor, but in no circle
FLOORS = (
    ("otdd_flash_kernels", "otdd_flash_data"),
    ("otdd_flash.errors",),
    (
        "otdd_flash.files",
        "otdd_flash.archive",
        "otdd_flash.digests",
        "otdd_flash.float64",
        "otdd_flash.timing",
        "otdd_flash.samples",
        "otdd_flash.ranges",
        "otdd_flash.brief",
        "otdd_flash.checks",
        "otdd_flash.labels",
        "otdd_flash.settings",
        "otdd_flash.types",
        "otdd_flash.inputs",
    ),
    ("otdd_flash.operators", "otdd_flash.ops"),
    ("otdd_flash.cost",),
    ("otdd_flash.laws", "otdd_flash.solver"),
    ("otdd_flash.curvature",),
    (
        "otdd_flash.losses",
        "otdd_flash.prepared",
        "otdd_flash.confidence",
        "otdd_flash.noise",
        "otdd_flash.potentials",
    ),
    ("otdd_flash.otdd", "otdd_flash.ahead", "otdd_flash.many"),
    (
        "otdd_flash.datasets",
        "otdd_flash.embed",
        "otdd_flash.pictures",
        "otdd_flash.tables",
        "otdd_flash.findings_io",
        "otdd_flash.results",
    ),
    ("otdd_flash.bench", "otdd_flash.flows"),
    ("otdd_flash.report",),
    ("otdd_flash.cli",),
    ("otdd_flash", "otdd_flash.__main__"),
)
ROOTS = (TOP, TOP / "kernels", TOP / "data")
PACKAGES = ("otdd_flash", "otdd_flash_kernels", "otdd_flash_data")


def sources():
    for root in ROOTS:
        for package in PACKAGES:
            yield from ((path, root) for path in sorted((root / package).rglob("*.py")))


def module_of(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree: ast.AST, module: str, is_package: bool):
    """Yield (imported module, line) for every import, those inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                keep = module.split(".")
                keep = keep[: len(keep) - node.level + is_package]
                base = ".".join([*keep, base] if base else keep)
            # `from package import name` may mean a module of the package
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def part_of(module: str) -> str | None:
    """The entry of FLOORS that a module belongs to, None for other packages' modules."""
    head = module.split(".")[0]
    if head not in PACKAGES:
        return None
    if head != "otdd_flash":
        return head
    names = {name for floor in FLOORS for name in floor}
    two = ".".join(module.split(".")[:2])
    # `from otdd_flash import load` is an import of the public API, the top of the house
    return two if two in names else "otdd_flash"


def floor_of(part: str) -> int:
    return next(k for k, floor in enumerate(FLOORS) if part in floor)


def edges():
    """Yield (importing part, imported part, where) between different parts of the package."""
    for path, root in sources():
        module = module_of(path, root)
        tree = ast.parse(path.read_text("utf-8"))
        for target, line in imports_of(tree, module, path.name == "__init__.py"):
            here, there = part_of(module), part_of(target)
            if there is not None and here != there:
                yield here, there, f"{path.relative_to(TOP)}:{line} imports {target}"


def test_floors_name_every_part_and_no_other():
    named = {name for floor in FLOORS for name in floor}
    there = set()
    for path, root in sources():
        package, *inside = module_of(path, root).split(".")
        there.add(f"{package}.{inside[0]}" if package == "otdd_flash" and inside else package)
    assert there - named == set(), "add them to FLOORS"
    assert named - there == set(), "take them out of FLOORS"


def test_imports_go_down():
    up = [where for here, there, where in edges() if floor_of(there) > floor_of(here)]
    assert not up, "\n".join(up)


def test_the_layout_in_contributing_is_the_order_of_imports():
    text = (TOP / "CONTRIBUTING.md").read_text("utf-8")
    lines = text.split("```\nkernels/")[1].split("\nscripts/")[0].splitlines()
    place = {"otdd_flash.__main__": len(lines)}
    for k, line in enumerate(lines):
        for name in re.findall(r"(\w+)(?:\.py|/ )", line):
            inside = "otdd_flash" if name == "__init__" else f"otdd_flash.{name}"
            place[name if name in PACKAGES else inside] = k
    named = {name for floor in FLOORS for name in floor}
    assert named - set(place) == set(), "add them to CONTRIBUTING.md"
    assert set(place) - named == set(), "take them out of CONTRIBUTING.md"
    wrong = [where for here, there, where in edges() if place[there] > place[here]]
    assert not wrong, "\n".join(wrong)


def test_kernels_and_data_know_nothing_of_each_other():
    wrong = [w for here, there, w in edges() if floor_of(here) == floor_of(there) == 0]
    assert not wrong, "\n".join(wrong)


def circle_in(below: dict[str, set[str]]) -> list[str]:
    """Return modules of which each imports the next and the last the first, [] if there are none.

    ``below`` holds what each module imports.
    """
    done: set[str] = set()

    def walk(module: str, path: list[str]) -> list[str]:
        if module in path:
            return path[path.index(module) :]
        if module in done:
            return []
        done.add(module)
        found = (walk(other, [*path, module]) for other in sorted(below.get(module, ())))
        return next(filter(None, found), [])

    return next(filter(None, (walk(module, []) for module in sorted(below))), [])


def test_no_circles_between_modules():
    modules = {module_of(path, root): (path, root) for path, root in sources()}
    below: dict[str, set[str]] = {}
    for module, (path, _) in modules.items():
        tree = ast.parse(path.read_text("utf-8"))
        for target, _ in imports_of(tree, module, path.name == "__init__.py"):
            # a name of a module, or the module itself
            there = target if target in modules else target.rpartition(".")[0]
            # the public API imports the others, but late
            if there in modules and there != module and "otdd_flash" not in (module, there):
                below.setdefault(module, set()).add(there)
    assert circle_in(below) == []


@pytest.mark.parametrize(
    ("below", "expected"),
    [
        ({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}}, []),
        ({"a": {"b"}, "b": {"a"}}, ["a", "b"]),
        ({"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": {"b"}}, ["b", "c", "d"]),
        ({"a": {"b"}, "c": {"a", "d"}, "d": {"c"}}, ["c", "d"]),
    ],
)
def test_circles_are_found(below, expected):
    assert circle_in(below) == expected


def test_only_the_command_shows_things():
    wrong = []
    for path, root in sources():
        module = module_of(path, root)
        if module.startswith("otdd_flash.cli"):
            continue
        tree = ast.parse(path.read_text("utf-8"))
        for target, line in imports_of(tree, module, path.name == "__init__.py"):
            if target.split(".")[0] in ("tqdm", "click") and module != "otdd_flash.__main__":
                wrong.append(f"{path.relative_to(TOP)}:{line} imports {target}")
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
                wrong.append(f"{path.relative_to(TOP)}:{node.lineno} prints")
    assert not wrong, "\n".join(wrong)


def test_kernels_know_no_datasets_and_no_autograd_of_the_package():
    for path, root in sources():
        if root.name == "kernels":
            tree = ast.parse(path.read_text("utf-8"))
            for target, line in imports_of(tree, module_of(path, root), False):
                assert part_of(target) in (None, "otdd_flash_kernels"), f"{path}:{line}"


@pytest.mark.parametrize(
    ("code", "module", "is_package", "expected"),
    [
        ("import a.b", "p.q", False, ["a.b"]),
        ("from otdd_flash import ops", "otdd_flash.cost", False, ["otdd_flash.ops"]),
        ("from . import x", "p.q", True, ["p.q.x"]),
        ("from . import x", "p.q.r", False, ["p.q.x"]),
        ("from ..a import x", "p.q.r", False, ["p.a.x"]),
        ("def f():\n    from otdd_flash.cli import main", "m", False, ["otdd_flash.cli.main"]),
    ],
)
def test_the_parser_sees_every_kind_of_import(code, module, is_package, expected):
    found = [name for name, _ in imports_of(ast.parse(code), module, is_package)]
    assert found == expected


def test_the_order_is_strict():
    assert part_of("otdd_flash.datasets.mini") == "otdd_flash.datasets"
    assert part_of("otdd_flash.load") == "otdd_flash"
    assert part_of("numpy.linalg") is None
    order = ["otdd_flash_kernels", "otdd_flash.types", "otdd_flash.otdd", "otdd_flash.cli"]
    assert all(floor_of(a) < floor_of(b) for a, b in pairwise(order))
