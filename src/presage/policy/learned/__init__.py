"""Policies that were learned: a small network of arrays looks at what can be decided, and its best
choice is taken.

`net` is the network and its bundle, `levels` how much service jobs had, `order` who starts next,
`serve` makes policies of bundles. The environments of `presage.gym` drive the same choices from
outside. Nothing here trains, and no bundle runs code.
"""
