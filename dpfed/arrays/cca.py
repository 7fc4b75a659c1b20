"""`dpfed.PrivateCCA`: learns linear heads for two matrices of features of the same records, under differential privacy."""

from __future__ import annotations

import copy
import math
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from dpfed.arrays import folder as folders
from dpfed.arrays.basis import bases_in, basis_of, refuse_shared
from dpfed.arrays.budgeting import Budget, Held, set_for
from dpfed.arrays.card import card_of
from dpfed.arrays.embedding import embedded, recall
from dpfed.arrays.fitting import Fit, Shape
from dpfed.arrays.parameters import randomness_of, wanted_of
from dpfed.arrays.records import ArrayRecords
from dpfed.arrays.refusal import ArrayError
from dpfed.arrays.rows import Rows, rows_of
from dpfed.errors import UserError

_KEPT = ("folder", "budget", "random_state", "basis")  # parameters that are not saved


class PrivateCCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Canonical correlation of two feature matrices under differential privacy, with the interface of scikit-learn's ``CCA``.

    Row i of X and row i of Y hold features of record i. They must depend on that record alone, as those of frozen towers do.
    `fit` adds noise once to the means and moments of the rows, and computes two linear heads from them in closed form
    (docs/moments.md). Each call of `fit` spends `epsilon` again.

    Args:
        epsilon: Privacy loss of one fit; required.
        delta: Delta of the guarantee; default: 1/(N ln N), where N is the number of records, or of groups if there are any.
        n_components: Number of most correlated directions to keep, as in ``CCA``; useful if X and Y share few directions.
            ``None``: the heads have `dimensions` columns, as in a run of private moments. `with_components` changes the number
            at no privacy cost.
        dimensions: Number of dimensions after a public projection of the features, k. ``None``: chosen from N and the noise;
            for X alone and for aligned matrices the number of columns, at most N.
        basis: Public rows from which the projection is computed, ``(public_X, public_Y)``. They have the columns of X and of Y;
            row i of `public_X` and row i of `public_Y` may belong to different records. ``None`` or ``"random"``: a projection
            of random numbers. X alone and aligned matrices take no public rows.
        aligned: Whether matching rows of X and Y are similar already, as with both towers of a CLIP model.
        noise: Kind of the noise: ``"gaussian"``, or ``"discrete"``, whose proof also covers the rounding of numbers.
        device: Device that computes the sums: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"mps"``.
        folder: Folder for ledger, card and heads of each fit, and for the budget's ledger; ``None``: nothing is kept.
        budget: Lifetime budget for all fits on these rows together, epsilon or (epsilon, delta); it needs `folder`.
        random_state: Seed, for tests only: it makes the noise predictable, so no guarantee holds, and `epsilon_` is infinite.

    Attributes:
        epsilon_: Epsilon that the fit spent.
        delta_: Delta of the guarantee.
        card_: Privacy card, Markdown.
        heads_: Tensors of ``heads.safetensors`` by name, as float32 arrays; the names call X ``image`` and Y ``text``.
        released_: Noisy means and moments, from which the heads are computed, float32.
        ledger_: Privacy ledger, JSON lines.
        basis_fingerprint_: Fingerprint of the public basis; ``None``: the basis is random.
        n_features_in_: Number of columns of X.
        n_features_y_: Number of columns of Y; 0: the fit had no Y.
    """

    epsilon_: float
    delta_: float
    card_: str
    heads_: dict[str, np.ndarray]
    released_: np.ndarray
    ledger_: str
    basis_fingerprint_: str | None
    n_features_in_: int
    n_features_y_: int

    def __init__(
        self,
        epsilon: float | None = None,
        *,
        delta: float | None = None,
        n_components: int | None = None,
        dimensions: int | None = None,
        basis: Any = None,
        aligned: bool = False,
        noise: str = "gaussian",
        device: str = "auto",
        folder: str | Path | None = None,
        budget: Budget | None = None,
        random_state: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.n_components = n_components
        self.dimensions = dimensions
        self.basis = basis
        self.aligned = aligned
        self.noise = noise
        self.device = device
        self.folder = folder
        self.budget = budget
        self.random_state = random_state

    def fit(self, X: Any, Y: Any = None, groups: Any = None) -> PrivateCCA:
        """Computes the heads from X and Y, and spends epsilon.

        A row (or a view of a row) whose numbers are all zero, or not all finite, adds nothing to the sums.

        Args:
            X: Features, ``(N, F)``: array, tensor, data frame, sparse matrix, or path of a file that `dpfed embed` wrote;
                without `Y`, ``(N, V, F)`` for V views of each image.
            Y: Other features of the same records, ``(N, G)``, of the same types.
            groups: Group of each row, such as a person, ``(N,)``. The rows of a group are averaged, and protected together. A
                row with None, NaN or a blank name is a group by itself; spaces around a name do not count.

        Raises:
            UserError: If the rows, the parameters or `folder` cannot be used, or the fit would exceed a lifetime budget; no
                epsilon has been spent then. Also if the ledger or the results cannot be written, or the budget cannot be
                settled; epsilon may have been spent then.
        """
        wanted, randomness = wanted_of(self.get_params(deep=False)), randomness_of(self.random_state)
        x, y = rows_of(X, "X"), None if Y is None else rows_of(Y, "Y")
        basis = basis_of(self.basis, x, y, wanted.aligned, wanted.dimensions)  # before a row of X or Y is read
        with folders.opened(self.folder) as (path, kept):
            if kept:
                folders.refuse_used(path)
            records = ArrayRecords(x, y, groups, path)
            fit, identity, fixed = Fit(wanted, records, basis), secrets.token_hex(8), self.random_state is not None
            self._components(fit.heads.layout.dimensions)
            for rows in filter(None, (x, y)):
                rows.refuse_empty()
            if basis is not None:
                refuse_shared(basis, records)
            if self.budget is not None:
                set_for(records, self.budget)
            earlier = folders.charged_in(folders.fits_in(path))
            place = folders.new_fit(path) if kept else path
            try:
                held = Held(records, fit.plan, identity, place, fixed)
            except UserError:
                if kept:
                    place.rmdir()  # the folder is still empty
                raise
            with folders.writing(place), torch.random.fork_rng(devices=[]):
                ledger = fit.create_ledger(place / folders.LEDGER, fixed)
                fit.run(ledger, randomness)
            budget = held.settled(ledger.charged)
            card = card_of(fit, ledger, identity, budget, earlier)  # if this fails, the previous fit stays intact
            self._shape, self.heads_ = fit.shape, fit.shape.published(fit.heads, self.n_components)
            self.released_ = fit.heads.released.detach().cpu().numpy().copy()
            self.epsilon_, self.delta_ = math.inf if fixed else ledger.epsilon, fit.plan.promise.delta
            self.card_ = card
            self.ledger_ = ledger.path.read_text(encoding="utf-8")
            self.basis_fingerprint_ = None if basis is None else basis.fingerprint
            self.n_features_in_, self.n_features_y_ = x.width, 0 if y is None else y.width
            self._note_columns(x.columns)
            if kept:
                folders.write(place, self._saved())
        return self

    def with_components(self, n_components: int | None) -> PrivateCCA:
        """Returns the same fit with another number of components; it uses released sums only, so it costs no privacy.

        Args:
            n_components: Number of components, see the parameter of the class.

        Raises:
            UserError: If `n_components` is neither ``None`` nor a whole number from 1 to the number of dimensions.
            NotFittedError: If `fit` was not called.
        """
        check_is_fitted(self)
        made = copy.copy(self).set_params(n_components=n_components)
        heads = self._shape.heads()
        made._components(heads.layout.dimensions)
        with torch.no_grad():
            heads.released.copy_(torch.from_numpy(self.released_))
        made.heads_ = self._shape.published(heads, n_components)
        return made

    def transform(self, X: Any, Y: Any = None) -> Any:
        """Maps rows to embeddings of unit length. The inner product of an X embedding and a Y embedding is the pair's score.

        Embeddings are exact functions of the rows, so epsilon does not cover them. A row (or a view of a row) whose numbers are
        all zero, or not all finite, has the embedding 0.

        Args:
            X: Features, ``(n, F)``, see `fit`, or ``(n, V, F)``; ``None``: only Y is embedded.
            Y: Other features, ``(n, G)``; ``None``: only X is embedded.

        Returns:
            The embeddings, ``(n, D)`` or ``(n, V, D)`` float32; a pair of them if both matrices are given.

        Raises:
            UserError: If a matrix cannot be used, or its columns differ from those in the fit.
            NotFittedError: If `fit` was not called.
        """
        check_is_fitted(self)
        z = None if X is None and Y is not None else embedded(self._given(X, "X"), self.heads_, "image")
        if Y is None:
            return z
        w = embedded(self._given(Y, "Y"), self.heads_, "text")
        return w if z is None else (z, w)

    def fit_transform(self, X: Any, Y: Any = None, groups: Any = None) -> Any:  # type: ignore[override]
        """Fits to the rows, and then embeds them; see `fit` and `transform`."""
        return self.fit(X, Y, groups).transform(X, Y)

    def score(self, X: Any, Y: Any = None) -> float:
        """Computes R@10: the fraction of rows whose partner is among the ten nearest candidates, averaged over both directions.

        If `X` has views (n, V, F), the first two views of each row are partners. The score is an exact function of these rows,
        so epsilon does not cover it. Use rows that `fit` did not see.

        Args:
            X: More than ten rows of features, ``(n, F)``; ``(n, V, F)`` without Y.
            Y: Matching rows, ``(n, G)``; ``None``: X has views.

        Returns:
            The score, from 0 to 1; about 10 / n by chance.

        Raises:
            UserError: If X is missing; if Y is missing and X has no views; if both are given and one of them has views; if X
                and Y differ in length; if there are ten rows or fewer; or if `transform` refuses a matrix.
            NotFittedError: If `fit` was not called.
        """
        if X is None:
            raise ArrayError("X is missing: score compares rows of X with rows of Y, or views of one row. [arrays-score-x]")
        if Y is None:
            z = self.transform(X)
            if z.ndim != 3:
                raise ArrayError("Y is missing: score compares rows of X with rows of Y, or views of one row. [arrays-score]")
            return recall(z[:, 0], z[:, 1])
        sides = self.transform(X, Y)
        for name, side in zip("XY", sides, strict=True):
            if side.ndim != 2:
                raise ArrayError(
                    f"{name} has views: with both X and Y, score expects (rows, columns); give one view of each record. "
                    "[arrays-score-views]"
                )
        return recall(*sides)

    def save(self, folder: str | Path) -> None:
        """Writes heads, released sums, card and ledger into a new folder; epsilon covers all of them.

        Raises:
            UserError: If the folder is in use, or cannot be written.
            NotFittedError: If `fit` was not called.
        """
        check_is_fitted(self)
        folders.save_into(folders.place_of(folder), self._saved())

    @classmethod
    def load(cls, folder: str | Path) -> PrivateCCA:
        """Loads a fit that `save` wrote, or that `fit` wrote into the estimator's `folder`.

        From a folder of several fits, the last complete fit is loaded.
        The parameters `basis`, `folder`, `budget` and `random_state` are not saved: they get their defaults.

        Raises:
            UserError: If the folder has no fit, or the fit is damaged.
        """
        path = folders.place_of(folder)
        saved = folders.read(path)
        with folders.intact(path):
            made = cls(**saved.parameters)
            made.heads_, made.released_, made.card_, made.ledger_ = saved.heads, saved.released, saved.card, saved.ledger
            made.epsilon_, made.delta_ = math.inf if saved.epsilon is None else saved.epsilon, saved.delta
            made.n_features_in_, made.n_features_y_ = saved.widths[0], (*saved.widths, 0)[1]
            made.basis_fingerprint_, bases = saved.basis, None if saved.basis is None else bases_in(saved.heads)
            made._shape = Shape(saved.plan, saved.widths, bool(made.aligned), bases)
            made._note_columns(saved.columns)
        return made

    @property
    def _n_features_out(self) -> int:
        return int(self.heads_["image.matrix"].shape[1])

    def __sklearn_tags__(self) -> Tags:
        """Tells scikit-learn which inputs this estimator accepts."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.sparse = tags.input_tags.three_d_array = True
        tags.target_tags.two_d_labels = True
        tags.transformer_tags.preserves_dtype = []
        tags.non_deterministic = True
        return tags

    def _components(self, k: int) -> None:
        wanted = self.n_components
        whole = isinstance(wanted, int | np.integer) and not isinstance(wanted, bool)
        if wanted is not None and not (whole and 1 <= wanted <= k):
            raise ArrayError(
                f"n_components = {wanted!r}: expected a whole number from 1 to {k}, the number of dimensions. [arrays-parts]"
            )

    def _note_columns(self, columns: tuple[str, ...] | None) -> None:
        if columns is not None:
            self.feature_names_in_ = np.array(columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _given(self, given: Any, name: str) -> Rows:
        """Reads rows for `transform`, and checks that they have the same columns as the rows of the fit."""
        rows = rows_of(given, name, least=1)
        expected = self.n_features_in_ if name == "X" else self.n_features_y_
        if not expected:
            raise ArrayError("the estimator was fitted to X alone: give no Y. [arrays-no-y]")
        if rows.width != expected:
            raise ArrayError(
                f"{name} has {rows.width} features, but {type(self).__name__} is expecting {expected} features as input. "
                "[arrays-other-columns]"
            )
        known = getattr(self, "feature_names_in_", None)
        if name == "X" and known is not None and rows.columns is not None and rows.columns != tuple(known):
            raise ArrayError(
                "the columns of X differ from those in the fit in their names or their order: give the same columns in the "
                "same order. [arrays-columns]"
            )
        return rows

    def _saved(self) -> folders.Saved:
        columns = getattr(self, "feature_names_in_", None)
        return folders.Saved(
            parameters={name: value for name, value in self.get_params().items() if name not in _KEPT},
            epsilon=self.epsilon_ if math.isfinite(self.epsilon_) else None,
            delta=self.delta_,
            widths=tuple(filter(None, (self.n_features_in_, self.n_features_y_))),
            heads=self.heads_,
            released=self.released_,
            card=self.card_,
            ledger=self.ledger_,
            columns=None if columns is None else tuple(columns),
            basis=self.basis_fingerprint_,
        )
