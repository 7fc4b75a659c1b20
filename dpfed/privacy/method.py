"""Defines how a bounding method is declared: by one object, in a file of its own, that states the method's sensitivity.

``bounding.method = NAME`` loads ``NAME.py`` of `dpfed.bounding.methods`, or of `dpfed.baselines.methods` if that package is
installed, and uses the file's `METHOD`; the file's docstring proves the sensitivity. Other packages announce their methods by
entry points (`dpfed.discovery`). Plan, sampler, accounting, privacy card and the table of methods take everything about a
method from that object. The functions of this object take `MechanismParameters` or `MethodInputs`, not a plan. The engines that
compute the sum are not part of the object (`dpfed.bounding.engines.by_method`).
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
    """The settings of a run from which a method's public numbers follow. None of them depends on a record's content.

    Attributes:
        method: Name of the method, for error messages.
        options: Options of the method, checked (`Method.checked`).
        loss: Name of the loss of a group.
        loss_options: Options of that loss.
        precision: Numerical precision of the forward pass.
        reads_text: Whether images are contrasted with captions.
        public_records: Number of public records that join every group, M, if the method uses public records.
        aligned: Whether the towers' features are already aligned with each other before training.
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
    """Returns the Poisson mechanism: every record is drawn independently, and each step releases one sum.

    Args:
        given: Public numbers of the mechanism; rate, steps and noise multiplier are used.
        shares: Fractions of 1 / sigma^2, one for each step, see `Mechanism`.
    """
    sampler = PoissonSampler(given.rate, block_length(given.rate, given.steps))
    return Mechanism(sampler, given.noise_multiplier, shares=shares)


@dataclass(frozen=True)
class Method:
    """A way to bound one record's influence on a step.

    Attributes:
        name: Name of the method in configurations, and of its file.
        title: Title for readers, such as ``group clipping (DP-GCL)``.
        claim: Sentence or two for the privacy card and the table of methods: what is clipped, and how far one record can move
            the sum.
        sensitivity: Largest L2 change of the sum between neighbouring data sets. They differ in one record (or unit), which is
            added or removed, or replaced, as the sampler's `relation` states.
        sound: Whether the claim holds. A method that is not sound is for comparison, and its runs get no privacy card.
        whole_batch: Whether all drawn records form one group. If neither this nor `singleton_groups` holds, they are assigned
            to groups of about S records.
        capped: Whether a whole batch has at most `max_batch` records, because the sensitivity, or memory, grows with the
            batch.
        spread: Bound on the L2 norm of the sum, divided by the sensitivity; a larger norm has at most negligible probability.
            K / 2 by default, for K groups.
        radius: Largest L2 norm R of one contribution to the sum, such as a clipped gradient, in steps of the sum's grid
            (`dpfed.privacy.sum_grid`). 2^24 by default, so that the sum of up to 64 clipped gradients fits into int32.
        divisor: Public number by which a noisy sum is divided; the number of groups K by default.
        gradient_share: Fraction of a step's privacy, measured as 1 / sigma^2, that is spent on the sum; the rest is spent on
            statistics that the engine releases. The noise of these statistics has the multiplier ``sigma / sqrt(1 - share)``,
            where share is this fraction.
        options: Class that declares the method's keys in the section ``[bounding.options]``. For a method that supports only
            certain losses, a mapping from the name of each of these losses to such a class; all other losses are refused.
        public_parameters: Function that returns the method's own public numbers, which become a part of the plan. It refuses
            settings for which the method has no bound.
        singleton_groups: Whether every drawn record (or unit) forms a group of its own.
        public_records: Whether public records, which the section ``[public]`` names, join each group. The loss of a group then
            has terms for its private records only.
        closed_form: Whether towers are frozen and every record takes part in each step. The step's noisy sum, divided by the
            divisor, is then not a gradient: it is written into the weights unchanged.
        picks_engine: Whether ``bounding.engine`` selects one of the engines of `dpfed.bounding.engines`; otherwise the method
            has an engine of its own.
        units: Whether the sensitivity also holds for units of several records.
        private: Whether the method clips and adds noise at all.
        proven_in_floats: Whether the sensitivity is proven for the sum as computed in floating point, which discrete noise
            requires (docs/guarantee.md, Noise to the last bit).
        supports_metrics: Whether the method clips gradients of groups, and the engine can report each group's norm and loss. A
            group's statistics then change, appear and vanish with its gradient. Private progress and the clipping rules other
            than ``fixed`` require this.
        accountants: Accountants that can compute the mechanism's epsilon. The first is used if the configured accountant is not
            among them.
        mechanism: Function that returns the sampler and the releases of a step; see `poisson`.
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
        """Returns the usual number of records that the loss contrasts with each other.

        This is the size of a group, with its public records, or of the batch.

        Args:
            group_size: Expected number of records of a group, S, if records are assigned to groups.
            batch: Expected batch size, B.
            public: Number of public records of a group, M, if the method uses public records.
        """
        if self.public_records:
            return 1 + public
        return batch if self.whole_batch else group_size

    def checked(self, loss: str, given: Mapping[str, Any]) -> Any:
        """Checks the values of ``[bounding.options]``, and returns them as an object of the class that `options` declares.

        Args:
            loss: Name of the loss of a group.
            given: Values of ``[bounding.options]``.

        Raises:
            UserError: If the method does not support the loss, has no such option, or does not allow a value.
        """
        kind, chosen = self.options, f"bounding.method = '{self.name}'"
        if isinstance(kind, Mapping):
            if loss not in kind:
                raise UserError(
                    f"{chosen} is made for objective.name = {' or '.join(map(repr, kind))}, got '{loss}': choose one of "
                    "these losses, or another method, such as 'group'. [setting-method-loss]"
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
    """Returns the method with this name, one of `METHODS`.

    A method of another package counts as not sound, whatever the method declares. dpfed has not reviewed its proof, so its runs
    claim no guarantee.

    Raises:
        KeyError: If no method has this name.
        UserError: If the method of another package cannot be used.
    """
    if name not in FOREIGN_METHODS:
        return importlib.import_module(_FILES[name]).METHOD
    part = FOREIGN_METHODS[name]
    method = part.load()
    if name in _FILES or not isinstance(method, Method) or method.name != name:
        problem = "dpfed has a method of that name" if name in _FILES else "expected a Method of that name"
        raise UserError(
            f"the method {part.said} cannot be used: {problem}. Correct the package, or uninstall it. [method-foreign]"
        )
    if not method.picks_engine:
        engine_of(part)
    return dataclasses.replace(method, sound=False)


def engine_of(part: discovery.Announced) -> Callable[[Any], Any]:
    """Returns the function that builds the engine of another package's method: ``make_engine`` in the method's module.

    Args:
        part: Method that the other package announces, see `dpfed.bounding.engines.by_method`.

    Raises:
        UserError: If the module has no such function.
    """
    make = getattr(importlib.import_module(part.module), "make_engine", None)
    if not callable(make):
        raise UserError(
            f"the method {part.said} has no engine: set picks_engine = True in its Method, or add make_engine(inputs), which "
            "returns an Engine, to the method's module. [method-engine]"
        )
    return make
