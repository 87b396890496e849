"""How long each token of a recording lasts: one module for each way of finding out.

Each gives frames per token (L,) that sum to the frames of the mel. A token is a phone, or the boundary that follows
a word and owns the pause there (`phonate.text.inventory`).
"""
