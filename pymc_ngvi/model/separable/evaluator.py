"""Evaluating sums over rows at draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.sparse import LowRankStructure, Structure
from pymc_ngvi.core.target import averaging
from pymc_ngvi.model.separable.assembly import (
    Piece,
    Places,
    pieces_of,
    scalar_piece,
    structure_of,
)
from pymc_ngvi.model.separable.functions import (
    CURVATURES,
    GRADIENTS,
    VALUES,
    RowFunction,
    Sheet,
)
from pymc_ngvi.model.separable.linear import LinearMap, TooLargeError
from pymc_ngvi.model.separable.one_row import Leaf
from pymc_ngvi.model.separable.operators import RowVector
from pymc_ngvi.model.separable.row_term import Element

# Numbers (draws times rows) of which a few arrays are held at a time: 2 MB each, which a cache
# holds, or 64 MB for a few draws, which then share one reading of the matrices.
_NUMBERS, _MOST_NUMBERS = 2**18, 2**23
_FEW_DRAWS = 8

# Parameters that a row may depend on for all entries of its products to be listed: 64 MB.
_MOST_LISTED = 4000


#: A block of a Hessian, and the pair of elements that it belongs to.
Block = tuple[tuple[Element, Element], Piece]


class TermMatrices:
    """The matrices of a sum over rows: what does not change where other constants are seen.

    Parameters
    ----------
    function : RowFunction
    n_rows : int

    Attributes
    ----------
    vectors : dict
        By element, what rows see of the flat vector.
    """

    def __init__(self, function: RowFunction, n_rows: int) -> None:
        self.function = function
        self.n_rows = n_rows
        self.vectors: dict[Element, RowVector] = {}
        self._shapes: list[tuple[int, ...]] = []
        self._by_row: list[bool] = []
        self._placed: tuple[Structure, list[tuple[Block, Places]]] | None = None

    def add_leaf(self, source: LinearMap, positions: np.ndarray, leaf: Leaf) -> None:
        """Add a leaf: the elements (r, block) that rows see of an affine variable."""
        number = len(self._shapes)
        for j in range(positions.shape[1]):
            linear = source.take(positions[:, j])
            vector = RowVector.of(linear) if leaf.by_row else RowVector.scalar(linear)
            self.vectors[number, j] = vector
        self._shapes.append(leaf.symbol.type.shape)
        self._by_row.append(leaf.by_row)

    def is_by_row(self, element: Element) -> bool:
        """Whether an element is a row vector, not a number that all rows see."""
        return self._by_row[element[0]]

    def leaves(self, draws: Array) -> list[Array]:
        """Evaluate all leaves at draws (n, d)."""
        leaves = []
        for number, shape in enumerate(self._shapes):
            size = int(np.prod(shape, dtype=int))
            values = [self.vectors[number, j](draws) for j in range(size)]
            whole = values[0] if shape == () else np.stack(values, axis=-1)
            leaves.append(whole.reshape(*whole.shape[:2], *shape))
        return leaves

    @cached_property
    def wide(self) -> list[tuple[Element, Element]]:
        """Pairs of a wide row vector with itself: of these only the weights are kept."""
        return [
            (element, element)
            for element, vector in self.vectors.items()
            if vector.is_wide and (element, element) in self.function.pairs
        ]

    @cached_property
    def blocks(self) -> list[Block]:
        """The blocks of the Hessian but those of wide row vectors."""
        return [
            (pair, piece)
            for pair in self.function.pairs
            if pair not in self.wide
            for piece in self._pieces(pair)
        ]

    @cached_property
    def wide_blocks(self) -> list[Block]:
        """The blocks of wide row vectors, with all their entries."""
        widths = [self.vectors[element].width for element, _ in self.wide]
        if max(widths, default=0) > _MOST_LISTED:
            raise TooLargeError(f"a row depends on {max(widths):,} parameters")
        return [(pair, piece) for pair in self.wide for piece in self._pieces(pair)]

    def _pieces(self, pair: tuple[Element, Element]) -> Sequence[Piece]:
        first, second = (self.vectors[element] for element in pair)
        if self.is_by_row(pair[1]) and not self.is_by_row(pair[0]):
            return [scalar_piece(first, second)]
        return pieces_of(first, second)

    def placed(self, structure: Structure, *, listed: bool) -> list[tuple[Block, Places]]:
        """Return where each block stands on a structure; kept for the last one.

        Parameters
        ----------
        structure : Structure
        listed : bool
            Whether it lists the entries of wide row vectors as well.
        """
        if self._placed is None or self._placed[0] is not structure:
            blocks = [*self.blocks, *(self.wide_blocks if listed else ())]
            self._placed = structure, [(block, Places(block[1], structure)) for block in blocks]
        return self._placed[1]


@dataclass(frozen=True, eq=False)
class BoundTerm:
    """A sum over rows with its data.

    Attributes
    ----------
    matrices : TermMatrices
    constants : list of array
        What rows see beside the flat vector.
    common : bool
        Whether it is the same for all batches of the data.
    """

    matrices: TermMatrices
    constants: list[np.ndarray]
    common: bool = False

    def sheet(self, draws: Array, order: int, means: Array | None = None) -> Sheet:
        """Evaluate the row function at draws (n, d)."""
        of, leaves = self.matrices, self.matrices.leaves(draws)
        return of.function(leaves, self.constants, of.n_rows, order, means)


class RowEvaluator:
    """A sum of sums over rows, with data: log densities and derivatives at draws.

    Parameters
    ----------
    terms : list of BoundTerm
    offset : float
        What does not depend on the flat vector.
    dim : int
    """

    def __init__(self, terms: list[BoundTerm], offset: float, dim: int) -> None:
        self._terms = terms
        self._offset = offset
        self.dim = dim

    @property
    def common(self) -> RowEvaluator:
        """The sums that are the same for all batches of the data."""
        return RowEvaluator([term for term in self._terms if term.common], 0.0, self.dim)

    @property
    def own(self) -> RowEvaluator:
        """The sums that are those of this batch."""
        own = [term for term in self._terms if not term.common]
        return RowEvaluator(own, self._offset, self.dim)

    @property
    def n_rows(self) -> int:
        """Rows of all sums together."""
        return sum(term.matrices.n_rows for term in self._terms)

    def prepare(self) -> None:
        """Build what second derivatives need: it gives first derivatives and values as well."""
        for term in self._terms:
            _ = term.matrices.function.pairs

    @cached_property
    def _sparse(self) -> Structure:
        """Structure of the Hessian without the products of wide row vectors."""
        blocks = [block for term in self._terms for block in term.matrices.blocks]
        return structure_of([piece for _, piece in blocks], self.dim)

    @cached_property
    def structure(self) -> Structure:
        """Where the Hessian may differ from zero; with rows of low rank where some are wide."""
        rows = [
            term.matrices.vectors[first].matrix
            for term in self._terms
            for first, _ in term.matrices.wide
        ]
        if not rows:
            return self._sparse
        return LowRankStructure(self._sparse, rows[0] if len(rows) == 1 else np.concatenate(rows))

    @property
    def entries(self) -> Structure:
        """Where the Hessian may differ from zero, entry by entry.

        Raises
        ------
        TooLargeError
            Where rows depend on so many components that these cannot be listed.
        """
        if self.structure is self._sparse:
            return self._sparse
        wide = [block for term in self._terms for block in term.matrices.wide_blocks]
        return self._sparse.union(structure_of([piece for _, piece in wide], self.dim))

    def log_density(self, draws: Array) -> Array:
        """Log densities (n,) at draws (n, d)."""
        parts = [
            self._add_up([term.sheet(chunk, VALUES) for term in self._terms], len(chunk))
            for chunk in self._chunks(draws)
        ]
        return np.concatenate(parts)

    def gradients(self, draws: Array) -> tuple[Array, Array]:
        """Log densities (n,) and gradients (n, d)."""
        density, gradient = np.empty(len(draws)), np.empty_like(draws)
        for part, sheets in self._sheets(draws, GRADIENTS):
            density[part], gradient[part] = self._first_order(sheets, len(draws[part]))
        return density, gradient

    def hessians(self, draws: Array, whole: Structure | None = None) -> tuple[Array, Array, Array]:
        """Log densities (n,), gradients (n, d) and the values (n, m) of Hessians.

        They are values on `structure`, or on a `whole` one of more rows than those seen here.
        """
        density, gradient = np.empty(len(draws)), np.empty_like(draws)
        values = np.zeros((len(draws), (whole or self.structure).nnz))
        for part, sheets in self._sheets(draws, CURVATURES):
            density[part], gradient[part] = self._first_order(sheets, len(draws[part]))
            for i, to in enumerate(values[part]):
                self._assemble(sheets, i, to, whole)
        return density, gradient, values

    def mean_hessians(
        self, draws: Array, sets: int, whole: Structure | None = None
    ) -> tuple[Array, Array, Array]:
        """Log densities (n,), gradients (n, d) and the values (sets, m) of mean Hessians."""
        density, gradient = np.empty(len(draws)), np.empty_like(draws)
        values = np.zeros((sets, (whole or self.structure).nnz))
        for part, sheets in self._sheets(draws, CURVATURES, averaging(len(draws), sets)):
            density[part], gradient[part] = self._first_order(sheets, len(draws[part]))
            for i, to in enumerate(values):
                self._assemble(sheets, i, to, whole)
        return density, gradient, values

    def products(self, draws: Array, vectors: Array) -> Array:
        """Products (n, d) of the Hessian at each draw (n, d) with its vector (n, d)."""
        result = np.zeros_like(draws)
        for part, sheets in self._sheets(draws, CURVATURES):
            for term, sheet in zip(self._terms, sheets, strict=True):
                _multiply(term.matrices, sheet, vectors[part], result[part])
        return result

    def _sheets(
        self, draws: Array, order: int, means: Array | None = None
    ) -> Iterator[tuple[slice, list[Sheet]]]:
        start = 0
        for chunk in self._chunks(draws):
            part = slice(start, start + len(chunk))
            own = None if means is None else means[:, part]
            yield part, [term.sheet(chunk, order, own) for term in self._terms]
            start += len(chunk)

    def _chunks(self, draws: Array) -> Iterator[Array]:
        most = max((term.matrices.n_rows for term in self._terms), default=1)
        step = max(_NUMBERS // most, min(_FEW_DRAWS, _MOST_NUMBERS // most), 1)
        yield from (draws[i : i + step] for i in range(0, len(draws), step))

    def _add_up(self, sheets: list[Sheet], n: int) -> Array:
        density, valid = np.full(n, self._offset), np.ones(n, dtype=bool)
        for sheet in sheets:
            density = density + sheet.log_density
            valid = valid & sheet.valid
        return np.where(valid, density, -np.inf)

    def _first_order(self, sheets: list[Sheet], n: int) -> tuple[Array, Array]:
        gradient = np.zeros((n, self.dim))
        for term, sheet in zip(self._terms, sheets, strict=True):
            for element, values in sheet.gradients.items():
                term.matrices.vectors[element].add_transposed(values, gradient)
        return self._add_up(sheets, n), gradient

    def _assemble(self, sheets: list[Sheet], draw: int, to: Array, whole: Structure | None) -> None:
        base, listed = (self._sparse, False) if whole is None else (whole, True)
        start = base.nnz
        for term, sheet in zip(self._terms, sheets, strict=True):
            of = term.matrices
            for (pair, piece), places in of.placed(base, listed=listed):
                places.add(piece.values(sheet.curvatures[pair][draw]), to)
            for pair in () if listed else of.wide:
                to[start : start + of.n_rows] = sheet.curvatures[pair][draw]
                start += of.n_rows


def _multiply(term: TermMatrices, sheet: Sheet, vectors: Array, to: Array) -> None:
    """Add the products of a term's Hessians with vectors (n, d) to (n, d)."""
    images = {element: vector.apply(vectors) for element, vector in term.vectors.items()}
    for (first, second), weights in sheet.curvatures.items():
        # A number that all rows see takes the sum over the rows.
        shrink = term.is_by_row(second) and not term.is_by_row(first)
        left = weights * images[second]
        left = left.sum(axis=1, keepdims=True) if shrink else left
        term.vectors[first].add_transposed(left, to)
        if first != second:
            term.vectors[second].add_transposed(weights * images[first], to)
