"""Each kind of seam as an edit of SGLang's source."""

from __future__ import annotations

import ast
from collections.abc import Callable, Set
from dataclasses import replace as changed

from specpack.export import placing
from specpack.export.body import (
    Code,
    body_of,
    commented,
    definition_of,
    formatted,
    free_names,
    module_imports,
    names_bound,
    names_loaded,
    our_source,
    own_scope,
    parameter_names,
    without_return,
)
from specpack.export.cycles import closes_circle
from specpack.export.imports import (
    Import,
    add,
    block,
    bound_names,
    imports_in,
    in_their_order,
)
from specpack.export.sources import (
    Definition,
    Refusal,
    Sources,
    body_line,
    find,
    first_line,
    insert,
    parsed,
    replace,
)
from specpack.seams.kinds import (
    Addition,
    Around,
    Attribute,
    Guard,
    NewModule,
    Patch,
    Replace,
    Seam,
)
from specpack.seams.modules import source_file


def write(patch: Patch, sources: Sources) -> None:
    """Write one patch into the sources. Raises Refusal.

    New modules first: what they import decides where imports of them can stand.
    """
    for seam in sorted(patch.seams, key=lambda seam: not isinstance(seam, NewModule)):
        try:
            _EDITS[type(seam)](seam, patch, sources)
        except Refusal as refusal:
            raise Refusal(f"{patch.name}: {seam.target}: {refusal}") from refusal


def _guard(seam: Guard, patch: Patch, sources: Sources) -> None:
    code = without_return(body_of(seam.function))
    _refuse_rebinding(seam, code, set())
    _at_top(seam, _settled(code, seam, seam.function, sources), sources)


def _around(seam: Around, patch: Patch, sources: Sources) -> None:
    if seam.after:
        code = _settled(body_of(seam.after), seam, seam.after, sources)
        _before_returns(seam, code, sources)
    if seam.before:
        code = body_of(seam.before)
        _refuse_rebinding(seam, code, _returned(code).keys())
        code = _settled(_assigning(code), seam, seam.before, sources)
        _at_top(seam, code, sources)


def _replace(seam: Replace, patch: Patch, sources: Sources) -> None:
    code = definition_of(seam.function, seam.name)
    code = _settled(code, seam, seam.function, sources)
    text = sources.read(seam.module)
    node = find(text, seam.qualname)
    source = formatted(code.lines, " " * node.col_offset)
    sources.edited[seam.module] = replace(text, node.lineno, node.end_lineno, source)


def _addition(seam: Addition, patch: Patch, sources: Sources) -> None:
    code = definition_of(seam.function, seam.name)
    code = _settled(code, seam, seam.function, sources)
    source = formatted(code.lines, "    " * seam.qualname.count("."))
    text = sources.read(seam.module)
    sources.edited[seam.module] = placing.definition(text, seam, patch, source)


def _attribute(seam: Attribute, patch: Patch, sources: Sources) -> None:
    text = sources.read(seam.module)
    indent = "    " * seam.qualname.count(".")
    source = formatted(f"{seam.name} = {seam.value!r}", indent)
    sources.edited[seam.module] = placing.assignment(text, seam, source)


def _new_module(seam: NewModule, patch: Patch, sources: Sources) -> None:
    text = source_file(seam.source).read_text(encoding="utf-8")
    for node in ast.walk(parsed(text)):
        for imported in imports_in(node):
            if imported.module.partition(".")[0] == "specpack":
                raise Refusal(f"{imported.bound} comes from {imported.module}")
    sources.edited[seam.module] = in_their_order(text)


_EDITS: dict[type[Seam], Callable[..., None]] = {
    Guard: _guard,
    Around: _around,
    Replace: _replace,
    Addition: _addition,
    Attribute: _attribute,
    NewModule: _new_module,
}


def _settled(
    code: Code, seam: Seam, function: Callable[..., object], sources: Sources
) -> Code:
    """The code with its imports at module level, or in it where they must stay."""
    local = tuple(i for i in code.imports if not _hoist(i, seam.module, sources))
    known = {*bound_names(sources.read(seam.module)), *(i.bound for i in local)}
    known |= {i.bound for i in code.imports if i.module == seam.module}
    header = module_imports(function)
    parameters = _target_parameters(seam, sources)
    for name in sorted(free_names(code.node) - known - parameters):
        if name not in header or not _hoist(header[name], seam.module, sources):
            raise Refusal(f"{name} cannot be imported at its target")
    return _with_local_imports(code, local)


def _target_parameters(seam: Seam, sources: Sources) -> set[str]:
    if isinstance(seam, Addition):
        return set()
    node = find(sources.read(seam.module), seam.qualname)
    return {*parameter_names(node), "result"}


def _hoist(imported: Import, module: str, sources: Sources) -> bool:
    """Whether a module now has an import at its top, or needs none."""
    if imported.module == module:
        return True
    text = sources.read(module)
    bound = bound_names(text)
    if imported.bound in bound:
        present = bound[imported.bound]
        return present is not None and imported.same_as(present)
    if imported.module.partition(".")[0] == "specpack":
        raise Refusal(f"{imported.bound} comes from {imported.module}")
    if imported.module.startswith("sglang"):
        if closes_circle(sources, module, imported.module):
            return False
    sources.edited[module] = add(text, imported)
    return True


def _with_local_imports(code: Code, local: tuple[Import, ...]) -> Code:
    if not local:
        return code
    first = code.node.body[0]
    if isinstance(first, (ast.FunctionDef, ast.AsyncFunctionDef)):
        line = body_line(code.lines, first)
        source = block(local, "    ") + "\n"
        return changed(code, lines=insert(code.lines, line, source))
    return changed(code, lines=f"{block(local)}\n\n{code.lines}")


def _at_top(seam: Guard | Around, code: Code, sources: Sources) -> None:
    text = sources.read(seam.module)
    node = find(text, seam.qualname)
    _refuse_shadowing(code, node)
    source = commented(code, " " * (node.col_offset + 4))
    if "\n" in source:
        source += "\n"
    sources.edited[seam.module] = insert(text, body_line(text, node), source)


def _refuse_shadowing(code: Code, node: Definition) -> None:
    """What the function takes from its module must not become a local of ours."""
    outer = names_loaded(node) - names_bound(node) - parameter_names(node)
    clash = (names_bound(code.node) & outer) - {i.bound for i in code.imports}
    if clash:
        raise Refusal(f"its lines would hide {', '.join(sorted(clash))}")


def _refuse_rebinding(seam: Guard | Around, code: Code, returned: Set[str]) -> None:
    """Live, an argument that ours rebinds and does not return stays as it was."""
    _, ours = our_source(seam.functions[0])
    clash = (names_bound(code.node) & parameter_names(ours)) - returned
    if clash:
        raise Refusal(f"its lines would change {', '.join(sorted(clash))}")


def _returned(code: Code) -> dict[str, str]:
    """The arguments that a `before` replaces, each with its expression."""
    last = code.node.body[-1]
    value = last.value if isinstance(last, ast.Return) else None
    if not isinstance(value, ast.Dict):
        raise Refusal("a `before` must end in the dictionary it returns")
    return {k.value: ast.unparse(v) for k, v in zip(value.keys, value.values)}


def _assigning(code: Code) -> Code:
    """A `before` with assignments instead of the dictionary it returns."""
    changes = [f"{k} = {v}" for k, v in _returned(code).items() if k != v]
    lines = filter(None, [without_return(code).lines, *changes])
    return changed(code, lines="\n".join(lines))


def _before_returns(seam: Around, code: Code, sources: Sources) -> None:
    text = sources.read(seam.module)
    node = find(text, seam.qualname)
    _refuse_shadowing(code, node)
    if any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in own_scope(node)):
        raise Refusal("a generator's result cannot be seen before its `return`")
    if _falls_off(node.body):
        source = _returning(code, None, " " * (node.col_offset + 4))
        text = insert(text, node.end_lineno + 1, source)
    returns = [part for part in own_scope(node) if isinstance(part, ast.Return)]
    for part in sorted(returns, key=first_line, reverse=True):
        source = _returning(code, part.value, " " * part.col_offset)
        text = replace(text, part.lineno, part.end_lineno, source)
    sources.edited[seam.module] = text


def _returning(code: Code, value: ast.expr | None, indent: str) -> str:
    """The lines of an `after` for one result, a `return` at their end."""
    result = ast.unparse(value) if value else "None"
    uses = [
        part
        for part in ast.walk(code.node)
        if isinstance(part, ast.Name) and part.id == "result"
    ]
    simple = value is None or isinstance(value, (ast.Name, ast.Constant))
    if not simple and not (len(code.node.body) == 1 and len(uses) == 1):
        return formatted(f"result = {result}\n{code.lines}", indent)
    if not simple and not isinstance(value, (ast.Call, ast.Attribute, ast.Subscript)):
        result = f"({result})"
    lines = code.lines.split("\n")
    for use in sorted(uses, key=lambda use: (use.lineno, use.col_offset), reverse=True):
        line = lines[use.lineno - 1]
        lines[use.lineno - 1] = (
            line[: use.col_offset] + result + line[use.end_col_offset :]
        )
    return formatted("\n".join(lines), indent)


def _falls_off(body: list[ast.stmt]) -> bool:
    """Whether statements can end without `return` or `raise`."""
    last = body[-1]
    if isinstance(last, (ast.Return, ast.Raise)):
        return False
    if isinstance(last, ast.If) and last.orelse:
        return _falls_off(last.body) or _falls_off(last.orelse)
    if isinstance(last, (ast.With, ast.AsyncWith)):
        return _falls_off(last.body)
    return True
