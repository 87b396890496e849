"""HTML pages: reports, voice profiles, and the plots in them."""
