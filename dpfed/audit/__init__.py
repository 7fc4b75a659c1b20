"""Audits: membership attacks on a finished run's weights, and attacks on the privacy claim of a mechanism."""

RECORDS = 2000  # default number of members, and of non-members; half are attacked: 1000 resolve a false positive rate of 0.1%
