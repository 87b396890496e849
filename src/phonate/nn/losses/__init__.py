"""Loss functions, one file each; the file's name is the loss's name in recipes."""
