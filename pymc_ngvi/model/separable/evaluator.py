"""Evaluating sums over rows at draws."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.sparse import LowRankStructure, Structure
from pymc_ngvi.core.target import averaging
from pymc_ngvi.model.separable.assembly import Assembly, Piece, pieces_of, scalar_piece
from pymc_ngvi.model.separable.functions import (
    CURVATURES,
    GRADIENTS,
    VALUES,
    RowFunction,
    Sheet,
)
from pymc_ngvi.model.separable.linear import LinearMap
from pymc_ngvi.model.separable.one_row import Leaf
from pymc_ngvi.model.separable.operators import RowVector
from pymc_ngvi.model.separable.row_term import Element

# Numbers (draws times rows) of which a few arrays are held at a time: 2 MB each, which a cache
# holds, or 64 MB for a few draws, which then share one reading of the matrices.
_NUMBERS, _MOST_NUMBERS = 2**18, 2**23
_FEW_DRAWS = 8


class BoundTerm:
    """A sum over rows with its data.

    Parameters
    ----------
    function : RowFunction
    n_rows : int
    """

    def __init__(self, function: RowFunction, n_rows: int) -> None:
        self.function = function
        self.n_rows = n_rows
        self.constants: list[np.ndarray] = []
        self.vectors: dict[Element, RowVector] = {}
        self._shapes: list[tuple[int, ...]] = []
        self._by_row: list[bool] = []

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

    def sheet(self, draws: Array, order: int, means: Array | None = None) -> Sheet:
        """Evaluate the row function at draws (n, d)."""
        leaves = []
        for number, shape in enumerate(self._shapes):
            size = int(np.prod(shape, dtype=int))
            values = [self.vectors[number, j](draws) for j in range(size)]
            whole = values[0] if shape == () else np.stack(values, axis=-1)
            leaves.append(whole.reshape(*whole.shape[:2], *shape))
        return self.function(leaves, self.constants, self.n_rows, order, means)

    def pieces(self) -> Iterator[tuple[tuple[Element, Element], Piece]]:
        """Yield the blocks of the Hessian, with the pairs of elements that they belong to."""
        for pair in self.function.pairs:
            first, second = (self.vectors[element] for element in pair)
            if first is second and first.is_wide:
                continue
            if self.is_by_row(pair[1]) and not self.is_by_row(pair[0]):
                yield pair, scalar_piece(first, second)
            else:
                for piece in pieces_of(first, second):
                    yield pair, piece


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
    def n_rows(self) -> int:
        """Rows of all sums together."""
        return sum(term.n_rows for term in self._terms)

    @cached_property
    def _pieces(self) -> list[tuple[BoundTerm, tuple[Element, Element], Piece]]:
        return [(term, pair, piece) for term in self._terms for pair, piece in term.pieces()]

    @cached_property
    def _assembly(self) -> Assembly:
        return Assembly([piece for *_, piece in self._pieces], self.dim)

    def prepare(self) -> None:
        """Build what second derivatives need: it gives first derivatives and values as well."""
        for term in self._terms:
            _ = term.function.pairs

    @cached_property
    def _wide(self) -> list[tuple[BoundTerm, tuple[Element, Element]]]:
        """Pairs of a wide row vector with itself: of these only the weights are kept."""
        return [
            (term, (element, element))
            for term in self._terms
            for element, vector in term.vectors.items()
            if vector.is_wide and (element, element) in term.function.pairs
        ]

    @cached_property
    def structure(self) -> Structure:
        """Where the Hessian may differ from zero; with rows of low rank where some are wide."""
        if not self._wide:
            return self._assembly.structure
        rows = [term.vectors[first].matrix for term, (first, _) in self._wide]
        return LowRankStructure(
            self._assembly.structure, rows[0] if len(rows) == 1 else np.concatenate(rows)
        )

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

    def hessians(self, draws: Array) -> tuple[Array, Array, Array]:
        """Log densities (n,), gradients (n, d) and the values (n, m) of Hessians."""
        density, gradient = np.empty(len(draws)), np.empty_like(draws)
        values = np.zeros((len(draws), self.structure.nnz))
        for part, sheets in self._sheets(draws, CURVATURES):
            density[part], gradient[part] = self._first_order(sheets, len(draws[part]))
            for i, to in enumerate(values[part]):
                self._assemble(sheets, i, to)
        return density, gradient, values

    def mean_hessians(self, draws: Array, sets: int) -> tuple[Array, Array, Array]:
        """Log densities (n,), gradients (n, d) and the values (sets, m) of mean Hessians."""
        density, gradient = np.empty(len(draws)), np.empty_like(draws)
        values = np.zeros((sets, self.structure.nnz))
        for part, sheets in self._sheets(draws, CURVATURES, averaging(len(draws), sets)):
            density[part], gradient[part] = self._first_order(sheets, len(draws[part]))
            for i, to in enumerate(values):
                self._assemble(sheets, i, to)
        return density, gradient, values

    def products(self, draws: Array, vectors: Array) -> Array:
        """Products (n, d) of the Hessian at each draw (n, d) with its vector (n, d)."""
        result = np.zeros_like(draws)
        for part, sheets in self._sheets(draws, CURVATURES):
            for term, sheet in zip(self._terms, sheets, strict=True):
                _multiply(term, sheet, vectors[part], result[part])
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
        most = max((term.n_rows for term in self._terms), default=1)
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
                term.vectors[element].add_transposed(values, gradient)
        return self._add_up(sheets, n), gradient

    def _assemble(self, sheets: list[Sheet], draw: int, to: Array) -> None:
        by_term = dict(zip(self._terms, sheets, strict=True))
        for number, (term, pair, piece) in enumerate(self._pieces):
            weights = by_term[term].curvatures[pair][draw]
            self._assembly.add(number, piece.values(weights), to)
        start = self._assembly.structure.nnz
        for term, pair in self._wide:
            to[start : start + term.n_rows] = by_term[term].curvatures[pair][draw]
            start += term.n_rows


def _multiply(term: BoundTerm, sheet: Sheet, vectors: Array, to: Array) -> None:
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
