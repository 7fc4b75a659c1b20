"""The pictures that importers' tests lay out."""

from tests.data.conftest import pictures as pictures
