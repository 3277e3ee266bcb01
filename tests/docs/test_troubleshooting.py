"""docs/troubleshooting.md has every message that a user can meet, and no other."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from pathlib import Path

from profiles.errors import StemshareError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
PACKAGES = ("broker", "firmware_sim", "profiles", "toolkit")
# The place of the sentence among the arguments of errors that have more than one.
PLACES = {"ProfileError": 2, "Refused": 1, "UnsupportedOp": 2}
# Beside our own errors: why a link failed, and options that are wrong.
ALSO = {"Disconnected": 0, "ArgumentTypeError": 0, "BadParameter": 0}
HOLE = "…"  # stands for whatever a message fills in


@dataclass(frozen=True)
class Module:
    """A source file, and the sentences that its code makes."""

    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"))

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        return {n.name: n for n in self.nodes if isinstance(n, ast.FunctionDef)}

    @cached_property
    def imported(self) -> dict[str, Module]:
        """Functions of ours that this module takes from others."""
        return {
            alias.name: home
            for node in self.nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if (home := module(ROOT / f"{(node.module or '').replace('.', '/')}.py")).path.exists()
            and alias.name in home.functions
        }

    def _home_of(self, function: str) -> Module | None:
        return self if function in self.functions else self.imported.get(function)

    def calls(self) -> Iterator[tuple[ast.Call, ast.AST]]:
        """Every call, and the function that it stands in."""
        scopes = self.functions.values()
        inner = {id(n): scope for scope in scopes for n in ast.walk(scope)}  # the innermost wins
        for node in self.nodes:
            if isinstance(node, ast.Call):
                yield node, inner.get(id(node), self.tree)

    def patterns(self, text: ast.expr, scope: ast.AST) -> set[str]:
        """What an expression can say, with holes for what is known only when it runs."""
        match text:
            case ast.Constant(value=str(value)):
                return {value}
            case ast.JoinedStr(values=values):
                return _joined(self._within(value, scope) for value in values)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return _joined((self.patterns(left, scope), self._within(right, scope)))
            case ast.IfExp(body=body, orelse=orelse):
                return self.patterns(body, scope) | self.patterns(orelse, scope)
            case ast.Name(id=name):
                return self._all(_assigned(name, scope), scope)
            case ast.Call(func=ast.Name(id=name)) if home := self._home_of(name):
                function = home.functions[name]
                returned = (n.value for n in ast.walk(function) if isinstance(n, ast.Return))
                return home._all((value for value in returned if value), function)
        return {HOLE}

    def _within(self, part: ast.expr, scope: ast.AST) -> set[str]:
        """As part of a sentence: a name that can say one thing alone is put in."""
        match part:
            case ast.Constant() | ast.BinOp() | ast.JoinedStr():
                return self.patterns(part, scope)
            case ast.IfExp() if HOLE not in (said := self.patterns(part, scope)):
                return said
            case ast.FormattedValue(value=ast.Name() as name):
                said = self.patterns(name, scope)
                return said if len(said) == 1 else {HOLE}
        return {HOLE}

    def _all(self, texts: Iterable[ast.expr], scope: ast.AST) -> set[str]:
        return {said for text in texts for said in self.patterns(text, scope)} or {HOLE}


@cache
def module(path: Path) -> Module:
    """One for each file: to parse and to walk it takes longest."""
    return Module(path)


def _joined(parts: Iterable[set[str]]) -> set[str]:
    return {"".join(chosen) for chosen in product(*parts)}


def _assigned(name: str, scope: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(scope):
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=target)], value=value)
                | ast.NamedExpr(target=ast.Name(id=target), value=value)
            ) if target == name:
                yield value


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _normalised(text: str) -> str:
    """Holes beside each other are one; one after a closing bracket is a mere suggestion."""
    text = re.sub(rf"{HOLE}(\s*{HOLE})+", HOLE, re.sub(r"\s+", " ", text)).strip()
    return re.sub(rf"\){HOLE}$", ")", text)


def modules() -> list[Module]:
    files = (file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py")))
    return [module(file) for file in files]


def user_errors(sources: list[Module]) -> set[str]:
    """Every class that is derived from StemshareError."""
    classes = {
        node.name: {_name(base) for base in node.bases}
        for source in sources
        for node in source.nodes
        if isinstance(node, ast.ClassDef)
    }
    found = {"StemshareError"}
    while derived := {name for name, bases in classes.items() if bases & found} - found:
        found |= derived
    return found


@cache
def messages() -> dict[str, str]:
    """Every pattern, and a place in the source that says it."""
    sources = modules()
    places = dict.fromkeys(user_errors(sources), 0) | PLACES | ALSO
    found: dict[str, str] = {}
    for source in sources:
        for call, scope in source.calls():
            name = _name(call.func)
            if name in places and len(call.args) > places[name]:
                said = source.patterns(call.args[places[name]], scope)
            elif name not in ("error", "__init__", "exit", "write") or not call.args:
                continue
            elif ast.unparse(call.func) in ("parser.error", "super().__init__"):
                said = source.patterns(call.args[0], scope)
                said = said if name == "error" or _in_error(source, call) else set()
            elif ast.unparse(call.func) in ("sys.exit", "sys.stderr.write"):
                said = source.patterns(call.args[0], scope)
                said = {s.removeprefix("error: ") for s in said if s.startswith("error: ")}
            else:
                continue
            where = f"{source.path.relative_to(ROOT)}:{call.lineno}"
            for sentence in map(_normalised, said):
                if re.search(r"[a-z]{2}", sentence):  # some only pass on what another has said
                    found.setdefault(sentence, where)
    for sentence in _refused_logins():
        found[sentence] = "broker/transport/link_failures.py: _FINAL"
    return found


def _refused_logins() -> list[str]:
    """What a broker's reason codes mean; they are looked up in a table."""
    for node in module(ROOT / "broker" / "transport" / "link_failures.py").tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="_FINAL")], value=ast.Dict(values=values)):
                return [re.sub(r"\{.*?\}", HOLE, ast.literal_eval(value)) for value in values]
    raise AssertionError("broker/transport/link_failures.py has no table _FINAL.")


def _in_error(source: Module, call: ast.Call) -> bool:
    """Whether a class whose text is fixed says it, as UnsupportedOp does."""
    for node in source.nodes:
        if isinstance(node, ast.ClassDef) and node.name in PLACES:
            return any(inner is call for inner in ast.walk(node))
    return False


def documented() -> list[str]:
    """The patterns in the first column of the page's tables."""
    rows = re.findall(r"^\| (`.*?) \| ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    spans = (re.findall(r"(`+)(.+?)\1(?!`)", row) for row in rows)
    return [_normalised(text.replace(r"\|", "|")) for row in spans for _, text in row]


def test_every_message_has_an_entry_and_every_entry_a_message() -> None:
    said, written = messages(), documented()
    missing = [
        f"add to docs/troubleshooting.md: `{s}` ({said[s]})" for s in said if s not in written
    ]
    stale = [f"no code says any more, remove: `{s}`" for s in written if s not in said]
    twice = [f"listed twice: `{s}`" for s in sorted(set(written)) if written.count(s) > 1]
    assert not missing + stale + twice, "\n" + "\n".join(missing + stale + twice)


def test_every_error_of_the_tree_is_collected() -> None:
    """By the classes themselves, whatever their source looks like."""
    for package in PACKAGES:
        importlib.import_module(f"{package}.errors")
    importlib.import_module("broker.protocol.messages")  # Refused
    tree, found = [StemshareError], set[str]()
    while tree:
        error = tree.pop()
        found.add(error.__name__)
        tree += error.__subclasses__()
    assert found == user_errors(modules())


def test_the_collector_sees_what_it_should() -> None:
    """Were it blind, the test above would hold of an empty page."""
    said = messages()
    assert len(said) > 250
    for pattern in (
        "a quorum of … is no quorum: take 1 or more.",
        "there is no bundle at …; `toolkit export` writes one.",
        "closes a cycle: …",
        "stride together with dilation",
        "nothing listens at ….",
        "say --fleet NAME and --id ID, or --isolated to train without a fleet",
    ):
        assert pattern in said
