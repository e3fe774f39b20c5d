"""The chat models that the example graphs can run on, chosen by an environment variable."""

from chat_models.choice import calls_tools, chosen_model
from chat_models.errors import ModelUnavailableError

__all__ = ["ModelUnavailableError", "calls_tools", "chosen_model"]
