"""Templates that come from anyone: a Jinja2 sandbox with bounds on what a rendering may do.

A template sees plain values (texts, numbers, lists, objects), a few harmless methods and filters.
It is rewritten when it is compiled, so that all it does is paid for (see `budget`): the body of a
loop or a macro each time it begins, and each text, list or comparison by its size. Nothing but
plain values becomes text, so that no address in memory does.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext, Macro, TemplateReference, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace

from ppdbench.tasks.budget import (
    BOUNDS,
    BUDGET,
    ITEMWISE,
    MAX_BITS,
    MAX_CHARS,
    MAX_LOOPS,
    MAX_SOURCE,
    PER_NODE,
    PLAIN,
    UNITS,
    Budget,
    size_of,
)

FILTERS = """
abs batch capitalize count d default dictsort e escape filesizeformat first float forceescape
groupby indent int items join last length list lower map max min reject rejectattr replace reverse
round safe select selectattr slice sort string sum title tojson trim truncate unique upper urlencode
wordcount
"""
OF_TEXTS = """
capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit islower
isnumeric isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace
rfind rindex rpartition rsplit rstrip split splitlines startswith strip swapcase title upper
"""
METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(OF_TEXTS.split()),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index", "grouper", "list"}),  # the last two of groupby
}

# What else a template may ask for attributes, none of which is private.
OPEN = (LoopContext, Namespace, Macro, Undefined, TemplateReference, Cycler, Joiner)


def bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that takes and gives plain values, and pays for both."""
    bound, first = BOUNDS.get(name), _first_argument(function)

    @jinja2.pass_context  # with the context it is never called while a template is compiled
    def bounded(context: Context, *given: Any, **named: Any) -> Any:
        budget = BUDGET.get()
        budget.spend(PER_NODE)
        given = tuple(map(budget.take, given))
        named = {word: budget.take(value) for word, value in named.items()}
        if name in ITEMWISE and given and isinstance(given[0], PLAIN):
            budget.spend(PER_NODE * len(given[0]))
        if bound is not None:
            bound(*given, **named)
        return budget.take(function(*first(context), *given, **named))

    return bounded


def bounded_test(function: Any) -> Callable[..., Any]:
    """A test that pays for what it looks at, which may be anything."""
    first = _first_argument(function)

    @jinja2.pass_context
    def bounded(context: Context, *given: Any, **named: Any) -> Any:
        budget = BUDGET.get()
        budget.spend(PER_NODE)
        named = {word: budget.look(value) for word, value in named.items()}
        return function(*first(context), *map(budget.look, given), **named)

    return bounded


def _first_argument(function: Callable[..., Any]) -> Callable[[Context], tuple[Any, ...]]:
    """Return a function that gives the arguments Jinja would pass before a function's own."""
    wanted = getattr(function, "jinja_pass_arg", None)
    passed: dict[str | None, Callable[[Context], tuple[Any, ...]]] = {
        "context": lambda context: (context,),
        "eval_context": lambda context: (context.eval_ctx,),
        "environment": lambda context: (context.environment,),
        None: lambda context: (),
    }
    return passed[None if wanted is None else wanted.name]


# What templates are rewritten to, as filters whose names no template can write.


def _spend(context: Context, units: int) -> bool:
    BUDGET.get().spend(units)
    return True


def _look(context: Context, value: Any) -> Any:
    return BUDGET.get().look(value)


def _take(context: Context, value: Any) -> Any:
    return BUDGET.get().take(value)


def _concatenated(context: Context, *values: Any) -> str:
    budget = BUDGET.get()
    texts = [value if isinstance(value, str) else str(budget.take(value)) for value in values]
    budget.text(sum(map(len, texts)))
    return "".join(texts)


def _sliced(context: Context, value: Any, start: Any, stop: Any, step: Any) -> Any:
    return BUDGET.get().take(value[start:stop:step])


REWRITTEN: Mapping[str, Callable[..., Any]] = {
    "spend()": _spend,
    "look()": _look,
    "take()": _take,
    "concatenated()": _concatenated,
    "sliced()": _sliced,
}


def _filter(name: str, node: nodes.Node, *others: nodes.Node) -> nodes.Filter:
    made = nodes.Filter(node, name, list(others), [], None, None)
    made.set_lineno(node.lineno)
    return made


def _rewritten(node: nodes.Node) -> nodes.Node:
    """A template in which everything that can take long is paid for."""
    for name, value in node.iter_fields():
        if isinstance(value, list):
            changed = [_rewritten(one) if isinstance(one, nodes.Node) else one for one in value]
            setattr(node, name, changed)
        elif isinstance(value, nodes.Node):
            setattr(node, name, _rewritten(value))
    if isinstance(node, nodes.Concat):
        return _filter("concatenated()", *node.nodes)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        ends = (node.arg.start, node.arg.stop, node.arg.step)
        return _filter("sliced()", node.node, *(end or nodes.Const(None) for end in ends))
    if isinstance(node, nodes.List | nodes.Tuple | nodes.Dict):
        return node if getattr(node, "ctx", "load") != "load" else _filter("take()", node)
    if isinstance(node, nodes.Compare):
        node.expr = _filter("look()", node.expr)
        for operand in node.ops:
            operand.expr = _filter("look()", operand.expr)
    if isinstance(node, nodes.For):
        node.iter = _filter("look()", node.iter)
        if node.test is not None:
            node.test = nodes.And(_payment(node, [node.test]), node.test).set_lineno(node.lineno)
    if isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block):
        paid = nodes.ExprStmt(_payment(node, node.body)).set_lineno(node.lineno)
        node.body.insert(0, paid)
    return node


def _payment(node: nodes.Node, parts: Iterable[nodes.Node]) -> nodes.Filter:
    """Pay for parts of a node that are gone through again and again."""
    units = nodes.Const(PER_NODE * sum(map(_count, parts)), lineno=node.lineno)
    return _filter("spend()", units)


def _count(node: nodes.Node) -> int:
    return 1 + sum(map(_count, node.iter_child_nodes()))


@jinja2.pass_context
def _plain(context: Context, value: Any) -> Any:
    """Take a value into the budget before it becomes text."""
    return value if isinstance(value, str) else BUDGET.get().take(value)


def _concat(pieces: Iterable[str]) -> str:
    texts = list(pieces)
    BUDGET.get().text(sum(map(len, texts)))
    return "".join(texts)


class Bounded(ImmutableSandboxedEnvironment):
    """The environment that templates of others are compiled in."""

    concat = staticmethod(_concat)
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self, **options: Any) -> None:
        # Not optimized: nothing is computed before a budget is there.
        super().__init__(optimized=False, finalize=_plain, **options)
        self.globals = {"range": range}  # the name only; each rendering brings its own
        kept = {name: self.filters[name] for name in FILTERS.split()}
        self.filters = {name: bounded_filter(name, one) for name, one in kept.items()}
        self.filters |= {name: jinja2.pass_context(one) for name, one in REWRITTEN.items()}
        self.tests = {name: bounded_test(one) for name, one in self.tests.items()}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MAX_SOURCE:
            raise OverflowError(f"it has more than {MAX_SOURCE} characters")
        return super()._parse(source, name, filename)

    def _generate(
        self, source: nodes.Template, name: Any, filename: Any, defer_init: bool = False
    ) -> str:
        _rewritten(source)
        return super()._generate(source, name, filename, defer_init)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kind, names in METHODS.items():
            if isinstance(obj, kind):
                return attr in names and super().is_safe_attribute(obj, attr, value)
        return isinstance(obj, OPEN) and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: object) -> None:
        """Leave `str.format` unwrapped: Jinja asks for one before `is_safe_attribute`."""

    def getitem(self, obj: Any, argument: Any) -> Any:
        BUDGET.get().look(argument)
        return super().getitem(obj, argument)

    # Names that no keyword of a template's call can have.
    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        budget = BUDGET.get()
        budget.spend(PER_NODE)
        args = tuple(map(budget.look, args))
        kwargs = {name: budget.look(value) for name, value in kwargs.items()}
        if isinstance(__obj, types.BuiltinMethodType):
            budget.look(__obj.__self__)
            _bound_method(__obj, args)
        return budget.look(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "**" or (operator == "%" and not numbers):
            raise SecurityError(f"the operator {operator!r} is not allowed here")
        if not numbers:
            _bound_operator(operator, left, right)
        elif operator == "*" and _bits(left) + _bits(right) > MAX_BITS:
            raise OverflowError(f"a number has more than {MAX_BITS} bits")
        return BUDGET.get().look(super().call_binop(context, operator, left, right))


def _bound_method(method: Any, args: tuple[Any, ...]) -> None:
    if method.__name__ == "replace":
        BOUNDS["replace"](method.__self__, *args)
    elif method.__name__ == "join" and args:
        BOUNDS["join"](args[0], method.__self__)


def _bits(number: float) -> int:
    return number.bit_length() if isinstance(number, int) else 0


def _bound_operator(operator: str, left: Any, right: Any) -> None:
    sizes = [len(one) if isinstance(one, str | list | tuple) else 0 for one in (left, right)]
    if operator == "+":
        BUDGET.get().text(sum(sizes))
    if operator == "*":
        times = next((one for one in (left, right) if isinstance(one, int)), 0)
        BUDGET.get().text(max(0, times) * max(sizes))


def rendered(template: jinja2.Template, values: Mapping[str, Any]) -> str:
    """The text for these values, within a budget of its own."""
    budget = Budget(size_of(list(values.values()), UNITS))
    token = BUDGET.set(budget)
    try:
        text = _collect(template.generate({**values, "range": _budgeted_range()}))
        text.encode("utf-8")  # fails where an escape names what is no text
        return text
    finally:
        BUDGET.reset(token)


def _collect(pieces: Iterator[str]) -> str:
    kept: list[str] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > MAX_CHARS:
            raise OverflowError(f"more than {MAX_CHARS} characters")
        kept.append(piece)
    return "".join(kept)


def _budgeted_range() -> Callable[..., range]:
    """A `range` whose calls share one budget, so nested loops end as well."""
    left = MAX_LOOPS

    def bounded(*args: int) -> range:
        nonlocal left
        counted = range(*args)
        # Not len(): it overflows for ranges beyond 2**63 with a message of its own.
        if counted and abs(counted[-1] - counted[0]) // abs(counted.step) >= left:
            raise OverflowError(f"range() counts to more than {MAX_LOOPS} in one prompt")
        left -= len(counted)
        return counted

    return bounded


def line_of(error: BaseException) -> int:
    """The line of the template at fault, read from the frames that Jinja maps back; 0: unknown."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
