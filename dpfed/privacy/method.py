"""What a method of bounding is: one object that states its sensitivity, in a file of its own.

``bounding.method = NAME`` loads ``NAME.py`` of `dpfed.bounding.methods`, or of `dpfed.baselines.methods` where that room is
installed, and takes its `METHOD`; that file's docstring proves the sensitivity. Plan, sampler, accounting, card and table take
all that they say about a method from that object. Its arithmetic takes `MechanismParameters` and no plan. What computes the
sum stands apart (`dpfed.bounding.engines.by_method`).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from dpfed import discovery
from dpfed.errors import UserError
from dpfed.privacy.accounting import Accountant
from dpfed.privacy.geometric_skips import block_length
from dpfed.privacy.mechanism import Mechanism
from dpfed.privacy.parameters import MechanismParameters
from dpfed.privacy.samplers import PoissonSampler
from dpfed.schema.section import NoOptions, Section
from dpfed.schema.wording import problem

_FILES = discovery.methods()
FOREIGN_METHODS: dict[str, discovery.Announced] = discovery.announced("methods")
METHODS = tuple(sorted(_FILES.keys() | FOREIGN_METHODS.keys()))


@dataclass(frozen=True)
class MethodInputs:
    """What a method's public numbers are made from: choices of a run, and nothing of its records.

    Attributes:
        method: its name, for refusals.
        options: the method's own, checked (`Method.checked`).
        loss: the name of the loss of a group.
        loss_options: of that loss.
        precision: of the forward pass.
        reads_text: whether images are contrasted with captions.
        public_records: M, public records that join every group, where the method has any.
        aligned: whether towers give features that are alike before anything is learnt.
    """

    method: str
    options: Any
    loss: str
    loss_options: Any
    precision: str
    reads_text: bool
    public_records: int
    aligned: bool = False


def poisson(given: MechanismParameters, shares: tuple[float, ...] = ()) -> Mechanism:
    """Every record is drawn independently, and one sum is released in each step, at the noise multiplier.

    Args:
        given: rate, steps and noise multiplier.
        shares: see `Mechanism`.
    """
    sampler = PoissonSampler(given.rate, block_length(given.rate, given.steps))
    return Mechanism(sampler, given.noise_multiplier, shares=shares)


@dataclass(frozen=True)
class Method:
    """A way to bound one record's influence on a step.

    Attributes:
        name: in configurations; the name of its file.
        title: for people, such as ``group clipping (DP-GCL)``.
        claim: a sentence or two for card and table: what is clipped, and what one record can move.
        sensitivity: largest L2 change of the sum when one record is added or removed.
        sound: whether the claim holds. A method that is not sound is for comparison, and its runs get no privacy card.
        whole_batch: all drawn records make one group; otherwise they draw groups of S.
        capped: a whole batch has at most `max_batch` records, because the sensitivity, or memory, grows with it.
        spread: the longest sum there can be, over the sensitivity. K / 2 by default.
        radius: R, the longest part of a sum in steps of its grid, at most (`dpfed.privacy.sum_grid`). 2^24 by default, so that
            the clipped gradients of a pass have a sum that fits into int32.
        divisor: what a noisy sum is divided by, public; K by default.
        gradient_share: of a step's privacy, measured as 1 / sigma^2, what the noise on the sum gets; the rest pays for
            statistics that the engine releases. Their noise has multiplier ``sigma / sqrt(1 - share)``.
        options: its keys in the section ``[bounding.options]``. A method that is made for certain losses has them by the
            name of the loss, and refuses all others.
        public_parameters: the method's public numbers, a part of the plan. Refuses choices that the method cannot bound.
        singleton_groups: every drawn record (or unit) makes a group of its own.
        public_records: public records join each of these groups; the section ``[public]`` says which. The loss of a group is
            then the private records' own terms.
        closed_form: towers are frozen, and every record takes part in each step. The step's noisy sum is not a gradient: it is
            written into the weights as it is.
        picks_engine: ``bounding.engine`` chooses among `dpfed.bounding.engines`; otherwise the method has one of its own.
        units: whether the sensitivity also holds for units of several records.
        private: whether there is clipping and noise at all.
        proven_in_floats: whether the sensitivity is proven for the sum as it is computed, which discrete noise builds upon
            (docs/guarantee.md, Noise to the last bit).
        supports_metrics: whether what is clipped are the gradients of groups, each of which the engine can give a norm and a
            loss of; a group is then there before and after, or comes and goes, as its gradient does. Progress is released of
            such alone, and other rules of clipping are for them.
        accountants: that can account for its mechanism; the first is the default where a configuration's cannot.
        mechanism: who takes part in a step, and what it releases; see `poisson`.
    """

    name: str
    title: str
    claim: str
    sensitivity: Callable[[MechanismParameters], float]
    sound: bool = True
    whole_batch: bool = False
    capped: bool = False
    spread: Callable[[MechanismParameters], float] = lambda given: given.groups / 2
    radius: Callable[[MechanismParameters], float] = lambda given: 2.0**24
    divisor: Callable[[MechanismParameters], int] = lambda given: given.groups
    gradient_share: Callable[[MechanismParameters], float] = lambda given: 1.0
    options: type[Section] | Mapping[str, type[Section]] = NoOptions
    public_parameters: Callable[[MethodInputs], dict[str, Any]] = lambda inputs: {}
    singleton_groups: bool = False
    public_records: bool = False
    closed_form: bool = False
    picks_engine: bool = False
    units: bool = False
    private: bool = True
    proven_in_floats: bool = False
    supports_metrics: bool = False
    accountants: tuple[Accountant, ...] = ("pld", "rdp")
    mechanism: Callable[[MechanismParameters], Mechanism] = poisson

    def contrasted(self, group_size: int, batch: int, public: int) -> int:
        """How many records are contrasted with each other, as a rule: those of a group, public ones included, or the batch.

        Args:
            group_size: S, where groups are drawn.
            batch: B.
            public: M, public records of a group, where the method has any.
        """
        if self.public_records:
            return 1 + public
        return batch if self.whole_batch else group_size

    def checked(self, loss: str, given: Mapping[str, Any]) -> Any:
        """The method's own options: of the kind that it declares.

        Args:
            loss: the name of the loss of a group.
            given: as ``[bounding.options]`` has them.

        Raises:
            UserError: for a loss that the method is not made for, an option that it does not have, or a value that it cannot
                have.
        """
        kind, chosen = self.options, f"bounding.method = '{self.name}'"
        if isinstance(kind, Mapping):
            if loss not in kind:
                raise UserError(
                    f"{chosen} is made for objective.name = {' or '.join(map(repr, kind))}, got '{loss}': choose such a loss, "
                    "or another method, such as 'group'. [setting-method-loss]"
                )
            kind, chosen = kind[loss], f"{chosen} with objective.name = '{loss}'"
        if given and not kind.model_fields:
            raise UserError(
                f"{chosen} has no options, got {', '.join(given)}: leave [bounding.options] out. [setting-no-options]"
            )
        try:
            return kind(**given)
        except ValidationError as error:
            raise UserError(f"[bounding.options] of {chosen}: {problem(error, kind)}. [setting-options]") from None


@functools.cache
def method_named(name: str) -> Method:
    """The method of a name that is in `METHODS`.

    That of another package is not sound to us, whatever it says: nobody here has read its proof, so its runs claim nothing.

    Raises:
        UserError: for one of another package that cannot be used.
    """
    if name not in FOREIGN_METHODS:
        return importlib.import_module(_FILES[name]).METHOD
    part = FOREIGN_METHODS[name]
    found = part.load()
    if name in _FILES or not isinstance(found, Method) or found.name != name:
        problem = "dpfed has a method of that name" if name in _FILES else "expected a Method of that name"
        raise UserError(
            f"the method {part.said} cannot be used: {problem}. Correct the package, or uninstall it. [method-foreign]"
        )
    if not found.picks_engine:
        engine_of(part)
    return dataclasses.replace(found, sound=False)


def engine_of(part: discovery.Announced) -> Callable[[Any], Any]:
    """What makes the engine of another package's method: ``make_engine`` beside it (`dpfed.bounding.engines.by_method`).

    Args:
        part: the method.

    Raises:
        UserError: if there is none.
    """
    make = getattr(importlib.import_module(part.module), "make_engine", None)
    if not callable(make):
        raise UserError(
            f"the method {part.said} has no engine: set picks_engine, or write make_engine(inputs) beside it, which returns an "
            "Engine. [method-engine]"
        )
    return make
