// The phones of American English.

import {arpabet} from "phonate/rules";

const vowels = new Set(arpabet.VOWELS);

// Whether `phone` is a vowel, with or without its digit.
export const isVowel = phone => vowels.has(phone.replace(/[012]+$/, ""));
