"""Files of starting weights: only tensors are taken from them, and one sentence says what is wrong with one."""

from __future__ import annotations

import contextlib
import pickle
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from dpfed.errors import UserError
from dpfed.files.reading import open_regular


@contextlib.contextmanager
def reading_weights(path: Path, what: str) -> Iterator[None]:
    """While a library reads a file of weights: refuses what is none before it is opened, and words what goes wrong.

    Args:
        path: of the file.
        what: the weights should be of, such as ``an open_clip model``.

    Raises:
        UserError: for another kind of file, one that would run code, or weights that do not fit.
    """
    with fitting_weights(path, what):
        with open_regular(path) as file:
            start = file.read(2)
        # Written by torch: a zip archive, or a pickle.
        if path.suffix not in (".safetensors", ".npz", ".npy") and not start.startswith((b"PK", b"\x80")):
            raise UserError(
                f"{path} is not a file of weights: expected .safetensors, or what torch.save writes. [weights-type]"
            )
        yield


@contextlib.contextmanager
def fitting_weights(path: Path | str, what: str) -> Iterator[None]:
    """While a library puts weights into a model: words what goes wrong.

    Args:
        path: of the file or the repository.
        what: the weights should be of.

    Raises:
        UserError: for a file that would run code, or weights that do not fit.
    """
    try:
        yield
    except pickle.UnpicklingError as error:
        raise _unsafe(path) from error
    except (OSError, SafetensorError, EOFError) as error:
        raise UserError(f"cannot read the weights in {path}: {words(error)}. [weights-unreadable]") from error
    except RuntimeError as error:
        if isinstance(error.__cause__, pickle.UnpicklingError):  # as timm words it
            raise _unsafe(path) from error
        raise UserError(f"the weights in {path} do not fit the architecture: {_misfit(error)}. [weights-misfit]") from error
    except (KeyError, ValueError, TypeError, AttributeError, StopIteration) as error:
        raise UserError(f"{path} does not hold the weights of {what}: expected tensors by name. [weights-no-names]") from error


def _unsafe(path: Path | str) -> UserError:
    return UserError(f"{path} holds more than tensors, and loading it could run code: save it as safetensors. [weights-unsafe]")


def _misfit(error: Exception) -> str:
    """The first thing that `load_state_dict` complains about."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return textwrap.shorten(lines[min(1, len(lines) - 1)] if lines else "", 200, placeholder=" ...").rstrip(".")


def words(error: Exception) -> str:
    """An exception of a library in one line."""
    return textwrap.shorten(str(error) or type(error).__name__, 200, placeholder=" ...").rstrip(".")


def not_fetched(error: Exception) -> str:
    """Why a library could not fetch what has a name on the Hugging Face hub; the user's own setting comes first."""
    if "huggingface_hub" in sys.modules:
        from huggingface_hub import constants, errors

        cause: BaseException | None = error if constants.HF_HUB_OFFLINE else None
        while cause is not None:
            if isinstance(cause, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
                return "HF_HUB_OFFLINE is set, and the cache of the Hugging Face hub lacks it"
            cause = cause.__cause__ or cause.__context__
    return words(error)
