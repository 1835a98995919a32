"""Should I disaggregate? Colocated engines, every static split and roles that follow the traffic, side by side.

`advise` runs them in simulation on a user's own profiles, traffic and targets until it knows what each can hold, how
certain that is, how many engines each needs and what would change the answer, or until its time is over.
"""

from narwhal.advise.advising import SECONDS, AdviseAsk, AdviseError, advise
from narwhal.advise.document import Advice
from narwhal.advise.text import advice_text

__all__ = ["SECONDS", "Advice", "AdviseAsk", "AdviseError", "advice_text", "advise"]
