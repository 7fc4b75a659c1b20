"""Mechanisms that are broken on purpose, each by one change to the real code."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from dpfed.bounding import statistics
from dpfed.bounding.clipping import Clip
from dpfed.bounding.methods import group
from dpfed.data.sampling import StepDraw, draw_step
from dpfed.privacy import noise, samplers
from dpfed.privacy.method import method_named
from dpfed.privacy.noise import GaussianNoise, KeyedNoise
from dpfed.privacy.randomness import Randomness
from dpfed.privacy.samplers import PoissonSampler
from dpfed.training import worker as worker_room
from dpfed.training.coordinator import Coordinator
from dpfed.training.worker import Worker


def half_the_noise(patch):
    real = GaussianNoise.steps
    halved = lambda self, *rest: real(GaussianNoise(self.std / 2, self.unit), *rest)  # noqa: E731
    patch.setattr(GaussianNoise, "steps", halved)


def half_the_discrete_noise(patch):
    real = noise.discrete_gaussian
    patch.setattr(noise, "discrete_gaussian", lambda coins, count, bits: real(coins, count, bits - 1))


def sensitivity_c(patch):
    patch.setattr(group, "METHOD", dataclasses.replace(group.METHOD, sensitivity=lambda given: given.clip_norm))
    method_named.cache_clear()


def shuffled_chunks(patch):
    def chunks(plan, randomness, step, indices, keys, groups, *rest):
        drawn = draw_step(plan, randomness, step, indices, keys, groups, *rest).indices
        order = np.random.default_rng(step).permutation(len(drawn))
        offsets = np.minimum(np.arange(0, len(drawn) + plan.bounding.group_size, plan.bounding.group_size), len(drawn))
        return StepDraw(np.sort(drawn)[order], offsets)

    patch.setattr(worker_room, "draw_step", chunks)


def draws_by_position(patch):
    real = Randomness.per_record

    def per_record(self, purpose, step, keys, columns):
        return real(self, purpose, step, np.arange(len(keys), dtype=np.uint64), columns)

    patch.setattr(Randomness, "per_record", per_record)


def accounts_for_half_the_rate(patch):
    patch.setattr(PoissonSampler, "poisson_steps", lambda self, steps: (self.rate / 2, steps))


def draws_at_twice_the_rate(patch):
    real = samplers.GeometricSkips
    patch.setattr(samplers, "GeometricSkips", lambda rate, *rest: real(min(2 * rate, 1 - 1e-9), *rest))


def fixed_noise(patch):
    real = Randomness.normal_steps

    def normal_steps(self, values, scale, purpose, step, rank=0, context=""):
        return real(self, values, scale, purpose, 0, rank, "")

    patch.setattr(Randomness, "normal_steps", normal_steps)


def noise_in_every_other_step(patch):
    real = KeyedNoise.steps
    patch.setattr(KeyedNoise, "steps", lambda self, values, step: values if step % 2 else real(self, values, step))


def clean_optimizer_state(patch):
    real = Coordinator.apply

    def apply(self, step, total):
        clean = total.numbers().float() / self._plan.divisor
        before = [self.optimizer.state[p].get("exp_avg", 0 * p).clone() for p in self._vector.parameters]
        summary = real(self, step, total)
        for parameter, old, part in zip(self._vector.parameters, before, self._vector.split(clean), strict=True):
            self.optimizer.state[parameter]["exp_avg"] = 0.9 * old + 0.1 * part
        return summary

    patch.setattr(Coordinator, "apply", apply)


def weights_from_the_clean_sum(patch):
    real = Coordinator.release

    def release(self, step, total):
        real(self, step, total)
        return total.numbers().float()

    patch.setattr(Coordinator, "release", release)


def clip_after_summing(patch, bound=lambda plan: plan.groups * plan.bounding.clip_norm):
    real = Worker.bounded_sum

    def bounded_sum(self, step):
        self.engine.adds_whole_parts = False  # what is not clipped may be too long for 32 bits
        total = real(self, step)
        factor = min(1.0, bound(self._plan) / max(total.numbers().norm().item(), 1e-30))
        return dataclasses.replace(total, values=(total.values * factor).long())

    patch.setattr(Worker, "bounded_sum", bounded_sum)
    patch.setattr(Worker, "_clip", property(lambda self: Clip(math.inf, 1 / self._grid.unit)))


def sum_clipped_to_c(patch):
    """Not broken: one clipped vector becomes another one, which is 2C."""
    clip_after_summing(patch, lambda plan: plan.bounding.clip_norm * 0.999)


def figures_without_a_range(patch):
    patch.setattr(statistics, "_within", lambda figure: figure)
