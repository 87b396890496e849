"""English: from written text to ARPAbet phones."""
