"""Reads files of weights: takes only tensors from them, and turns the errors of libraries into one-sentence messages."""

from __future__ import annotations

import contextlib
import pickle
import struct
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from dpfed.errors import UserError
from dpfed.files.reading import open_regular


@contextlib.contextmanager
def reading_weights(path: Path, what: str, numpy: bool = False) -> Iterator[None]:
    """Wraps a library's reading of weights: first refuses other kinds of files, and turns the library's errors into messages.

    Args:
        path: Path of the file.
        what: Description of the model to which the weights should belong, such as ``an open_clip model``.
        numpy: Whether the library also reads numpy's files.

    Raises:
        UserError: For a file that is not one of weights, an unreadable or damaged file, a file that would run code, or weights
            that do not fit.
    """
    with fitting_weights(path, what):
        with open_regular(path) as file:
            start = file.read(2)
        suffixes = [".safetensors", *([".npz", ".npy"] if numpy else [])]
        # torch.save writes a zip archive, or a pickle.
        if path.suffix not in suffixes and not start.startswith((b"PK", b"\x80")):
            raise UserError(
                f"{path} is not a file of weights: expected {', '.join(suffixes)}, or a file that torch.save wrote. "
                "[weights-type]"
            )
        yield


@contextlib.contextmanager
def fitting_weights(path: Path | str, what: str) -> Iterator[None]:
    """Wraps a library's loading of weights into a model, and turns the library's errors into messages.

    Args:
        path: Path of the file, or name of the repository.
        what: Description of the model to which the weights should belong, such as ``an open_clip model``.

    Raises:
        UserError: For an unreadable or damaged file, a file that would run code, or weights that do not fit.
    """
    try:
        yield
    except pickle.UnpicklingError as error:
        raise _unsafe(path) from error
    except (OSError, SafetensorError, EOFError, IndexError, struct.error, zipfile.BadZipFile) as error:
        raise UserError(f"cannot read the weights in {path}: {words(error)}. [weights-unreadable]") from error
    except RuntimeError as error:
        if isinstance(error.__cause__, pickle.UnpicklingError):  # timm raises an UnpicklingError in this form
            raise _unsafe(path) from error
        if "PytorchStreamReader" in str(error):  # torch's reader of zip archives
            raise UserError(f"{path} is damaged or was cut off: copy it again. [weights-damaged]") from error
        raise UserError(f"the weights in {path} do not fit the architecture: {_misfit(error)}. [weights-misfit]") from error
    except (KeyError, ValueError, TypeError, AttributeError, StopIteration) as error:
        raise UserError(f"{path} does not hold the weights of {what}: expected tensors by name. [weights-no-names]") from error


def _unsafe(path: Path | str) -> UserError:
    return UserError(f"{path} holds more than tensors, and loading it could run code: save it as safetensors. [weights-unsafe]")


def _misfit(error: Exception) -> str:
    """Returns the first mismatch that the error of `load_state_dict` names."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return _short(lines[min(1, len(lines) - 1)] if lines else "")


def words(error: Exception) -> str:
    """Returns the message of a library's exception in one line, at most 200 characters."""
    return _short(str(error) or type(error).__name__)


def _short(text: str) -> str:
    """Shortens a text to one line of at most 200 characters, without a full stop."""
    return textwrap.shorten(text.rstrip(" .,"), 200, placeholder=" (cut)")


def not_fetched(error: Exception) -> str:
    """Returns the reason why a library could not fetch a model from the Hugging Face hub, as part of a message.

    If the user has set HF_HUB_OFFLINE, and the cache has no copy of the model, this setting is the reason.
    """
    if "huggingface_hub" in sys.modules:
        from huggingface_hub import constants, errors

        cause: BaseException | None = error if constants.HF_HUB_OFFLINE else None
        while cause is not None:
            if isinstance(cause, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
                return "HF_HUB_OFFLINE is set, and the cache of the Hugging Face hub lacks these files"
            cause = cause.__cause__ or cause.__context__
    return words(error)
