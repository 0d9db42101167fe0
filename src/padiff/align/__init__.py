"""Two models become pairs: modules before they run, calls while they run. What has no partner is listed."""

from padiff.align.calls import CallPairing as CallPairing
from padiff.align.likeness import PASSIVE as PASSIVE
from padiff.align.modules import pair_modules as pair_modules
from padiff.align.slots import pair_slots as pair_slots
