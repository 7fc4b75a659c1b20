"""Rules that compute the gradients of groups, one file for each kind of layer.

A group's norm is computed in one of two ways. Either its gradient is materialised; the weighted sum over the groups then reuses
it. Or, where a group has few rows, the norm follows from the Gram matrices of inputs and output gradients, and the gradient is
computed again, group by group, for the weighted sum.

Opacus has per-sample gradient samplers for the same kinds of layer, and a group could be folded into their time axis. They are
not used: they materialise every gradient, those of convolutions by unfolding; they belong to modules, so a parameter outside a
module has no rule; and training would then depend on Opacus.
"""
