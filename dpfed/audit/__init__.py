"""Attacks on a finished run, by the owner of its records: what do its weights give away?"""

RECORDS = 2000  # of either side, as a default: 1,000 are attacked, which resolves a false positive rate of 0.1%
