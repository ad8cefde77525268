"""The places where attention can be heard: see `listener`."""

from jumok.lens.taps.heard import Heard
from jumok.lens.taps.interface import transformers_functions
from jumok.lens.taps.listener import Listener

__all__ = ["Heard", "Listener", "transformers_functions"]
