"""Contains the rules that compute the gradients of groups, one file for each kind of layer.

A rule is called in place of a torch function that reads trainable parameters. It computes the function's result, and records
how each group's gradient of these parameters is computed. For a call that it does not cover, a rule returns ``NotImplemented``.
The recorder then calls the function itself, and raises `Unsupported` if the result contains new floating-point numbers.

The norm of a group's gradient is computed in one of two ways. In the first, the gradient itself is computed and kept in memory
(materialised), and the weighted sum over the groups uses it again. In the second, for groups of few rows, the norm follows from
the Gram matrices of the layer's inputs and output gradients. The gradient is then computed later, group by group, for the
weighted sum.

Opacus has functions for the gradients of single samples (grad samplers) for the same kinds of layer, and a group could be
folded into their time axis. dpfed does not use them, for three reasons. They materialise every gradient, and unfold the inputs
of convolutions. They belong to modules, so a parameter that a function reads without a module has no rule. And training would
depend on Opacus.
"""
