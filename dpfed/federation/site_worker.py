"""A site's side of the protocol: answers the coordinator's questions, each only if the terms and the ledger allow it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dpfed.errors import UserError
from dpfed.federation.identity import Identity
from dpfed.federation.messages import Untrusted, seal, unseal
from dpfed.federation.packets import Packet
from dpfed.federation.terms import Terms
from dpfed.federation.vectors import decoded, encoded, grid_of
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.ledger import Ledger, Release
from dpfed.randomness import Randomness
from dpfed.training.releases import digest_of
from dpfed.training.worker import Worker

if TYPE_CHECKING:
    from dpfed.federation.masking import Masking


class Refusal(Exception):
    """Why a question is not answered: a fixed phrase, for it leaves the site."""


class SiteWorker:
    """Holds one institution's records, and lets nothing out but what the terms allow.

    Args:
        terms: that the site joined.
        identity: the site's keys; its place in the terms follows from them.
        worker: computes the clipped sums of the site's own records, on `model`.
        model: takes over the parameters of each step.
        ledger: the site's own; written before each answer leaves.
        randomness: the site's secret.
        log: told each refusal and each failure in full: stays at the site.
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
        self._terms, self._identity, self._worker, self._model = terms, identity, worker, model
        self._ledger, self._randomness, self._log = ledger, randomness, log
        self._number = terms.number_of(identity.signing_key)
        self._vector = TrainableVector(model)
        self._last = ledger.last_step
        self._masking: Masking | None = None
        if terms.trust == "secure":
            from dpfed.federation.masking import Masking  # what it imports, only secure sums need

            peers = {number: bytes.fromhex(site.exchange_key) for number, site in enumerate(terms.sites)}
            del peers[self._number]
            self._masking = Masking(self._number, identity.exchange, peers, terms.tolerated, terms.fingerprint.encode())
        self._answers = {"hello": self._hello, "step": self._step, "reveal": self._reveal}

    def answer(self, packet: Packet) -> Packet:
        """The answer to one message; a refusal, if it may not be answered. Raises nothing."""
        try:
            header = unseal(packet, self._terms.coordinator, self._terms.fingerprint)
            answer = self._answers.get(header["kind"])
            if answer is None:
                raise Refusal("an unknown question")
            return answer(header, packet.vector)
        except Refusal as refusal:
            reason = str(refusal)
        except Untrusted as error:
            reason = f"a message {error}"
        except UserError as error:  # it may name records
            self._log(f"error: {error}")
            reason = "the site cannot go on; its operator knows more"
        except Exception as error:  # whatever it is, its text stays here
            self._log(f"error: {type(error).__name__}: {error}")
            reason = "the site failed; its operator knows more"
        self._log(f"refused: {reason}")
        return self._seal("refusal", reason=reason)

    def _hello(self, header: dict[str, Any], vector: bytes) -> Packet:
        return self._seal(
            "hello", nonce=str(header["nonce"]), frozen=frozen_digest(self._model), **self._offer(_step_of(header))
        )

    def _step(self, header: dict[str, Any], vector: bytes) -> Packet:
        step = self._allowed(_step_of(header))
        parameters = decoded(vector, self._terms.broadcast)
        if parameters.numel() != self._vector.numel:
            raise Refusal("parameters of another shape")
        if not torch.isfinite(parameters).all():
            raise Refusal("parameters that are not finite")
        self._vector.assign(parameters.to(self._vector.device))
        total = self._worker.bounded_sum(step)
        content = self._protected(step, total.values, header)
        self._ledger.charge(Release(step, hashlib.sha256(content).hexdigest()[:32]))
        self._last = step
        return self._seal("sum", content, step=step, **self._offer(step + 1))

    def _reveal(self, header: dict[str, Any], vector: bytes) -> Packet:
        if self._masking is None:
            raise Refusal("an unknown question")
        step, arrived = _step_of(header), {int(number) for number in header["arrived"]}
        if step != self._last:
            raise Refusal("a step that is over")
        shares = self._masking.reveal(step, arrived)
        return self._seal("shares", step=step, shares=_text(shares))

    def _allowed(self, step: int) -> int:
        """The step, if the site may take it now.

        Raises:
            Refusal: for an old step, or beyond the site's budget.
        """
        if not self._last < step < self._terms.privacy_plan.steps:
            raise Refusal("a step that is over, or beyond the plan")
        try:
            self._ledger.check_budget(step)
        except UserError as error:
            raise Refusal("the site's budget is spent") from error
        return step

    def _protected(self, step: int, values: Tensor, header: dict[str, Any]) -> bytes:
        """The sum as it leaves the site: with the site's part of the noise, and masked where that was agreed."""
        plan, trust = self._terms.privacy_plan, self._terms.trust_model
        if std := trust.share_std(plan):
            context = f"{self._terms.fingerprint}/{digest_of(values)}"
            self._randomness.add_normal_(values, std, "share", step, self._number, context)
        if self._masking is None:
            return encoded(values)
        grid = grid_of(self._terms)
        offers = {int(number): base64.b64decode(offer) for number, offer in header["offers"].items()}
        return self._masking.mask(step, grid.encode(values.cpu().numpy()), offers).astype("<u4").tobytes()

    def _offer(self, step: int) -> dict[str, Any]:
        """What the other sites need to mask a step together with this one."""
        if self._masking is None or not self._last < step < self._terms.privacy_plan.steps:
            return {}
        offer = self._masking.offer(step)
        public = base64.b64encode(offer.public).decode()
        return {"offer": {"step": step, "public": public, "for": _text(offer.ciphertexts)}}

    def _seal(self, kind: str, vector: bytes = b"", **fields: Any) -> Packet:
        return seal(self._identity, self._terms.fingerprint, kind, vector, site=self._number, **fields)


def frozen_digest(model: nn.Module) -> str:
    """A hash of all that is not trained: it must be the same at all sites, and never travels."""
    trained, digest = set(TrainableVector(model).names), hashlib.blake2b(digest_size=16)
    for name, value in sorted(model.state_dict().items()):
        if name not in trained:
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _step_of(header: dict[str, Any]) -> int:
    step = header["step"]
    if type(step) is not int:
        raise Refusal("a step that is no number")
    return step


def _text(content: dict[int, bytes]) -> dict[str, str]:
    return {str(number): base64.b64encode(value).decode() for number, value in content.items()}
