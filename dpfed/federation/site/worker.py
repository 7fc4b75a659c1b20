"""A site's side of the protocol: answers the coordinator's requests, each only if the terms and the ledger allow it."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.errors import UserError
from dpfed.federation.secure.masks import BadOffer
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.ledger import Ledger, Release
from dpfed.privacy.noise import KeyedNoise
from dpfed.privacy.randomness import Randomness
from dpfed.protocol.answers import Reason
from dpfed.protocol.identity import Identity
from dpfed.protocol.messages import Content, OtherVersion, Packet, Untrusted, sign, verify
from dpfed.protocol.terms import Terms
from dpfed.protocol.vectors import decoded, encoded, grid_of, protected
from dpfed.training.worker import Worker

if TYPE_CHECKING:
    from dpfed.federation.secure.masking import Masking, Opened


_SIGNATURE_BYTES = 64


class Refusal(Exception):
    """Raised for a request that the site refuses.

    Args:
        reason: Reason that the coordinator learns.
        about: Number of the site that seems to have caused the refusal; default: ``None``.
    """

    def __init__(self, reason: Reason, about: int | None = None) -> None:
        super().__init__(reason)
        self.reason, self.about = reason, about


_THRESHOLDS = 1e-9, 1e12  # least and largest norm that a coordinator may send as a threshold


class SiteWorker:
    """Holds one institution's records, and releases only what the terms allow.

    Args:
        terms: Terms that the site joined.
        identity: Site's long-term cryptographic keys, which determine its number in the terms.
        worker: Worker that computes the clipped sums of the site's own records, on `model`.
        model: Model that takes over the parameters of each step.
        ledger: Site's own ledger. Each step is charged before a record is drawn for it.
        randomness: Secret randomness, from which the site's part of the noise comes.
        log: Function that receives each refusal and each failure in full; these messages stay at the site.

    Raises:
        UserError: If the terms name no site with these keys.
    """

    def __init__(
        self,
        terms: Terms,
        identity: Identity,
        worker: Worker,
        model: nn.Module,
        ledger: Ledger,
        randomness: Randomness,
        log: Callable[[str], None],
    ) -> None:
        self._terms = terms
        self._identity = identity
        self._worker = worker
        self._model = model
        self._ledger, self._randomness, self._log = ledger, randomness, log
        self._number = terms.number_of(identity.signing_key)
        self._vector = TrainableVector(model)
        self._frozen, self._last = frozen_digest(model), ledger.last_step
        self._session = secrets.token_hex(8)  # tells the coordinator that this worker was restarted
        self._grid = grid_of(terms)
        self._masking: Masking | None = None
        if terms.trust == "secure":
            from dpfed.federation.secure.masking import Masking  # only secure sums need its imports

            self._masking = Masking(self._number, identity, terms.sites, terms.trust_model, terms.fingerprint.encode())
        self._answers = {"hello": self._hello, "step": self._step, "confirm": self._confirm, "reveal": self._reveal}

    @property
    def longest(self) -> int:
        """Length in bytes of the longest vector that a request may have: that of the model's parameters."""
        return 4 * self._vector.numel

    @property
    def is_over(self) -> bool:
        """Whether the last step of the plan was charged, so that this site answers no further step."""
        return self._last + 1 >= self._terms.privacy_plan.steps

    def answer(self, packet: Packet) -> Packet:
        """Returns the answer to one message, or a refusal if the site may not do what the message asks. Never raises."""
        try:
            header = verify(packet, self._terms.coordinator, self._terms.fingerprint)
            answer = self._answers.get(str(header.get("kind")))
            if answer is None:
                raise Refusal(Reason.UNKNOWN)
            return answer(header, packet.vector)
        except Refusal as refusal:
            reason, about = refusal.reason, refusal.about
        except OtherVersion as error:
            self._log(f"the coordinator's dpfed speaks {error}: install the same release on both sides")
            reason, about = Reason.VERSION, None
        except Untrusted:
            reason, about = Reason.UNTRUSTED, None
        except UserError as error:  # its text may name records
            self._log(f"error: {error}")
            reason, about = Reason.FAILED, None
        except Exception as error:  # the text of any error stays here
            self._log(f"error: {type(error).__name__}: {error}")
            reason, about = Reason.FAILED, None
        self._log(f"refused: {reason}")
        return self._signed("refusal", reason=reason, about=about)

    def _hello(self, header: dict[str, Any], vector: Content) -> Packet:
        offer = self._offer(_number(header.get("step")))
        return self._signed(
            "hello", nonce=str(header.get("nonce")), frozen=self._frozen, last=self._last, session=self._session, **offer
        )

    def _step(self, header: dict[str, Any], vector: Content) -> Packet:
        step, parameters = self._allowed(_number(header.get("step"))), self._parameters(vector)
        opened, threshold = self._opened(step, header), self._threshold_in(header)
        # Charged before a record is drawn: even an answer that then fails reveals something about the records that it needed.
        self._ledger.charge(Release(step, hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()[:32]))
        self._last = step
        self._vector.assign(parameters.to(self._vector.device))
        if threshold is not None:
            self._worker.threshold = threshold
        total = self._worker.bounded_sum(step)
        content = self._protected(step, total, opened)
        return self._signed("sum", content, step=step, **self._roster(step), **self._offer(step + 1))

    def _confirm(self, header: dict[str, Any], vector: Content) -> Packet:
        masking, step, arrived = self._asked_about(header)
        try:
            return self._signed("vote", step=step, vote=_text(masking.confirm(step, arrived)))
        except UserError as error:
            raise self._refusal(error) from error

    def _reveal(self, header: dict[str, Any], vector: Content) -> Packet:
        masking, step, arrived = self._asked_about(header)
        rosters, votes = _signatures(arrived, header.get("rosters")), _signatures(header.get("voters"), header.get("votes"))
        try:
            return self._signed("shares", step=step, shares=_text(masking.reveal(step, arrived, rosters, votes)))
        except UserError as error:
            raise self._refusal(error) from error

    def _asked_about(self, header: dict[str, Any]) -> tuple[Masking, int, list[int]]:
        """Returns the masking, the step, and the numbers of the sites that the server names as arrived in the step.

        Raises:
            Refusal: If nothing is masked, the site has not taken this step or has taken a later one, or the request is
                malformed.
        """
        if self._masking is None:
            raise Refusal(Reason.UNKNOWN)
        step = _number(header.get("step"))
        if step != self._last:
            raise Refusal(Reason.OVER)
        return self._masking, step, _numbers(header.get("arrived"))

    def _allowed(self, step: int) -> int:
        """Returns the step, if the site may take it now.

        Raises:
            Refusal: If the step is over, beyond the plan, or beyond the site's budget.
        """
        if not self._last < step < self._terms.privacy_plan.steps:
            raise Refusal(Reason.OVER)
        try:
            self._ledger.check_budget(step)
        except UserError as error:
            raise Refusal(Reason.BUDGET) from error
        return step

    def _parameters(self, vector: Content) -> Tensor:
        """Returns the parameters that the coordinator sent, if they fit the model.

        Raises:
            Refusal: If the parameters do not fit, or are not finite.
        """
        try:
            parameters = decoded(vector, self._terms.broadcast)
        except ValueError as error:
            raise Refusal(Reason.SHAPE) from error
        if parameters.numel() != self._vector.numel or not torch.isfinite(parameters).all():
            raise Refusal(Reason.SHAPE)
        return parameters

    def _threshold_in(self, header: dict[str, Any]) -> float | None:
        """Returns the norm above which a step counts gradients; ``None`` if the terms release no statistics of norms.

        Whatever the threshold, a group's contribution to the sum is bounded.

        Raises:
            Refusal: If the threshold is missing or out of range.
        """
        if self._terms.privacy_plan.statistics is None:
            return None
        threshold = header.get("threshold")
        if not isinstance(threshold, float) or not _THRESHOLDS[0] <= threshold <= _THRESHOLDS[1]:
            raise Refusal(Reason.MALFORMED)
        return threshold

    def _opened(self, step: int, header: dict[str, Any]) -> Opened | None:
        """Opens the other sites' offers, with which this site masks a step; returns ``None`` if nothing is masked.

        Raises:
            Refusal: If the step cannot be masked with these offers. This is known before anything is charged.
        """
        if self._masking is None:
            return None
        roster = _numbers(header.get("roster"))
        others, offers = [number for number in sorted(roster) if number != self._number], _decoded(header.get("offers"))
        length, rest = divmod(len(offers), max(1, len(others)))
        if rest or self._number not in roster:
            raise Refusal(Reason.MALFORMED)
        envelopes = {number: offers[at * length : (at + 1) * length] for at, number in enumerate(others)}
        try:
            return self._masking.open(step, envelopes)
        except UserError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: UserError) -> Refusal:
        """Logs an error of the masking, and returns the refusal that the coordinator gets for it."""
        from dpfed.federation.secure.masking import NotOffered

        self._log(str(error))  # the text holds numbers of sites and steps only
        if isinstance(error, BadOffer):
            return Refusal(Reason.OFFER, error.sender)
        return Refusal(Reason.NO_OFFER if isinstance(error, NotOffered) else Reason.VIEW)

    def _protected(self, step: int, total: BoundedSum, opened: Opened | None) -> bytes:
        """Returns the sum as it leaves the site: with the site's part of the noise, and masked if that was agreed on."""
        noise, values = self._terms.trust_model.noise_of_site(self._terms.privacy_plan), total.values
        if noise is None:
            return encoded(values)
        if total.unit != noise.unit:  # the noise would be too small, or drown the sum
            raise ValueError(f"a grid step of the sum is {total.unit:g}, and one of the noise {noise.unit:g}: they must match")
        share = KeyedNoise(noise, self._randomness, "share", self._terms.fingerprint, self._number)
        leaving = protected(values.cpu(), step, share, self._grid)
        if self._masking is not None and opened is not None:
            leaving = self._masking.mask(opened, leaving)
        return leaving.astype(leaving.dtype.newbyteorder("<"), copy=False).tobytes()

    def _roster(self, step: int) -> dict[str, str]:
        """Returns this site's signature of the roster, as a header field; the others check it before they reveal a share."""
        if self._masking is None or not self._terms.drops:
            return {}
        return {"roster": _text(self._masking.signed_roster(step))}

    def _offer(self, step: int) -> dict[str, Any]:
        """Returns this site's offer for a step, as a header field; empty if sums are not masked or the step is not ahead."""
        if self._masking is None or not self._last < step < self._terms.privacy_plan.steps:
            return {}
        offer = self._masking.offer(step)
        envelopes = b"".join(envelope for _, envelope in sorted(offer.envelopes.items()))
        return {"offer": {"step": step, "public": _text(offer.public), "envelopes": _text(envelopes)}}

    def _signed(self, kind: str, vector: bytes = b"", **fields: Any) -> Packet:
        return sign(self._identity, self._terms.fingerprint, kind, vector, site=self._number, **fields)


def frozen_digest(model: nn.Module) -> str:
    """Returns a hash of all weights that never change: they must be the same at all sites, and are never sent."""
    sent, digest = set(TrainableVector(model).names), hashlib.blake2b(digest_size=16)
    for name, value in sorted(model.state_dict().items()):
        if name not in sent:
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _number(value: Any) -> int:
    if type(value) is not int:
        raise Refusal(Reason.MALFORMED)
    return value


def _numbers(value: Any) -> list[int]:
    if not isinstance(value, list) or len(set(map(_number, value))) != len(value):
        raise Refusal(Reason.MALFORMED)
    return value


def _signatures(sites: Any, content: Any) -> dict[int, bytes]:
    """Splits one base64 string into the signatures of the given sites, by site number."""
    numbers, signatures = _numbers(sites), _decoded(content)
    if len(signatures) != _SIGNATURE_BYTES * len(numbers):
        raise Refusal(Reason.MALFORMED)
    return {number: signatures[at * _SIGNATURE_BYTES : (at + 1) * _SIGNATURE_BYTES] for at, number in enumerate(numbers)}


def _decoded(value: Any) -> bytes:
    if not isinstance(value, str):
        raise Refusal(Reason.MALFORMED)
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:
        raise Refusal(Reason.MALFORMED) from error


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
