"""Lanes: explicit vector instructions for numba, where loops are too short to be vectorised.

A tile of a matrix product stays in registers: on loops of 40 numbers that is three times as fast as
plain loops.
"""

from __future__ import annotations

from typing import Any

import numba
from numba import extending
from numba.core import cgutils, types

tools: Any = cgutils
ir: Any = tools.ir
intrinsic: Any = extending.intrinsic
config: Any = numba.config
LANES, ROWS = 8, 4  # numbers per instruction, and rows per tile of a product


class Lanes(types.Type):
    """The type of a vector of LANES numbers."""

    def __init__(self, dtype: Any) -> None:
        super().__init__(name=f"Lanes({dtype})")
        self.dtype = dtype


@extending.register_model(Lanes)
class _LanesModel(extending.models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        number = manager[kind.dtype].get_value_type()
        super().__init__(manager, kind, ir.VectorType(number, LANES))  # type: ignore[no-untyped-call]


class _Code:
    """Emit vector instructions for one dtype."""

    def __init__(self, context: Any, builder: Any, dtype: Any) -> None:
        self.context, self.builder, self.dtype = context, builder, dtype
        number = context.get_value_type(dtype)
        self.kind, self.bytes = ir.VectorType(number, LANES), context.get_abi_sizeof(number)

    def place(self, kind: Any, array: Any, row: Any, column: Any, wide: int = LANES) -> Any:
        """Return the address of an entry of a contiguous matrix, and of `wide` - 1 after it."""
        held = self.context.make_array(kind)(self.context, self.builder, array)
        height, stride = (self.builder.extract_value(held.shape, axis) for axis in range(2))
        if config.BOUNDSCHECK:
            last = self.builder.add(column, column.type(wide - 1))
            for at, size in ((row, height), (column, stride), (last, stride)):
                tools.do_boundscheck(self.context, self.builder, at, size)
        at = self.builder.add(self.builder.mul(row, stride), column)
        return self.builder.gep(held.data, [at])

    def load(self, place: Any) -> Any:
        place = self.builder.bitcast(place, self.kind.as_pointer())
        return self.builder.load(place, align=self.bytes)

    def store(self, value: Any, place: Any) -> None:
        place = self.builder.bitcast(place, self.kind.as_pointer())
        self.builder.store(value, place, align=self.bytes)

    def all(self, value: Any, kind: Any) -> Any:
        """Return lanes as they are, a scalar broadcast to all lanes."""
        if isinstance(kind, Lanes):
            return value
        value = self.context.cast(self.builder, value, kind, self.dtype)
        whole, first = ir.Constant(self.kind, ir.Undefined), ir.Constant(ir.IntType(32), 0)
        every = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return self.builder.shuffle_vector(
            self.builder.insert_element(whole, value, first), whole, every
        )

    def add_product(self, total: Any, x: Any, y: Any) -> Any:
        flags = ("contract", "nsz")
        return self.builder.fadd(total, self.builder.fmul(x, y, flags=flags), flags=flags)


@intrinsic
def load(typing, array, row, column):  # type: ignore[no-untyped-def]
    """Load lanes of a row of an array, from a column on."""

    def write(context, builder, signature, args):  # type: ignore[no-untyped-def]
        code = _Code(context, builder, signature.args[0].dtype)
        return code.load(code.place(signature.args[0], *args))

    return Lanes(array.dtype)(array, types.intp, types.intp), write


@intrinsic
def store(typing, array, row, column, lanes):  # type: ignore[no-untyped-def]
    """Store lanes in a row of an array, from a column on."""

    def write(context, builder, signature, args):  # type: ignore[no-untyped-def]
        code = _Code(context, builder, signature.args[0].dtype)
        code.store(args[3], code.place(signature.args[0], *args[:3]))
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, lanes), write


@intrinsic
def mul_add(typing, x, y, total):  # type: ignore[no-untyped-def]
    """Return x y + total; x and y are lanes or scalars, total is lanes."""

    def write(context, builder, signature, args):  # type: ignore[no-untyped-def]
        code = _Code(context, builder, signature.return_type.dtype)
        x, y, total = (code.all(a, kind) for a, kind in zip(args, signature.args, strict=True))
        return code.add_product(total, x, y)

    lanes = next(kind for kind in (x, y, total) if isinstance(kind, Lanes))
    return lanes(x, y, total), write


@intrinsic
def bend(typing, lanes, above, below):  # type: ignore[no-untyped-def]
    """Return `above` where lanes are above 0, else `below`."""

    def write(context, builder, signature, args):  # type: ignore[no-untyped-def]
        code = _Code(context, builder, signature.args[0].dtype)
        _, above, below = (code.all(a, kind) for a, kind in zip(args, signature.args, strict=True))
        up = builder.fcmp_ordered(">", args[0], ir.Constant(code.kind, None))
        return builder.select(up, above, below)

    return lanes(lanes, above, below), write


@intrinsic
def total_of(typing, lanes):  # type: ignore[no-untyped-def]
    """Return the sum of lanes."""

    def write(context, builder, signature, args):  # type: ignore[no-untyped-def]
        number = context.get_value_type(signature.return_type)
        name = f"llvm.vector.reduce.fadd.v{LANES}f{8 * context.get_abi_sizeof(number)}"
        kind = ir.FunctionType(number, [number, args[0].type])
        adds = tools.get_or_insert_function(builder.module, kind, name)
        return builder.call(adds, [ir.Constant(number, 0.0), args[0]], fastmath=("reassoc",))

    return lanes.dtype(lanes), write


def _tile(columns: int) -> Any:
    """Return code for out = start + left @ right on a tile of ROWS x (columns * LANES)."""

    @intrinsic
    def tile(typing, out, start, left, right, terms, row, column):  # type: ignore[no-untyped-def]
        def write(context, builder, signature, args):  # type: ignore[no-untyped-def]
            out, start, left, right = zip(signature.args[:4], args[:4], strict=True)
            terms, row, column = args[4:]
            code = _Code(context, builder, out[0].dtype)
            rows = [builder.add(row, row.type(i)) for i in range(ROWS)]
            cells = [builder.add(column, column.type(LANES * j)) for j in range(columns)]
            sums = {(i, j): tools.alloca_once(builder, code.kind) for i in rows for j in cells}
            for (i, j), total in sums.items():
                builder.store(code.load(code.place(*start, i, j)), total)
            with tools.for_range(builder, terms) as loop:
                theirs = {j: code.load(code.place(*right, loop.index, j)) for j in cells}
                for i in rows:
                    mine = builder.load(code.place(*left, i, loop.index, 1))
                    mine = code.all(mine, code.dtype)
                    for j in cells:
                        total = builder.load(sums[i, j])
                        builder.store(code.add_product(total, mine, theirs[j]), sums[i, j])
            for (i, j), total in sums.items():
                code.store(builder.load(total), code.place(*out, i, j))
            return context.get_dummy_value()

        where = types.intp, types.intp, types.intp
        return types.void(out, start, left, right, *where), write

    return tile


_one, _two, _three = _tile(1), _tile(2), _tile(3)


@numba.njit(nogil=True, cache=True)
def product(out, start, left, right, rows, terms):  # type: ignore[no-untyped-def]
    """Compute out = start + left @ right for the given numbers of rows and terms."""
    width = out.shape[1]
    for row in range(0, rows, ROWS):
        column = 0
        while width - column >= 3 * LANES:
            _three(out, start, left, right, terms, row, column)
            column += 3 * LANES
        if width - column == 2 * LANES:
            _two(out, start, left, right, terms, row, column)
        elif width - column == LANES:
            _one(out, start, left, right, terms, row, column)


@numba.njit(nogil=True, cache=True)
def next_rows(rows):  # type: ignore[no-untyped-def]
    """Round up to a multiple of the rows per tile."""
    return -(-rows // ROWS) * ROWS
