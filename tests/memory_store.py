"""What a record store answers about its splits, for stores in memory that know `split`, `keys` and their length."""

import numpy as np

from dpfed.data.store.records import RecordStore


class Splits:
    smallest = RecordStore.smallest

    def count(self, name):
        return len(self.split(name))

    def within(self, name):
        return lambda first, end: np.isin(np.arange(first, end), self.split(name))
