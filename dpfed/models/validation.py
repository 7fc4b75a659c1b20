"""Refuses models whose layers mix records: one record would change the embeddings of others, also those of other groups.

The only exception is a layer that mixes the records of one group and declares this. A caller must pass one group at a time to
a model with such a layer (`dpfed.models.norm.mixes_records`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from dpfed.errors import UserError, first_line
from dpfed.models.probe import Probe, Views, close, nearly, same

_SEEDS = 8  # number of seeds for a model that draws random numbers: it may mix records with some seeds only
_REMEDY = "Let each record be embedded by itself (for normalisation: GroupNorm or LayerNorm)."


def validate(model: nn.Module) -> None:
    """Checks that no layer of a model is of a type that mixes records.

    Args:
        model: Any module.

    Raises:
        UserError: For torch's BatchNorm of any kind, InstanceNorm with running statistics, or a layer that declares that it
            mixes a group (`dpfed.models.norm`) and has no anchors; the message names the module and the fix.
    """
    for path, module in model.named_modules():
        where = f"{type(module).__name__} at '{path or 'the model itself'}'"
        if isinstance(module, _BatchNorm):
            raise UserError(
                f"{where} mixes records through batch statistics: dpfed.with_group_norm(encoder) replaces every BatchNorm by "
                "a GroupNorm. [model-batch-norm]"
            )
        if getattr(module, "mixes_one_group", False) and not getattr(module, "anchors", 0):
            raise UserError(
                f"{where} takes its statistics from public images ('anchors') but has none: train "
                "dpfed.baselines.anchored_batch_norm.AnchoredEncoder(encoder, anchors) instead of the encoder. "
                "[norm-no-anchors]"
            )
        if isinstance(module, _InstanceNorm) and module.track_running_stats:
            raise UserError(
                f"{where} keeps statistics of private records: set track_running_stats=False, or use GroupNorm. [norm-instance]"
            )


def random_group(
    size: int | tuple[int, int, int], text: tuple[int, int] | None = None, records: int = 3, views: int = 2
) -> Views:
    """Draws a small group of random records, for `check_independence`.

    Args:
        size: Side of the images, pixels, or their shape (C, H, W).
        text: Vocabulary and context of the captions, if the model reads captions.
        records: S, number of records.
        views: V, number of views of an image; a record has one caption.

    Returns:
        The views, ``{"image": (S, V, C, H, W)[, "text": (S, 1, context)]}``.
    """
    shape = (3, size, size) if isinstance(size, int) else size
    group = {"image": torch.randn(records, views, *shape)}
    if text is not None:
        vocabulary, context = text
        group["text"] = torch.randint(1, vocabulary, (records, 1, context))
    return group


def check_independence(model: nn.Module, views: Views, largest: int = 0) -> None:
    """Runs a copy of the model in training mode and checks that a record changes no embedding but its own.

    This catches a user's own layers, which `validate` cannot know. First, a little noise is added to all trainable weights of
    the copy: this opens gates that start at zero. Then no embedding may change when the views of other records change, or when
    another record is left out. Nor may an embedding have a nonzero derivative with respect to another record's image; such a
    derivative reveals even a gate that is nearly closed. Layers that mix a group on purpose (`dpfed.models.norm`) take their
    statistics only from the anchors during the check, so that the check finds only other layers that mix. The model itself and
    the random state do not change. docs/commands.md lists the mixing that this check cannot find.

    Args:
        model: Model that keeps the contract of docs/architecture.md.
        views: Group of at least two records (see `random_group`), on the model's device.
        largest: Largest number of records in one forward pass of training. If it exceeds the number of records in `views`, a
            random group of `largest` records is tried as well.

    Raises:
        UserError: If an embedding depends on another record; if the model keeps something of a forward pass for the next one,
            or draws from a random generator of its own; or if it cannot be copied, fails (also in its backward pass), or does
            not return embeddings.
        ValueError: If the group has fewer than two records.
    """
    records = len(views["image"])
    if records < 2:
        raise ValueError(f"a group of at least two records is needed, got {records}")
    _check_first_pass(Probe(model), views)
    examination = _Examination(model, views)
    each = torch.eye(records, dtype=torch.bool)
    examination.check_changes(views, each)
    examination.check_derivatives(views)
    examination.check_company(views)
    if largest > records:
        generator = torch.Generator().manual_seed(0)
        half = torch.randperm(largest, generator=generator) < largest // 2
        examination.check_changes(_group_like(views, largest), half[None], again=False)


def _check_first_pass(probe: Probe, views: Views) -> None:
    """Refuses a model that cannot embed a random group, or changes a buffer when it does."""
    buffers = {name: buffer.clone() for name, buffer in probe.model.named_buffers()}
    try:
        probe.embed(views)
    except UserError:
        raise
    except Exception as error:  # a user's forward can raise anything
        shapes = {name: tuple(view.shape) for name, view in views.items()}
        raise UserError(
            f"{type(probe.model).__name__} cannot embed random views {shapes}: {error!r}. [model-cannot-embed]"
        ) from error
    for name, buffer in probe.model.named_buffers():
        if name not in buffers or not torch.equal(buffer, buffers[name]):
            raise UserError(
                f"the buffer '{name}' changes in a forward pass: it would keep statistics of private records outside the "
                "clipped gradient. Use a layer without running statistics (GroupNorm or LayerNorm). [model-buffer-changes]"
            )


class _Examination:
    """The checks of one model, at weights that training may reach.

    If no record affects another one's embedding, two passes of equal shape give equal bits for a record, whatever the other
    records are. If the bits differ, the check is repeated in float64, because some kernels of GPUs round differently each time:
    in float64, rounding is far smaller than the effect of one record on another.
    """

    def __init__(self, model: nn.Module, views: Views) -> None:
        self._name = type(model).__name__
        self._probe = Probe(model)
        self._probe.move_weights()
        moved = all(bool(z.isfinite().all()) for z in self._probe.embed(views).values())
        if not moved:
            self._probe = Probe(model)  # moved weights give non-finite embeddings: keep the original weights
        self._draws = self._probe.draws
        self._seeds = range(_SEEDS if self._draws else 1)

        def exact() -> Probe:
            probe = Probe(model, torch.float64)
            if moved:
                probe.move_weights()
            return probe

        self._exact = exact

    def check_changes(self, views: Views, changes: torch.Tensor, again: bool = True) -> None:
        """Refuses a model whose embeddings change when the views of other records change.

        Args:
            views: Views of a group of S records.
            changes: Records whose views are exchanged, ``(n, S)`` bool, one row per trial.
            again: Whether to check that the same views give the same embeddings afterwards.

        Raises:
            UserError: If other records change an embedding, or (with `again`) the same views give other embeddings afterwards.
        """
        for seed in self._seeds:
            before = self._probe.embed(views, seed)
            after = [self._probe.embed(_with_others(views, changed), seed) for changed in changes]
            if again and not same(before, self._probe.embed(views, seed)):
                self._refuse_changing(views, seed)
            for changed, moved in zip(changes, after, strict=True):
                if not same(_rows(before, ~changed), _rows(moved, ~changed)):
                    self._refuse_moved(views, changed, seed)

    def _refuse_changing(self, views: Views, seed: int) -> None:
        if self._in_float64(lambda p: close(p.embed(views, seed), p.embed(views, seed))):
            return
        raise UserError(
            f"{self._name} gives other embeddings when it sees the same views again: it keeps something from one forward "
            "pass to the next, or has its own random generator. Keep nothing, and draw from torch's global "
            "generator. [model-keeps-state]"
        )

    def _refuse_moved(self, views: Views, changed: torch.Tensor, seed: int) -> None:
        if self._in_float64(lambda p: self._rests(p, views, changed, seed)):
            return
        count = int(changed.sum())
        which = f"record {int(changed.nonzero()[0])}" if count == 1 else f"{count} of {len(changed)} records"
        raise UserError(
            f"{self._culprit(views, changed, seed)} mixes records: changing {which} of a group moved the embeddings of others. "
            f"{_REMEDY} [model-mixes-records]"
        )

    def check_derivatives(self, views: Views) -> None:
        """Refuses a model if an embedding has a nonzero derivative with respect to another record's image.

        Raises:
            UserError: If there is such an embedding (the message names the two records), or the backward pass fails.
        """
        try:
            pair = self._probe.leaning(views)
        except (UserError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # a user's own layers can raise anything
            said = first_line(error)
            raise UserError(
                f"the backward pass through {self._name} fails: {type(error).__name__}: {said}. Correct the layer, for example "
                "one that changes a tensor in place. [model-backward]"
            ) from error
        if pair:
            changed = torch.arange(len(views["image"])) == pair[1]
            raise UserError(
                f"{self._culprit(views, changed)} mixes records: the embedding of record {pair[0]} of a group has a "
                f"derivative, however small, with respect to the image of record {pair[1]}. {_REMEDY} [model-mixes-slightly]"
            )

    def check_company(self, views: Views) -> None:
        """Refuses a model whose embeddings depend on the number of records in a group, or on a record's place in it.

        Raises:
            UserError: If embeddings change when the first record is left out of the group.
        """
        rest, others = {name: view[1:] for name, view in views.items()}, torch.arange(len(views["image"])) > 0

        def unmoved(probe: Probe, agree: Callable[[Views, Views], bool]) -> bool:
            with probe.without_dropout() if self._draws else nullcontext():
                probe.draws = False
                together, alone = _rows(probe.embed(views), others), probe.embed(rest)
                return probe.draws or agree(together, alone)  # fewer records draw other random numbers: nothing to compare

        if not unmoved(self._probe, nearly) and not self._in_float64(lambda p: unmoved(p, close)):
            raise UserError(
                f"{self._name} mixes records: without the first record of a group, the others' embeddings change. "
                "Embeddings depend on the number of records in the group, or on a record's position in it. "
                f"{_REMEDY} [model-counts-records]"
            )

    def _in_float64(self, question: Callable[[Probe], bool]) -> bool:
        """Asks a question of a probe that computes in float64; returns False if the model cannot compute in float64."""
        try:
            return question(self._exact())
        except (UserError, RuntimeError, TypeError):
            return False

    @staticmethod
    def _rests(probe: Probe, views: Views, changed: torch.Tensor, seed: int) -> bool:
        moved = probe.embed(_with_others(views, changed), seed)
        return close(_rows(probe.embed(views, seed), ~changed), _rows(moved, ~changed))

    def _culprit(self, views: Views, changed: torch.Tensor, seed: int = 0) -> str:
        """Returns the name of the first module in which a record's output changes with other records, or else the model's."""
        before, after = (self._probe.activations(group, seed) for group in (views, _with_others(views, changed)))
        rows = {len(changed), *(view.shape[:2].numel() for view in views.values())}  # lengths of outputs by record or view
        for (name, first), (_, second) in zip(before, after, strict=False):
            if first.dim() and first.shape == second.shape and len(first) in rows:
                each = ({name: output.unflatten(0, (len(changed), -1))} for output in (first, second))
                if not same(*(_rows(output, ~changed) for output in each)):
                    return name
        return self._name


def _with_others(views: Views, changed: torch.Tensor) -> Views:
    """Returns the group with other views of the records that `changed`, ``(S,)`` bool, selects."""
    result = {name: tensor.clone() for name, tensor in views.items()}
    image = views["image"]
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(0)).to(image)
    changed = changed.to(image.device)
    result["image"][changed] = (1 + 3 * noise)[changed]  # mean and scale change, too: some layers mix only these
    if "text" in views:
        # Another record's tokens in reverse: valid token numbers, whatever the vocabulary.
        result["text"][changed] = views["text"].roll(1, 0).flip(-1)[changed]
    return result


def _group_like(views: Views, records: int) -> Views:
    """Draws a random group of another size, with tokens from the given group."""
    generator = torch.Generator().manual_seed(1)
    image = views["image"]
    group = {"image": torch.randn(records, *image.shape[1:], generator=generator).to(image)}
    if "text" in views:
        tokens = views["text"]
        chosen = torch.randint(tokens.numel(), (records, *tokens.shape[1:]), generator=generator).to(tokens.device)
        group["text"] = tokens.flatten()[chosen]
    return group


def _rows(embeddings: Views, kept: torch.Tensor) -> Views:
    """Returns the embeddings of the records that `kept`, ``(S,)`` bool, selects."""
    return {name: z[kept.to(z.device)] for name, z in embeddings.items()}
