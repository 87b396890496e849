"""What is changed in Arabic texts before a model reads them."""

from __future__ import annotations

from typing import Literal

from phonate.config.settings import Settings


class ArabicText(Settings):
    """Changes to Arabic text, each on its own. Other scripts are left as they are."""

    remove_diacritics: bool = False
    """Remove the marks of short vowels, doubling and case (tashkeel). They say how a word is pronounced: remove them if
    some texts have them and some have not."""
    remove_tatweel: bool = True
    """Remove the stroke that only stretches a word (ـ)."""
    unify_alef: bool = False
    """Write أ إ آ ٱ as ا."""
    unify_yeh: bool = False
    """Write ى as ي."""
    unify_teh_marbuta: bool = False
    """Write ة as ه."""
    digits: Literal["keep", "western", "words"] = "keep"
    """Arabic-Indic and Persian digits (٣, ۳): western writes them as 3; words spells out whole numbers of up to twelve
    digits, these and 3 as well, in texts with Arabic letters (needs the package num2words)."""
    punctuation: Literal["keep", "western"] = "keep"
    """western writes ، ؛ ؟ as , ; ?"""
