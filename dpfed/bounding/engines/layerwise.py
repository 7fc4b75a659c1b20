"""Computes many groups in one forward and one backward pass: every layer computes the groups' norms and one weighted sum.

In the literature this method is called ghost clipping. If one backward pass serves for both norms and sum, it is called
book-keeping (Bu et al. 2023).
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from dpfed.bounding import foreach
from dpfed.bounding.clipping import Clip
from dpfed.bounding.engines.batch_invariance import DependsOnOthers, PassFunction, PassResult, require_batch_invariance
from dpfed.bounding.engines.engine import Engine, GroupBatch, LossOfViews, Precision, Views, shared_out
from dpfed.bounding.engines.loop import LoopEngine
from dpfed.bounding.engines.padding import Padding
from dpfed.bounding.engines.repeated_pass import Add, Recording, RepeatedPass, Summed, first_unlike, recording_on
from dpfed.bounding.engines.shared_pass import PassInputs, add_up, check_rows, terms_of
from dpfed.bounding.engines.threads import Threads
from dpfed.bounding.layer_rules.grouping import Grouping, Unsupported, precise_type
from dpfed.bounding.layer_rules.indirect import AdaptedWeight
from dpfed.bounding.layer_rules.recorder import Source
from dpfed.bounding.layer_rules.term import Target
from dpfed.bounding.places import Watched
from dpfed.errors import Notice
from dpfed.models.lora import adapted
from dpfed.models.norm import refuse_mixing
from dpfed.objectives import GroupLoss
from dpfed.objectives.infonce import group_loss

IfUnlike = Literal["warn", "raise", "try", "go on"]
_MOST_RECORDED = 4  # largest number of recorded passes; each keeps the memory of its activations


class LayerwiseEngine(Engine):
    """Engine that computes many groups in one pass over their records, by rules for each layer (`dpfed.bounding.layer_rules`).

    Layers must treat records independently (`dpfed.models.validation` checks that) and keep them along the leading dimension.

    Every bit of a group's contribution to the sum depends on that group alone. Three things ensure this. Every pass has one of
    a few public shapes (`dpfed.bounding.engines.padding`). The engine checks before its first pass that the device computes the
    same bits for a group in all of these shapes (`dpfed.bounding.engines.batch_invariance`). And gradients of different groups
    are added up only after each of them has been clipped by itself. If the check fails, or cannot be made because a layer has
    dropout, the engine warns, and takes one group after the other, as `LoopEngine` does; `if_unlike` may change this.

    On a GPU with Triton, a pass is recorded as a CUDA graph and then replayed, if the replay gives the same bits
    (`dpfed.bounding.engines.repeated_pass`).

    Args:
        model: Model in which every trainable parameter is read once, by a torch function for which there is a rule.
        precision: Precision of the forward pass.
        loss: Loss of one group. `torch.func.vmap` must be able to batch it, unless its attribute ``batches`` is false.
        records: Approximate number of records of a pass; default: 32 on CPUs, whose cache is small, and elsewhere 128 to 512,
            with fewer records for larger images.
        group_size: S, the expected number of records in a group; default: 16.
        check_every: Number of steps after which the check is repeated, briefly, at the weights of that step; ``None``: never.
        if_unlike: Action if groups that share a pass change each other's result on this device, or a layer has dropout. With
            ``warn``, the engine warns, and takes one group at a time. With ``raise``, it raises an error. With ``try``, it
            makes a brief check only, and raises an error if that fails. With ``go on``, it makes no check. ``try`` and
            ``go on`` are only for records that are not private.

    Raises:
        UserError: If a layer normalises the records of a pass together, or the model has no trainable parameter.
    """

    name = "layerwise"

    def __init__(
        self,
        model: nn.Module,
        precision: Precision = "fp32",
        loss: GroupLoss = group_loss,
        records: int | None = None,
        group_size: int | None = None,
        if_unlike: IfUnlike = "warn",
        check_every: int | None = None,
    ) -> None:
        refuse_mixing(model, "bounding.engine = 'layerwise'")
        super().__init__(model)
        self._loss, self._if_unlike = LossOfViews(model, precision, loss), if_unlike
        self._group_size, self._records = group_size, records
        self._threads = Threads(model, self._vector)
        self._loop = LoopEngine(model, precision, loss)
        self._sums: dict[int, Tensor] = {}  # sum of one pass, by thread
        self._takes_turns = self._at_places = False
        self._vocabulary, self._checks = 3, 0
        self._check_every, self._checked_at = check_every, 0
        self._repeated: dict[tuple[Any, ...], Add | None] = {}

    def add_clipped(
        self, batch: GroupBatch, clip_norm: float | Clip, into: Tensor, losses: list[Tensor] | None = None
    ) -> Tensor:
        """Adds every group's clipped gradient to a flat vector, see `Engine.add_clipped`.

        Raises:
            Unsupported: If the rules do not cover the model: for example, a trainable parameter is used twice, or takes no part
                in the loss; or if a kernel of Triton fails.
            DependsOnOthers: If groups that share a pass change each other's result, or a layer has dropout, and `if_unlike` is
                ``raise`` or ``try``.
            RuntimeError: If passes cannot be recorded as a CUDA graph, and `if_unlike` is ``raise``.
        """
        try:
            return self._add_passes(batch, clip_norm, into, losses)
        except Exception as error:
            if not type(error).__module__.startswith("triton."):
                raise
            said = str(error).strip().rpartition("\n")[2]  # a compiler prints the source above its message
            raise Unsupported(f"a kernel of Triton failed on this GPU: {said} [layer-kernel]") from error

    def _add_passes(self, batch: GroupBatch, clip_norm: float | Clip, into: Tensor, losses: list[Tensor] | None) -> Tensor:
        if not self._checks:
            pixels = math.prod(batch.views["image"].shape[1:]) // 3
            self._padding = Padding.on(self._vector.device.type, self._group_size, self._records, pixels)
            self._checked_at = batch.step
        if not self._checks or (self._check_every and batch.step - self._checked_at >= self._check_every):
            self._check(batch.views)
            self._checked_at = batch.step
        if self._takes_turns:
            return self._loop.add_clipped(batch, clip_norm, into, losses)
        passes, alone = self._padding.passes(batch, self._threads.count), self._padding.alone(batch)
        repeated = self._repeated_for(batch.views, into.dtype)
        norms = shared_out((repeated or self._add)(batch, passes, clip_norm, into), losses)
        if not alone:
            return norms
        further: list[Tensor] | None = None if losses is None else []
        norms = torch.cat([norms, self._loop.add_clipped(batch.only(alone), clip_norm, into, further)])
        if losses is not None and further:
            losses[-1] = torch.cat([losses[-1], further[0]], dim=1)
        return norms

    @property
    def repeats(self) -> bool:
        """Whether passes are replays of a recorded pass."""
        return any(repeated is not None for repeated in self._repeated.values())

    def _check(self, views: Views) -> None:
        """Checks that groups may share passes, for this model and device, at the current weights."""
        with parametrize.cached(), self._loss.kernels():
            if not self._checks:
                check_rows(self._loss, views, self._pass_inputs().sources, self._vector.device)
                self._watch(views)
            if self._if_unlike != "go on" and not self._takes_turns:
                try:
                    brief, run_pass = self._if_unlike == "try", self._pass_function(self._pass_inputs())
                    asked = self._padding, self._loss.model, self._vocabulary, brief, self._checks
                    self._threads.first(lambda: require_batch_invariance(run_pass, views, *asked))
                except DependsOnOthers as refusal:
                    if self._if_unlike != "warn":
                        raise
                    warnings.warn(refusal.sentence, Notice, stacklevel=2)
                    self._takes_turns = True
        self._checks += 1

    def _watch(self, views: Views) -> None:
        """Runs a pass over two blank records, to learn two facts for later passes.

        The facts are whether the bits of a product depend on a record's position, and how many distinct tokens there are.
        """
        blank = {name: view.new_ones(2, *view.shape[1:]) for name, view in views.items()}
        watched = Watched(blank.get("text"))
        with watched, torch.random.fork_rng(devices=[self._vector.device] if self._vector.device.type == "cuda" else []):
            self._pass_function(self._pass_inputs())(blank, [2])
        self._at_places = watched.by_place and self._vector.device.type == "cpu"
        self._vocabulary = watched.vocabulary

    def _repeated_for(self, views: Views, sum_type: torch.dtype) -> Add | None:
        """Returns the function that replays a recorded pass over views of these shapes; ``None`` if no pass can be replayed.

        One pass is recorded for each combination of shapes and dtypes of views and sum. It is recorded again if the model's
        weights have moved to other memory.
        """
        recording = recording_on(self._vector.device)
        if recording is None or self._if_unlike == "go on":
            return None
        weights = (*self._loss.model.parameters(), *self._loss.model.buffers())
        shapes = ((name, view.shape[1:], view.dtype) for name, view in views.items())
        kind = (sum_type, *shapes, *(part.data_ptr() for part in weights))
        if kind not in self._repeated:
            if len(self._repeated) == _MOST_RECORDED:
                self._repeated.clear()
            self._repeated[kind] = self._recorded(recording, views, sum_type)
        return self._repeated[kind]

    def _recorded(self, recording: Callable[[], Recording], views: Views, sum_type: torch.dtype) -> Add | None:
        """Records a pass, and returns the function that replays it; ``None`` if this fails or the replay gives other bits.

        If the result is ``None``, the function has warned, unless `if_unlike` is ``try``.

        Raises:
            RuntimeError: If a pass cannot be recorded or replayed, and `if_unlike` is ``raise``.
        """
        try:
            kind = torch.float32 if sum_type.is_floating_point else torch.int32
            summed = functools.partial(self._at_once, kind)
            repeated = RepeatedPass(recording(), summed, views, self._padding, self._exact).add
            unlike = first_unlike(repeated, self._add, views, self._padding, self._vector.zeros().to(sum_type))
        except RuntimeError as error:
            if self._if_unlike == "raise":
                raise
            unlike = str(error).partition("\n")[0]
        if unlike is None:
            return repeated
        if self._if_unlike != "try":
            text = "they run without this recording, with the same result, but slower"
            warnings.warn(f"recording training passes as a CUDA graph failed ({unlike}): {text}.", Notice, stacklevel=4)
        return None

    def _add(self, batch: GroupBatch, passes: list[list[int]], clip_norm: float | Clip, into: Tensor) -> Tensor:
        """Adds the clipped gradients of the groups in `passes`; returns ``(3, G)``: norms, losses and numbers of records."""
        with parametrize.cached(), self._loss.kernels():
            inputs, threads = self._pass_inputs(), self._threads.count
            return self._threads.add(
                lambda k, part: self._of_thread(k, batch, passes[k::threads], clip_norm, part, inputs), into
            )

    def _at_once(self, kind: torch.dtype, views: Views, offsets: Tensor, clip: Clip) -> Summed:
        """Makes a pass at the current weights, with a sum of dtype `kind`. `offsets` is not copied to the host."""
        padding = self._padding
        places = padding.typical, padding.groups, padding.slots, padding.room
        grouping = Grouping([], self._vector.device, self._exact, *places, offsets=offsets)
        with parametrize.cached(), self._loss.kernels():
            with torch.enable_grad():
                terms, losses = terms_of(self._loss, views, grouping, self._pass_inputs())
            total = torch.zeros(self._vector.numel, dtype=kind, device=self._vector.device)
            norms = add_up(terms, clip, grouping, self._vector.split(total))
        return Summed(norms, losses, total)

    def _pass_inputs(self) -> PassInputs:
        """Returns the inputs of passes at the current weights."""
        return PassInputs.of(self._loss, self._vector, self._sources(), self._at_places)

    def _sources(self) -> list[tuple[Tensor, Source]]:
        """Lists the tensors that layers read: trainable parameters and adapted weights.

        An adapted weight is a frozen weight plus its adapter; the two are added up once for all passes.
        """
        number = {id(parameter): index for index, parameter in enumerate(self._vector.parameters)}
        sources: list[tuple[Tensor, Source]] = [(p, Target(i)) for i, p in enumerate(self._vector.parameters)]
        for name, update in adapted(self._loss.model):
            path, _, leaf = name.rpartition(".")
            module = self._loss.model.get_submodule(path)
            adapters = getattr(module.parametrizations, leaf)
            if adapters.original.requires_grad or len(adapters) > 1:
                continue  # the recorder then sees how the weight is computed, and rejects the weight
            with torch.no_grad():
                merged = getattr(module, leaf)
            up, down = (Target(number[id(factor)]) for factor in (update.up, update.down))
            sources.append((merged, AdaptedWeight(update, up, down)))
        return sources

    @torch.no_grad()
    def _of_thread(
        self, thread: int, batch: GroupBatch, passes: list[list[int]], clip_norm: float | Clip, into: Tensor, inputs: PassInputs
    ) -> Tensor:
        """Adds the clipped gradients of one thread's g groups; returns ``(3, g)``: norms, losses and numbers of records."""
        kind = precise_type(self._vector.parameters[0])
        if not into.is_floating_point():
            kind = foreach.WHOLE[kind]
        one_pass = self._sums.get(thread)  # half the bytes of a step's sum; new memory would cost as much as a pass
        if one_pass is None or one_pass.dtype != kind:
            one_pass = self._sums[thread] = torch.empty_like(into, dtype=kind)
        parts = self._vector.split(one_pass)
        figures = [into.new_zeros(3, 0, dtype=self._exact)]
        run_pass = self._pass_function(inputs)
        for groups in passes:
            one_pass.zero_()
            shared = batch.only(groups)
            result = run_pass(shared.views, shared.sizes)
            norms = add_up(result.terms, clip_norm, result.grouping, parts)
            records = result.grouping.offsets.diff()[: len(groups)]
            figures.append(torch.stack([norms, result.losses.to(norms), records.to(norms)]))
            foreach.add_([into], [one_pass])
        return torch.cat(figures, dim=1)

    def _pass_function(self, inputs: PassInputs) -> PassFunction:
        """Returns the function that makes one pass over groups, filled up to a public number of records."""
        padding, device = self._padding, self._vector.device

        def run_pass(views: Views, sizes: list[int], total: int | None = None) -> PassResult:
            records = total or padding.total(sum(sizes))
            missing = records - sum(sizes)
            full = {name: torch.cat([view, view.new_zeros(missing, *view.shape[1:])]) for name, view in views.items()}
            grouping = Grouping(sizes, device, self._exact, padding.typical, padding.groups, padding.slots, records)
            with torch.enable_grad():
                return PassResult(*terms_of(self._loss, full, grouping, inputs), grouping)

        return run_pass
