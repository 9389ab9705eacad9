# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Every small change of a source file that its tests should notice: its mutants.

Branches (a condition that always or never holds, an operand of ``and``/``or`` left out, a guard
that does not leave), comparisons (the boundary moved, the sense turned), offsets (whole numbers and
slice bounds off by one, a bound left out), arithmetic, ``min``/``max``, ``any``/``all``, ``not``,
sort direction, and calls that are made for their effect alone.

A mutant is a replacement in the text, so lines keep their numbers and it reads as a diff.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

_COMPARISONS = {
    "<": ("<=", ">="),
    "<=": ("<", ">"),
    ">": (">=", "<="),
    ">=": (">", "<"),
    "==": ("!=",),
    "!=": ("==",),
    "is": ("is not",),
    "is not": ("is",),
    "in": ("not in",),
    "not in": ("in",),
}
_ARITHMETIC = {"+": "-", "-": "+", "*": "//", "/": "*", "%": "//", "<<": ">>", ">>": "<<"}
_TWINS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_COMPARISON = re.compile(r"is\s+not\b|not\s+in\b|is\b|in\b|[<>=!]=|[<>]")
_OPERATOR = re.compile(r"<<|>>|//|\*\*|[-+*/%|&^@]")


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        file: Name of the source file.
        line: First line of what is changed.
        function: Qualified name of the function around it; empty at module level.
        original: The changed lines, before, joined and without indentation.
        mutated: The same lines after.
        source: The whole file after.
        at_import: It runs when the module is imported, not when a test calls something.
    """

    file: str
    line: int
    function: str
    original: str
    mutated: str
    source: str
    at_import: bool

    @property
    def key(self) -> str:
        """What names it for as long as the changed lines stay as they are."""
        return f"{self.file}::{self.function}: {self.original} -> {self.mutated}"


def mutants_of(
    file: str, source: str, skip: Callable[[str], bool] = lambda name: False
) -> list[Mutant]:
    """Enumerates the mutants of a file.

    Args:
        file: Its name.
        source: Its text.
        skip: Qualified name of a function or class -> leave it out.

    Returns:
        Mutants in the order of the text; each that compiles, none twice.
    """
    found = _Enumerator(source, skip)
    found.visit(ast.parse(source))
    mutants: list[Mutant] = []
    seen: Counter[str] = Counter()
    for start, end, new, function, at_import in sorted(dict.fromkeys(found.edits)):
        text = found.data[:start] + new.encode() + found.data[end:]
        mutated = text.decode()
        try:
            compile(mutated, file, "exec")
        except SyntaxError:
            continue  # ``f(**x)`` is no product, and the like
        first, last = found.line_of(start), found.line_of(max(start, end - 1))
        before = _flat(source.splitlines()[first - 1 : last])
        grown = mutated.count("\n") - source.count("\n")
        after = _flat(mutated.splitlines()[first - 1 : last + grown])
        seen[f"{function}{before}{after}"] += 1
        if (times := seen[f"{function}{before}{after}"]) > 1:
            after += f"  # {times}"  # the same line stands there more than once
        mutants.append(Mutant(file, first, function, before, after, mutated, at_import))
    return mutants


def _flat(lines: list[str]) -> str:
    return " ".join(line.strip() for line in lines)


def functions_by_line(source: str) -> list[str]:
    """Qualified name of the innermost function or class around each line, that of line 0 first."""
    names = [""] * (source.count("\n") + 2)

    def walk(node: ast.AST, scope: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = (*scope, child.name)
                first = min(n.lineno for n in (child, *child.decorator_list))
                end = (child.end_lineno or first) + 1
                names[first:end] = [".".join(inner)] * (end - first)
            walk(child, inner)

    walk(ast.parse(source), ())
    return names


class _Enumerator(ast.NodeVisitor):
    """Collects (start, end, replacement, function, at import), in bytes of the text."""

    def __init__(self, source: str, skip: Callable[[str], bool]) -> None:
        self.data = source.encode()
        self.edits: list[tuple[int, int, str, str, bool]] = []
        self._starts = [0]
        for line in self.data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._skip = skip
        self._scope: list[str] = []
        self._at_import = True

    def line_of(self, offset: int) -> int:
        """Number of the line that a byte stands on."""
        return sum(start <= offset for start in self._starts)

    def _span(self, node: ast.AST) -> tuple[int, int]:
        ends = (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
        at = self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return at, self._starts[ends[0] - 1] + ends[1]

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self.data[start:end].decode()

    def _replace(self, node: ast.AST, *texts: str) -> None:
        for text in texts:
            self._edit(*self._span(node), text)

    def _edit(self, start: int, end: int, text: str) -> None:
        self.edits.append((start, end, text, ".".join(self._scope), self._at_import))

    def _between(self, left: ast.AST, right: ast.AST, pattern: re.Pattern[str]) -> tuple[int, str]:
        """Where an operator stands, and which; operands may be in brackets."""
        start, end = self._span(left)[1], self._span(right)[0]
        gap = re.sub(r"#.*", lambda m: " " * len(m[0]), self.data[start:end].decode())
        match = pattern.search(gap)
        if match is None:
            raise ValueError(f"no operator between {self._text(left)} and {self._text(right)}")
        return start + match.start(), match[0]

    # ---- scopes ------------------------------------------------------------------------------

    def _scoped(self, node: ast.FunctionDef | ast.ClassDef, at_import: bool) -> None:
        self._scope.append(node.name)
        if not self._skip(".".join(self._scope)):
            for default in _defaults(node):
                self.visit(default)
            before, self._at_import = self._at_import, at_import
            self._suite(node.body, guard=False)
            self._at_import = before
        self._scope.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._scoped(node, at_import=False)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scoped(node, at_import=self._at_import)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Before Python 3.12 nobody knows where its parts stand; and it is text."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)  # not the annotation

    def visit_Module(self, node: ast.Module) -> None:
        self._suite(node.body, guard=False)

    # ---- branches ----------------------------------------------------------------------------

    def _suite(self, body: list[ast.stmt], *, alone: bool = True, guard: bool = True) -> None:
        """Statements of a function, a branch or a loop.

        Args:
            body: The statements.
            alone: A single one may be left out, too: no mutant of a condition does the same.
            guard: What leaves here leaves early.
        """
        for statement in body:
            leaves = isinstance(statement, ast.Return | ast.Continue | ast.Break | ast.Raise)
            effect = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
            if (effect or (leaves and guard)) and (alone or len(body) > 1):
                self._replace(statement, "pass")
            self.visit(statement)

    def _branch(self, test: ast.expr, *forced: str) -> None:
        self._replace(test, *forced)
        self.visit(test)

    def visit_If(self, node: ast.If) -> None:
        if self._text(node.test) == "TYPE_CHECKING":
            return  # nothing of it runs
        self._branch(node.test, "True", "False")
        self._suite(node.body, alone=bool(node.orelse))
        self._suite(node.orelse)

    def visit_While(self, node: ast.While) -> None:
        self._branch(node.test, "False")  # with True it would not end
        self._suite(node.body)

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        self._suite(node.body)
        self._suite(node.orelse)

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            self.visit(item)
        self._suite(node.body, guard=False)

    def visit_Try(self, node: ast.Try) -> None:
        for body in (node.body, *(h.body for h in node.handlers), node.orelse, node.finalbody):
            self._suite(body)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._branch(node.test, "True", "False")
        self.visit(node.body)
        self.visit(node.orelse)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self.visit(node.iter)
        for test in node.ifs:
            self._branch(test, "True", "False")

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        neutral, other = ("True", "or") if isinstance(node.op, ast.And) else ("False", "and")
        for operand in node.values:
            self._replace(operand, neutral)
        for left, right in pairwise(node.values):
            at, text = self._between(left, right, re.compile(r"\b(and|or)\b"))
            self._edit(at, at + len(text), other)
        self.generic_visit(node)

    # ---- comparisons, offsets, arithmetic ----------------------------------------------------

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, right in pairwise(operands):
            at, text = self._between(left, right, _COMPARISON)
            for new in _COMPARISONS[" ".join(text.split())]:
                self._edit(at, at + len(text), new)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        strings = any(isinstance(x, ast.List | ast.JoinedStr) for x in (node.left, node.right))
        if isinstance(node.op, ast.FloorDiv):
            left, right = self._text(node.left), self._text(node.right)
            self._replace(node, f"(-(-({left}) // ({right})))")  # rounds the other way
        elif not strings:
            self._swap(node.left, node.right)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._swap(node.target, node.value)
        self.visit(node.value)

    def _swap(self, left: ast.AST, right: ast.AST) -> None:
        at, text = self._between(left, right, _OPERATOR)
        if text in _ARITHMETIC:
            self._edit(at, at + len(text), _ARITHMETIC[text])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self._replace(node, self._text(node.operand))
        self.visit(node.operand)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int:
            self._replace(node, str(node.value + 1), str(node.value - 1))

    def visit_Slice(self, node: ast.Slice) -> None:
        for bound in (node.lower, node.upper):
            if bound is not None:
                self._replace(bound, "")
                if not isinstance(bound, ast.Constant):
                    self._replace(bound, f"({self._text(bound)}) + 1")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in _TWINS:
            self._replace(node.func, _TWINS[node.func.id])
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg == "reverse" and isinstance(node.value, ast.Constant):
            self._replace(node.value, str(not node.value.value))
        self.visit(node.value)


def _defaults(node: ast.FunctionDef | ast.ClassDef) -> list[ast.expr]:
    if isinstance(node, ast.ClassDef):
        return []
    return [default for default in (*node.args.defaults, *node.args.kw_defaults) if default]
