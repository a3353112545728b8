"""What a patch attaches to: kinds of seam, fingerprints, verifying and applying."""

from specpack.seams.applying import apply
from specpack.seams.attach import NotAttached, original
from specpack.seams.fingerprint import fingerprint
from specpack.seams.kinds import (
    ABSENT,
    CONTINUE,
    Addition,
    Around,
    Attribute,
    Guard,
    NewModule,
    Patch,
    Replace,
    Seam,
)

__all__ = [
    "ABSENT",
    "CONTINUE",
    "Addition",
    "Around",
    "Attribute",
    "Guard",
    "NewModule",
    "NotAttached",
    "Patch",
    "Replace",
    "Seam",
    "apply",
    "fingerprint",
    "original",
]
