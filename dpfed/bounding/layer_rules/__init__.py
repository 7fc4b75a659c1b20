"""How each kind of layer gives the gradients of groups; one file for each.

Two ways lead to a group's norm. Its gradient is materialised; then the weighted sum over the groups costs no more. Or,
where a group has few rows, the norm follows from the Gram matrices of inputs and output gradients, and the weighted sum is an
ordinary gradient computation for all groups together, on output gradients that were scaled.

Opacus has per-sample gradient samplers for the same kinds of layer, which a group folded into the time axis could go through.
They are not used: they write every gradient down, convolutions by unfolding; they hang on modules, so a parameter outside one
has no rule; and training would not run without opacus.
"""
